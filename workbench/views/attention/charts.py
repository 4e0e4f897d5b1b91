"""The keys of one token, under full attention and under routing."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go

from workbench.charts.group_sizes import hover_names
from workbench.charts.theme import style
from workbench.views.attention.tables import KINDS

_LIGHT = dict(zip(KINDS, ("#0072B2", "#6B7280", "#D55E00", "#CC79A7", "#B8BDC7")))
_DARK = dict(zip(KINDS, ("#56B4E9", "#9CA3AF", "#E69F00", "#CC79A7", "#4B5563")))


def weights_chart(
    table: pd.DataFrame,
    column: str,
    *,
    title: str,
    most: float,
    dark: bool = False,
    names: Mapping[int, str] | None = None,
) -> go.Figure:
    """Weights of all keys along the text, coloured by how each is read.

    Args:
        table: from `key_table`.
        column: "full" or "routed".
        title: of the chart.
        most: end of the axis, the same for charts side by side; larger weights are named above their place.
        dark: for a dark page.
        names: labels of the groups, for the hover text.
    """
    colors = _DARK if dark else _LIGHT
    figure = go.Figure()
    for kind in KINDS:
        part = table[(table["how"] == kind) & (table[column] > 0)]
        if part.empty:
            continue
        x, y = [], []
        for place, value in zip(part["token"], part[column]):
            x += [place, place, None]
            y += [0, value, None]
        figure.add_scatter(
            x=x, y=y, mode="lines", line={"color": colors[kind], "width": 2}, hoverinfo="skip", showlegend=False
        )
        figure.add_scatter(
            x=part["token"],
            y=part[column],
            mode="markers",
            name=kind,
            marker={"size": 6, "color": colors[kind]},
            customdata=pd.DataFrame(part, columns=["text", "distance"]).assign(
                group=hover_names(part["group"].tolist(), names)
            ),
            hovertemplate="%{customdata[0]}<br>token %{x}, %{customdata[1]} before<br>group %{customdata[2]}"
            "<br>weight %{y:.2%}"
            f"<extra>{kind}</extra>",
        )
    beyond = table[table[column] > most]
    notes = [
        {
            "x": place,
            "y": most,
            "text": f"{text} {value:.0%} ↑",
            "showarrow": False,
            "xanchor": "left",
            "yanchor": "bottom",
        }
        for place, text, value in zip(beyond["token"], beyond["text"], beyond[column])
    ]
    figure.update_layout(title=title, annotations=notes)
    figure.update_xaxes(title="token read", zeroline=False, showgrid=False)
    figure.update_yaxes(title="weight", tickformat=".1%", range=[0, 1.08 * most], zeroline=False)
    return style(figure, dark=dark, height=360)
