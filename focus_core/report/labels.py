"""A guess at what a group is, from the tokens it holds, with its evidence; and the user's own name of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from focus_core.report.model import Card, TagShare
from focus_core.report.visible import visible, visible_token

ONE_TOKEN = 0.5
"""A token type with this share of a group names it."""
TIMES = 1.5
"""A part of speech names a group if even the low end of its interval is so many times its share of the text."""
FEW = 10
"""A guess from fewer tokens is not made."""
EXAMPLES = 4
"""Most words or tokens that a guess gives as examples."""
SHORT_EXAMPLES = 2
"""Tokens that name a group in few words."""
TAG_WORDS = {
    "NOUN": "nouns",
    "PROPN": "names",
    "PRON": "pronouns",
    "VERB": "verbs",
    "AUX": "auxiliary verbs",
    "ADJ": "adjectives",
    "ADV": "adverbs",
    "DET": "determiners",
    "ADP": "prepositions",
    "CCONJ": "conjunctions",
    "SCONJ": "subordinating conjunctions",
    "PART": "particles",
    "NUM": "numbers",
    "INTJ": "interjections",
    "SYM": "symbols",
    "X": "other words",
    "PUNCT": "punctuation",
}


@dataclass(frozen=True)
class Guess:
    """An automatic label.

    Attributes:
        label: a few words; empty where the tokens suggest nothing.
        evidence: what it rests on, in one sentence.
        short: the label without examples of a part of speech, for lists and charts.
    """

    label: str
    evidence: str
    short: str = ""


def guess(card: Card, words: Mapping[str, Sequence[str]] | None = None) -> Guess:
    """Name a group by its commonest token, else by a part of speech, else by its most typical tokens.

    Args:
        card: the group.
        words: its words by their tag, the most telling first. Examples of a part of speech are taken from these alone,
            since a token does not say how its word is tagged; without them none is given.
    """
    if card.count < FEW:
        return Guess("", f"It has {card.count} {'token' if card.count == 1 else 'tokens'} here, too few for a guess.")
    if card.frequent and card.frequent[0].count >= ONE_TOKEN * card.count:
        top = card.frequent[0]
        return Guess(
            f"the token “{_word(top.text)}”",
            f"{top.count} of its {card.count} tokens are this one, and {top.count} of all {top.total} stand here.",
            f"“{_word(top.text)}”",
        )
    tag = _telling(card.tags)
    if tag is not None:
        low, high = tag.share.low, tag.share.high
        interval = "" if low is None or high is None else f" (95% interval {low:.0%} to {high:.0%})"
        name, examples = TAG_WORDS.get(tag.tag, tag.tag), _examples((words or {}).get(tag.tag, ()))
        return Guess(
            f"{name}, such as {', '.join(examples)}" if examples else name,
            f"{tag.share.value:.0%} of its words are tagged {tag.tag}{interval}, and {tag.overall:.0%} of all words.",
            name,
        )
    examples = _examples([token.text for token in card.typical])
    if examples:
        return Guess(
            f"tokens such as {', '.join(examples)}",
            "No token and no part of speech stands out; these occur here more often than elsewhere.",
            ", ".join(f"“{example}”" for example in examples[:SHORT_EXAMPLES]),
        )
    return Guess("", "No token and no part of speech stands out.")


def _word(text: str) -> str:
    """A token as a word, without the blanks around it; blanks alone as marks."""
    return visible(text.strip()) if text.strip() else visible_token(text)


def _examples(texts: Sequence[str]) -> list[str]:
    """The first words among some texts, each once in any case; marks without a letter or digit say nothing."""
    found: dict[str, str] = {}
    for text in texts:
        if any(character.isalnum() for character in text):
            word = _word(text)
            found.setdefault(word.casefold(), word)
    return list(found.values())[:EXAMPLES]


def _telling(tags: tuple[TagShare, ...]) -> TagShare | None:
    """The commonest part of speech that the group holds more of than the text, beyond doubt."""
    for tag in tags:
        if tag.share.low is not None and tag.share.low > TIMES * tag.overall:
            return tag
    return None


def named(note: str) -> tuple[str, str]:
    """Own name and text of a note: a first line that begins with "# " is the name."""
    first, _, rest = note.partition("\n")
    return (first[2:].strip(), rest.lstrip("\n")) if first.startswith("# ") else ("", note)


def as_note(name: str, text: str) -> str:
    """The note that `named` parts again."""
    name = " ".join(name.split())
    return f"# {name}\n{text}" if name else text
