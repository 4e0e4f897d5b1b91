"""The figure of several kinds of text: KL against kept pairs, one panel for each length, as one SVG without scripts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from focus_core.frontier.figure import COLORS, GREY, PANEL_HEIGHT, PANEL_WIDTH, Axis, drawing
from focus_core.frontier.kinds.means import MeanRow, devices_of, lengths_of, mean_rows
from focus_core.frontier.kinds.table import kinds_title

NOTES = (
    "Mean over kinds of text.",
    "Filled: routers. Open: baselines.",
    "Lines through points: 95% t intervals",
    "over the blocks of all kinds.",
)


@dataclass(frozen=True)
class LogAxis:
    """A logarithmic upright scale from positive values to pixels.

    Attributes:
        low: value at the bottom.
        high: value at the top.
        pixels: length.
    """

    low: float
    high: float
    pixels: float

    def at(self, value: float) -> float:
        """Pixel of a value; values beyond an end are drawn at that end."""
        inside = min(max(value, self.low), self.high)
        part = math.log(inside / self.low) / math.log(self.high / self.low)
        return round(self.pixels * (1 - part), 1)

    def ticks(self) -> list[dict[str, Any]]:
        """1, 2 and 5 times powers of ten, in range."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        values = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
        inside = [value for value in values if self.low <= value <= self.high]
        return [{"at": self.at(value), "text": f"{value:g}", "zero": False} for value in inside]


def kinds_figure(record: Mapping[str, Any]) -> str:
    """The figure of a record of the protocol.

    Args:
        record: as `measure_protocol` writes it.

    Returns:
        An SVG document; all names in it are escaped.
    """
    found = {
        length: [row for row in mean_rows(record, length) if row.kl is not None and row.kl.difference > 0]
        for length in lengths_of(record)
    }
    legend = _legend([row for rows in found.values() for row in rows])
    return drawing(
        title=kinds_title(record),
        subtitle=f"{record['model']['name']}; {devices_of(record)}, {record['made']['date'][:10]}",
        y_name="KL from the untouched model, nats per token",
        panels=[_panel(length, rows, legend) for length, rows in found.items()],
        legend=list(legend.values()),
        notes=NOTES,
    )


def _legend(rows: list[MeanRow]) -> dict[str, dict[str, Any]]:
    """Number, colour and name of each series: routers first, then by smallest KL."""
    best: dict[str, tuple[bool, float]] = {}
    for row in rows:
        rank = row.kind != "routers", _kl(row)
        best[row.series] = min(best.get(row.series, rank), rank)
    return {
        series: {
            "number": number + 1,
            "color": GREY if best[series][0] else COLORS[number % len(COLORS)],
            "routers": not best[series][0],
            "name": series,
        }
        for number, series in enumerate(sorted(best, key=lambda name: best[name]))
    }


def _kl(row: MeanRow) -> float:
    return 0.0 if row.kl is None else row.kl.difference


def _panel(length: int, rows: list[MeanRow], legend: dict[str, dict[str, Any]]) -> dict[str, Any]:
    placed = sorted(
        ((row, row.kept_share) for row in rows if row.kept_share is not None),
        key=lambda pair: (pair[0].series, pair[1]),
    )
    values = [_kl(row) for row, _ in placed] or [0.01]
    y = LogAxis(min(values) / 1.6, max(values) * 1.6, PANEL_HEIGHT)
    x = Axis(0.0, 1.06 * max([0.01, *(share for _, share in placed)]), PANEL_WIDTH)
    marks: list[dict[str, Any]] = []
    lines: list[dict[str, Any]] = []
    for series, group in groupby(placed, key=lambda pair: pair[0].series):
        style = legend[series]
        drawn = [_mark(row, share, x, y) | style for row, share in group]
        lines.append({"points": " ".join(f"{mark['x']},{mark['y']}" for mark in drawn), **style})
        marks += drawn
    marks.sort(key=lambda mark: -mark["number"])  # the best routers on top
    return {
        "name": f"T = {length:,}: share of distant pairs kept, sinks included",
        "marks": marks,
        "lines": lines,
        "x_ticks": x.ticks("{:.0%}".format),
        "y_ticks": y.ticks(),
    }


def _mark(row: MeanRow, share: float, x: Axis, y: LogAxis) -> dict[str, Any]:
    low, high = (None, None) if row.kl is None else (row.kl.low, row.kl.high)
    return {
        "x": x.at(share),
        "y": y.at(_kl(row)),
        "low": None if low is None else y.at(low),
        "high": None if high is None else y.at(high),
        "beyond": "",
        "note": f"{row.label}: KL {_kl(row):.4f} nats per token, distant pairs kept {share:.1%}",
    }
