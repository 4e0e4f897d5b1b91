"""The effect of one changed link, or of two tokens that exchange their groups, against the same at random places."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from focus_core.analysis.interventions.chance import STOP_AFTER, Draw, Tested, Trial, against_chance, trial
from focus_core.analysis.interventions.edits import Intervention, restore
from focus_core.analysis.interventions.experiment import Experiment
from focus_core.analysis.interventions.links import check_tokens
from focus_core.errors import FocusError
from focus_core.progress import Progress, silent


@dataclass(frozen=True)
class SingleEffect:
    """The effect of one small change on the predictions of a text.

    Attributes:
        links: distant links whose kind changed, over query heads; 0 where nothing was to change.
        loss: mean change of the loss over all predictions, nats per token.
        kl: mean KL(without || with), nats per token.
        trial: everything prediction by prediction.
    """

    links: int
    loss: Tested
    kl: Tested
    trial: Trial

    def at(self, token: int) -> Tested:
        """The change of the loss of one token, which the token before it predicts.

        Raises:
            FocusError: the token is not predicted.
        """
        losses = self.trial.change.loss
        if not 1 <= token <= len(losses):
            raise FocusError(f"Token {token} is not predicted: choose one from 1 to {len(losses)}.")
        random = self.trial.random_loss[:, token - 1]
        return against_chance(float(losses[token - 1]), random, two_sided=True, stop_after=None)


def restore_effect(
    experiment: Experiment,
    query: int,
    key: int,
    *,
    draws: int = 99,
    seed: int = 0,
    progress: Progress = silent,
) -> SingleEffect:
    """One token reads one more distant key exactly. Chance: it reads another such key that routing drops.

    Args:
        experiment: the text.
        query: place of the token that reads.
        key: place of the key.
        draws: random keys, at most.
        seed: of the draws.
        progress: called after every run.

    Raises:
        FocusError: no such token, or the pair is no distant one.
    """
    intervention = Intervention(edits=(restore(query, key),))
    intervention.apply(experiment.site)  # refuses a pair before the text is run
    unread = (experiment.site.distant()[query] & ~experiment.links.exact[:, query].all(0)).nonzero()[:, 0]
    others = np.setdiff1d(unread.cpu().numpy(), [key])

    def draw(rng: np.random.Generator) -> Intervention:
        return Intervention(edits=(restore(query, int(rng.choice(others))),))

    return _effect(experiment, intervention, draw, draws if len(others) else 0, seed, progress)


def swap_effect(
    experiment: Experiment,
    first: int,
    second: int,
    *,
    draws: int = 99,
    seed: int = 0,
    progress: Progress = silent,
) -> SingleEffect:
    """Two tokens exchange their groups. Chance: the first one exchanges its group with another token of another group.

    Args:
        experiment: the text.
        first: place of a token.
        second: place of another one.
        draws: random tokens, at most.
        seed: of the draws.
        progress: called after every run.

    Raises:
        FocusError: no such token.
    """
    check_tokens(experiment.length, first, second)
    members = experiment.site.members
    differs = (members != members[first]).any(-1).cpu().numpy()
    others = np.setdiff1d(np.intersect1d(np.flatnonzero(differs), experiment.eligible()), [second])

    def draw(rng: np.random.Generator) -> Intervention:
        return Intervention(swaps=((first, int(rng.choice(others))),))

    return _effect(
        experiment, Intervention(swaps=((first, second),)), draw, draws if len(others) else 0, seed, progress
    )


def _effect(
    experiment: Experiment, intervention: Intervention, draw: Draw, draws: int, seed: int, progress: Progress
) -> SingleEffect:
    found = trial(experiment, intervention, draw, draws=draws, seed=seed, progress=progress)
    change = found.change
    return SingleEffect(
        links=change.links,
        loss=against_chance(
            float(change.loss.mean()), found.random_loss.mean(1), two_sided=True, stop_after=STOP_AFTER
        ),
        kl=against_chance(float(change.kl.mean()), found.random_kl.mean(1), stop_after=STOP_AFTER),
        trial=found,
    )
