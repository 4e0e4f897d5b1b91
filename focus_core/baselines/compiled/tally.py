"""Counts of kept pairs, over layers, texts and heads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numba import njit
from torch import Tensor

from focus_core.attention.cpu.rows import ROWS, over_rows
from focus_core.baselines.case import Case


@dataclass
class Tally:
    """Pairs of all heads, as one head has them on average.

    Attributes:
        kept: distant pairs that are kept.
        distant: all distant pairs.
        computed: pairs that are kept.
        causal: all pairs.
    """

    kept: float = 0.0
    distant: float = 0.0
    computed: float = 0.0
    causal: float = 0.0

    def __add__(self, other: Tally) -> Tally:
        """The pairs of both."""
        kept, distant = self.kept + other.kept, self.distant + other.distant
        return Tally(kept, distant, self.computed + other.computed, self.causal + other.causal)

    def add(self, case: Case, kept: Tensor) -> None:
        """Count the pairs of a case; `kept` is bool, broadcastable to (B, H, Tq, S)."""
        rows, layout = kept.flatten(0, -2), case.layout
        first, end = layout.reach
        least, last = (layout.places - layout.farthest).clamp(min=0), layout.places + 1
        copies = len(rows) // len(last)
        if rows.device.type == "cpu":
            counts = torch.empty(len(rows), 2, dtype=torch.int64)
            arrays = (each.contiguous().numpy() for each in (rows, first, end, least.maximum(end), last, counts))
            over_rows(_count, len(rows), rows.numel(), *arrays)
            distant, near = counts.sum(0).tolist()
        else:
            distant = int((kept & case.distant).count_nonzero())
            near = int((kept & case.causal).count_nonzero()) - distant
        self.kept += distant / copies
        self.computed += (distant + near) / copies
        self.distant += int((end - first).sum())
        self.causal += int((last - least).sum())


@njit(**ROWS)
def _count(
    begin: int,
    stop: int,
    kept: np.ndarray,
    first: np.ndarray,
    end: np.ndarray,
    near: np.ndarray,
    last: np.ndarray,
    counts: np.ndarray,
) -> None:
    for row in range(begin, stop):
        place = row % first.shape[0]
        counts[row, 0] = _true(kept[row, first[place] : end[place]])
        counts[row, 1] = _true(kept[row, near[place] : last[place]])


@njit(**ROWS)
def _true(row: np.ndarray) -> int:
    count = 0
    for entry in row:
        count += entry
    return count
