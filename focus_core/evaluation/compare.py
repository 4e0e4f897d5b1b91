"""Paired differences over the same blocks: intervals, corrections over many, and the leak of sequence routing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from focus_core.errors import FocusError
from focus_core.evaluation.perplexity import Evaluation

LEVEL = 0.95
RESAMPLES = 4000
MIN_BLOCKS = 16
"""Over fewer blocks no difference counts as established, whatever its interval."""

Method = Literal["t", "bca"]
"""How an interval is made: Student's t, or bootstrap with bias correction and acceleration."""


@dataclass(frozen=True)
class Difference:
    """One setting minus another, paired over blocks.

    Attributes:
        difference: negative if the first is lower.
        low: lower end of the 95% interval over blocks; None with fewer than 2 blocks.
        high: upper end.
        blocks: number of blocks compared.
        p_value: two-sided, of no difference, by Student's t; None with fewer than 2 blocks.
        established: whether there are at least `MIN_BLOCKS` blocks and the interval leaves 0 out.
    """

    difference: float
    low: float | None
    high: float | None
    blocks: int
    p_value: float | None = None
    established: bool = False

    @property
    def mark(self) -> str:
        """The remark beside the interval where blocks are too few; empty otherwise."""
        return few_blocks(self.blocks)

    def to_dict(self) -> dict[str, Any]:
        """For a row of a record: the difference, the ends of its interval, and whether it is established."""
        return {name: getattr(self, name) for name in ("difference", "low", "high", "established")}


def few_blocks(blocks: int) -> str:
    """The words for fewer than `MIN_BLOCKS` blocks; empty for enough."""
    return f"fewer than {MIN_BLOCKS} blocks: not established" if blocks < MIN_BLOCKS else ""


def mean_difference(differences: ArrayLike, *, method: Method = "t", seed: int = 0) -> Difference:
    """Mean of paired differences, one for each block, with its 95% interval.

    Blocks of one text are not independent, so the interval is about these texts and not about English. With many blocks
    a t interval also holds for skewed differences; `method="bca"` asks less of their shape.

    Args:
        differences: (N,), such as the divergence of each block from another setting's.
        method: "t", or "bca" for a bootstrap with bias correction and acceleration.
        seed: of the bootstrap.

    Raises:
        FocusError: no blocks, or an unknown method.
    """
    values = np.asarray(differences, dtype=float)
    if values.ndim != 1 or not values.size:
        raise FocusError("A difference needs at least one block: evaluate both settings on the same text.")
    if method not in ("t", "bca"):
        raise FocusError(f"There is no interval {method!r}: choose t or bca.")
    mean, count = float(values.mean()), values.size
    if count < 2:
        return Difference(mean, None, None, count)
    error = float(values.std(ddof=1)) / count**0.5
    if error <= 1e-14 * max(1.0, abs(mean)):  # all equal up to rounding
        same = abs(mean) <= 1e-14
        return Difference(mean, mean, mean, count, float(same), not same and count >= MIN_BLOCKS)
    from scipy import stats  # half a second, which no start of a command or worker shall wait for

    if method == "t":
        low, high = stats.t.interval(LEVEL, count - 1, mean, error)
    else:
        interval = stats.bootstrap(
            (values,),
            np.mean,
            n_resamples=RESAMPLES,
            confidence_level=LEVEL,
            method="BCa",
            rng=np.random.default_rng(seed),
        ).confidence_interval
        low, high = interval.low, interval.high
    p_value = float(2 * stats.t.sf(abs(mean) / error, count - 1))
    outside = not low <= 0 <= high
    return Difference(mean, float(low), float(high), count, p_value, outside and count >= MIN_BLOCKS)


def perplexity_difference(first: ArrayLike, second: ArrayLike, *, method: Method = "t", seed: int = 0) -> Difference:
    """Perplexity of the first minus the second, with a 95% interval paired over blocks.

    Both perplexities are read over the same blocks, so the difficulty of a block for any model cancels. The interval is
    that of the mean of ``P1 n1 - P2 n2`` over blocks, with the losses n of a block: the first-order change of P1 - P2
    (delta method).

    Args:
        first: mean negative log-likelihood of each block, in nats.
        second: the same for the other setting, of the same blocks in the same order.
        method: as in `mean_difference`.
        seed: likewise.

    Raises:
        FocusError: not the same number of blocks.
    """
    one, two = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if one.shape != two.shape or not one.size:
        raise FocusError("Two settings can only be compared over the same blocks: evaluate both on the same text.")
    ours, theirs = np.exp(one.mean()), np.exp(two.mean())
    shares = ours * (1 + one - one.mean()) - theirs * (1 + two - two.mean())
    return mean_difference(shares, method=method, seed=seed)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """p-values adjusted for their number by Holm's method, in their order; None stays None and does not count."""
    known = tuple(value for value in p_values if value is not None)
    adjusted = iter(_holm(known) if known else ())
    return [None if value is None else next(adjusted) for value in p_values]


@lru_cache(maxsize=256)
def _holm(p_values: tuple[float, ...]) -> tuple[float, ...]:
    """Kept, because each call of statsmodels collects all garbage of the process first: half a second in an app."""
    from statsmodels.stats.multitest import multipletests

    return tuple(np.asarray(multipletests(p_values, method="holm")[1]).tolist())


@dataclass(frozen=True)
class Leak:
    """The gain of sequence Sinkhorn from seeing the whole text, at one k.

    Attributes:
        top_k: k.
        perplexity_difference: sequence minus calibrated; negative means that looking ahead lowers the perplexity.
        low: lower end of the 95% interval, None with fewer than 2 blocks.
        high: upper end.
        kept_share_difference: kept distant pairs, sequence minus calibrated: a difference in perplexity at a different
            kept share is not all leak.
        reading: the direction in words.
        blocks: number of blocks compared.
        established: as in `Difference`.
    """

    top_k: int
    perplexity_difference: float
    low: float | None
    high: float | None
    kept_share_difference: float
    reading: str
    blocks: int = 0
    established: bool = False


def leaks(rows: Sequence[Evaluation]) -> list[Leak]:
    """The leak at every k that was evaluated with both balances.

    Sequence Sinkhorn normalises each group over all tokens, later ones included, so a token's groups depend on the
    future. Calibrated potentials are frozen and do not.
    """
    hard = {(row.top_k, row.balance): row for row in rows if row.routing == "hard"}
    found = []
    for (top_k, balance), sequence in hard.items():
        calibrated = hard.get((top_k, "calibrated"))
        if balance != "sequence" or calibrated is None or top_k is None:
            continue
        gap = perplexity_difference(sequence.block_nll, calibrated.block_nll)
        kept = sequence.kept_share - calibrated.kept_share
        found.append(
            Leak(top_k, gap.difference, gap.low, gap.high, kept, _reading(gap), gap.blocks, gap.established),
        )
    return found


def _reading(gap: Difference) -> str:
    if gap.low is None or gap.high is None:
        return "one block only: no interval"
    if gap.mark:
        return gap.mark
    if gap.low <= 0 <= gap.high:
        return "no leak that these blocks can show: the interval holds 0"
    if gap.difference < 0:
        return "sequence Sinkhorn, which sees the future, is better: its perplexity flatters it"
    return "sequence Sinkhorn sees the future and is still worse: calibrated routing loses nothing"
