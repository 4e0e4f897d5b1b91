"""A whole alignment: texts or treebanks in, scores with their references out. `focus align` calls the same function."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from focus_core.analysis.linguistics.alignment import KMEANS, REPEATS, UNTRAINED, Alignment, align
from focus_core.analysis.linguistics.conllu import read_conllu
from focus_core.analysis.linguistics.explain import MIN_BLOCKS, Explained, explain_layers
from focus_core.analysis.linguistics.features import sentence_blocks
from focus_core.analysis.linguistics.group_profile import published_table
from focus_core.analysis.linguistics.passages import passages as cut
from focus_core.analysis.linguistics.sample import WordSample, word_sample
from focus_core.analysis.linguistics.tagging import tag_text, with_entities
from focus_core.analysis.linguistics.verdicts import explained_verdicts, verdicts
from focus_core.analysis.linguistics.words import SUBWORD_RULES, TAG_SETS, TaggedText
from focus_core.analysis.reading import untouched
from focus_core.analysis.states import UNTRAINED_SEEDS, StateGroups, state_groups
from focus_core.analysis.trace import Trace, analyze, key_memberships
from focus_core.errors import FocusError
from focus_core.locks import claims_file
from focus_core.models import LoadedModel
from focus_core.progress import Progress, silent
from focus_core.results import record_run, stamp, text_records
from focus_core.routing.attach import attached
from focus_core.routing.config import FocusConfig
from focus_core.routing.model import FocusModel
from focus_core.text import find_texts, read_text

SCHEMA = "focus-align/1"
TREEBANK = ".conllu"
STATES = ("untouched", "routed")
_LIBRARIES = ("spacy", "scikit-learn", "scipy")
_MIN_DOCUMENTS = 4


@dataclass(frozen=True)
class AlignSettings:
    """How texts are cut, routed and scored.

    Attributes:
        length: tokens of a passage; passages are the documents of texts.
        passages: evenly spaced passages of each text; 0 for all.
        documents: evenly spaced documents of each treebank; 0 for all.
        rule: subword that stands for a word, one of `SUBWORD_RULES`.
        states: hidden states that are routed: "untouched" (the model's own) or "routed" (hard routing at this k).
        top_k: k of every layer; the routers' own, or their plan, when None.
        head: key/value head to analyze, where each has a router.
        repeats: permutations and bootstrap resamples.
        seed: of everything random.
    """

    length: int = 512
    passages: int = 32
    documents: int = 0
    rule: str = "last"
    states: str = "untouched"
    top_k: int | None = None
    head: int = 0
    repeats: int = REPEATS
    seed: int = 0

    def __post_init__(self) -> None:
        for name, choices in (("rule", SUBWORD_RULES), ("states", STATES)):
            if getattr(self, name) not in choices:
                raise FocusError(f"{name} is {getattr(self, name)!r}: choose one of {', '.join(choices)}.")


@dataclass(frozen=True)
class AlignedTexts:
    """What explains the groups of words, and their agreement with parts of speech.

    Attributes:
        explained: shares that known properties of words explain, of every layer; none for a few sentences.
        alignments: scores of every layer, by tag set.
        sample: the words that were scored, with their tags and groups.
        record: everything as plain values, with model, settings, texts and answers in sentences (`verdicts`).
    """

    explained: tuple[Explained, ...]
    alignments: dict[str, Alignment]
    sample: WordSample
    record: dict[str, Any]


@claims_file()
def align_texts(
    texts: str | Path | Iterable[str | Path],
    *,
    model: str | Path | LoadedModel = "default",
    routers: str | Path | FocusModel | None = None,
    untrained: bool = False,
    settings: AlignSettings | None = None,
    out: str | Path | None = None,
    progress: Progress = silent,
) -> AlignedTexts:
    """Tag texts, route them, and find what explains the groups of every layer, and how well they agree with tags.

    Args:
        texts: UTF-8 text files and folders, tagged by spaCy; or CoNLL-U files with gold tags.
        model: a loaded model, or a name that `load_model` accepts.
        routers: a folder, a shipped name, or a `FocusModel` of the loaded model; None for those shipped for the model.
        untrained: use untrained routers instead.
        settings: see `AlignSettings`.
        out: also write the record to this file.
        progress: told of every document and layer.

    Raises:
        FocusError: texts, routers or settings that cannot be used.
        OSError: the file cannot be written.
    """
    settings = settings or AlignSettings()
    paths = find_texts(texts)
    with attached(model, routers, untrained=untrained, progress=progress) as (loaded, focus):
        tagged = _tagged(paths, loaded.tokenizer, settings, progress)
        with focus.routing("hard", **_own_k(focus.config, settings)):
            config = focus.current.config
        sample, grouped = _sample(focus, loaded.tokenizer, tagged, config, settings, progress)
        described = {
            "model": {"name": loaded.info.name, "revision": loaded.info.revision},
            "settings": {
                "config": config,
                "routers": focus.name,
                "head": config.head_of(settings.head),
                "trained": focus.trained,
                "states": settings.states,
                "rule": settings.rule,
                "length": settings.length,
                "passages": settings.passages,
                "treebank_documents": settings.documents,
                "repeats": settings.repeats,
                "seed": settings.seed,
                "untrained_seeds": UNTRAINED_SEEDS,
            },
        }
    explained = _explained(sample, progress)
    found = _scored(sample, grouped, settings, progress)
    report = {
        "schema": SCHEMA,
        **described,
        "data": text_records(paths),
        "tagger": sample.tagger,
        "libraries": {name: version(name) for name in _LIBRARIES},
        "sample": {
            "words": sample.num_words,
            "units": len(sample),
            "coverage": sample.coverage,
            "exact_borders": sample.exact,
            "documents": sample.num_documents,
        },
        "explained": {
            "verdicts": explained_verdicts(explained) if explained else [],
            "layers": [each.to_dict() for each in explained],
        },
        "verdicts": {name: verdicts(each) for name, each in found.items()},
        "published": _published(sample, settings),
        "alignment": {name: each.to_dict() for name, each in found.items()},
    }
    record = stamp(report) if out is None else record_run(Path(out), report)
    return AlignedTexts(explained, found, sample, record)


def _sample(
    focus: FocusModel,
    tokenizer: Any,
    tagged: list[TaggedText],
    config: FocusConfig,
    settings: AlignSettings,
    progress: Progress,
) -> tuple[WordSample, StateGroups]:
    """The words with their groups, and the groupings of the same hidden states that they are compared with."""
    routing = untouched(config) if settings.states == "untouched" else _own_k(focus.config, settings)
    traces = []
    with focus.routing("hard", **routing):
        for index, text in enumerate(tagged):
            progress("Routing documents", 0.3 * index / len(tagged))
            traces.append(_at(analyze(focus, tokenizer, text.text, head=settings.head), config))
        sample = word_sample(traces, tagged, rule=settings.rule, special_ids=tokenizer.all_special_ids)
        chosen = [(trace.input_ids, sample.tokens[sample.documents == index]) for index, trace in enumerate(traces)]
        grouped = state_groups(
            focus, chosen, seed=settings.seed, progress=lambda text, share: progress(text, 0.3 + 0.4 * share)
        )
    return sample, grouped


def _explained(sample: WordSample, progress: Progress) -> tuple[Explained, ...]:
    """What explains the groups of every layer; nothing for a few sentences."""
    if sentence_blocks(sample).max() + 1 < MIN_BLOCKS:
        return ()
    return explain_layers(sample, progress=lambda text, share: progress(text, 0.7 + 0.1 * share))


def _scored(
    sample: WordSample, grouped: StateGroups, settings: AlignSettings, progress: Progress
) -> dict[str, Alignment]:
    """The scores of every tag set."""
    found: dict[str, Alignment] = {}
    for number, tag_set in enumerate(TAG_SETS):
        found[tag_set] = align(
            sample,
            tag_set=tag_set,
            more={UNTRAINED: grouped.untrained, KMEANS: grouped.kmeans},
            repeats=settings.repeats,
            seed=settings.seed,
            progress=lambda text, share, start=0.8 + 0.1 * number: progress(text, start + 0.1 * share),
        )
    return found


def _published(sample: WordSample, settings: AlignSettings) -> list[dict[str, Any]] | None:
    """The purest group for each published category; None where documents are too few for two halves."""
    if sample.num_documents < _MIN_DOCUMENTS:
        return None
    return published_table(sample, repeats=settings.repeats, seed=settings.seed)


def _tagged(paths: list[Path], tokenizer: Any, settings: AlignSettings, progress: Progress) -> list[TaggedText]:
    """Documents with words: those of treebanks, or passages of texts."""
    kinds = {path.suffix.lower() == TREEBANK for path in paths}
    if len(kinds) > 1:
        raise FocusError("Gold tags and predicted ones do not mix: give either treebanks (.conllu) or texts.")
    if kinds == {True}:
        return [text for path in paths for text in _evenly(read_conllu(path), settings.documents)]
    found = []
    for index, path in enumerate(paths):
        progress("Tagging words", 0.0)
        pieces = cut(tokenizer, read_text(path), settings.length, settings.passages)
        found += [with_entities(tag_text(piece)) for piece in pieces]
        progress("Tagging words", (index + 1) / len(paths))
    return found


def _evenly(texts: list[TaggedText], count: int) -> list[TaggedText]:
    """Some of the texts, evenly spaced; all of them for a count of 0."""
    if not count or count >= len(texts):
        return texts
    return [texts[index * len(texts) // count] for index in range(count)]


def _own_k(config: FocusConfig, settings: AlignSettings) -> dict[str, Any]:
    """The change of settings that gives hard groups at one k of all layers; none for a budget in pairs."""
    if settings.top_k is None and config.read_share is not None:
        return {}
    return {"top_k": config.top_k if settings.top_k is None else settings.top_k}


def _at(trace: Trace, config: FocusConfig) -> Trace:
    """The trace with hard groups under other settings, from the same assignments."""
    return dataclasses.replace(trace, membership=key_memberships(trace.assignment, config), config=config)
