"""A text of one's own goes along when a link of this session opens in another tab of the same browser.

Links hold settings, never a text. A link to a group opens a tab, and a tab is a session that knows no pasted text. So
such a link holds a secret instead, under which this server keeps the text for a while, for the same browser alone.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle

import streamlit as st

PARAMETER = "text"
"""Name of the secret in a link; the address of the tab that it opens no longer has it."""
OWN = ("paste", "upload")
"""Sources whose text only its session has."""
MOST = 32
"""Texts that are kept; the oldest go first."""
_SHOWN, _OFFERED = "_text_shown", "_text_offered"


@dataclass(frozen=True)
class _Kept:
    text: str
    browser: str


def show(text: str) -> None:
    """Remember the text of the page that is being drawn."""
    st.session_state[_SHOWN] = text


def in_links() -> dict[str, str]:
    """Settings that a link to another tab needs so that a text of one's own goes along; none for other texts."""
    text = st.session_state.get(_SHOWN)
    return {} if text is None or st.session_state.get("source") not in OWN else of_text(text)


def of_text(text: str) -> dict[str, str]:
    """Settings of a link to another tab that takes a text of one's own along; none where no browser is known."""
    browser = _browser()
    if browser is None:
        return {}
    offered, kept = st.session_state.setdefault(_OFFERED, {}), _kept()
    secret = offered.get(text, "")
    if secret not in kept:
        secret = offered[text] = secrets.token_urlsafe(24)
        kept[secret] = _Kept(text, browser)
        while len(kept) > MOST:
            kept.pop(next(iter(kept)), None)
        for gone in [each for each, name in offered.items() if name not in kept]:
            del offered[gone]
    return {"source": "paste", PARAMETER: secret}


def take(query: Mapping[str, str]) -> None:
    """Take the text that a link brings along, if it was made in this browser and is still kept."""
    found = _kept().get(query.get(PARAMETER, ""))
    if found is not None and found.browser == _browser():
        st.session_state["paste"] = found.text


def _browser() -> str | None:
    """What tells this browser from all others: the secret of its cookie against forged requests; None without one.

    Streamlit writes it as 2|mask|masked secret|time, under a mask that changes.
    """
    try:
        _, mask, masked, _ = st.context.cookies.get("_streamlit_xsrf", "").strip('"').split("|")
        return bytes(a ^ b for a, b in zip(bytes.fromhex(masked), cycle(bytes.fromhex(mask)))).hex() or None
    except ValueError:
        return None


@st.cache_resource(show_spinner=False)
def _kept() -> dict[str, _Kept]:
    return {}
