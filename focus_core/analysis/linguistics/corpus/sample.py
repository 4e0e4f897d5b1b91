"""The input of every alignment statistic: tagged words with their groups, from one text or many."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from focus_core.analysis.linguistics.corpus.words import TaggedText, Tagger, WordTokens, align_words, tag_codes
from focus_core.analysis.trace import Trace
from focus_core.errors import FocusError


@dataclass(frozen=True)
class WordSample:
    """n words (or subwords, under the rule "all") of one or more documents, routed through L layers.

    Attributes:
        layers: (L,) index of each layer in the model.
        groups: (L, n) int64 first group of each word.
        membership: (L, n, K) bool, all groups of each word.
        tokens: (n,) int64 index of the word's token in its document.
        types: (n,) int64 code of the word's exact sequence of token ids; the same spelling has the same code.
        words: (n,) spelling.
        tags: (n,) UPOS.
        sentences: (n,) int64, numbered through all documents.
        documents: (n,) int64.
        num_words: words in the documents, aligned or not.
        coverage: share of all words that have a token.
        exact: share of aligned words that start and end at token borders.
        rule: which subword stands for a word.
        tagger: where the tags come from.
        relations: (n,) what the word is to the one that it depends on; empty where a document has none.
        entities: (n,) kind of the name that the word is part of, "" for none; empty likewise.
    """

    layers: tuple[int, ...]
    groups: np.ndarray
    membership: np.ndarray
    tokens: np.ndarray
    types: np.ndarray
    words: tuple[str, ...]
    tags: tuple[str, ...]
    sentences: np.ndarray
    documents: np.ndarray
    num_words: int
    coverage: float
    exact: float
    rule: str
    tagger: Tagger
    relations: tuple[str, ...] = ()
    entities: tuple[str, ...] = ()

    def __len__(self) -> int:
        """n, the number of words."""
        return len(self.tags)

    @property
    def num_groups(self) -> int:
        """K, the number of groups."""
        return self.membership.shape[-1]

    @property
    def num_documents(self) -> int:
        """Documents that have words."""
        return len(np.unique(self.documents))

    def codes(self, tag_set: str) -> np.ndarray:
        """(n,) int64 tags of a tag set."""
        return tag_codes(self.tags, tag_set)


@dataclass(frozen=True)
class DocumentWords:
    """The words of one routed document that have tokens: m units.

    Attributes:
        tagged: the text with all of its words.
        found: the units.
        spelt: (m,) what the code of a unit's type stands for.
        layers: (L,) index of each layer in the model.
        groups: (L, m) int64 first group of each unit.
        membership: (L, m, K) bool, all groups of each unit.
    """

    tagged: TaggedText
    found: WordTokens
    spelt: tuple[Hashable, ...]
    layers: tuple[int, ...]
    groups: np.ndarray
    membership: np.ndarray


def word_sample(
    traces: Sequence[Trace],
    tagged: Sequence[TaggedText],
    *,
    rule: str = "last",
    special_ids: Collection[int] = (),
) -> WordSample:
    """Join routed and tagged documents into one sample.

    Args:
        traces: one per document, all of the same routers.
        tagged: the same texts with their words.
        rule: which subword stands for a word, see `align_words`.
        special_ids: vocabulary ids that are no text; words made of them are dropped.

    Raises:
        FocusError: unknown rule, or no words at all.
    """
    pairs = zip(traces, tagged, strict=True)
    return joined([document_words(trace, words, rule=rule, special_ids=special_ids) for trace, words in pairs], rule)


def document_words(
    trace: Trace, tagged: TaggedText, *, rule: str = "last", special_ids: Collection[int] = ()
) -> DocumentWords:
    """The words of one document with their groups; the arguments are those of `word_sample`."""
    special = np.flatnonzero(np.isin(trace.input_ids, list(special_ids))).tolist()
    found = align_words(tagged, trace.offsets, rule=rule, special=special)
    ids = trace.input_ids.tolist()
    spelt: tuple[Hashable, ...]
    if rule == "all":
        spelt = tuple(ids[token] for token in found.tokens.tolist())
    else:
        spelt = tuple(tuple(ids[a : b + 1]) for a, b in zip(found.first.tolist(), found.last.tolist()))
    return DocumentWords(
        tagged, found, spelt, trace.layers, trace.groups[:, found.tokens], trace.membership[:, found.tokens]
    )


def joined(documents: Sequence[DocumentWords], rule: str) -> WordSample:
    """The words of documents as one sample.

    Args:
        documents: all of the same routers.
        rule: by which their words were found.

    Raises:
        FocusError: no words at all.
    """
    parts, tagged = [each.found for each in documents], [each.tagged for each in documents]
    counts = np.asarray([len(part.words) for part in parts])
    if not counts.sum():
        raise FocusError("The text has no words that could be tagged: give some prose.")
    offset = np.cumsum([0, *(int(text.sentences.max(initial=-1)) + 1 for text in tagged)])
    spellings = [text.words for text in tagged]
    num_words = sum(part.num_words for part in parts)
    return WordSample(
        layers=documents[0].layers,
        groups=np.concatenate([each.groups for each in documents], axis=1),
        membership=np.concatenate([each.membership for each in documents], axis=1),
        tokens=np.concatenate([part.tokens for part in parts]),
        types=type_codes([value for each in documents for value in each.spelt]),
        words=tuple(spelling[word] for spelling, part in zip(spellings, parts) for word in part.words.tolist()),
        tags=tuple(text.tags[word] for text, part in zip(tagged, parts) for word in part.words.tolist()),
        sentences=np.concatenate(
            [text.sentences[part.words] + start for text, part, start in zip(tagged, parts, offset)]
        ),
        documents=np.repeat(np.arange(len(parts)), counts),
        num_words=num_words,
        coverage=sum(part.coverage * part.num_words for part in parts) / max(1, num_words),
        exact=float(np.average([part.exact for part in parts], weights=counts)),
        rule=rule,
        tagger=tagged[0].tagger,
        relations=_joined([text.relations for text in tagged], parts),
        entities=_joined([text.entities for text in tagged], parts),
    )


def _joined(values: Sequence[tuple[str, ...]], parts: Sequence[WordTokens]) -> tuple[str, ...]:
    """One value for each unit; empty where the words of a document have none."""
    if not all(values):
        return ()
    return tuple(each[word] for each, part in zip(values, parts) for word in part.words.tolist())


def type_codes(values: Sequence[Hashable]) -> np.ndarray:
    """(n,) int64: the same code for the same value, in order of first appearance."""
    seen: dict[Hashable, int] = {}
    return np.asarray([seen.setdefault(value, len(seen)) for value in values], dtype=np.int64)
