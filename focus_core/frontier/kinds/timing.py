"""How long the cells of a run will still take, from those that are done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from focus_core.frontier.measure import Point

GROWTH = 1.5
"""Time of a block grows about with this power of its length; only used for lengths that were not yet measured."""


class Work(NamedTuple):
    """A cell that is still to be measured: its method, its length and its number of blocks."""

    method: str
    length: int
    blocks: int


class Clock:
    """Estimates the time left of a run.

    Args:
        work: the cells to measure, in order: method, length, blocks.
        points: measured ones, those of earlier runs included.
    """

    def __init__(self, work: Sequence[tuple[str, int, int]], points: Sequence[Point]) -> None:
        self.work = [Work(*each) for each in work]
        self.known: dict[tuple[str, int], float] = {}
        for point in points:
            self._learn(point)

    def _learn(self, point: Point) -> None:
        if point.seconds is not None and point.length is not None and point.block_nll:
            self.known[point.method, point.length] = point.seconds / len(point.block_nll)

    def after(self, point: Point) -> str:
        """The time left after the next cell of the work, in words."""
        self._learn(point)
        self.work = self.work[1:]
        minutes = sum(each.blocks * self._seconds(each) for each in self.work) / 60
        return words(minutes)

    def _seconds(self, work: Work) -> float:
        """Seconds for a block: of the same method and length, the same method, the same length, or any."""
        exact = self.known.get((work.method, work.length))
        if exact is not None:
            return exact
        near = (
            {key: value for key, value in self.known.items() if key[0] == work.method},
            {key: value for key, value in self.known.items() if key[1] == work.length},
            self.known,
        )
        found = next(each for each in (*near, {("", 1): 0.0}) if each)
        return sum(value * (work.length / key[1]) ** GROWTH for key, value in found.items()) / len(found)


def words(minutes: float) -> str:
    """A duration such as "about 1 h 20 min left"."""
    if minutes < 1:
        return "less than a minute left"
    hours, rest = divmod(round(minutes), 60)
    return f"about {f'{hours} h ' if hours else ''}{rest} min left"
