"""The token strip: the text itself, every token coloured by its group in one layer.

A Streamlit component with its own script, shipped in this folder. The text travels as data and is drawn with
`textContent`, so nothing a user types is ever read as HTML.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st
from streamlit.components.v2 import component

from focus_core.analysis import Trace
from focus_core.analysis.display.cells import Cell
from focus_core.analysis.display.palette import group_color, ink
from focus_core.analysis.tokens import group_order, margins, visible
from workbench.tokens.reach import DROPPED, LATER, RELATIONS, SELF, relations

_MAX_LISTED = 4
_FOLDER = Path(__file__).parent
_component = component(
    "focus-token-strip",
    html='<div class="root"></div>',
    css=(_FOLDER / "strip.css").read_text(encoding="utf-8"),
    js=(_FOLDER / "strip.js").read_text(encoding="utf-8"),
)


def strip_data(
    trace: Trace,
    token_bytes: Sequence[bytes],
    cells: Sequence[Cell],
    layer: int,
    selected: int | None = None,
    *,
    show_reach: bool = False,
) -> dict[str, Any]:
    """What the strip's script draws, JSON-ready.

    A cell is filled with the first group of its last token (the one that has seen the whole character); the
    stripe under it is that token's second group; the printed number is its first group. The tip lists every
    token of the cell.

    Args:
        trace: the routing.
        token_bytes: bytes of each token.
        cells: the cells of the page.
        layer: row of the trace.
        selected: token drawn with a frame.
        show_reach: fade what the selected token does not read.
    """
    k = trace.config.joined(layer)
    drawn_groups = max(k, 1)  # where a plan lets no group read, the first one is still what the router says
    order, margin = group_order(trace, layer), margins(trace, layer)
    weights = np.take_along_axis(trace.assignment[layer], order, axis=1)
    codes = relations(trace, layer, selected) if selected is not None and show_reach else None
    listed = min(trace.config.num_groups, max(k + 1, 2), k + _MAX_LISTED)

    def token_data(token: int) -> list[Any]:
        start, end = trace.offsets[token].tolist()
        groups = [
            [group, round(weight, 3)]
            for group, weight in zip(order[token, :listed].tolist(), weights[token, :listed].tolist())
        ]
        rest = None if np.isinf(margin[token]) else round(float(margin[token]), 4)
        spelling = visible(trace.tokens[token])
        return [
            token,
            spelling,
            int(trace.input_ids[token]),
            token_bytes[token].hex(" "),
            start,
            end,
            groups,
            rest,
        ]

    drawn = []
    for cell in cells:
        item: dict[str, Any] = {
            "t": trace.text[cell.start : cell.end],
            "k": [token_data(i) for i in cell.tokens],
        }
        if cell.tokens:
            last = cell.tokens[-1]
            item["g"] = order[last, :drawn_groups].tolist()
            item["l"] = str(item["g"][0])
            if codes is not None:
                code = int(codes[last])
                item["f"] = int(code in (LATER, DROPPED))
                item["r"] = _relation_sentence(code, abs(last - (selected or 0)))
        drawn.append(item)
    share = np.bincount(trace.groups[layer], minlength=trace.config.num_groups) / len(trace.tokens)
    groups = [
        {"number": g, "fill": group_color(g), "ink": ink(group_color(g)), "share": float(share[g])}
        for g in range(trace.config.num_groups)
    ]
    return {"cells": drawn, "groups": groups, "selected": selected, "sinks": trace.config.sink_tokens}


def token_strip(data: dict[str, Any], *, key: str, on_pick: Callable[[int], None]) -> None:
    """Draw the strip; a click, or Enter on the focused token, calls `on_pick` with the token's index."""

    def picked() -> None:
        token = st.session_state[key].picked
        if token is not None:
            on_pick(int(token))

    _component(key=key, data=data, on_picked_change=picked)


def _relation_sentence(code: int, distance: int) -> str:
    if code == SELF:
        return "the selected token"
    if code == LATER:
        return f"{distance} after the selected token, which cannot read it"
    verb = "not read by" if code == DROPPED else "read by"
    return f"{distance} before the selected token, {verb} it ({RELATIONS[code]})"
