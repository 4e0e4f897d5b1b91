"""Effects against chance: the same intervention on random keys or links, with permutation p-values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from focus_core.analysis.interventions.edits import Intervention
from focus_core.analysis.interventions.experiment import Change, Experiment
from focus_core.evaluation.compare import holm
from focus_core.progress import Progress, silent

STOP_AFTER = 10
"""Random sets that reach the effect before no more are drawn: the effect is then far from significant."""
LEVEL = 0.95

Draw = Callable[[np.random.Generator], Intervention]
"""Gives a random intervention to compare with."""


@dataclass(frozen=True)
class Tested:
    """One number of an intervention against random ones.

    Attributes:
        value: of the intervention.
        low: lower end of the middle 95% of the random ones.
        high: upper end.
        p_value: probability of such a value by chance.
        adjusted: the same after Holm's correction over groups; None before it.
        draws: random interventions.
    """

    value: float
    low: float
    high: float
    p_value: float
    adjusted: float | None = None
    draws: int = 0


@dataclass(frozen=True)
class Trial:
    """An intervention beside random ones, prediction by prediction.

    Attributes:
        change: that of the intervention.
        random_loss: (R, T - 1) float32, change of the loss by each random one.
        random_kl: (R, T - 1) float32, likewise KL(without || with).
    """

    change: Change
    random_loss: np.ndarray
    random_kl: np.ndarray


def trial(
    experiment: Experiment,
    intervention: Intervention,
    draw: Draw,
    *,
    draws: int = 199,
    stop_after: int | None = STOP_AFTER,
    seed: int = 0,
    untouched: bool = False,
    progress: Progress = silent,
) -> Trial:
    """Run an intervention and up to so many random ones.

    Drawing stops once `stop_after` random ones reach the effect on the loss and on KL each (Besag and Clifford 1991),
    so that time goes to the groups whose effect is rare.

    Args:
        experiment: the text.
        intervention: what is tested.
        draw: the random ones.
        draws: at most; the smallest possible p-value is 1 / (draws + 1).
        stop_after: see above; None never stops.
        seed: of the draws.
        untouched: see `Experiment.run`.
        progress: called after every run.
    """
    rng = np.random.default_rng(seed)
    change = experiment.run(intervention, untouched=untouched)
    loss, kl = [], []
    reached = np.zeros(2, dtype=int)
    for number in range(draws):
        found = experiment.run(draw(rng))
        loss.append(found.loss)
        kl.append(found.kl)
        reached += [abs(found.loss.mean()) >= abs(change.loss.mean()), found.kl.mean() >= change.kl.mean()]
        progress("Comparing with random keys", (number + 1) / draws)
        if stop_after is not None and reached.min() >= stop_after:
            break
    empty = np.zeros((0, len(change.loss)), dtype=np.float32)
    return Trial(change, np.stack(loss) if loss else empty, np.stack(kl) if kl else empty)


def random_keys(experiment: Experiment, count: int, make: Callable[[np.ndarray], Intervention]) -> Draw:
    """Random keys of the same head, as many as a group has: any that some query may read beyond its window.

    Args:
        experiment: the text.
        count: keys of the group, see `Experiment.members`.
        make: the intervention on some keys.
    """
    eligible = experiment.eligible()
    return lambda rng: make(np.sort(rng.choice(eligible, count, replace=False)))


def random_links(experiment: Experiment, count: int, make: Callable[[np.ndarray], Intervention]) -> Draw:
    """Random links of the same head that are read exactly, as many as the group's; see `Experiment.read_links`.

    Args:
        experiment: the text.
        count: links of the group.
        make: the intervention on some links.
    """
    links = experiment.read_links()
    return lambda rng: make(links[rng.choice(len(links), min(count, len(links)), replace=False)])


def against_chance(
    value: float, random: np.ndarray, *, two_sided: bool = False, stop_after: int | None = STOP_AFTER
) -> Tested:
    """A value against random ones, in the order they were drawn.

    The p-value is (1 + r) / (1 + n) with r of n random ones that reach the value. Where the n-th of them was the one
    that stopped the test, it is r / n (Besag and Clifford 1991). Without draws it is 1.

    Args:
        value: of the intervention.
        random: (n,) float.
        two_sided: compare sizes; else larger values are the rarer ones.
        stop_after: as in `trial`; None if drawing never stops.
    """
    random = np.asarray(random, dtype=float)
    if not len(random):
        return Tested(value, float("nan"), float("nan"), 1.0)
    reaches = abs(random) >= abs(value) if two_sided else random >= value
    p_value = (1 + int(reaches.sum())) / (1 + len(random))
    if stop_after is not None and reaches.sum() >= stop_after:
        p_value = stop_after / (int(np.flatnonzero(reaches)[stop_after - 1]) + 1)
    low, high = np.quantile(random, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Tested(value, float(low), float(high), p_value, None, len(random))


def corrected(values: Sequence[Tested]) -> list[Tested]:
    """The same with p-values adjusted for their number by Holm's method."""
    adjusted = holm([each.p_value for each in values])
    return [replace(each, adjusted=p_value) for each, p_value in zip(values, adjusted)]
