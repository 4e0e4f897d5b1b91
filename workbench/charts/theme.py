"""Colours, fonts and template of charts, for light and dark pages; no import of Streamlit, for notebooks."""

from __future__ import annotations

import textwrap
from functools import cache

import plotly.graph_objects as go
import plotly.io as pio

FONT = '"Source Sans", "Source Sans Pro", "Segoe UI", sans-serif'
"""The app's own font, so that charts and text match."""

WIDEST = 52
"""Characters of a line of a title; so many fit beside each other on a phone."""

SCHEME = "color_scheme"
"""Where the session remembers "dark" or "light", once the page was seen to be other than the browser asks for."""

_TITLE_MIDDLE, _TITLE_LINE, _MARGIN = 24, 20, 48
"""Pixels from the top of a chart to the middle of its title, from there to a second line, and to the axes."""

_BELOW = {
    "orientation": "h",
    "xref": "container",
    "x": 0,
    "xanchor": "left",
    "yref": "container",
    "y": 0,
    "yanchor": "bottom",
    "traceorder": "normal",
}
_KINDS = ("bar", "heatmap", "scatter")
_OTHER_CHARTS = ("polar", "ternary", "scene", "geo", "mapbox", "map")


def diverging(*, dark: bool) -> tuple[str, str, str]:
    """Colours of less than, as much as, and more than expected; white text is legible on all dark ones."""
    return ("#1F77B4", "#262730", "#B45F06") if dark else ("#0072B2", "#FFFFFF", "#D55E00")


def is_dark() -> bool:
    """Whether the page is dark, as `theme_watch` saw it, or else as the browser asks for; light until it has."""
    import streamlit as st

    return st.session_state.get(SCHEME, st.context.theme.type) == "dark"


def style(figure: go.Figure, *, dark: bool, height: int) -> go.Figure:
    """Give a figure our template, whatever Streamlit has set as Plotly's default, and its title lines that fit.

    The legend lies below the axes, where it takes the lines that it needs on a narrow screen.

    Args:
        figure: changed in place and returned.
        dark: colours for a dark page.
        height: pixels.
    """
    clear = "rgba(0,0,0,0)"
    figure.update_layout(template=_template(dark), height=height, paper_bgcolor=clear, plot_bgcolor=clear)
    lines = _lines(figure.layout.title.text or "")  # pyright: ignore[reportAttributeAccessIssue]
    if len(lines) > 1:
        figure.update_layout(title={"text": "<br>".join(lines), "y": 1 - _TITLE_MIDDLE / height, "yanchor": "middle"})
        figure.update_layout(margin={"t": _MARGIN + _TITLE_LINE * (len(lines) - 1)})
    return figure


def _lines(title: str) -> list[str]:
    """The lines of a title; those that it has already are kept."""
    return [line for part in title.split("<br>") for line in textwrap.wrap(part, WIDEST, break_on_hyphens=False)]


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
        "margin": {"l": 8, "r": 8, "t": _MARGIN, "b": 8},
        "legend": _BELOW,
        "hoverlabel": {**layout["hoverlabel"], "font": {"size": 12}},
        "xaxis": {**layout["xaxis"], **axis},
        "yaxis": {**layout["yaxis"], **axis},
    }
    return go.layout.Template(layout=layout, data={name: whole["data"][name] for name in _KINDS})
