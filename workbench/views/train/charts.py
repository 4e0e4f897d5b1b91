"""Curves of a training run."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from focus_core.training.objectives import OBJECTIVES
from workbench.charts.theme import style


def training_curves(
    history: pd.DataFrame, *, num_groups: int, steps: int, objective: str, dark: bool = False
) -> go.Figure:
    """Loss, largest group and tokens a second over the steps, one below the other, which fits a phone too.

    Args:
        history: from `workbench.views.train.tables.history_table`.
        num_groups: K; the dashed line is 1/K.
        steps: of the whole run, the end of the axes.
        objective: a key of `OBJECTIVES`, the meaning of the loss.
        dark: for a dark page.
    """
    loss = OBJECTIVES[objective].measures
    titles = (f"Loss: {loss}", f"Largest group, worst layer (dashed: 1/{num_groups})", "Speed")
    figure = make_subplots(3, 1, subplot_titles=titles, shared_xaxes=True, vertical_spacing=0.09)
    colors = ("#56B4E9", "#E69F00", "#CC79A7") if dark else ("#0072B2", "#D55E00", "#882255")
    columns = ("loss", "largest group", "tokens per second")
    mode = "lines+markers" if len(history) < 60 else "lines"
    for place, (column, color) in enumerate(zip(columns, colors), start=1):
        figure.add_scatter(
            x=history["step"],
            y=history[column],
            mode=mode,
            line={"color": color, "width": 2},
            marker={"size": 5},
            name=column,
            row=place,
            col=1,
            hovertemplate="step %{x}<br>%{y:.4g}<extra></extra>"
            if place != 2
            else "step %{x}<br>%{y:.1%}<extra></extra>",
        )
    figure.update_xaxes(range=[0, steps + 1])
    figure.update_xaxes(title="step", row=3, col=1)
    figure.update_yaxes(title="nats", row=1, col=1)
    top = max([1.6 / num_groups, *history["largest group"]])
    figure.update_yaxes(title="share of tokens", tickformat=".0%", range=[0, min(1.0, top * 1.1)], row=2, col=1)
    figure.update_yaxes(title="tokens per second", rangemode="tozero", row=3, col=1)
    even = {"dash": "dash", "width": 1.5, "color": "#FFFFFF" if dark else "#000000"}
    # A trace, not a shape: shapes on subplots that have no data yet are not drawn.
    figure.add_scatter(
        x=[0, steps + 1], y=[1 / num_groups] * 2, mode="lines", line=even, hoverinfo="skip", row=2, col=1
    )
    figure.update_layout(showlegend=False)
    figure.update_annotations(font_size=14)
    return style(figure, dark=dark, height=640)
