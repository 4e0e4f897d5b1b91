"""What explains the groups: charts and tables."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from focus_core.analysis.linguistics.explain import Explained
from focus_core.analysis.linguistics.features import FEATURES
from workbench.charts.theme import style

ALL = "all features"
_PARTS = {"alone": ("by itself", "#0072B2", "#56B4E9"), "unique": ("beyond all others", "#E69F00", "#E69F00")}
"""Name in the legend, colour on light, colour on dark."""
_COLORS = {
    "token identity": ("#D55E00", "#E69F00"),
    "previous token": ("#882255", "#FFAABB"),
    "part of speech": ("#0072B2", "#56B4E9"),
    "dependency relation": ("#117733", "#ACD39E"),
    "entity": ("#999933", "#DDCC77"),
    "frequency": ("#CC79A7", "#CC79A7"),
    "position": ("#6B7280", "#9CA3AF"),
}


def share_table(found: Sequence[Explained]) -> pd.DataFrame:
    """One row per layer and feature: the share alone and the unique one, with intervals; all features first."""
    rows = []
    for each in found:
        shares = [(ALL, each.all_features, None), *((part.feature, part.alone, part.unique) for part in each.features)]
        for name, alone, unique in shares:
            rows.append(
                {
                    "layer": each.layer,
                    "feature": name,
                    "alone": alone.difference,
                    "alone low": alone.low,
                    "alone high": alone.high,
                    "alone established": alone.established,
                    "unique": None if unique is None else unique.difference,
                    "unique low": None if unique is None else unique.low,
                    "unique high": None if unique is None else unique.high,
                    "unique established": None if unique is None else unique.established,
                }
            )
    return pd.DataFrame(rows)


def share_bars_of(found: Explained, *, dark: bool = False) -> go.Figure:
    """The share of each feature alone and beyond all others, with intervals; chance is 0.

    Args:
        found: one layer.
        dark: for a dark page.
    """
    table = share_table([found])
    figure = go.Figure()
    for part, (name, light, darker) in _PARTS.items():
        known = table.dropna(subset=[part])
        figure.add_bar(
            y=known["feature"].tolist(),
            x=(100 * known[part].astype(float)).tolist(),
            error_x={
                "array": (100 * (known[f"{part} high"] - known[part]).astype(float)).tolist(),
                "arrayminus": (100 * (known[part] - known[f"{part} low"]).astype(float)).tolist(),
                "thickness": 1.5,
                "width": 3,
                "color": "#E8E8E8" if dark else "#1F2328",
            },
            orientation="h",
            name=name,
            marker={"color": darker if dark else light, "line": {"width": 0}},
            customdata=known[[f"{part} low", f"{part} high"]] * 100,
            hovertemplate=f"%{{y}}, {name}<br>%{{x:.1f}}% [%{{customdata[0]:.1f}}%, %{{customdata[1]:.1f}}%]"
            "<extra></extra>",
        )
    figure.update_layout(
        title=f"Share of the groups of layer {found.layer} that each feature explains",
        barmode="group",
        bargap=0.3,
    )
    figure.update_xaxes(title="% of log-loss, held out (0: chance)")
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return style(figure, dark=dark, height=420)


def share_lines(found: Sequence[Explained], *, dark: bool = False, layer: int | None = None) -> go.Figure:
    """The shares alone in every layer, all features together with their interval.

    Args:
        found: the layers.
        dark: for a dark page.
        layer: layer to mark.
    """
    table, line = share_table(found), "#FFFFFF" if dark else "#000000"
    figure = go.Figure()
    whole = table[table["feature"] == ALL]
    figure.add_scatter(
        x=[*whole["layer"], *whole["layer"][::-1]],
        y=[*(100 * whole["alone high"]), *(100 * whole["alone low"][::-1])],
        fill="toself",
        fillcolor="rgba(156,163,175,0.3)",
        line={"width": 0},
        mode="lines",
        name="95% interval of all",
        hoverinfo="skip",
    )
    names = [ALL, *(name for name in FEATURES if name in set(table["feature"]))]
    for name in names:
        part = table[table["feature"] == name]
        color = line if name == ALL else _COLORS[name][1 if dark else 0]
        figure.add_scatter(
            x=part["layer"].tolist(),
            y=(100 * part["alone"]).tolist(),
            name=name,
            mode="lines+markers" if name == ALL else "lines",
            line={"color": color, "width": 3 if name == ALL else 2},
            customdata=part[["alone low", "alone high"]] * 100,
            hovertemplate=f"{name}, layer %{{x}}<br>%{{y:.1f}}% [%{{customdata[0]:.1f}}%, %{{customdata[1]:.1f}}%]"
            "<extra></extra>",
        )
    if layer is not None:
        figure.add_vline(x=layer, line={"color": line, "width": 1, "dash": "dot"})
    figure.update_layout(
        title="Share of the groups that each feature explains by itself, in every layer",
    )
    figure.update_xaxes(title="layer", dtick=2 if len(found) > 12 else 1, zeroline=False)
    figure.update_yaxes(title="percent of the log-loss (0: chance)")
    return style(figure, dark=dark, height=480)
