"""The documents of an alignment: what they are, and their routing, here or on the workers of a cluster."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from focus_core.analysis.linguistics.alignment import REPEATS
from focus_core.analysis.linguistics.corpus.conllu import treebank
from focus_core.analysis.linguistics.corpus.passages import passages as cut
from focus_core.analysis.linguistics.corpus.sample import document_words
from focus_core.analysis.linguistics.corpus.stored import RoutedDocument, load_document, save_document
from focus_core.analysis.linguistics.corpus.tagging import load_tagger, tag_text, with_entities
from focus_core.analysis.linguistics.corpus.words import SUBWORD_RULES, TaggedText
from focus_core.analysis.reading import untouched
from focus_core.analysis.states import keep_states
from focus_core.analysis.trace import analyze, key_memberships
from focus_core.cluster import Cluster
from focus_core.errors import FocusError
from focus_core.io.remote import StoreError
from focus_core.io.unfinished import resumed
from focus_core.progress import Progress
from focus_core.report.corpora.corpus import Corpus
from focus_core.routing.config import FocusConfig
from focus_core.routing.model import FocusModel
from focus_core.routing.portable import PortableModel, done_on, pass_key
from focus_core.text import encode

TREEBANK = ".conllu"
STATES = ("untouched", "routed")
LENGTH, PASSAGES = 512, 32
TOKENS = 2**17
"""Most tokens of an alignment, unless chosen otherwise."""

Document = str | TaggedText
"""A passage of a text, which spaCy tags; or a document of a treebank with its gold tags."""


@dataclass(frozen=True)
class AlignSettings:
    """How texts are cut, routed and scored.

    Attributes:
        length: tokens of a passage; passages are the documents of texts.
        passages: evenly spaced passages of each text; 0 for all.
        documents: evenly spaced documents of each treebank; 0 for all.
        tokens: the most in all; above it whole documents are drawn at random. Memory and disk do not grow beyond.
        rule: subword that stands for a word, one of `SUBWORD_RULES`.
        states: hidden states that are routed: "untouched" (the model's own) or "routed" (hard routing at this k).
        top_k: k of every layer; the routers' own, or their plan, when None.
        head: key/value head to analyze, where each has a router.
        repeats: permutations and bootstrap resamples.
        seed: of everything random.
    """

    length: int = LENGTH
    passages: int = PASSAGES
    documents: int = 0
    tokens: int = TOKENS
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


@dataclass
class Drawn:
    """Documents drawn at random, all of them while they have few tokens.

    Each document gets a random number when it is added. Those with the smallest are kept, so that every document has
    the same chance wherever it stands.

    Attributes:
        most: tokens of all documents together, unless a single one has more.
        seed: of the numbers.
        count: documents that were added.
    """

    most: int
    seed: int
    count: int = 0
    _tokens: int = 0
    _limit: float = 1.0
    _kept: list[tuple[float, int, int, Document]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    @property
    def documents(self) -> list[Document]:
        """Those that are kept, in the order in which they were added."""
        return [document for _, _, _, document in sorted(self._kept, key=lambda each: each[1])]

    def add(self, document: Document, tokens: int) -> None:
        """Keep a document or not, and perhaps others no longer."""
        number = self._random.random()
        self.count += 1
        if number >= self._limit:
            return
        heapq.heappush(self._kept, (-number, self.count, tokens, document))
        self._tokens += tokens
        while self._tokens > self.most and len(self._kept) > 1:
            largest, _, less, _ = heapq.heappop(self._kept)
            self._tokens -= less
            self._limit = -largest


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


def find_documents(corpus: Corpus, tokenizer: Any, settings: AlignSettings) -> tuple[Corpus, Drawn]:
    """Documents of treebanks, or passages of texts; with the corpus, without those that cannot be used.

    One text is in memory at a time, with the documents that are drawn.

    Raises:
        FocusError: no file can be used, there are both treebanks and texts, or settings of one kind for the other.
    """
    kinds = {PurePath(each.name).suffix.lower() == TREEBANK for each in corpus.documents}
    if len(kinds) > 1:
        raise FocusError("Gold tags and predicted ones do not mix: give either treebanks (.conllu) or texts.")
    if settings.documents and kinds == {False}:
        raise FocusError("--documents counts those of treebanks, and these are texts: give --passages.")
    if kinds == {True} and (settings.length, settings.passages) != (LENGTH, PASSAGES):
        raise FocusError("--length and --passages cut texts, and these are treebanks: give --documents.")
    found = Drawn(settings.tokens, settings.seed)
    failed: dict[int, str] = {}
    for index, document in enumerate(corpus.documents):
        try:
            text = corpus.text(index)
            pieces: Sequence[Document] = (
                _evenly(treebank(text, document.name), settings.documents)
                if kinds == {True}
                else cut(tokenizer, text, settings.length, settings.passages)
            )
            lengths = [
                len(encode(tokenizer, each if isinstance(each, str) else each.text).input_ids) for each in pieces
            ]
        except StoreError:
            raise
        except FocusError as error:
            failed[index] = str(error)
        else:
            for piece, tokens in zip(pieces, lengths, strict=True):
                found.add(piece, tokens)
    return corpus.without(failed), found


def documents_key(focus: FocusModel, tokenizer: Any, documents: Sequence[Document], settings: AlignSettings) -> str:
    """A hash of everything that decides what `route_documents` finds."""
    return pass_key(
        focus,
        documents=documents,
        settings=settings,
        tagger=load_tagger()[1] if any(isinstance(each, str) for each in documents) else None,
        tokenizer=tokenizer.backend_tokenizer.to_str(),
    )


def route_documents(
    focus: FocusModel,
    tokenizer: Any,
    documents: Sequence[Document],
    settings: AlignSettings,
    *,
    folder: Path,
    cluster: Cluster | None,
    model: Any,
    progress: Progress,
) -> list[RoutedDocument]:
    """Tag and route documents. Their states go to files, which must stay while the result is in use.

    Args:
        focus: model with routers.
        tokenizer: its tokenizer.
        documents: of `find_documents`.
        settings: see `AlignSettings`.
        folder: of `focus_core.io.unfinished.unfinished`; documents that are there already are not routed again.
        cluster: workers that do it; None for this process.
        model: what a cluster loads, by name.
        progress: told of every document.

    Raises:
        FocusError: a document cannot be routed, or workers tag with other models.
    """

    def work(left: Sequence[Document]) -> Generator[RoutedDocument]:
        job = AlignJob(settings)
        if cluster is None:
            yield from (job.work(focus, tokenizer, document) for document in left)
            return
        with closing(done_on(cluster, PortableModel.of(focus, model), job, left, ahead=2, progress=progress)) as done:
            yield from (routed for _, routed in done)

    found = []
    progress("Tagging and routing documents", 0.0)
    with closing(resumed(folder, documents, work, save=save_document, load=load_document)) as results:
        for routed in results:
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
