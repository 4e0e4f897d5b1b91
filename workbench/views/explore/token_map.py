"""Token by layer map: the first group of every token in every layer."""

from __future__ import annotations

import html
from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go

from focus_core.analysis import Trace
from focus_core.analysis.display.palette import group_color, group_colors, ink
from focus_core.analysis.tokens import token_text
from workbench.charts.group_sizes import hover_names
from workbench.charts.theme import style

MAX_COLUMNS = 512
_NUMBERED_COLUMNS = 40


def pool_groups(groups: np.ndarray, num_groups: int, columns: int = MAX_COLUMNS) -> tuple[np.ndarray, np.ndarray, int]:
    """Reduce (L, T) groups to at most so many columns by majority.

    Args:
        groups: (L, T) int, first group of each token.
        num_groups: K.
        columns: the most columns wanted.

    Returns:
        (L, C) the most frequent group of each run of tokens, ties to the lower number; (L, C) its share in
        the run; and the pooling factor, tokens per column (the last column may hold fewer).
    """
    tokens = groups.shape[1]
    factor = max(1, -(-tokens // columns))
    starts = np.arange(0, tokens, factor)
    one_hot = groups[..., None] == np.arange(num_groups)
    counts = np.add.reduceat(one_hot, starts, axis=1, dtype=np.int64)
    return counts.argmax(axis=-1), counts.max(axis=-1) / counts.sum(axis=-1), factor


def token_map(
    trace: Trace,
    *,
    dark: bool = False,
    layer: int | None = None,
    token: int | None = None,
    names: Mapping[int, str] | None = None,
) -> go.Figure:
    """Heatmap of groups, layers down, tokens across, one flat colour per group.

    Args:
        trace: the routing.
        dark: colours for a dark page.
        layer: row of the trace to point out.
        token: token to point out.
        names: labels of the groups of the layer that is pointed out, for the hover text.
    """
    num_groups, num_tokens = trace.config.num_groups, len(trace.tokens)
    groups, share, factor = pool_groups(trace.groups, num_groups)
    named = _called(groups, layer, names)
    starts = np.arange(groups.shape[1]) * factor
    colored, count, title = groups, num_groups, "group"
    if trace.families is not None:  # more groups than colours: alike groups share one
        colored, title = np.take_along_axis(trace.families, groups, axis=1), "family"
        count = int(trace.families.max()) + 1
    edges = np.linspace(0, 1, count + 1)
    scale = [[edge, group_color(color)] for color in range(count) for edge in (edges[color], edges[color + 1])]
    if factor == 1:
        spelled = [html.escape(token_text(trace, i)) for i in range(num_tokens)]
        hover = "token %{x} %{text}<br>layer %{y}<br>group %{customdata[0]}<extra></extra>"
        text = np.broadcast_to(np.array(spelled, dtype=object), groups.shape)
    else:
        spelled = [f"{start}–{min(start + factor, num_tokens) - 1}" for start in starts]
        hover = "tokens %{text}<br>layer %{y}<br>most frequent group %{customdata[0]} (%{customdata[1]:.0%} of "
        "them)<extra></extra>"
        text = np.broadcast_to(np.array(spelled, dtype=object), groups.shape)
    figure = go.Figure(
        go.Heatmap(
            z=colored,
            x=starts,
            y=[str(number) for number in trace.layers],
            text=text.tolist(),
            customdata=np.stack([named, np.round(share, 3)], axis=-1),
            hovertemplate=hover,
            colorscale=scale,
            zmin=-0.5,
            zmax=count - 0.5,
            xgap=1 if groups.shape[1] <= 128 else 0,
            ygap=1,
            colorbar={"title": title, "tickvals": list(range(count)), "thickness": 14, "len": 1},
        )
    )
    pooled = "" if factor == 1 else f", pooled: each column is the most frequent group of {factor} tokens"
    families = "" if trace.families is None else "; colour: families of alike groups"
    figure.update_layout(title=f"First group of every token in every layer{pooled}{families}")
    figure.update_xaxes(title="token (index in the text)", showgrid=False)
    figure.update_yaxes(title="layer", autorange="reversed", showgrid=False, type="category", dtick=2)
    if groups.shape[1] <= _NUMBERED_COLUMNS:
        _print_numbers(figure, groups, starts, trace)
    _point_out(figure, trace, factor, layer, token, dark=dark)
    return style(figure, dark=dark, height=max(300, 110 + 15 * len(trace.layers)))


def _called(groups: np.ndarray, layer: int | None, names: Mapping[int, str] | None) -> np.ndarray:
    """(L, C) groups, those of one layer with their labels."""
    found = groups.astype(object)
    if layer is not None and names:
        found[layer] = hover_names(groups[layer].tolist(), names)
    return found


def _print_numbers(figure: go.Figure, groups: np.ndarray, starts: np.ndarray, trace: Trace) -> None:
    rows, columns = np.indices(groups.shape)
    fills = [group_colors(trace, row) for row in range(len(trace.layers))]
    colors = [fills[row][int(group)] for row, group in zip(rows.ravel(), groups.ravel())]
    figure.add_scatter(
        x=starts[columns.ravel()],
        y=[str(trace.layers[row]) for row in rows.ravel()],
        text=groups.ravel().astype(str),
        textfont={"color": [ink(color) for color in colors], "size": 9},
        mode="text",
        hoverinfo="skip",
        showlegend=False,
    )


def _point_out(
    figure: go.Figure, trace: Trace, factor: int, layer: int | None, token: int | None, *, dark: bool
) -> None:
    line = {"color": "#FFFFFF" if dark else "#000000", "width": 2}
    if layer is not None:
        figure.add_shape(type="rect", xref="paper", x0=0, x1=1, yref="y", y0=layer - 0.5, y1=layer + 0.5, line=line)
    if token is not None:
        left = token // factor * factor - factor / 2
        figure.add_shape(type="rect", xref="x", x0=left, x1=left + factor, yref="paper", y0=0, y1=1, line=line)
