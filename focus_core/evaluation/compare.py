"""Paired differences of perplexity over the same blocks: the leak of sequence routing, and any two settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import bootstrap

from focus_core.errors import FocusError
from focus_core.evaluation.perplexity import Evaluation

LEVEL = 0.95
RESAMPLES = 4000


@dataclass(frozen=True)
class Difference:
    """Perplexity of a setting minus that of another.

    Attributes:
        difference: in perplexity; negative if the first is better.
        low: lower end of the 95% bootstrap interval over blocks; None with fewer than 2 blocks.
        high: upper end.
        blocks: number of blocks compared.
    """

    difference: float
    low: float | None
    high: float | None
    blocks: int


def perplexity_difference(first: ArrayLike, second: ArrayLike, *, seed: int = 0) -> Difference:
    """Perplexity of the first minus the second, with a paired percentile bootstrap over blocks.

    Both are resampled with the same blocks, so what makes a block hard for any model cancels. Blocks of one text are
    not independent, so the interval is about this text and not about English.

    Args:
        first: mean negative log-likelihood of each block, in nats.
        second: the same for the other setting, of the same blocks in the same order.
        seed: of the resampling.

    Raises:
        FocusError: not the same number of blocks.
    """
    one, two = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if one.shape != two.shape or not one.size:
        raise FocusError("Two settings can only be compared over the same blocks: evaluate both on the same text.")

    def statistic(a: np.ndarray, b: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.exp(a.mean(axis)) - np.exp(b.mean(axis))

    difference = float(statistic(one, two))
    if one.size < 2:
        return Difference(difference, None, None, one.size)
    interval = bootstrap(
        (one, two),
        statistic,
        paired=True,
        vectorized=True,
        n_resamples=RESAMPLES,
        confidence_level=LEVEL,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Difference(difference, float(interval.low), float(interval.high), one.size)


@dataclass(frozen=True)
class Leak:
    """What sequence Sinkhorn gains by seeing the whole text, at one k.

    Attributes:
        top_k: k.
        perplexity_difference: sequence minus calibrated; negative means that looking ahead lowers the perplexity.
        low: lower end of the 95% interval, None with fewer than 2 blocks.
        high: upper end.
        kept_share_difference: kept distant pairs, sequence minus calibrated: a difference in perplexity at a different
            kept share is not all leak.
        reading: the direction in words.
    """

    top_k: int
    perplexity_difference: float
    low: float | None
    high: float | None
    kept_share_difference: float
    reading: str


def leaks(rows: Sequence[Evaluation]) -> list[Leak]:
    """The leak at every k that was evaluated with both balances.

    Sequence Sinkhorn normalises each group over all tokens, later ones included, so a token's groups carry news of the
    future; calibrated potentials are frozen and cannot.
    """
    hard = {(row.top_k, row.balance): row for row in rows if row.routing == "hard"}
    found = []
    for (top_k, balance), sequence in hard.items():
        calibrated = hard.get((top_k, "calibrated"))
        if balance != "sequence" or calibrated is None or top_k is None:
            continue
        gap = perplexity_difference(sequence.block_nll, calibrated.block_nll)
        kept = sequence.kept_share - calibrated.kept_share
        found.append(Leak(top_k, gap.difference, gap.low, gap.high, kept, _reading(gap)))
    return found


def _reading(gap: Difference) -> str:
    if gap.low is None or gap.high is None:
        return "one block only: no interval"
    if gap.low <= 0 <= gap.high:
        return "no leak that these blocks can show: the interval holds 0"
    if gap.difference < 0:
        return "sequence Sinkhorn, which sees the future, is better: its perplexity flatters it"
    return "sequence Sinkhorn sees the future and is still worse: calibrated routing loses nothing"
