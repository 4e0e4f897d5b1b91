"""A guess at what a group is, from the tokens it holds, with its evidence; and the user's own name of it."""

from __future__ import annotations

from dataclasses import dataclass

from focus_core.analysis import Trace
from focus_core.report.model import Card, TagShare
from focus_core.report.visible import visible_token

ONE_TOKEN = 0.5
"""A token type with this share of a group names it."""
TIMES = 1.5
"""A part of speech names a group if even the low end of its interval is so many times its share of the text."""
FEW = 10
"""A guess from fewer tokens is not made."""
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
    """

    label: str
    evidence: str


def guess(card: Card) -> Guess:
    """Name a group by its commonest token, else by a part of speech, else by its most typical tokens."""
    if card.count < FEW:
        return Guess("", f"It has {card.count} {'token' if card.count == 1 else 'tokens'} here, too few for a guess.")
    examples = [visible_token(token.text) for token in (card.typical or card.frequent)[:4]]
    if card.frequent and card.frequent[0].count >= ONE_TOKEN * card.count:
        top = card.frequent[0]
        return Guess(
            f"the token “{visible_token(top.text)}”",
            f"{top.count} of its {card.count} tokens are this one, and {top.count} of all {top.total} stand here.",
        )
    tag = _telling(card.tags)
    if tag is not None:
        low, high = tag.share.low, tag.share.high
        interval = "" if low is None or high is None else f" (95% interval {low:.0%} to {high:.0%})"
        name = TAG_WORDS.get(tag.tag, tag.tag)
        return Guess(
            f"{name}, such as {', '.join(examples)}" if examples else name,
            f"{tag.share.value:.0%} of its words are tagged {tag.tag}{interval}, and {tag.overall:.0%} of all words.",
        )
    if card.typical:
        return Guess(
            f"tokens such as {', '.join(examples)}",
            "No token and no part of speech stands out; these occur here more often than elsewhere.",
        )
    return Guess("", "No token and no part of speech stands out.")


def _telling(tags: tuple[TagShare, ...]) -> TagShare | None:
    """The commonest part of speech that the group holds more of than the text, beyond doubt."""
    for tag in tags:
        if tag.share.low is not None and tag.share.low > TIMES * tag.overall:
            return tag
    return None


def notes_key(trace: Trace) -> str:
    """The routers that notes are about: their hash, with the head where heads have groups of their own."""
    routers = trace.provenance.routers_hash
    return f"{routers}/head-{trace.head}" if trace.head else routers


def named(note: str) -> tuple[str, str]:
    """Own name and text of a note: a first line that begins with "# " is the name."""
    first, _, rest = note.partition("\n")
    return (first[2:].strip(), rest.lstrip("\n")) if first.startswith("# ") else ("", note)


def as_note(name: str, text: str) -> str:
    """The note that `named` parts again."""
    name = " ".join(name.split())
    return f"# {name}\n{text}" if name else text
