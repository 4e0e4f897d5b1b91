"""What a page shows while it has no text."""

from __future__ import annotations

import streamlit as st

CHOOSE_TEXT = "**Paste or upload a text in the sidebar**, or choose a sample."


def empty_state(promises: str, *, first: str = CHOOSE_TEXT, caption: str = "", command: str = "") -> None:
    """Say what to do and what will be seen.

    All of it is one container, which the first message of a computation replaces as a whole: a hint that no longer
    holds never stays on the page meanwhile.

    Args:
        promises: Markdown, what the page will show.
        first: what to do.
        caption: a last line.
        command: to copy.
    """
    with st.container(key="empty_state"):
        st.info(first, icon=":material/edit_note:")
        st.markdown(promises)
        if command:
            st.code(command, language="bash")
        if caption:
            st.caption(caption)
