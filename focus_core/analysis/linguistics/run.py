"""A whole alignment: texts or treebanks in, scores with their references out. `focus align` calls the same function."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from focus_core.analysis.linguistics.alignment import KMEANS, UNTRAINED, Alignment, align
from focus_core.analysis.linguistics.corpus.documents import (
    TREEBANK,
    AlignSettings,
    documents_key,
    find_documents,
    route_documents,
)
from focus_core.analysis.linguistics.corpus.sample import WordSample, joined
from focus_core.analysis.linguistics.corpus.words import TAG_SETS
from focus_core.analysis.linguistics.explain import MIN_BLOCKS, Explained, explain_layers
from focus_core.analysis.linguistics.features import sentence_blocks
from focus_core.analysis.linguistics.group_profile import published_table
from focus_core.analysis.linguistics.verdicts import explained_verdicts, verdicts
from focus_core.analysis.states import UNTRAINED_SEEDS, StateGroups, group_states
from focus_core.cluster import Cluster
from focus_core.io.remote import claims_record
from focus_core.io.unfinished import unfinished
from focus_core.models import LoadedModel, check_positions
from focus_core.progress import Progress, silent
from focus_core.report.corpora.corpus import scan
from focus_core.results import check_replaceable, record_run, stamp
from focus_core.routing.attach import attached
from focus_core.routing.model import FocusModel
from focus_core.text import TEXT_SUFFIXES

__all__ = ["AlignSettings", "AlignedTexts", "align_texts"]

SCHEMA = "focus-align/1"
_LIBRARIES = ("spacy", "scikit-learn", "scipy")
_MIN_DOCUMENTS = 4


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


@claims_record()
def align_texts(
    texts: str | Path | Iterable[str | Path],
    *,
    model: str | Path | LoadedModel = "default",
    routers: str | Path | FocusModel | None = None,
    untrained: bool = False,
    settings: AlignSettings | None = None,
    cluster: Cluster | None = None,
    out: str | Path | None = None,
    progress: Progress = silent,
) -> AlignedTexts:
    """Tag texts, route them, and find what explains the groups of every layer, and how well they agree with tags.

    A second call with the same arguments resumes an interrupted one: what was routed is not routed again. Memory does
    not grow with the texts beyond that of `AlignSettings.tokens`, apart from the longest text.

    Args:
        texts: UTF-8 text files and folders, tagged by spaCy; or CoNLL-U files with gold tags; or addresses of a store.
            Those that cannot be read are listed in the record.
        model: a loaded model, or a name that `load_model` accepts.
        routers: a folder, a shipped name, or a `FocusModel` of the loaded model; None for those shipped for the model.
        untrained: use untrained routers instead.
        settings: see `AlignSettings`.
        cluster: workers of Ray that tag and route the texts, with the model by name; None for this process.
        out: also write the record to this file, or to this address of a store.
        progress: told of every document and layer.

    Raises:
        FocusError: texts, routers or settings that cannot be used.
        OSError: the file cannot be written.
    """
    settings = settings or AlignSettings()
    corpus = scan(texts, (*TEXT_SUFFIXES, TREEBANK))
    with ExitStack() as held:
        with attached(model, routers, untrained=untrained, progress=progress) as (loaded, focus):
            check_positions(loaded, settings.length)
            corpus, drawn = find_documents(corpus, loaded.tokenizer, settings)
            documents = drawn.documents
            origin = {"data": corpus.records(), "failed": [each._asdict() for each in corpus.unread]}
            config = settings.grouping(focus)
            with focus.routing("hard", **settings.routing(focus)):
                states_config = focus.current.config
            described = {
                "schema": SCHEMA,
                "model": loaded.info.identity,
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
                    "tokens": settings.tokens,
                    "repeats": settings.repeats,
                    "seed": settings.seed,
                    "untrained_seeds": UNTRAINED_SEEDS,
                },
                "drawn": {"documents": len(documents), "of": drawn.count},
                **origin,
            }
            if out is not None:
                check_replaceable(out, described)
            folder = held.enter_context(unfinished(documents_key(focus, loaded.tokenizer, documents, settings)))
            routed = route_documents(
                focus,
                loaded.tokenizer,
                documents,
                settings,
                folder=folder,
                cluster=cluster,
                model=model,
                progress=lambda text, share: progress(text, 0.5 * share),
            )
        sample = joined([each.words for each in routed], settings.rule)
        grouped = group_states(
            [each.states for each in routed],
            states_config,
            seed=settings.seed,
            progress=lambda text, share: progress(text, 0.5 + 0.2 * share),
        )
        explained = _explained(sample, progress)
        found = _scored(sample, grouped, settings, progress)
        report = {
            **described,
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
        record = stamp(report) if out is None else record_run(out, report)
    return AlignedTexts(explained, found, sample, record)


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
