"""The frontier as a figure: perplexity against kept pairs and against measured speed, in one SVG without scripts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment

from focus_core.evaluation.compare import few_blocks
from focus_core.frontier.speeds import Speeds
from focus_core.frontier.table import SIZES, Row, frontier_rows, title

WIDTH, PANEL_WIDTH, PANEL_HEIGHT, LEFT, TOP = 1010, 610, 300, 76, 72
APART = PANEL_HEIGHT + 62
COLORS = ("#0072B2", "#D55E00", "#117733", "#882255", "#A05A00", "#4B5AA8", "#00707A", "#7A4B2A", "#B0306A", "#3E6B1F")
GREY = "#5F6570"
NOTES = (
    "Filled: routers. Open: baselines.",
    "Lines through points: 95% t intervals.",
    "At the upper edge: worse, with its value.",
)
SPEED_NOTES = (
    "Speeds: one attention call, float32,",
    "selection time excluded; baselines",
    "executed exactly, not by their kernels;",
    "content-based ones on heads of the",
    "default model while it reads a book.",
)


@dataclass(frozen=True)
class Axis:
    """A linear scale from values to pixels.

    Attributes:
        low: value at the start.
        high: value at the end.
        pixels: length; the start is at the bottom of a vertical one.
        upright: whether it is vertical.
    """

    low: float
    high: float
    pixels: float
    upright: bool = False

    def at(self, value: float) -> float:
        """Pixel of a value."""
        part = (value - self.low) / (self.high - self.low)
        return round(self.pixels * (1 - part if self.upright else part), 1)

    def ticks(self, text: Callable[[float], str], about: int = 7) -> list[dict[str, Any]]:
        """Round values in range, about `about` of them at most."""
        rough = (self.high - self.low) / about
        power = 10 ** math.floor(math.log10(rough))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
        first = math.ceil(self.low / step - 1e-9)
        values = [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]
        return [{"at": self.at(value), "text": text(value), "zero": abs(value) < step / 2} for value in values]


def figure(record: dict[str, Any], speeds: Speeds) -> str:
    """The figure of a record of `focus frontier`.

    Args:
        record: as `focus frontier` writes it.
        speeds: measured speeds; without any there is one panel, of the kept pairs.

    Returns:
        An SVG document; all names in it are escaped.
    """
    rows = [row for row in frontier_rows(record, speeds) if row.kind != "untouched"]
    legend, y = _legend(rows), _vertical(rows)
    ways: list[tuple[str, Callable[[Row], float | None], Callable[[float], str]]] = [
        ("share of distant pairs kept, sinks included", lambda row: row.kept_share, "{:.0%}".format),
        *(
            (
                f"measured speed-up of attention at {size:,} tokens",
                lambda row, n=size: row.speedups.get(n),
                "{:g}x".format,
            )
            for size in (SIZES if speeds.points else ())
        ),
    ]
    panels = [_panel(rows, legend, y, *way) for way in ways]
    made, blocks = record["made"], record["settings"]["blocks"]
    few = ("Intervals: fewer than 16 blocks,", "so differences are not established.") if few_blocks(blocks) else ()
    notes = NOTES + few + (SPEED_NOTES if speeds.points else ())
    return drawing(
        title=title(record),
        subtitle=f"{record['model']['name']}, {blocks} blocks; {made['device']}, {made['date'][:10]}",
        y_name="perplexity against untouched",
        panels=panels,
        legend=list(legend.values()),
        notes=notes,
    )


def drawing(
    *,
    title: str,
    subtitle: str,
    y_name: str,
    panels: Sequence[dict[str, Any]],
    legend: Sequence[dict[str, Any]],
    notes: Sequence[str],
) -> str:
    """Panels one below another, with the legend beside them, as an SVG document.

    Args:
        title: of the document.
        subtitle: below it.
        y_name: of the upright axes.
        panels: name, marks, lines and ticks of each, as figure_template.svg has them.
        legend: number, colour, name and filling of each series.
        notes: lines below the legend.
    """
    template = Environment(autoescape=True, trim_blocks=True).from_string(
        Path(__file__).with_name("figure_template.svg").read_text(encoding="utf-8")
    )
    return template.render(
        title=title,
        subtitle=subtitle,
        y_name=y_name,
        panels=[panel | {"top": TOP + number * APART} for number, panel in enumerate(panels)],
        legend=legend,
        notes=notes,
        width=WIDTH,
        height=TOP + max(len(panels) * APART, 21 * len(legend) + 17 * len(notes) + 40),
        left=LEFT,
        panel_width=PANEL_WIDTH,
        panel_height=PANEL_HEIGHT,
    )


def _legend(rows: list[Row]) -> dict[str, dict[str, Any]]:
    """Number, colour and name of each series: routers first, then by smallest loss."""
    best: dict[str, tuple[bool, float]] = {}
    for row in rows:
        rank = row.kind != "routers", row.relative
        best[row.series] = min(best.get(row.series, rank), rank)
    found = {}
    for number, series in enumerate(sorted(best, key=lambda name: best[name])):
        routers = not best[series][0]
        color = COLORS[number % len(COLORS)] if routers else GREY
        found[series] = {"number": number + 1, "color": color, "routers": routers, "name": series}
    return found


def _vertical(rows: list[Row]) -> Axis:
    """Scale that ends just above the worst routers; larger values are drawn at the edge."""
    above = [row.relative - 1 for row in rows]
    routers = [row.relative - 1 for row in rows if row.kind == "routers"]
    low, most = min([0.0, *above]), max([0.01, *above])
    high = min(most, max(0.01, 1.2 * max(routers))) if routers else most
    room = 0.08 * (high - low)
    return Axis(low - room, high + room, PANEL_HEIGHT, upright=True)


def _panel(
    rows: list[Row],
    legend: dict[str, dict[str, Any]],
    y: Axis,
    name: str,
    value: Callable[[Row], float | None],
    text: Callable[[float], str],
) -> dict[str, Any]:
    placed = sorted(
        ((row, at) for row in rows if (at := value(row)) is not None), key=lambda pair: (pair[0].series, pair[1])
    )
    x = Axis(0.0, 1.06 * max([0.01, *(at for _, at in placed)]), PANEL_WIDTH)
    edge = y.high - 0.04 * (y.high - y.low)
    marks: list[dict[str, Any]] = []
    lines: list[dict[str, Any]] = []
    for series, group in groupby(placed, key=lambda pair: pair[0].series):
        style = legend[series]
        drawn = [_mark(row, at, x, y, edge) | style for row, at in group]
        lines.append({"points": " ".join(f"{mark['x']},{mark['y']}" for mark in drawn), **style})
        marks += drawn
    marks.sort(key=lambda mark: -mark["number"])  # the best routers on top
    return {
        "name": name,
        "marks": marks,
        "lines": lines,
        "x_ticks": x.ticks(text),
        "y_ticks": y.ticks(_percent),
    }


def _percent(value: float) -> str:
    return f"{value:+.0%}" if abs(value) > 1e-9 else "0%"


def _mark(row: Row, at: float, x: Axis, y: Axis, edge: float) -> dict[str, Any]:
    above = row.relative - 1
    untouched = row.perplexity / row.relative
    beyond = above > edge
    interval = row.low is not None and row.high is not None and not beyond
    largest = "" if row.largest_group_share is None else f", largest group {row.largest_group_share:.1%}"
    kept = "" if row.kept_share is None else f", distant pairs kept {row.kept_share:.1%}"
    return {
        "x": x.at(at),
        "y": y.at(min(above, edge)),
        "low": y.at((row.low or 0.0) / untouched) if interval else None,
        "high": y.at((row.high or 0.0) / untouched) if interval else None,
        "beyond": f"{above:+.0%}" if beyond else "",
        "note": f"{row.label}: perplexity {row.perplexity:.2f} ({above:+.1%}){kept}{largest}",
    }
