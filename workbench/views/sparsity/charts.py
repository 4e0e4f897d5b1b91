"""The pattern of kept pairs, and shares of pairs and of attention by layer."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from PIL import Image

from focus_core.analysis.sparsity import CLASSES, PooledMask
from workbench.charts.theme import style
from workbench.engine.plans import PLANNED, budget_name

COLORS = {"local": "#0072B2", "sink": "#E69F00", "same group": "#009E73", "dropped": "#BBBBBB"}


Names = Mapping[str, str]
"""What the classes of pairs are called, see `workbench.tokens.reads.class_names`."""


def mask_image(
    mask: PooledMask, layer: int, num_tokens: int, *, dark: bool = False, names: Names | None = None
) -> go.Figure:
    """The pooled pattern: each tile blends the colours of its pairs' classes; hover gives the shares.

    Args:
        mask: from `focus_core.analysis.sparsity.pooled_mask`.
        layer: the layer's number in the model.
        num_tokens: T.
        dark: colours for a dark page.
        names: of the classes; those of `CLASSES` when None.
    """
    names = names or {}
    factor, tiles = mask.factor, len(mask.shares)
    starts = np.arange(tiles) * factor
    percent = np.nan_to_num(np.round(mask.shares * 100)).astype(np.uint8)
    filled = np.isfinite(mask.shares[..., 0])
    figure = go.Figure(
        go.Heatmap(
            z=np.where(filled, 0, np.nan).astype(np.float32),
            x=starts,
            y=starts,
            customdata=percent,
            colorscale=[[0, "rgba(0,0,0,0)"], [1, "rgba(0,0,0,0)"]],
            showscale=False,
            hoverongaps=False,
            hovertemplate="query %{y}, key %{x}"
            + ("" if factor == 1 else f" and the {factor - 1} after each")
            + "".join(f"<br>{names.get(name, name)} %{{customdata[{kind}]}}%" for kind, name in enumerate(CLASSES))
            + "<extra></extra>",
        )
    )
    edge = factor / 2
    figure.add_layout_image(
        source=_png(mask.shares),
        xref="x",
        yref="y",
        x=-edge,
        y=-edge,
        sizex=tiles * factor,
        sizey=tiles * factor,
        sizing="stretch",
        layer="below",
        yanchor="top",
    )
    for name, color in COLORS.items():
        figure.add_scatter(
            x=[None],
            y=[None],
            mode="markers",
            name=names.get(name, name),
            marker={"color": color, "symbol": "square", "size": 12},
        )
    pooled = "one tile per pair" if factor == 1 else f"pooled: each tile is {factor} × {factor} tokens"
    figure.update_layout(title=f"Pairs that layer {layer} computes ({pooled})")
    limits = [-edge, tiles * factor - edge]
    bare = {"showgrid": False, "zeroline": False, "constrain": "domain"}
    figure.update_xaxes(title="key (index in the text)", range=limits, **bare)
    figure.update_yaxes(
        title="query (index in the text)",
        range=limits[::-1],
        scaleanchor="x",
        **bare,
    )
    return style(figure, dark=dark, height=640)


def _png(shares: np.ndarray) -> str:
    """A data URI of the tiles' blended colours; tiles without pairs are clear."""
    palette = np.array([[int(color[i : i + 2], 16) for i in (1, 3, 5)] for color in COLORS.values()], dtype=float)
    blended = np.nan_to_num(shares) @ palette
    alpha = np.isfinite(shares[..., :1]) * 255.0
    pixels = np.concatenate([blended, alpha], axis=-1).round().astype(np.uint8)
    scale = max(1, 512 // len(shares))  # browsers smooth small pictures when they stretch them
    buffer = io.BytesIO()
    Image.fromarray(pixels.repeat(scale, 0).repeat(scale, 1), "RGBA").save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def share_bars(
    table: pd.DataFrame,
    row: int,
    *,
    dark: bool = False,
    what: str,
    line: str | None = None,
    names: Names | None = None,
) -> go.Figure:
    """Stacked bars of the four classes by layer, from 0 to 100%.

    Args:
        table: one row per layer with columns layer and each of `CLASSES`.
        row: layer to point out.
        dark: colours for a dark page.
        what: the quantity that is shared out, such as "causal pairs".
        line: column drawn as a line over the bars.
        names: of the classes; those of `CLASSES` when None.
    """
    figure = go.Figure()
    for column, color in COLORS.items():
        name = (names or {}).get(column, column)
        figure.add_bar(
            x=table["layer"],
            y=table[column],
            name=name,
            marker={"color": color, "line": {"width": 0}},
            hovertemplate=f"layer %{{x}}<br>{name}: %{{y:.1%}} of {what}<extra></extra>",
        )
    ink = "#FFFFFF" if dark else "#000000"
    if line is not None:
        figure.add_scatter(
            x=table["layer"],
            y=table[line],
            name=line,
            mode="lines+markers",
            line={"color": "#000000", "dash": "dash", "width": 1.5},
            marker={"size": 4},
            hovertemplate=f"layer %{{x}}<br>{line}: %{{y:.1%}}<extra></extra>",
        )
    layer = float(table["layer"].to_numpy()[row])
    figure.add_shape(
        type="rect", x0=layer - 0.5, x1=layer + 0.5, yref="paper", y0=0, y1=1, line={"color": ink, "width": 2}
    )
    figure.update_layout(barmode="stack", bargap=0.15, title=f"Share of {what} in each layer")
    figure.update_xaxes(title="layer", showgrid=False)
    figure.update_yaxes(title=f"share of {what}", tickformat=".0%", range=[0, 1])
    return style(figure, dark=dark, height=440)


def frontier(table: pd.DataFrame, top_k: int | str, *, dark: bool = False) -> go.Figure:
    """Attention mass kept against pairs kept, one point per k or budget, mean over layers; a plan's is beside it.

    Args:
        table: columns k, pairs kept, mass kept.
        top_k: the chosen k or share, pointed out, or `PLANNED`.
        dark: colours for a dark page.
    """
    main, other = ("#56B4E9", "#E69F00") if dark else ("#0072B2", "#D55E00")
    plan, table = table.loc[table["k"].eq(PLANNED)], table.loc[table["k"].ne(PLANNED)]
    chosen = table["k"].to_numpy() == top_k
    kept = table["pairs kept"].to_numpy()
    crowded = np.diff(kept, prepend=-1) < 0.04
    if chosen.any():
        crowded |= np.abs(kept - kept[chosen][0]) < 0.1  # its label is drawn, and wide
    short = [budget_name(k).removeprefix("budget ") for k in table["k"]]
    labels = ["" if near and not ours else name for name, near, ours in zip(short, crowded, chosen)]
    figure = go.Figure(
        go.Scatter(
            x=table["pairs kept"],
            y=table["mass kept"],
            mode="lines+markers+text",
            text=labels,
            customdata=[budget_name(k) for k in table["k"]],
            textposition="bottom right",
            name="routing",
            line={"color": main},
            marker={"size": np.where(chosen, 14, 8), "color": np.where(chosen, other, main)},
            hovertemplate="%{customdata}: %{x:.1%} of pairs hold %{y:.1%} of the attention<extra></extra>",
        )
    )
    if len(plan):
        figure.add_scatter(
            x=plan["pairs kept"],
            y=plan["mass kept"],
            mode="markers",
            name="the routers' plan",
            marker={"size": 14, "color": other, "symbol": "diamond"},
            hovertemplate="planned k: %{x:.1%} of pairs hold %{y:.1%} of the attention<extra></extra>",
        )
    figure.add_scatter(
        x=[0, 1],
        y=[0, 1],
        mode="lines",
        name="random pairs",
        line={"color": "#888888", "dash": "dash"},
        hoverinfo="skip",
    )
    figure.update_layout(title="Attention held by the kept pairs, mean over layers")
    figure.update_xaxes(title="share of causal pairs kept", tickformat=".0%", range=[0, 1.08])
    figure.update_yaxes(title="share of attention mass kept", tickformat=".0%", range=[0, 1.08])
    return style(figure, dark=dark, height=440)
