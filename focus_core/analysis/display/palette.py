"""Colours of groups, and the text colour that is legible on each."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from focus_core.analysis.routed_text import RoutedText

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

Chosen for a large smallest CIE76 difference of any two under normal, protan, deutan and tritan vision: 22 among the
first eight, 12 among all. The group number is printed beside every colour, so colour is never the only channel.
"""

DARK_INK, LIGHT_INK = "#000000", "#FFFFFF"


def group_color(group: int) -> str:
    """Fill colour of a group, "#RRGGBB"."""
    return PALETTE[group % len(PALETTE)]


def group_colors(trace: RoutedText, row: int) -> list[str]:
    """Fill colours of the K groups of one layer; alike groups share one where there are more than colours."""
    if trace.families is None:
        return [group_color(group) for group in range(trace.config.num_groups)]
    return [group_color(int(family)) for family in trace.families[row]]


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
    """Black or white, whichever has more contrast with the fill; never below a contrast of 4.5."""
    return max((DARK_INK, LIGHT_INK), key=lambda color: contrast(color, fill))
