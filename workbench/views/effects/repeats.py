"""The repeat-sequence test: which heads and groups read the key that copying needs."""

from __future__ import annotations

import dataclasses
import threading
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from focus_core.analysis.interventions.induction import Induction, induction, planted_repeat
from workbench.charts.theme import diverging, style
from workbench.engine import service
from workbench.engine.cached import setting_key
from workbench.engine.service import Analysis

TEXTS = {"planted": "Random tokens, twice", "own": "This text"}
LENGTH = 320
"""Random tokens of a copy."""
MAX_TOKENS = 2048
"""Tokens of the user's text that are read."""
MOST_ROWS = 12


@dataclass
class _Made:
    lock: threading.Lock = field(default_factory=threading.Lock)
    found: Induction | None = None


def repeats(analysis: Analysis, text: str, model: str, routers: str) -> Induction:
    """The test on one text, run once for all sessions.

    Args:
        analysis: of the user's text, with the settings of routing.
        text: a key of `TEXTS`.
        model: as in `service.Settings`.
        routers: as in `service.Settings`.

    Raises:
        FocusError: nothing is repeated beyond the window.
    """
    made = _made(setting_key(analysis), text)
    with made.lock:
        if made.found is None:
            settings = dataclasses.replace(service.settings_of(analysis, model, routers), states="routed")
            base = service.load_base(model)
            ids = np.array(analysis.trace.input_ids[:MAX_TOKENS])
            if text == "planted":
                ids = planted_repeat(LENGTH, len(base.tokenizer))
            with base.lock:
                made.found = service.routed(base, settings, lambda focus: induction(focus, ids))
        return made.found


@st.cache_resource(max_entries=64, show_spinner=False)
def _made(key: str, text: str) -> _Made:
    return _Made()


def repeat_sentence(found: Induction) -> str:
    """How many heads read induction keys more often than chance, and the one that does most."""
    heads = found.heads
    carrying = strongest(heads)
    if carrying.empty:
        few = " Too few tokens are repeated beyond the window to be sure." if found.most_pairs < 16 else ""
        return f"No head reads the key that copying needs more often than any other distant key.{few}"
    best = carrying.iloc[0]
    most = "All" if len(carrying) == len(heads) else f"{len(carrying)} of" if len(carrying) > 1 else "One of"
    verb = "reads" if len(carrying) == 1 else "read"
    place = f"layer {int(best['layer'])}, head {int(best['head'])}"  # a row of mixed columns has floats
    return (
        f"{most} {len(heads)} heads {verb} the key that copying needs more often than chance, first of all "
        f"{place}: {best['read']:.0%}, where chance is {best['chance']:.0%} (difference "
        f"{100 * best['difference']:.0f} points [{100 * best['low']:.0f}, {100 * best['high']:.0f}])."
    )


def strongest(table: pd.DataFrame) -> pd.DataFrame:
    """The heads or groups that read induction keys most often beyond chance, for a table of the page."""
    order = np.argsort(-table["difference"].to_numpy(dtype=float), kind="stable")
    rows = table.iloc[order[_carries(table)[order]]]
    names = [name for name in ("layer", "head", "group") if name in table]
    return pd.DataFrame(rows, columns=[*names, "pairs", "read", "chance", "difference", "low", "high", "p"])


def repeat_map(found: Induction, *, dark: bool = False) -> go.Figure:
    """Read less chance for every layer and head; a dot where it is not significant.

    Args:
        found: the test.
        dark: for a dark page.
    """
    heads = found.heads.assign(difference=found.heads["difference"].astype(float), carries=_carries(found.heads))
    grids = {
        name: heads.pivot(index="layer", columns="head", values=name)
        for name in ("difference", "read", "chance", "pairs", "carries")
    }
    gap = 100 * grids["difference"].to_numpy(dtype=float)
    span = max(1.0, float(np.nanmax(np.abs(gap))))
    low, middle, high = diverging(dark=dark)
    figure = go.Figure(
        go.Heatmap(
            z=gap.tolist(),
            x=[str(head) for head in grids["read"].columns],
            y=[str(layer) for layer in grids["read"].index],
            colorscale=[[0, low], [0.5, middle], [1, high]],
            zmin=-span,
            zmax=span,
            text=[["" if yes is True else "·" for yes in row] for row in grids["carries"].to_numpy().tolist()],
            texttemplate="%{text}",
            customdata=np.stack(
                [grids[name].to_numpy(dtype=float) for name in ("read", "chance", "pairs")], axis=-1
            ).tolist(),
            hovertemplate="layer %{y}, head %{x}<br>%{customdata[0]:.0%} read, chance %{customdata[1]:.0%}"
            "<br>%{customdata[2]:.0f} pairs<extra></extra>",
            colorbar={"title": "points", "thickness": 14},
            xgap=1,
            ygap=1,
        )
    )
    figure.update_layout(title="Keys that copying needs: share read, less chance")
    figure.update_xaxes(title="head", type="category", showgrid=False)
    figure.update_yaxes(title="layer", type="category", showgrid=False)
    return style(figure, dark=dark, height=150 + 15 * len(gap))


def _carries(table: pd.DataFrame) -> np.ndarray:
    """(rows,) bool: read significantly more often than chance."""
    gap, p_value = (table[name].to_numpy(dtype=float) for name in ("difference", "p"))
    return table["established"].to_numpy(dtype=bool) & (gap > 0) & (p_value < 0.05)
