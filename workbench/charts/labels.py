"""Names beside the points of a chart, placed so that none covers another name or a point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression

SIZES = ((390, 190), (880, 320))
"""Width and height in pixels of a plot area in half a page and in a whole one."""
LINE = 15
"""Pixels from one line of text to the next."""

_LETTER, _MARK, _GAPS = 6.3, 8, (9, 20, 30)
_PLACES = ((1, 0), (0, 1), (0, -1), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1))
_ANCHORS = {-1: "right", 0: "center", 1: "left"}
_LEVELS = {-1: "top", 0: "middle", 1: "bottom"}
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Named:
    """A point of a chart.

    Attributes:
        x: on the axis.
        y: on the axis.
        name: text beside it, may be empty.
        color: of the text.
        elsewhere: other points that may carry the name where this one has no room for it.
    """

    x: float
    y: float
    name: str = ""
    color: str = ""
    elsewhere: tuple[tuple[float, float], ...] = ()


def beside(
    points: Sequence[Named],
    *,
    x_range: tuple[float, float],
    y_range: tuple[float, float],
    sizes: Sequence[tuple[int, int]] = SIZES,
) -> list[dict[str, Any]]:
    """Annotations close to their points. A name without a free place is left out; the hover text and the table have it.

    Args:
        points: every point that is drawn, those whose names matter most first.
        x_range: of the axis.
        y_range: of the axis.
        sizes: of the plot area, in pixels; a place has to be free in all of them.
    """
    placed: list[list[Box]] = []
    for size in sizes:
        centres = [_pixel(point, x_range, y_range, size) for point in points]
        placed.append([(x - _MARK, y - _MARK, x + _MARK, y + _MARK) for x, y in centres])
    notes = []
    for point in points:
        if not point.name:
            continue
        width = len(point.name) * _LETTER
        spots = [point, *(replace(point, x=x, y=y) for x, y in point.elsewhere)]
        for spot, gap, (right, up) in product(spots, _GAPS, _PLACES):
            boxes = [_box(*_pixel(spot, x_range, y_range, size), right, up, gap, width) for size in sizes]
            if all(_free(box, others, size) for box, others, size in zip(boxes, placed, sizes)):
                for box, others in zip(boxes, placed):
                    others.append(box)
                shift = {"xshift": right * gap, "yshift": up * gap}
                anchors = {"xanchor": _ANCHORS[right], "yanchor": _LEVELS[up]}
                notes.append({**_note(spot), "showarrow": False, **shift, **anchors})
                break
    return notes


def in_a_column(points: Sequence[Named], *, y_range: tuple[float, float], height: int) -> list[dict[str, Any]]:
    """Annotations to the left of points that lie above each other, spread over lines of text, with leaders.

    Args:
        points: the points.
        y_range: of the axis.
        height: of the plot area in pixels.
    """
    per_unit = height / (y_range[1] - y_range[0])
    ordered = sorted(points, key=lambda point: point.y)
    wanted = [(point.y - y_range[0]) * per_unit for point in ordered]
    # As close to the points as lines of text allow: isotonic regression of the rest between them.
    steps = np.arange(len(ordered)) * LINE
    kept = isotonic_regression(np.array(wanted) - steps).x if ordered else steps
    lines = np.clip(kept, LINE / 2, max(LINE / 2, height - LINE / 2 - steps[-1:].sum())) + steps
    return [
        {
            **_note(point),
            "xanchor": "right",
            "ax": -26,
            "ay": float(own - line),
            "arrowhead": 0,
            "arrowwidth": 0.8,
            "arrowcolor": point.color,
            "standoff": 5,
        }
        for point, own, line in zip(ordered, wanted, lines)
    ]


def _note(point: Named) -> dict[str, Any]:
    return {"x": point.x, "y": point.y, "text": point.name, "font": {"size": 11, "color": point.color}}


def _pixel(
    point: Named, x_range: tuple[float, float], y_range: tuple[float, float], size: tuple[int, int]
) -> tuple[float, float]:
    across = (point.x - x_range[0]) / (x_range[1] - x_range[0])
    up = (point.y - y_range[0]) / (y_range[1] - y_range[0])
    return across * size[0], up * size[1]


def _box(x: float, y: float, right: int, up: int, gap: int, width: float) -> Box:
    left = x + right * gap - width * (1 - right) / 2
    bottom = y + up * gap - LINE * (1 - up) / 2
    return left, bottom, left + width, bottom + LINE


def _free(box: Box, others: Sequence[Box], size: tuple[int, int]) -> bool:
    left, bottom, right, top = box
    if left < 0 or bottom < 0 or right > size[0] or top > size[1]:
        return False
    return all(left >= o[2] or right <= o[0] or bottom >= o[3] or top <= o[1] for o in others)
