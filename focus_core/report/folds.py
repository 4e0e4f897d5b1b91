"""The groups of a report in folds, one for each layer or head, and the index that its search reads."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any

from focus_core.report.labels import TAG_WORDS, guess, named
from focus_core.report.model import Card, Report
from focus_core.report.visible import visible, visible_token

LABELS_SHOWN = 4


@dataclass(frozen=True)
class Fold:
    """The groups of one layer, or of one head of it.

    Attributes:
        address: what links to it name after the "#".
        title: "Layer 3", or "Layer 3, head 1".
        cards: its groups, by number.
        ordered: the largest first where they are many, else by number.
    """

    address: str
    title: str
    cards: tuple[Card, ...]
    ordered: tuple[Card, ...]

    @property
    def labels(self) -> str:
        """Names and guesses of its largest groups, shortened."""
        found = (label_of(card) for card in sorted(self.cards, key=lambda card: -card.count))
        return "; ".join([label for label in found if label][:LABELS_SHOWN])


def folds(report: Report, many: int) -> list[Fold]:
    """The folds of a report in order; in one of more than `many` groups the largest come first."""
    found = []
    for _, run in groupby(report.cards, key=lambda card: (card.layer, card.head)):
        cards = tuple(run)
        ordered = cards if len(cards) <= many else tuple(sorted(cards, key=lambda card: (-card.count, card.group)))
        head = "" if cards[0].head is None else f"-head-{cards[0].head}"
        found.append(Fold(f"layer-{cards[0].layer}{head}", _place(cards[0]), cards, ordered))
    return found


def card_title(card: Card) -> str:
    """The title of a card: "Layer 3, group 5", or "Layer 3, head 1, group 5"."""
    return f"{_place(card)}, group {card.group}"


def address(card: Card) -> str:
    """What a link to a card names after the "#": "group-3-5", or "group-3-1-5" with a head."""
    return "-".join(["group", *(str(part) for part in (card.layer, card.head, card.group) if part is not None)])


def label_of(card: Card) -> str:
    """The user's name of a group, else the guess without its examples."""
    return visible(named(card.note)[0]) or guess(card).label.partition(", such as")[0]


def search_index(report: Report) -> dict[str, Any]:
    """What the search of a page looks through, as plain values.

    Returns:
        `tags`: plain word and share of all words, by part of speech. `groups`: one list for each card, of address,
        title, layer, head, group, share of the tokens, tokens, the user's name, the note, the guess, listed tokens with
        their counts, and parts of speech with their shares.
    """
    tags = {tag.tag: [TAG_WORDS.get(tag.tag, ""), round(tag.overall, 4)] for card in report.cards for tag in card.tags}
    return {"tags": tags, "groups": [_entry(card) for card in report.cards]}


def _entry(card: Card) -> list[Any]:
    name, note = named(card.note)
    tokens = {visible_token(token.text): token.count for token in (*card.frequent, *card.typical)}
    return [
        address(card),
        card_title(card),
        card.layer,
        card.head,
        card.group,
        round(card.share.value, 4),
        card.count,
        visible(name),
        visible(note),
        guess(card).label,
        [list(pair) for pair in tokens.items()],
        [[tag.tag, round(tag.share.value, 4)] for tag in card.tags],
    ]


def _place(card: Card) -> str:
    return f"Layer {card.layer}" if card.head is None else f"Layer {card.layer}, head {card.head}"
