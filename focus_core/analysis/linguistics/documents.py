"""The documents of an alignment: what they are, and their routing, here or on the workers of a cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, NamedTuple

from torch import Tensor

from focus_core.analysis.linguistics.alignment import REPEATS
from focus_core.analysis.linguistics.conllu import treebank
from focus_core.analysis.linguistics.passages import passages as cut
from focus_core.analysis.linguistics.sample import DocumentWords, document_words
from focus_core.analysis.linguistics.tagging import tag_text, with_entities
from focus_core.analysis.linguistics.words import SUBWORD_RULES, TaggedText
from focus_core.analysis.reading import untouched
from focus_core.analysis.states import keep_states
from focus_core.analysis.trace import analyze, key_memberships
from focus_core.cluster import Cluster
from focus_core.errors import FocusError
from focus_core.progress import Progress
from focus_core.remote import StoreError
from focus_core.report.corpus import Corpus
from focus_core.routing.config import FocusConfig
from focus_core.routing.model import FocusModel
from focus_core.routing.portable import PortableModel, done_on

TREEBANK = ".conllu"
STATES = ("untouched", "routed")

Document = str | TaggedText
"""A passage of a text, which spaCy tags; or a document of a treebank with its gold tags."""


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

    def grouping(self, focus: FocusModel) -> FocusConfig:
        """The settings that give tokens their groups: one k of all layers, or none for a budget in pairs."""
        with focus.routing("hard", **self._own_k(focus.config)):
            return focus.current.config

    def routing(self, focus: FocusModel) -> dict[str, Any]:
        """The changes of settings under which the states arise."""
        return untouched(self.grouping(focus)) if self.states == "untouched" else self._own_k(focus.config)

    def _own_k(self, config: FocusConfig) -> dict[str, Any]:
        if self.top_k is None and config.read_share is not None:
            return {}
        return {"top_k": config.top_k if self.top_k is None else self.top_k}


class RoutedDocument(NamedTuple):
    """What an alignment needs of one document.

    Attributes:
        words: with their groups.
        states: (m, d) float16 of each layer, those of the words' tokens.
    """

    words: DocumentWords
    states: dict[int, Tensor]


@dataclass(frozen=True)
class AlignJob:
    """Tags and routes documents, see `focus_core.routing.portable.Job`."""

    settings: AlignSettings

    def work(self, focus: FocusModel, tokenizer: Any, piece: Document) -> RoutedDocument:
        """One document."""
        settings, kept = self.settings, {}
        tagged = with_entities(tag_text(piece)) if isinstance(piece, str) else piece
        with focus.routing("hard", **settings.routing(focus)):
            trace = analyze(focus, tokenizer, tagged.text, head=settings.head, also=keep_states(kept))
        # Hard groups under the settings of the grouping, from the same assignments.
        config = settings.grouping(focus)
        trace = dataclasses.replace(trace, membership=key_memberships(trace.assignment, config), config=config)
        words = document_words(trace, tagged, rule=settings.rule, special_ids=tokenizer.all_special_ids)
        return RoutedDocument(words, {layer: states[words.found.tokens] for layer, states in kept.items()})


def find_documents(corpus: Corpus, tokenizer: Any, settings: AlignSettings) -> tuple[Corpus, list[Document]]:
    """Documents of treebanks, or passages of texts; with the corpus, without those that cannot be used.

    Raises:
        FocusError: no file can be used, or there are both treebanks and texts.
    """
    kinds = {PurePath(each.name).suffix.lower() == TREEBANK for each in corpus.documents}
    if len(kinds) > 1:
        raise FocusError("Gold tags and predicted ones do not mix: give either treebanks (.conllu) or texts.")
    found: list[Document] = []
    failed: dict[int, str] = {}
    for index, document in enumerate(corpus.documents):
        try:
            text = corpus.text(index)
            if kinds == {True}:
                found += _evenly(treebank(text, document.name), settings.documents)
            else:
                found += cut(tokenizer, text, settings.length, settings.passages)
        except StoreError:
            raise
        except FocusError as error:
            failed[index] = str(error)
    return corpus.without(failed), found


def route_documents(
    focus: FocusModel,
    tokenizer: Any,
    documents: Sequence[Document],
    settings: AlignSettings,
    *,
    cluster: Cluster | None,
    model: Any,
    progress: Progress,
) -> list[RoutedDocument]:
    """Tag and route documents.

    Args:
        focus: model with routers.
        tokenizer: its tokenizer.
        documents: of `find_documents`.
        settings: see `AlignSettings`.
        cluster: workers that do it; None for this process.
        model: what a cluster loads, by name.
        progress: told of every document.

    Raises:
        FocusError: a document cannot be routed, or workers tag with other models.
    """

    def one_by_one() -> Iterator[RoutedDocument]:
        job = AlignJob(settings)
        if cluster is None:
            yield from (job.work(focus, tokenizer, document) for document in documents)
            return
        with closing(
            done_on(cluster, PortableModel.of(focus, model), job, documents, ahead=2, progress=progress)
        ) as found:
            # Arrays that a worker sent are views of Ray's shared memory, which would fill.
            yield from (deepcopy(each) for _, each in found)

    found = []
    progress("Tagging and routing documents", 0.0)
    for routed in one_by_one():
        found.append(routed)
        progress("Tagging and routing documents", len(found) / len(documents))
    taggers = {str(each.words.tagged.tagger) for each in found if not each.words.tagged.tagger.gold}
    if len(taggers) > 1:
        raise FocusError(f"Workers tag with other models ({'; '.join(sorted(taggers))}): install the same everywhere.")
    return found


def _evenly(texts: list[TaggedText], count: int) -> list[TaggedText]:
    """Some of the texts, evenly spaced; all of them for a count of 0."""
    if not count or count >= len(texts):
        return texts
    return [texts[index * len(texts) // count] for index in range(count)]
