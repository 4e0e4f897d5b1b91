"""Agreement of groups with parts of speech: layers beside their references, and one layer's residuals."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from focus_core.analysis.linguistics.alignment import FREQUENCY, IDENTITY, KMEANS, LEVEL, POSITION, UNTRAINED, Alignment
from focus_core.analysis.linguistics.corpus.words import TAG_SETS
from workbench.charts.theme import diverging, style

_LINES = {
    KMEANS: ("#CC79A7", "#CC79A7", "dash"),
    IDENTITY: ("#D55E00", "#E69F00", "solid"),
    FREQUENCY: ("#117733", "#ACD39E", "dot"),
    UNTRAINED: ("#882255", "#FFAABB", "dashdot"),
    POSITION: ("#6B7280", "#9CA3AF", "dot"),
}
"""Colour on light, colour on dark, dash of each reference grouping."""
MOST_GROUPS = 16
"""Groups of a residual map; of more, those with the most words, and the table has all."""


def ami_by_layer(found: Alignment, *, dark: bool = False, row: int | None = None) -> go.Figure:
    """AMI of every layer with its interval, beside its references.

    Args:
        found: the alignment.
        dark: for a dark page.
        row: layer to mark, as a row of `found.layers`.
    """
    layers = [layer.layer for layer in found.layers]
    main = "#56B4E9" if dark else "#0072B2"
    figure = go.Figure()
    if not found.descriptive:
        chance = [layer.chance for layer in found.layers if layer.chance]
        _band(figure, layers, [b.low for b in chance], [b.high for b in chance], "chance, 95%", "#9CA3AF", 0.55)
        own = [layer.interval for layer in found.layers if layer.interval]
        _band(figure, layers, [b.low for b in own], [b.high for b in own], "95% interval of the groups", main, 0.28)
    for name, (light, darker, dash) in _LINES.items():
        if name in found.layers[0].references:
            values = [layer.references[name] for layer in found.layers]
            _line(figure, layers, values, name, darker if dark else light, dash)
    within = [layer.within_type for layer in found.layers if layer.within_type]
    if within:
        _line(figure, layers, [b.mean for b in within], "tags shuffled within types", "#999933", "longdash")
    control = [layer.control.mean for layer in found.layers]
    _line(figure, layers, control, "random tag per type", "#56B4E9" if not dark else "#88CCEE", "dot")
    figure.add_scatter(
        x=layers,
        y=[layer.measures.ami for layer in found.layers],
        name="groups",
        mode="lines+markers",
        line={"color": main, "width": 3},
        marker={"size": 8},
        hovertemplate="layer %{x}<br>AMI %{y:.3f}<extra>groups</extra>",
    )
    line = "#FFFFFF" if dark else "#000000"
    figure.add_hline(
        y=found.ceiling,
        line={"dash": "dash", "color": line, "width": 1.5},
        annotation_text=f"balance ceiling {found.ceiling:.2f}",
        annotation_position="top left",
    )
    if row is not None:
        figure.add_vline(x=layers[row], line={"color": line, "width": 1, "dash": "dot"})
    figure.update_layout(
        title=f"Agreement of groups with tags in every layer ({found.num_words:,} words)",
        hovermode="closest",
    )
    ends = [layers[0] - 0.5, layers[-1] + 0.5]
    figure.update_xaxes(title="layer", dtick=2 if len(layers) > 12 else 1, zeroline=False, range=ends)
    figure.update_yaxes(title="AMI (0: chance, 1: the same partition)", rangemode="tozero")
    style(figure, dark=dark, height=520)
    return figure


def residual_map(table: pd.DataFrame, *, dark: bool = False, tag_set: str) -> go.Figure:
    """Adjusted residuals of one layer, groups across, tags down; of many groups those with the most words.

    Args:
        table: from `workbench.views.linguistics.tables.residual_table`.
        dark: for a dark page.
        tag_set: orders the tags.
    """
    present = set(table["tag"])
    tags = [tag for tag in TAG_SETS[tag_set] if tag in present]
    groups = sorted(table["group"].unique().tolist())
    several = len(groups)
    if several > MOST_GROUPS:
        words = np.bincount(table["group"].to_numpy(), weights=table["observed"].to_numpy())
        groups = np.argsort(-words, kind="stable")[:MOST_GROUPS].tolist()

    def grid(column: str) -> np.ndarray:
        return table.pivot(index="tag", columns="group", values=column).loc[tags, groups].to_numpy(dtype=float)

    residual, q_value = grid("residual"), grid("q")
    span = float(np.nanmax(np.abs(residual))) if np.isfinite(residual).any() else 1.0
    low, middle, high = diverging(dark=dark)
    figure = go.Figure(
        go.Heatmap(
            z=residual,
            x=[str(group) for group in groups],
            y=tags,
            colorscale=[[0, low], [0.5, middle], [1, high]],
            zmin=-span,
            zmax=span,
            text=[[_label(value, q) for value, q in zip(*rows)] for rows in zip(residual, q_value)],
            texttemplate="%{text}",
            textfont={"size": 11, **({"color": "#FFFFFF"} if dark else {})},
            customdata=np.stack((grid("observed"), grid("expected"), q_value), axis=-1),
            hovertemplate="group %{x}, %{y}<br>%{customdata[0]:.0f} words, %{customdata[1]:.1f} expected"
            "<br>residual %{z:.1f}, q = %{customdata[2]:.3g}<extra></extra>",
            colorbar={"title": "residual", "thickness": 14},
            xgap=1,
            ygap=1,
            hoverongaps=False,
        )
    )
    layer = table["layer"].iloc[0]
    title = f"Tags that the groups of layer {layer} hold more (+) or less (−) of than chance"
    if several > MOST_GROUPS:
        title = f"Tags in the {MOST_GROUPS} largest groups of layer {layer}, beside chance"
    figure.update_layout(title=title)
    figure.update_xaxes(title="group", dtick=1, showgrid=False, zeroline=False, type="category")
    figure.update_yaxes(title="tag", autorange="reversed", type="category", showgrid=False)
    return style(figure, dark=dark, height=130 + 26 * len(tags))


def _label(value: float, q_value: float) -> str:
    if np.isnan(value):
        return ""
    return f"{value:+.0f}" if q_value < LEVEL else "·"


def _line(figure: go.Figure, x: list[int], y: list[float], name: str, color: str, dash: str) -> None:
    figure.add_scatter(
        x=x,
        y=y,
        name=name,
        mode="lines",
        line={"color": color, "width": 2, "dash": dash},
        hovertemplate=f"layer %{{x}}<br>AMI %{{y:.3f}}<extra>{name}</extra>",
    )


def _band(
    figure: go.Figure, x: list[int], low: list[float], high: list[float], name: str, color: str, opacity: float
) -> None:
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    figure.add_scatter(
        x=[*x, *x[::-1]],
        y=[*high, *low[::-1]],
        fill="toself",
        fillcolor=f"rgba({red},{green},{blue},{opacity})",
        line={"width": 0},
        mode="lines",
        name=name,
        hoverinfo="skip",
    )
