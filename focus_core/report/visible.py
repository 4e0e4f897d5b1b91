"""User text made safe for files that people read: invisible and reordering characters become marks."""

from __future__ import annotations

import unicodedata

_MARKS = {"\n": "⏎", "\t": "⇥", "\r": "␍", "\x00": "␀"}
_KEPT = {"\u200c", "\u200d"}  # they join letters and emoji
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def visible(text: str) -> str:
    """The text with line ends, control characters, bidirectional overrides and the like as visible marks."""
    return "".join(
        _MARKS.get(character)
        or (
            f"⟨U+{ord(character):04X}⟩"
            if unicodedata.category(character) in _HIDDEN and character not in _KEPT
            else character
        )
        for character in text
    )


def visible_token(text: str) -> str:
    """A token as visible text, with its spaces marked as well."""
    return visible(text).replace(" ", "·") or "∅"
