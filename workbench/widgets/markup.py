"""User text inside Markdown."""

from __future__ import annotations

_SPECIAL = frozenset(r"\`*_{}[]()<>#+-!|~$:&")


def plain(text: str) -> str:
    """Escape a text so that Streamlit's Markdown shows it as it is: no markup, HTML, formula or icon."""
    return "".join(f"\\{character}" if character in _SPECIAL else character for character in text)
