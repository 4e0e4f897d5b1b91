"""Tagged words and the tokens that stand for them: alignment by character offsets."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from focus_core.errors import FocusError
from focus_core.text import trim_offsets

SubwordRule = Literal["last", "first", "all"]
SUBWORD_RULES: tuple[str, ...] = get_args(SubwordRule)

UPOS = (
    *("NOUN", "PROPN", "PRON", "VERB", "AUX", "ADJ", "ADV", "DET", "ADP"),
    *("CCONJ", "SCONJ", "PART", "NUM", "INTJ", "SYM", "X", "PUNCT"),
)
"""The universal part-of-speech tags (universaldependencies.org/u/pos), related ones side by side."""

COARSE = {
    "nominal": ("NOUN", "PROPN", "PRON", "NUM"),
    "verbal": ("VERB", "AUX"),
    "modifier": ("ADJ", "ADV"),
    "function": ("DET", "ADP", "CCONJ", "SCONJ", "PART"),
    "other": ("PUNCT", "SYM", "INTJ", "X"),
}
"""The five-class set: open nominal, verbal and modifying classes, function words, and all others."""

TAG_SETS: dict[str, tuple[str, ...]] = {"upos": UPOS, "coarse": tuple(COARSE)}
_COARSE_OF = {tag: name for name, tags in COARSE.items() for tag in tags}


@dataclass(frozen=True)
class Tagger:
    """The source of part-of-speech tags: a model or a treebank.

    Attributes:
        name: of the tagging model, or the treebank file.
        version: of the model; empty for a treebank.
        gold: True for tags that people wrote.
    """

    name: str
    version: str
    gold: bool = False

    def __str__(self) -> str:
        """In a few words, for a caption."""
        return f"gold tags of {self.name}" if self.gold else f"predicted by {self.name} {self.version}"


@dataclass(frozen=True)
class TaggedText:
    """The W words of one text, in order, white space left out.

    Attributes:
        text: the text.
        spans: (W, 2) int64 characters [start, end) of each word.
        tags: (W,) UPOS of each word.
        sentences: (W,) int64 index of each word's sentence.
        tagger: where the tags come from.
        relations: (W,) what each word is to the one that it depends on; empty where not known.
        entities: (W,) kind of the name that each word is part of, "" for none; empty where not known.
    """

    text: str
    spans: np.ndarray
    tags: tuple[str, ...]
    sentences: np.ndarray
    tagger: Tagger
    relations: tuple[str, ...] = ()
    entities: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """(W,) spelling of each word."""
        return tuple(self.text[start:end] for start, end in self.spans.tolist())


@dataclass(frozen=True)
class WordTokens:
    """The tokens that stand for words. n units; with the rules "last" and "first" one unit per word.

    Attributes:
        words: (n,) int64 index of each unit's word in the `TaggedText`.
        tokens: (n,) int64 index of each unit's token.
        first: (n,) int64 first token of the unit's word.
        last: (n,) int64 last token of the unit's word.
        num_words: words in the text, aligned or not.
        exact: share of aligned words that start and end at token borders; the others share a token with a neighbour.
        coverage: share of the words that have a token.
    """

    words: np.ndarray
    tokens: np.ndarray
    first: np.ndarray
    last: np.ndarray
    num_words: int
    exact: float
    coverage: float


def tag_codes(tags: tuple[str, ...], tag_set: str = "upos") -> np.ndarray:
    """(W,) int64 index of each tag in `TAG_SETS[tag_set]`; other tags than universal ones count as X.

    Raises:
        FocusError: no such tag set.
    """
    if tag_set not in TAG_SETS:
        raise FocusError(f"The tag set is {tag_set!r}: choose one of {', '.join(TAG_SETS)}.")
    known = [tag if tag in _COARSE_OF else "X" for tag in tags]
    names = known if tag_set == "upos" else [_COARSE_OF[tag] for tag in known]
    index = {name: code for code, name in enumerate(TAG_SETS[tag_set])}
    return np.asarray([index[name] for name in names], dtype=np.int64)


def align_words(
    tagged: TaggedText,
    offsets: np.ndarray,
    *,
    rule: str = "last",
    special: Collection[int] = (),
) -> WordTokens:
    """Find the tokens of each word by their characters; spellings are not compared.

    A word's tokens are those with characters of the word, white space trimmed. In a causal model only the last one has
    seen the whole word, so by default it stands for the word.

    Args:
        tagged: the words, spans in order and disjoint.
        offsets: (T, 2) int64 character span of each token of the same text, as in `focus_core.text.Encoding`.
        rule: "last", "first", or "all" (every token of the word is a unit of its own).
        special: indices of tokens that are no text, such as an end-of-turn mark; their words are dropped.

    Raises:
        FocusError: no such rule.
    """
    if rule not in SUBWORD_RULES:
        raise FocusError(f"The subword rule is {rule!r}: choose one of {', '.join(SUBWORD_RULES)}.")
    spans = trim_offsets(tagged.text, np.asarray(offsets, dtype=np.int64))
    usable = np.flatnonzero(spans[:, 1] > spans[:, 0])
    starts, ends = spans[usable, 0], spans[usable, 1]  # both sorted: spans are equal or disjoint, in order
    word_starts, word_ends = tagged.spans[:, 0], tagged.spans[:, 1]
    low = np.searchsorted(ends, word_starts, side="right")
    high = np.searchsorted(starts, word_ends, side="left") - 1
    found = high >= low
    if special and len(usable):
        is_special = np.isin(usable, np.fromiter(special, dtype=np.int64))
        before = np.concatenate(([0], np.cumsum(is_special)))
        found &= before[np.maximum(high + 1, 0)] == before[np.minimum(low, len(usable))]
    aligned = np.flatnonzero(found)
    low, high = low[aligned], high[aligned]
    exact = (starts[low] == word_starts[aligned]) & (ends[high] == word_ends[aligned]) if len(aligned) else low > 0
    if rule == "all":
        counts = high - low + 1
        words = np.repeat(aligned, counts)
        inside = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        tokens = usable[np.repeat(low, counts) + inside]
        first, last = np.repeat(low, counts), np.repeat(high, counts)
    else:
        words, first, last = aligned, low, high
        tokens = usable[high if rule == "last" else low]
    return WordTokens(
        words=words,
        tokens=tokens,
        first=usable[first],
        last=usable[last],
        num_words=len(tagged.tags),
        exact=float(exact.mean()) if len(aligned) else 0.0,
        coverage=len(aligned) / max(1, len(tagged.tags)),
    )
