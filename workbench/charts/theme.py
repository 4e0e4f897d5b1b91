"""Colours, fonts and template of charts, for light and dark pages; no import of Streamlit, for notebooks."""

from __future__ import annotations

from functools import cache

import plotly.graph_objects as go
import plotly.io as pio

FONT = '"Source Sans", "Source Sans Pro", "Segoe UI", sans-serif'
"""The app's own font, so that charts and text match."""

_KINDS = ("bar", "heatmap", "scatter")
_OTHER_CHARTS = ("polar", "ternary", "scene", "geo", "mapbox", "map")


def diverging(*, dark: bool) -> tuple[str, str, str]:
    """Colours of less than, as much as, and more than expected; white text is legible on all dark ones."""
    return ("#1F77B4", "#262730", "#B45F06") if dark else ("#0072B2", "#FFFFFF", "#D55E00")


def is_dark() -> bool:
    """Whether the user's theme is dark; light until the browser has said so."""
    import streamlit as st

    return st.context.theme.type == "dark"


def style(figure: go.Figure, *, dark: bool, height: int) -> go.Figure:
    """Give a figure our template, whatever Streamlit has set as Plotly's default.

    Args:
        figure: changed in place and returned.
        dark: colours for a dark page.
        height: pixels.
    """
    clear = "rgba(0,0,0,0)"
    return figure.update_layout(template=_template(dark), height=height, paper_bgcolor=clear, plot_bgcolor=clear)


@cache
def _template(dark: bool) -> go.layout.Template:
    """Plotly's own template with our fonts and lines, without the parts of charts that are not drawn here.

    Every figure checks, copies and sends its template, so a small one makes pages quick.
    """
    whole = pio.templates["plotly_dark" if dark else "plotly_white"].to_plotly_json()
    text, grid = ("#E8E8E8", "#3A3F4B") if dark else ("#1F2328", "#D8DCE2")
    axis = {"gridcolor": grid, "linecolor": grid, "zerolinecolor": grid, "automargin": True}
    layout = {name: value for name, value in whole["layout"].items() if name not in _OTHER_CHARTS}
    layout |= {
        "font": {"color": text, "size": 13, "family": FONT},
        "title": {**layout["title"], "font": {"size": 15}, "x": 0, "xanchor": "left"},
        "margin": {"l": 8, "r": 8, "t": 48, "b": 8},
        "hoverlabel": {**layout["hoverlabel"], "font": {"size": 12}},
        "xaxis": {**layout["xaxis"], **axis},
        "yaxis": {**layout["yaxis"], **axis},
    }
    return go.layout.Template(layout=layout, data={name: whole["data"][name] for name in _KINDS})
