"""The parts of speech of a group."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from workbench.charts.theme import style

MOST = 8


def tag_chart(table: pd.DataFrame, group: int, *, dark: bool = False) -> go.Figure:
    """Share of each part of speech in a group with its interval, beside its share of the text.

    Args:
        table: from `workbench.views.group.tables.tag_rows`.
        group: its number.
        dark: for a dark page.
    """
    part = table.head(MOST)
    main, other = ("#0072B2", "#FFFFFF") if dark else ("#56B4E9", "#000000")
    error = None  # below a few words there are no intervals
    if len(part) and not part["low"].isna().to_numpy().any():
        error = {"type": "data", "array": part["high"] - part["share"], "arrayminus": part["share"] - part["low"]}
    figure = go.Figure()
    figure.add_bar(
        y=part["tag"], x=part["share"], orientation="h", name="in the group", marker={"color": main}, error_x=error
    )
    figure.add_scatter(
        y=part["tag"],
        x=part["in the text"],
        mode="markers",
        name="in the whole text",
        marker={"symbol": "line-ns-open", "size": 18, "color": other, "line": {"width": 3, "color": other}},
    )
    figure.update_layout(title=f"Parts of speech of group {group}")
    axis = "share of words" if error is None else "share of words, 95% interval"
    figure.update_xaxes(title=axis, tickformat=".0%", rangemode="tozero")
    figure.update_yaxes(title="", type="category", autorange="reversed", showgrid=False)
    return style(figure, dark=dark, height=190 + 28 * len(part))
