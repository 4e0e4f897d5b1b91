"""The ways from a page to the page of one group, and what groups are called there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import quote, urlencode

import numpy as np
import streamlit as st
from streamlit.delta_generator import DeltaGenerator
from streamlit.elements.lib.column_types import ColumnConfig

from focus_core.analysis import Trace
from focus_core.resources import pages_dir
from workbench.engine.labels import labels, tags_ready
from workbench.engine.service import Analysis
from workbench.shell import handover, state

SOON = 1.0
"""Seconds between looks for labels that are being made."""


def called(group: int, names: Mapping[int, str]) -> str:
    """A group by its number, with its label where it has one: "42: nouns"."""
    return f"{group}: {names[group]}" if names.get(group) else str(group)


def labels_here(analysis: Analysis, row: int) -> dict[int, str]:
    """The labels of one layer's groups as far as they are known; the page is drawn again once guesses are made."""
    return labels(analysis, row, st.session_state["model"])


def labels_place() -> DeltaGenerator:
    """The place of `await_labels`, which takes no room: it is there only for a while, and nothing below may move.

    It stands above everything that the page's fragment draws. When a click begins the next run, Streamlit drops what
    the browser has not yet got of this fragment, but keeps what fragments within it drew. Below something that was
    dropped that has no place, and the browser shows an empty page.
    """
    return st.container(key="labels_place")


def await_labels(trace: Trace, place: DeltaGenerator) -> None:
    """Draw the page once more when the words of the text are tagged, if they are not; for the end of a page.

    Args:
        trace: of the text.
        place: of `labels_place`.
    """
    if not tags_ready(trace):
        with place:
            st.fragment(_look, run_every=SOON)(trace)


def _look(trace: Trace) -> None:
    if tags_ready(trace):
        st.rerun()


def group_column(title: str = "group", *, help: str = "", width: int | None = None) -> ColumnConfig:
    """The column of `group_urls`: it shows number and label, and opens the group's page."""
    hint = f"{help} Opens the page of the group.".strip()
    return st.column_config.LinkColumn(title, display_text=r"#(.+)$", help=hint, width=width)


def group_urls(
    groups: Iterable[int],
    layer: int,
    head: int | None,
    names: Mapping[int, str],
    changes: Mapping[str, str] | None = None,
) -> list[str]:
    """Links to the pages of groups, each with its number and label at the end, where `group_column` finds them.

    The links hold the settings of this session, since they open in a tab of its own; see `handover` for its text.

    Args:
        groups: their numbers.
        layer: number of their layer.
        head: key/value head; None where all heads share the groups.
        names: labels by number.
        changes: settings that differ there; an empty one is left out.
    """
    settings = {name: value for name, value in state.chosen().items() if name not in ("v", "layer", "head", "group")}
    place = {"v": state.VERSION, "layer": str(layer)} | ({} if head is None else {"head": str(head)})
    there = settings | handover.in_links() | dict(changes or {}) | place
    start = f"/group?{urlencode({name: value for name, value in there.items() if value})}"
    return [f"{start}&group={int(group)}#{quote(called(int(group), names), safe=':,;')}" for group in groups]


def group_link(trace: Trace, row: int, *, key: str, names: Mapping[int, str] | None = None) -> None:
    """Draw a choice of the groups of a layer, the largest first; choosing one opens its page.

    Args:
        trace: the routing.
        row: row of its layers.
        key: unique on the page.
        names: labels of the groups.
    """
    sizes = np.bincount(trace.groups[row], minlength=trace.config.num_groups)
    order = [int(group) for group in np.argsort(-sizes, kind="stable") if sizes[group]]
    chosen = st.selectbox(
        "Open the page of a group",
        order,
        index=None,
        format_func=lambda group: f"group {called(group, names or {})} ({sizes[group]:,} tokens)",
        key=key,
        placeholder="choose a group, or type its number",
        help="Its tokens, contexts and neighbours, what reads it, and its effect on the predictions.",
        width=340,
    )
    if chosen is not None:
        st.session_state["group"], st.session_state["layer"] = chosen, trace.layers[row]
        st.switch_page(pages_dir() / "group.py")
