"""Group sizes under each routing, the error after each Sinkhorn round, and tokens whose group changes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from focus_core.analysis import Trace
from workbench.charts.group_sizes import all_sizes
from workbench.charts.theme import style
from workbench.views.balance.tables import RAW, SEQUENCE

_SYMBOLS = ("circle", "diamond-open", "square")
_DASHES = ("solid", "dash", "dot")


def tints(*, dark: bool) -> tuple[str, str, str]:
    """Three line colours that read on the page and differ for every kind of colour vision."""
    return ("#56B4E9", "#E69F00", "#CC79A7") if dark else ("#0072B2", "#D55E00", "#882255")


def load_map(trace: Trace, *, dark: bool = False) -> go.Figure:
    """Heatmap of first-group shares in every layer, see `all_sizes`.

    No layer is framed, so that the browser keeps the chart, the page's slowest to draw, when another layer is chosen.
    """
    even = 1 / trace.config.num_groups
    return all_sizes(trace, dark=dark).update_layout(
        title=f"Group sizes of every layer as routed (even split {even:.1%})"
    )


def largest_lines(table: pd.DataFrame, num_groups: int, *, dark: bool = False) -> go.Figure:
    """Share of the largest group in each layer, one line per routing, the even split dashed.

    Args:
        table: from `workbench.views.balance.tables.balance_table`.
        num_groups: K.
        dark: colours for a dark page.
    """
    order = [name for name in (SEQUENCE, RAW) if name in set(table["routing"])]
    order += [name for name in table["routing"].unique() if name not in order]
    figure = go.Figure()
    for name, color, dash, symbol in zip(order, tints(dark=dark), _DASHES, _SYMBOLS):
        part = table[table["routing"] == name]
        figure.add_scatter(
            x=part["layer"],
            y=part["largest group"],
            name=name,
            mode="lines+markers",
            line={"color": color, "dash": dash},
            marker={"symbol": symbol},
            hovertemplate="layer %{x}: %{y:.1%}<extra>" + name + "</extra>",
        )
    figure.add_hline(y=1 / num_groups, line={"dash": "dash", "color": "#FFFFFF" if dark else "#000000", "width": 1.5})
    figure.update_layout(title=f"Largest group in each layer (dashed: the even split, 1/{num_groups})")
    figure.update_xaxes(title="layer", zeroline=False)
    figure.update_yaxes(title="share of tokens (first group)", tickformat=".0%", rangemode="tozero")
    return style(figure, dark=dark, height=420)


def round_lines(errors: np.ndarray, row: int, layer: int, *, dark: bool = False) -> go.Figure:
    """Marginal error after each Sinkhorn round: one layer, and the range of all.

    Args:
        errors: (L, N + 1), from `focus_core.analysis.group_balance.balancing`.
        row: row of the layer to point out.
        layer: its number in the model.
        dark: colours for a dark page.
    """
    rounds = np.arange(errors.shape[1])
    floored = np.maximum(errors, 1e-7)  # float32 cannot tell smaller errors from none
    low, high, middle = floored.min(0), floored.max(0), np.median(floored, axis=0)
    main, other, _ = tints(dark=dark)
    figure = go.Figure()
    figure.add_scatter(x=rounds, y=high, mode="lines", line={"width": 0}, showlegend=False, hoverinfo="skip")
    figure.add_scatter(
        x=rounds,
        y=low,
        mode="lines",
        line={"width": 0},
        fill="tonexty",
        fillcolor="rgba(128,128,128,0.3)",
        name="range of all layers",
        hoverinfo="skip",
    )
    for name, values, color, dash in (
        (f"layer {layer}", floored[row], main, "solid"),
        ("median of all layers", middle, other, "dash"),
    ):
        figure.add_scatter(
            x=rounds,
            y=values,
            name=name,
            mode="lines+markers",
            line={"color": color, "dash": dash},
            marker={"size": 5},
            hovertemplate="after round %{x}: %{y:.2g}<extra>" + name + "</extra>",
        )
    figure.update_layout(title="Sequence Sinkhorn: marginal error after each round")
    figure.update_xaxes(title="round (0: softmax of the scores)", zeroline=False)
    figure.update_yaxes(title="largest deviation from T/K (relative, log)", type="log", exponentformat="power", dtick=1)
    return style(figure, dark=dark, height=420)


def flip_lines(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Share of tokens whose first group differs between two routings, by layer.

    Args:
        table: from `workbench.views.balance.tables.flip_table`.
        dark: colours for a dark page.
    """
    figure = go.Figure()
    names = [name for name in table.columns if name != "layer"]
    for name, color, dash, symbol in zip(names, tints(dark=dark), _DASHES, _SYMBOLS):
        figure.add_scatter(
            x=table["layer"],
            y=table[name],
            name=name,
            mode="lines+markers",
            line={"color": color, "dash": dash},
            marker={"symbol": symbol},
            hovertemplate="layer %{x}: %{y:.1%}<extra>" + name + "</extra>",
        )
    figure.update_layout(title="Tokens whose first group changes from one routing to another")
    figure.update_xaxes(title="layer", zeroline=False)
    figure.update_yaxes(title="share of tokens", tickformat=".0%", rangemode="tozero")
    return style(figure, dark=dark, height=420)


def future_line(table: pd.DataFrame, layer: int, *, dark: bool = False) -> go.Figure:
    """Share of a prefix's tokens that the rest of the text moves to another group, by prefix length.

    Args:
        table: from `workbench.views.balance.tables.future_table`.
        layer: the layer's number in the model.
        dark: colours for a dark page.
    """
    main, other, _ = tints(dark=dark)
    figure = go.Figure()
    figure.add_scatter(
        x=table["prefix tokens"],
        y=table["changed by later tokens"],
        name=SEQUENCE,
        mode="lines+markers",
        line={"color": main},
        hovertemplate="first %{x:,} tokens: %{y:.1%} change<extra></extra>",
    )
    figure.add_scatter(
        x=table["prefix tokens"],
        y=np.zeros(len(table)),
        name="calibrated: 0 by construction",
        mode="lines",
        line={"color": other, "dash": "dash"},
        hoverinfo="skip",
    )
    figure.update_layout(title=f"Tokens whose group depends on the rest of the text, layer {layer}")
    figure.update_xaxes(title="tokens of the text so far (log)", type="log", zeroline=False)
    figure.update_yaxes(title="share of these tokens", tickformat=".0%", rangemode="tozero")
    return style(figure, dark=dark, height=420)
