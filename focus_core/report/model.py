"""The report as data: one card for each group of each layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

SCHEMA = 1

SECTIONS = {
    "tokens": "Top tokens",
    "examples": "Examples",
    "tags": "Parts of speech",
    "persistence": "Persistence",
    "notes": "Notes",
}
"""Optional parts of a card, by their name in files and links. Size and confidence are always shown."""

DROPPED = "It holds nothing but characters that the tokenizer drops."
"""Why a document that can be read has no tokens."""


@dataclass(frozen=True)
class Interval:
    """A share with its 95% interval; the bounds are None where the data are too few for one."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class TokenCount:
    """A token type in a group.

    Attributes:
        text: the characters that the token stands for.
        token_id: its number in the vocabulary.
        count: occurrences in this group.
        total: occurrences in all texts.
        pmi: pointwise mutual information with the group in bits: log2 of observed over expected occurrences.
    """

    text: str
    token_id: int
    count: int
    total: int
    pmi: float


@dataclass(frozen=True)
class Example:
    """An occurrence of a token, in its context.

    Attributes:
        document: name of the text.
        start: character at which the token starts in that text.
        before: text in front of it.
        token: the token's characters.
        after: text behind it.
        weight: soft assignment of the token to the group; its margin where `Report.by_margin`.
    """

    document: str
    start: int
    before: str
    token: str
    after: str
    weight: float


@dataclass(frozen=True)
class TagShare:
    """A part of speech in a group.

    Attributes:
        tag: universal part of speech.
        count: words of the group that have it.
        share: of the group's words, with interval.
        overall: its share among all words.
    """

    tag: str
    count: int
    share: Interval
    overall: float


@dataclass(frozen=True)
class Together:
    """Whether tokens of a group stay together in another layer.

    Attributes:
        layer: the other layer.
        observed: probability that two random tokens of the group share a group there.
        chance: the same for any two random tokens.
    """

    layer: int
    observed: float
    chance: float


@dataclass(frozen=True)
class Card:
    """One group of one layer or head. A token counts for the group it is assigned to most, unless said otherwise.

    Attributes:
        layer: the layer's number in the model.
        group: the group's number in the layer.
        count: tokens with this as their first group.
        share: of all tokens.
        members: tokens with this among their k groups.
        confidence: mean soft assignment of the group's tokens to it, their mean margin where `Report.by_margin`; None
            for an empty group.
        frequent: its commonest token types.
        typical: token types with the highest PMI among those seen `min_count` times here.
        random: examples drawn at random, an unbiased sample.
        strongest: examples with the largest assignment, one of each token type.
        tags: parts of speech, the commonest first; empty without tags.
        persistence: one entry for each other layer, in order.
        note: text that a person wrote about it.
        head: the key/value head whose group it is; None where all heads of a layer share the groups.
    """

    layer: int
    group: int
    count: int
    share: Interval
    members: int
    confidence: float | None
    frequent: tuple[TokenCount, ...] = ()
    typical: tuple[TokenCount, ...] = ()
    random: tuple[Example, ...] = ()
    strongest: tuple[Example, ...] = ()
    tags: tuple[TagShare, ...] = ()
    persistence: tuple[Together, ...] = ()
    note: str = ""
    head: int | None = None


@dataclass(frozen=True)
class Document:
    """A text of the corpus.

    Attributes:
        name: file name, or name of the text.
        characters: its length.
        sha256: of its UTF-8 bytes, in hex.
    """

    name: str
    characters: int
    sha256: str


class Unread(NamedTuple):
    """A document that cannot be used.

    Attributes:
        document: its name, relative to the folder that all have in common.
        reason: one sentence.
    """

    document: str
    reason: str


@dataclass(frozen=True)
class Report:
    """Cards, with all facts needed to interpret and to reproduce them.

    Attributes:
        title: of the report.
        origin: model, routers, settings, as in `focus_core.analysis.tables.described`.
        documents: the texts.
        num_tokens: in all of them.
        num_words: with tags; 0 without.
        seed: of the random examples and the intervals.
        block_length: tokens routed at once; a token attends to nothing before its block.
        intervals: how they were computed, or why there are none.
        tagger: source of the parts of speech, or the reason why there are none.
        min_count: occurrences a token type needs in a group to be ranked by PMI.
        cards: by layer and group.
        made: date, versions and device.
        sections: names of the parts that are shown, keys of `SECTIONS`.
        failed: documents that are in no number here, with the reason.
        schema: version of this layout.
    """

    title: str
    origin: dict[str, Any]
    documents: tuple[Document, ...]
    num_tokens: int
    num_words: int
    seed: int
    block_length: int
    intervals: str
    tagger: str
    min_count: int
    cards: tuple[Card, ...]
    made: dict[str, Any]
    sections: tuple[str, ...] = tuple(SECTIONS)
    failed: tuple[Unread, ...] = ()
    schema: int = SCHEMA

    @property
    def by_margin(self) -> bool:
        """Whether weights and confidence are margins of scores: the best minus the second best, of narrow groups."""
        return self.origin.get("router") == "narrow"

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers that have cards, in order."""
        return tuple(dict.fromkeys(card.layer for card in self.cards))

    def of_layer(self, layer: int) -> tuple[Card, ...]:
        """The cards of one layer."""
        return tuple(card for card in self.cards if card.layer == layer)

    def only(self, layers: Collection[int], sections: Collection[str]) -> Report:
        """The report with some layers and parts alone; its files hold nothing of the others."""
        drop: dict[str, Any] = {}
        if "tokens" not in sections:
            drop |= {"frequent": (), "typical": ()}
        if "examples" not in sections:
            drop |= {"random": (), "strongest": ()}
        if "tags" not in sections:
            drop |= {"tags": ()}
        if "persistence" not in sections:
            drop |= {"persistence": ()}
        if "notes" not in sections:
            drop |= {"note": ""}
        cards = tuple(dataclasses.replace(card, **drop) for card in self.cards if card.layer in layers)
        return dataclasses.replace(self, cards=cards, sections=tuple(name for name in SECTIONS if name in sections))

    def with_notes(self, notes: Mapping[tuple[int, int], str]) -> Report:
        """The report with a person's notes, by layer and group."""
        cards = tuple(
            dataclasses.replace(card, note=notes.get((card.layer, card.group), card.note)) for card in self.cards
        )
        return dataclasses.replace(self, cards=cards)
