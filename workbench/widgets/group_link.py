"""The way from a page to the page of one group."""

from __future__ import annotations

import numpy as np
import streamlit as st

from focus_core.analysis import Trace
from focus_core.resources import pages_dir


def group_link(trace: Trace, row: int, *, key: str) -> None:
    """Draw a choice of the groups of a layer, the largest first; choosing one opens its page.

    Args:
        trace: the routing.
        row: row of its layers.
        key: unique on the page.
    """
    sizes = np.bincount(trace.groups[row], minlength=trace.config.num_groups)
    order = [int(group) for group in np.argsort(-sizes, kind="stable") if sizes[group]]
    chosen = st.selectbox(
        "Open the page of a group",
        order,
        index=None,
        format_func=lambda group: f"group {group} ({sizes[group]:,} tokens)",
        key=key,
        placeholder="choose a group, or type its number",
        help="Its tokens, contexts and neighbours, what reads it, and its effect on the predictions.",
        width=340,
    )
    if chosen is not None:
        st.session_state["group"], st.session_state["layer"] = chosen, trace.layers[row]
        st.switch_page(pages_dir() / "group.py")
