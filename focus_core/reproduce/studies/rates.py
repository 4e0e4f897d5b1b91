"""The learning rate of a method: a grid that grows until its best rate lies inside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from focus_core.errors import FocusError

FACTOR = 3.0
"""Step of the grid where it is extended."""
MOST = 6
"""Rates tried beyond the start of the grid; a best rate still at an edge then counts as not bracketed."""
BRACKETED, NOT_BRACKETED = "bracketed", "grid not bracketed"


@dataclass(frozen=True)
class RateSearch:
    """Losses of a method at several learning rates.

    Attributes:
        trials: (rate, loss in nats) by rising rate; the loss is infinite where training diverged.
    """

    trials: tuple[tuple[float, float], ...]

    @property
    def best(self) -> float:
        """The rate with the lowest loss; the lower one of equal rates."""
        return min(self.trials, key=lambda trial: trial[1])[0]

    @property
    def bracketed(self) -> bool:
        """Whether a lower and a higher rate were tried than the best one."""
        rates = [rate for rate, _ in self.trials]
        return rates[0] < self.best < rates[-1]

    @property
    def words(self) -> str:
        """For a table: the rates on both sides of the best one, or that there are none."""
        if not self.bracketed:
            return NOT_BRACKETED
        rates = [rate for rate, _ in self.trials]
        place = rates.index(self.best)
        return f"{BRACKETED} by {rates[place - 1]:g} and {rates[place + 1]:g}"

    def to_dict(self) -> dict[str, Any]:
        """For a record; None as the loss of a rate that diverged."""
        trials = [{"rate": rate, "loss": loss if math.isfinite(loss) else None} for rate, loss in self.trials]
        return {"best": self.best, "bracketed": self.bracketed, "trials": trials}


def search_rate(
    loss_at: Callable[[float], float], start: Iterable[float], *, factor: float = FACTOR, most: int = MOST
) -> RateSearch:
    """Try rates until the best one has a worse one on both sides.

    Every rate of the start is tried. While the best is at an edge, the grid grows there by one rate, to one significant
    digit.

    Args:
        loss_at: trains at a rate and returns the loss on text to choose by; not finite where training diverged.
        start: rates to begin with.
        factor: between the edge and the next rate.
        most: rates to try beyond the start.

    Raises:
        FocusError: no rate, or one that is not above 0.
    """
    losses: dict[float, float] = {}

    def attempt(rate: float) -> None:
        loss = loss_at(rate)
        losses[rate] = loss if math.isfinite(loss) else math.inf

    rates = sorted(set(start))
    if not rates or rates[0] <= 0:
        raise FocusError("A search for the learning rate starts from at least one rate above 0: give --learning-rate.")
    for rate in rates:
        attempt(rate)
    while True:
        found = RateSearch(tuple(sorted(losses.items())))
        if found.bracketed or len(losses) >= len(rates) + most:
            return found
        lowest = found.trials[0][0]
        attempt(float(f"{lowest / factor if found.best == lowest else found.trials[-1][0] * factor:.1g}"))


def rate_remark(record: dict[str, Any]) -> str:
    """The sentence about the learning rates of a record; empty for records of experiments without rates.

    Records of LoRA from before the search have a grid that nothing was chosen from.
    """
    if "rates" not in record:
        adapters = any(str(row.get("cell", "")).startswith("LoRA") for row in record["results"])
        return f"Learning rates: {NOT_BRACKETED}; every rate that was tried is a row." if adapters else ""
    inside = [name for name, found in record["rates"].items() if found["bracketed"]]
    outside = [name for name in record["rates"] if name not in inside]
    texts = list(dict.fromkeys(found["chosen_on"] for found in record["rates"].values()))
    parts = [f"Learning rates were chosen for each method on {' and '.join(texts)}, never on the text of the table."]
    parts += [f"{BRACKETED.capitalize()}: {', '.join(inside)}."] if inside else []
    parts += [f"{NOT_BRACKETED.capitalize()}: {', '.join(outside)}."] if outside else []
    return " ".join(parts)
