"""Titles and legends of charts fit beside each other on a phone."""

from __future__ import annotations

import plotly.graph_objects as go

from workbench.charts.theme import WIDEST, style

LONG = "Where each group of layer 4, key/value head 1 is in layer 5, key/value head 1 (framed: matched groups)"


def test_a_long_title_has_lines_that_fit_and_room_for_them():
    short = style(go.Figure(layout={"title": "Loss"}), dark=False, height=400)
    assert short.layout.title.text == "Loss" and short.layout.margin.t is None
    long = style(go.Figure(layout={"title": LONG}), dark=False, height=400)
    lines = long.layout.title.text.split("<br>")
    assert " ".join(lines) == LONG and len(lines) > 1 and max(map(len, lines)) <= WIDEST
    assert long.layout.margin.t >= 48 + 15 * (len(lines) - 1)
    again = style(go.Figure(long), dark=True, height=400)  # as for the exported page
    assert again.layout.title.text == long.layout.title.text


def test_the_legend_is_below_the_chart_where_its_lines_take_room():
    figure = style(go.Figure(), dark=False, height=400)
    legend = figure.layout.template.layout.legend
    assert (legend.orientation, legend.yref, legend.y, legend.yanchor) == ("h", "container", 0, "bottom")
