"""A word of warning where a text is too short for its groups to mean anything."""

from __future__ import annotations

import streamlit as st

from focus_core.analysis import Trace
from workbench.widgets.page.markup import counted

FEW_TOKENS = 100
"""Fewer than these say little about any routing."""
_A_GROUP = 10
"""Tokens of a group, on the mean, from which its words begin to show."""


def too_short(trace: Trace) -> str:
    """Why a text says little about groups, and what length helps; empty where it is long enough."""
    config, number = trace.config, len(trace.tokens)
    near = config.window + config.sink_tokens
    if number >= FEW_TOKENS and number > near:
        return ""
    wanted = max(2 * near, _A_GROUP * config.num_groups, FEW_TOKENS)
    distant = f"none is beyond the window of {config.window}, and " if number <= near else ""
    return (
        f"This text has {counted(number, 'token')}, too few to mean something: {distant}each of {config.num_groups} "
        f"groups has {number / config.num_groups:.1f} on the mean. A text of {wanted:,} tokens or more helps."
    )


def note_if_short(trace: Trace) -> None:
    """Say that a text is short, before anything is said of its groups."""
    said = too_short(trace)
    if said:
        st.info(said, icon=":material/short_text:")
