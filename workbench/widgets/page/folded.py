"""A part of a page that is computed when it is unfolded, so that pages open with little and quickly."""

from __future__ import annotations

import streamlit as st
from streamlit.delta_generator import DeltaGenerator


def folded(label: str, key: str) -> DeltaGenerator | None:
    """Draw a folded part.

    Args:
        label: what is in it.
        key: unique on the page; true in the session state while it is unfolded.

    Returns:
        Where to draw its content; None while it is folded.
    """
    box = st.expander(label, key=key, on_change="rerun")
    return box if box.open else None
