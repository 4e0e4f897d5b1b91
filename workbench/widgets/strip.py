"""The token strip: the text itself, every token coloured by its group in one layer.

A Streamlit component around the script and style that notebooks share (`focus_core.analysis.display`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import streamlit as st
from streamlit.components.v2 import component

from focus_core.analysis import Trace
from focus_core.analysis.display.cells import Cell
from focus_core.analysis.display.strip import asset, drawn_groups, legend, token_facts, token_groups
from focus_core.analysis.tokens import margin_of
from workbench.tokens.reads import BEYOND, DROPPED, LATER, SELF, relation_name, relations

_FOLDER = Path(__file__).parent
_component = component(
    "focus-token-strip",
    html='<div class="root"></div>',
    css=asset("strip.css") + (_FOLDER / "strip.css").read_text(encoding="utf-8"),
    js=asset("strip.js") + (_FOLDER / "strip.js").read_text(encoding="utf-8"),
)


def strip_data(
    trace: Trace,
    token_bytes: Sequence[bytes],
    cells: Sequence[Cell],
    layer: int,
    selected: int | None = None,
    *,
    fade_unread: bool = False,
    names: Mapping[int, str] | None = None,
) -> dict[str, Any]:
    """The data of the strip's script, ready for JSON.

    The last token of a cell is the one that has read the whole character. The cell's colour and number are that token's
    first group, the stripe under it its second group. The tip lists every token of the cell.

    Args:
        trace: the routing.
        token_bytes: bytes of each token.
        cells: the cells of the page.
        layer: row of the trace.
        selected: token drawn with a frame.
        fade_unread: fade what the selected token does not read.
        names: labels of the groups.
    """
    codes = relations(trace, layer, selected) if selected is not None and fade_unread else None
    shown = [token for cell in cells for token in cell.tokens]
    said = dict(zip(shown, token_groups(trace, layer, shown)))
    drawn_here = drawn_groups(trace.config, layer)
    drawn = []
    for cell in cells:
        item: dict[str, Any] = {
            "t": trace.text[cell.start : cell.end],
            "k": [token_facts(trace, token_bytes, token) + said[token] for token in cell.tokens],
        }
        if cell.tokens:
            last = cell.tokens[-1]
            item["g"] = [group for group, _ in said[last][0][:drawn_here]]
            item["l"] = str(item["g"][0])
            if codes is not None:
                code = int(codes[last])
                item["f"] = int(code in (LATER, DROPPED, BEYOND))
                item["r"] = _relation_sentence(code, relation_name(trace, code), abs(last - (selected or 0)))
        drawn.append(item)
    return {
        "cells": drawn,
        "groups": [each | {"name": (names or {}).get(each["number"], "")} for each in legend(trace, layer)],
        "joins": drawn_here,
        "selected": selected,
        "sinks": trace.config.sink_tokens,
        "by": margin_of(trace),
    }


def token_strip(data: dict[str, Any], *, key: str, on_pick: Callable[[int], None] = lambda _: None) -> None:
    """Draw the strip; a click, or Enter on the focused token, calls `on_pick` with the token's index."""

    def picked() -> None:
        token = st.session_state[key].picked
        if token is not None:
            on_pick(int(token))

    _component(key=key, data=data, on_picked_change=picked)


def _relation_sentence(code: int, name: str, distance: int) -> str:
    if code == SELF:
        return "the selected token"
    if code == LATER:
        return f"{distance} after the selected token, which cannot read it"
    verb = "not read by" if code in (DROPPED, BEYOND) else "read by"
    return f"{distance} before the selected token, {verb} it ({name})"
