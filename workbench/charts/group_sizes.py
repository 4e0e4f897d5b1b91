"""Group sizes against the even split, for one layer and for all."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from focus_core.analysis import Trace
from focus_core.analysis.display.palette import group_colors, ink
from focus_core.analysis.families import SINGLE_COLORS
from focus_core.analysis.group_balance import group_counts
from workbench.charts.theme import diverging, style


def size_table(trace: Trace) -> pd.DataFrame:
    """One row per layer and group: tokens whose first group it is, and tokens that joined it, with shares.

    First-group shares add up to 1 in a layer; member shares add up to k.
    """
    num_groups, num_tokens = trace.config.num_groups, len(trace.tokens)
    first = group_counts(trace.groups, num_groups).ravel()
    members = trace.membership.sum(axis=1).ravel()
    return pd.DataFrame(
        {
            "layer": np.repeat(trace.layers, num_groups),
            "group": np.tile(np.arange(num_groups), len(trace.layers)),
            "first tokens": first,
            "first share": first / num_tokens,
            "member tokens": members,
            "member share": members / num_tokens,
        }
    )


def hover_names(groups: Sequence[int], names: Mapping[int, str] | None) -> list[str]:
    """Groups with their labels, for the hover text of a chart: "42: nouns"."""
    names = names or {}
    return [f"{group}: {html.escape(names[group])}" if names.get(group) else str(group) for group in groups]


def layer_sizes(trace: Trace, layer: int, *, dark: bool = False, names: Mapping[int, str] | None = None) -> go.Figure:
    """Bars of one layer's first-group shares, with the even split as a line; many groups from the largest on.

    Args:
        trace: the routing.
        layer: row of its layers.
        dark: colours for a dark page.
        names: labels of the groups, for the hover text.
    """
    num_groups = trace.config.num_groups
    share = np.bincount(trace.groups[layer], minlength=num_groups) / len(trace.tokens)
    many = num_groups > SINGLE_COLORS
    order = np.argsort(-share, kind="stable") if many else np.arange(num_groups)
    share, colors = share[order], [group_colors(trace, layer)[group] for group in order]
    figure = go.Figure(
        go.Bar(
            x=[str(group) for group in order] if many else list(range(num_groups)),
            y=share,
            marker={"color": colors, "line": {"width": 0}},
            text=None if many else [f"{value:.1%}" for value in share],
            textposition="auto",
            insidetextfont={"color": [ink(color) for color in colors]},
            textangle=0,
            cliponaxis=False,
            customdata=hover_names(order.tolist(), names),
            hovertemplate="group %{customdata}<br>%{y:.1%} of tokens<extra></extra>",
        )
    )
    figure.add_hline(
        y=1 / num_groups,
        line={"dash": "dash", "color": "#FFFFFF" if dark else "#000000", "width": 1.5},
    )
    figure.update_layout(
        title=f"Group sizes in layer {trace.layers[layer]} (dashed: the even split, 1/{num_groups})",
        showlegend=False,
    )
    figure.update_xaxes(title="group", dtick=1, showgrid=False, zeroline=False)
    if many:
        figure.update_xaxes(title="group, by size", type="category", dtick=None, nticks=33)
    top = max(float(share.max()), 1 / num_groups)
    figure.update_yaxes(title="share of tokens (first group)", tickformat=".0%", range=[0, top * 1.2])
    return style(figure, dark=dark, height=380)


def all_sizes(trace: Trace, *, dark: bool = False, layer: int | None = None) -> go.Figure:
    """Heatmap of first-group shares, layers down, groups across: from none over the even split to the fullest.

    Many groups stand in each layer from the largest to the smallest; their numbers are in the hover text.
    """
    num_groups = trace.config.num_groups
    share = group_counts(trace.groups, num_groups) / len(trace.tokens)
    many = num_groups > SINGLE_COLORS
    order = np.argsort(-share, axis=1, kind="stable") if many else np.broadcast_to(np.arange(num_groups), share.shape)
    share = np.take_along_axis(share, order, axis=1)
    even = 1 / num_groups
    top = max(float(share.max()), 1.001 * even)
    low, middle, high = diverging(dark=dark)
    figure = go.Figure(
        go.Heatmap(
            z=share,
            x=list(range(num_groups)),
            y=[str(number) for number in trace.layers],
            colorscale=[[0, low], [even / top, middle], [1, high]],
            zmin=0,
            zmax=top,
            customdata=order,
            texttemplate=None if many else "%{z:.0%}",
            textfont={"size": 9, **({"color": "#FFFFFF"} if dark else {})},
            hovertemplate="layer %{y}<br>group %{customdata}<br>%{z:.1%} of tokens<extra></extra>",
            colorbar={"title": "share", "tickformat": ".0%", "thickness": 14},
            xgap=0 if many else 1,
            ygap=1,
        )
    )
    if layer is not None:
        line = {"color": ink(middle), "width": 2}
        figure.add_shape(type="rect", xref="paper", x0=0, x1=1, yref="y", y0=layer - 0.5, y1=layer + 0.5, line=line)
    figure.update_layout(title=f"Group sizes in every layer (even split {even:.1%})")
    figure.update_xaxes(title="rank by size in its layer" if many else "group", showgrid=False)
    figure.update_xaxes(dtick=8 if many else 1)
    figure.update_yaxes(title="layer", autorange="reversed", type="category", dtick=2, showgrid=False)
    return style(figure, dark=dark, height=max(380, 110 + 15 * len(trace.layers)))
