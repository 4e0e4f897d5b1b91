"""The causal pairs of a layer by class: local, sink, same group, dropped."""

from __future__ import annotations

from collections.abc import Mapping

import plotly.graph_objects as go

from focus_core.analysis.display.palette import ink
from workbench.charts.theme import style
from workbench.tokens.reads import PairShares

_COLORS = {"local": "#0072B2", "sink": "#E69F00", "same group": "#009E73", "dropped": "#BBBBBB"}


def pair_bar(
    shares: PairShares, layer: int, *, dark: bool = False, names: Mapping[str, str] | None = None
) -> go.Figure:
    """One stacked bar: local, sink, same group, dropped.

    Args:
        shares: of one layer.
        layer: the layer's number in the model.
        dark: colours for a dark page.
        names: what the classes are called, see `workbench.tokens.reads.class_names`; as above when None.
    """
    values = {
        "local": shares.local,
        "sink": shares.sink,
        "same group": shares.same_group,
        "dropped": shares.dropped,
    }
    figure = go.Figure()
    for kind, value in values.items():
        color, name = _COLORS[kind], (names or {}).get(kind, kind)
        figure.add_bar(
            x=[value],
            y=[""],
            orientation="h",
            name=f"{name} {value:.1%}",
            marker={"color": color},
            text=f"{value:.0%}" if value >= 0.04 else "",
            textfont={"color": ink(color)},
            insidetextanchor="middle",
            textangle=0,
            hovertemplate=f"{name}: %{{x:.2%}} of causal pairs<extra></extra>",
        )
    figure.update_layout(
        barmode="stack",
        title=f"Causal pairs in layer {layer}",
        bargap=0,
    )
    figure.update_xaxes(
        title="share of causal pairs",
        tickformat=".0%",
        range=[0, 1],
        tickvals=[0, 0.25, 0.5, 0.75, 1],
        showgrid=False,
    )
    figure.update_yaxes(showticklabels=False, showgrid=False)
    style(figure, dark=dark, height=235)
    figure.update_layout(margin={"l": 24, "r": 24})  # room for 0% and 100%
    return figure
