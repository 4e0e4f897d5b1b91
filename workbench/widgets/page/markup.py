"""User text inside Markdown, and numbers of things."""

from __future__ import annotations

_SPECIAL = frozenset(r"\`*_{}[]()<>#+-!|~$:&")


def plain(text: str) -> str:
    """Escape a text so that Streamlit's Markdown shows it as it is: no markup, HTML, formula or icon."""
    return "".join(f"\\{character}" if character in _SPECIAL else character for character in text)


def counted(number: int, noun: str) -> str:
    """A number of things in words: "1 token", "2,605 tokens"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
