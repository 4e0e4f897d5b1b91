"""Colours of groups and the look of charts, for light and dark."""

from __future__ import annotations

from functools import cache

import plotly.graph_objects as go
import plotly.io as pio
import streamlit as st

PALETTE = (
    "#0072B2",
    "#F0E442",
    "#CC6677",
    "#56B4E9",
    "#999933",
    "#FFAABB",
    "#882255",
    "#332288",
    "#117733",
    "#E69F00",
    "#D55E00",
    "#CC79A7",
    "#663333",
    "#ACD39E",
    "#99DDFF",
    "#762A83",
)
"""Colours of the first 16 groups, from Okabe and Ito's and Paul Tol's schemes; later groups repeat them.

Chosen so that the smallest CIE76 difference of any two, under normal, protan, deutan and tritan vision, is
large (22 among the first eight, 12 among all). The group number is printed beside every colour, so that
colour is never the only channel.
"""

FONT = '"Source Sans", "Source Sans Pro", "Segoe UI", sans-serif'
"""The app's own font, so that charts and text match."""

_KINDS = ("bar", "heatmap", "scatter")
_OTHER_CHARTS = ("polar", "ternary", "scene", "geo", "mapbox", "map")
DARK_INK, LIGHT_INK = "#000000", "#FFFFFF"


def group_color(group: int) -> str:
    """Fill colour of a group, "#RRGGBB"."""
    return PALETTE[group % len(PALETTE)]


def luminance(color: str) -> float:
    """Relative luminance, 0 to 1, of an "#RRGGBB" colour (WCAG 2.2)."""
    channels = [int(color[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    """Contrast ratio of two colours, 1 to 21 (WCAG 2.2)."""
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def ink(fill: str) -> str:
    """Black or white, whichever reads better on the fill; never below a contrast of 4.5."""
    return max((DARK_INK, LIGHT_INK), key=lambda color: contrast(color, fill))


def diverging(*, dark: bool) -> tuple[str, str, str]:
    """Colours of less than, as much as, and more than expected; white print reads on all of the dark ones."""
    return ("#1F77B4", "#262730", "#B45F06") if dark else ("#0072B2", "#FFFFFF", "#D55E00")


def is_dark() -> bool:
    """Whether the user's theme is dark; light until the browser has said so."""
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
    """Plotly's own template with our fonts and lines, less what is for charts that are not drawn here.

    Every figure checks, copies and sends its template, so a small one is what makes pages quick.
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
