"""The effect of one group, knocked out or forced, against random keys or links."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from focus_core.analysis.interventions.chance import (
    STOP_AFTER,
    Draw,
    Tested,
    Trial,
    against_chance,
    random_keys,
    random_links,
    trial,
)
from focus_core.analysis.interventions.edits import Intervention, cut, force, knock_out
from focus_core.analysis.interventions.experiment import Experiment
from focus_core.errors import FocusError
from focus_core.progress import Progress, silent

KINDS = {"knock-out": knock_out, "force": force}
"""What can be done to a group, by name."""
CHANCES = ("keys", "links")
"""What a group is compared with: as many random keys, or as many random links that are read exactly."""


@dataclass(frozen=True)
class EffectSettings:
    """Settings of the effects of groups.

    Attributes:
        kind: "knock-out" or "force".
        chance: "keys" or "links"; links go with a knock-out.
        draws: random interventions for each group, at most.
        stop_after: see `trial`; None draws all of them.
        seed: of the draws.
        targets: places of tokens whose prediction is followed; the token at place t is predicted by the one before.

    Raises:
        FocusError: a value that does not exist, or no draws.
    """

    kind: str = "knock-out"
    chance: str = "keys"
    draws: int = 199
    stop_after: int | None = STOP_AFTER
    seed: int = 0
    targets: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise FocusError(f"The intervention is {self.kind!r}: choose one of {', '.join(KINDS)}.")
        if self.chance not in CHANCES:
            raise FocusError(f"Chance is {self.chance!r}: choose one of {', '.join(CHANCES)}.")
        if self.kind == "force" and self.chance == "links":
            raise FocusError("Forced groups are compared with random keys: a random link is read already.")
        if self.draws < 1:
            raise FocusError(f"draws is {self.draws}: a comparison with chance needs at least 1.")


@dataclass(frozen=True)
class GroupEffect:
    """The effect of one group on the predictions of a text.

    Attributes:
        group: its index.
        keys: places of its eligible keys, see `Experiment.members`.
        links: distant links whose kind changed, over query heads.
        loss: mean change of the loss over all predictions, nats per token.
        kl: mean KL(without || with), nats per token.
        targets: change of the loss of each chosen token.
        untouched_kl: mean change of KL(untouched || routed); None where it was not measured.
        trial: everything prediction by prediction.
    """

    group: int
    keys: np.ndarray
    links: int
    loss: Tested
    kl: Tested
    targets: tuple[Tested, ...]
    untouched_kl: float | None
    trial: Trial


def largest_groups(experiment: Experiment, count: int = 8) -> list[int]:
    """The groups with the most eligible keys, the largest first; those without any are left out."""
    eligible = experiment.eligible()
    sizes = experiment.site.members[eligible].sum(0).cpu().numpy()
    order = np.argsort(-sizes, kind="stable")[:count]
    return [int(group) for group in order if sizes[group]]


def group_effect(
    experiment: Experiment,
    group: int,
    settings: EffectSettings | None = None,
    *,
    untouched: bool = False,
    progress: Progress = silent,
) -> GroupEffect:
    """The effect of one group; p-values are not corrected for the number of groups.

    Args:
        experiment: the text.
        group: index of the group.
        settings: what is done, and compared with.
        untouched: see `Experiment.run`.
        progress: called after every run.

    Raises:
        FocusError: no such group, or a target that is no prediction of the text.
    """
    settings = settings or EffectSettings()
    for target in settings.targets:
        if not 1 <= target < experiment.length:
            raise FocusError(f"Token {target} is not predicted: choose targets from 1 to {experiment.length - 1}.")
    keys = experiment.members(group)
    make = KINDS[settings.kind]
    intervention = Intervention(edits=(make(keys),))
    found = trial(
        experiment,
        intervention,
        _draw(experiment, keys, settings),
        # The draws depend on the number of keys alone, so that groups of one size meet the same chance.
        seed=settings.seed,
        draws=settings.draws if len(keys) else 0,
        stop_after=settings.stop_after,
        untouched=untouched,
        progress=progress,
    )
    change, stop = found.change, settings.stop_after
    places = [target - 1 for target in settings.targets]
    return GroupEffect(
        group=group,
        keys=keys,
        links=change.links,
        loss=against_chance(float(change.loss.mean()), found.random_loss.mean(1), two_sided=True, stop_after=stop),
        kl=against_chance(float(change.kl.mean()), found.random_kl.mean(1), stop_after=stop),
        targets=tuple(
            against_chance(float(change.loss[place]), found.random_loss[:, place], two_sided=True, stop_after=None)
            for place in places
        ),
        untouched_kl=None if change.untouched_kl is None else float(change.untouched_kl.mean()),
        trial=found,
    )


def _draw(experiment: Experiment, keys: np.ndarray, settings: EffectSettings) -> Draw:
    if settings.chance == "links":
        own = np.isin(experiment.read_links()[:, 2], keys).sum()
        return random_links(experiment, int(own), lambda links: Intervention(edits=(cut(links),)))
    make = KINDS[settings.kind]
    return random_keys(experiment, len(keys), lambda chosen: Intervention(edits=(make(chosen),)))
