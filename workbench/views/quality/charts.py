"""Perplexity of recorded runs against the share of pairs kept."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from workbench.charts.labels import Named, beside
from workbench.charts.theme import style
from workbench.views.quality.tables import FUTURE, TRAINED, UNTOUCHED, UNTRAINED

KEPT, BOUND = "distant kept", "bound on the speed-up"
_COLORS = {TRAINED: ("#0072B2", "#56B4E9"), UNTRAINED: ("#D55E00", "#E69F00"), UNTOUCHED: ("#000000", "#FFFFFF")}
_MAX_NAME = 28


def frontier(table: pd.DataFrame, *, dark: bool = False, against: str = KEPT) -> go.Figure:
    """Perplexity relative to the untouched model against the kept share, or against the bound on the speed-up.

    Filled circles are causal; open diamonds see later tokens. Colour says whether the routers were trained.

    Args:
        table: rows of `workbench.views.quality.tables`, hard and untouched ones are drawn.
        dark: for a dark page.
        against: `KEPT` or `BOUND` (1 / share of all pairs computed; a bound, no measurement).
    """
    figure = go.Figure()
    points: list[Named] = []
    drawn = table[table["routing"].isin(["hard", "off"]) & table["relative"].notna()]
    groups: Any = drawn.groupby(["kind", "routers", "remark"], sort=True)
    for (kind, routers, remark), rows in groups:
        future = remark == FUTURE
        color = _COLORS[str(kind)][int(dark)]
        ordered = rows.sort_values("distant kept")
        x = ordered["distant kept"] if against == KEPT else 1 / ordered["all kept"]
        details = ordered[["model", "perplexity", "distant kept", "all kept", "T", "w"]].astype(object)
        details["largest"] = [f"{value:.1%}" if pd.notna(value) else "–" for value in ordered["largest group"]]
        names = ["" if future else str(budget) for budget in ordered["budget"]]
        y = ordered["relative"].to_numpy(dtype=float) - 1
        points += [Named(*each, color) for each in zip(x.to_numpy(dtype=float), y, names)]
        details["budget"] = [f", {budget}" if budget else "" for budget in ordered["budget"]]
        figure.add_scatter(
            x=x,
            y=ordered["relative"] - 1,
            mode="markers",
            name=_name(str(kind), str(routers), future),
            marker={
                "symbol": "diamond-open" if future else ("star" if kind == UNTOUCHED else "circle"),
                "size": 11,
                "color": color,
                "line": {"width": 2, "color": color} if future else {"width": 0},
            },
            customdata=details,
            hovertemplate=(
                "%{customdata[0]}%{customdata[7]}<br>perplexity %{customdata[1]:.2f} (%{y:+.1%})<br>"
                "distant pairs kept %{customdata[2]:.1%}, all pairs %{customdata[3]:.1%}<br>"
                "largest group %{customdata[6]}<br>T=%{customdata[4]}, w=%{customdata[5]}<extra></extra>"
            ),
        )
    figure.add_hline(y=0, line={"dash": "dash", "width": 1, "color": "#FFFFFF" if dark else "#000000"})
    figure.update_layout(
        title="Perplexity and pairs kept (dashed: the untouched model)",
    )
    across = (-0.03, 1.06) if against == KEPT else _around([point.x for point in points])
    up = _around([point.y for point in points])
    figure.update_layout(annotations=beside(points, x_range=across, y_range=up))
    figure.update_xaxes(range=across)
    if against == KEPT:
        figure.update_xaxes(title="share of distant pairs kept", tickformat=".0%")
    else:
        figure.update_xaxes(title="bound on the speed-up of attention, 1 / share of all pairs computed (not measured)")
        figure.update_xaxes(ticksuffix="x")
    figure.update_yaxes(title="perplexity against the untouched model", tickformat="+.2~%", range=up)
    return style(figure, dark=dark, height=460)


def _around(values: list[float]) -> tuple[float, float]:
    """A range that holds values and 0, with room at both ends."""
    low, high = min([0.0, *values]), max([0.01, *values])
    room = 0.08 * (high - low)
    return low - room, high + room


def _name(kind: str, routers: str, future: bool) -> str:
    if kind == UNTOUCHED:
        return "untouched model"
    short = routers if len(routers) <= _MAX_NAME else routers[: _MAX_NAME - 1] + "…"
    called = short if kind in short else f"{short} ({kind})"
    return f"{called}, {FUTURE}" if future else called
