"""Agreement of layers, flow between two of them, and churn over depth."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from focus_core.analysis import Trace
from workbench.charts.group_sizes import hover_names
from workbench.charts.theme import style
from workbench.views.layers.tables import flow

MEASURED, CHANCE = "#0072B2", "#E69F00"
MOST_NAMED = 4096
"""Pairs of groups whose labels a chart carries for its hover text."""


def sequential(*, dark: bool) -> list[list[object]]:
    """Colour scale from the page's ground to a strong blue."""
    low, high = ("#262730", "#56B4E9") if dark else ("#FFFFFF", "#0072B2")
    return [[0, low], [1, high]]


def agreement_map(trace: Trace, agreement: np.ndarray, row: int, other: int, *, dark: bool = False) -> go.Figure:
    """Layer by layer heatmap of AMI, with the two chosen layers pointed out."""
    names = [str(layer) for layer in trace.layers]
    others = np.where(np.eye(len(agreement), dtype=bool), np.nan, agreement)  # a layer agrees with itself
    figure = go.Figure(
        go.Heatmap(
            z=others,
            x=names,
            y=names,
            zmin=min(0.0, float(np.nanmin(others))),
            zmax=max(0.1, float(np.nanmax(others))),
            hoverongaps=False,
            colorscale="Cividis",
            hovertemplate="layers %{y} and %{x}<br>AMI %{z:.3f}<extra></extra>",
            colorbar={"title": "AMI", "thickness": 14},
            xgap=1,
            ygap=1,
        )
    )
    line = {"color": "#D55E00", "width": 3}
    for x, y in {(other, row), (row, other)}:
        figure.add_shape(type="rect", x0=x - 0.5, x1=x + 0.5, y0=y - 0.5, y1=y + 0.5, line=line)
    figure.update_layout(title="Agreement of layers: AMI of first groups (chance level 0)")
    figure.update_xaxes(title="layer", type="category", dtick=2, showgrid=False)
    figure.update_yaxes(title="layer", type="category", dtick=2, showgrid=False, autorange="reversed")
    return style(figure, dark=dark, height=520)


def flow_map(
    trace: Trace,
    row: int,
    other: int,
    *,
    dark: bool = False,
    names: tuple[Mapping[int, str], Mapping[int, str]] = ({}, {}),
) -> go.Figure:
    """Where the tokens of each group of one layer are in another, columns in the order of their matched partners.

    Args:
        trace: the routing.
        row: row of the layer whose groups are the rows.
        other: row of the layer whose groups are the columns.
        dark: colours for a dark page.
        names: labels of the groups of both, for the hover text.
    """
    counts, columns = flow(trace, row, other)
    here, there = f"layer {trace.layers[row]}", f"layer {trace.layers[other]}"
    return overlap_map(counts, columns, here, there, dark=dark, names=names)


def overlap_map(
    counts: np.ndarray,
    columns: np.ndarray,
    here: str,
    there: str,
    *,
    dark: bool = False,
    names: tuple[Mapping[int, str], Mapping[int, str]] = ({}, {}),
) -> go.Figure:
    """Heatmap of where each group of one routing is in another.

    Args:
        counts: (R, C) tokens, columns ordered so that matched groups lie on the diagonal.
        columns: (C,) group number of each column.
        here: name of the routing of the rows.
        there: name of the routing of the columns.
        dark: colours for a dark page.
        names: labels of the groups of both, for the hover text.
    """
    text, hover = None, f"group %{{y}} of {here} → group %{{x}} of {there}"
    if counts.size <= MOST_NAMED and any(names):
        mine, its = hover_names(range(len(counts)), names[0]), hover_names(columns.tolist(), names[1])
        text = [[f"group {one} of {here} → group {two} of {there}" for two in its] for one in mine]
        hover = "%{text}"
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    figure = go.Figure(
        go.Heatmap(
            z=share,
            x=[str(group) for group in columns],
            y=[str(group) for group in range(len(counts))],
            customdata=counts,
            zmin=0,
            zmax=1,
            colorscale=sequential(dark=dark),
            texttemplate="%{z:.0%}" if max(counts.shape) <= 16 else None,
            textfont={"size": 11},
            text=text,
            hovertemplate=hover + "<br>%{z:.1%} of the group, %{customdata:,} tokens<extra></extra>",
            colorbar={"title": "share", "tickformat": ".0%", "thickness": 14},
            xgap=1,
            ygap=1,
        )
    )
    edges = [(i - 0.5, i + 0.5) for i in range(min(counts.shape))]
    frames = "".join(f"M{low},{low}L{high},{low}L{high},{high}L{low},{high}Z" for low, high in edges)
    figure.add_shape(type="path", path=frames, line={"color": "#D55E00", "width": 2 if max(counts.shape) <= 16 else 1})
    figure.update_layout(title=f"Where each group of {here} is in {there} (framed: matched groups)")
    figure.update_xaxes(title=f"group in {there}, in matched order", type="category", showgrid=False)
    figure.update_yaxes(title=f"group in {here}", type="category", showgrid=False, autorange="reversed")
    style(figure, dark=dark, height=520)
    # All labels are short, so the margins are known; to find them, Plotly would draw the chart once more.
    figure.update_layout(margin={"l": 60, "r": 84, "b": 64, "autoexpand": False})
    return figure.update_xaxes(automargin=False).update_yaxes(automargin=False)


def churn_line(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Share of tokens that change their matched group at each step, beside chance.

    Args:
        table: from `workbench.views.layers.tables.step_table`.
        dark: colours for a dark page.
    """
    figure = go.Figure()
    color = "#56B4E9" if dark else MEASURED
    for name, tint, dash, symbol in (
        ("tokens that change", color, "solid", "circle"),
        ("by chance", CHANCE, "dash", "diamond-open"),
    ):
        figure.add_scatter(
            x=table["to layer"],
            y=table[name],
            name=name if name == "tokens that change" else "by chance: shuffled, matched again",
            mode="lines+markers",
            line={"color": tint, "dash": dash},
            marker={"symbol": symbol},
            hovertemplate="into layer %{x}: %{y:.1%}<extra>" + name + "</extra>",
        )
    figure.update_layout(title="Tokens that leave their matched group on the way into each layer")
    figure.update_xaxes(title="layer")
    figure.update_yaxes(title="share of tokens", tickformat=".0%", range=[0, 1])
    return style(figure, dark=dark, height=380)
