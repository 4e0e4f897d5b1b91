"""Settings of baselines chosen on training text, with as many tries on as much text for each.

A setting is measured as any point of a frontier is: KL(untouched || sparse) of the whole model at the wanted share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from focus_core.baselines import BASELINES
from focus_core.evaluation.retention import Untouched
from focus_core.frontier.measure import baseline_point, fit_baseline
from focus_core.progress import Progress, silent
from focus_core.routing.model import FocusModel

TUNED_BLOCKS = 2
"""Blocks of training text on which settings are compared: the last ones, which nothing is fitted on meanwhile."""
FITTED_BLOCKS = 8
"""Blocks that k-means and hash tables are fitted on to compare settings; the chosen one is fitted on all."""


class Tuner:
    """Compares the settings of baselines on one training text; states of the untouched model are computed once.

    Args:
        focus: the model; its routers are not used.
        text: (n, T) int64 training text.
        window: w, for all baselines.
        sinks: number of first tokens that every query keeps.
        seed: of random baselines.
        blocks: to compare settings on, at most half of the text.
    """

    def __init__(
        self, focus: FocusModel, text: Tensor, *, window: int, sinks: int, seed: int = 0, blocks: int = TUNED_BLOCKS
    ) -> None:
        count = max(1, min(blocks, len(text) // 2))
        self.focus = focus
        self.budget: dict[str, Any] = {"window": window, "sinks": sinks, "seed": seed}
        self.fitted_on = text[:-count][:FITTED_BLOCKS] if len(text) > count else text
        self.held: np.ndarray = text[-count:].cpu().numpy()
        self.untouched = Untouched(self.held)

    def tune(self, name: str, share: float) -> dict[str, Any]:
        """Measure every setting of a baseline at a share of distant pairs.

        Args:
            name: key of `BASELINES`, with a grid.
            share: of distant pairs.

        Returns:
            For the record: ``method``, ``share``, ``tokens`` that each setting was measured on, ``tried`` (``setting``
            and ``kl`` of each) and ``setting``, the one with the smallest KL.
        """
        tried = []
        for setting in BASELINES[name].grid:
            point = baseline_point(
                self.focus,
                name,
                self.held,
                share=share,
                training_text=self.fitted_on,
                setting=setting,
                untouched=self.untouched,
                **self.budget,
            )
            tried.append({"setting": dict(setting), "kl": point.kl})
        best = min(tried, key=lambda each: each["kl"])
        return {
            "method": name,
            "share": share,
            "setting": best["setting"],
            "tokens": int(self.held.size),
            "tried": tried,
        }


class Tuning:
    """Settings and fits of the baselines of a run: read from its record, or chosen when a baseline is measured first.

    Args:
        text: (n, T) int64 training text.
        entries: results of `Tuner.tune` that the record holds; not changed.
        on: whether to choose settings; the defaults otherwise.
        progress: told of each baseline whose settings are compared.
        budget: window, sinks and seed, as of `Tuner`.
    """

    def __init__(
        self,
        text: Tensor,
        entries: Sequence[dict[str, Any]],
        *,
        on: bool = True,
        progress: Progress = silent,
        **budget: Any,
    ) -> None:
        self.text, self.entries, self.on, self.progress, self.budget = text, list(entries), on, progress, budget
        self._fitted: dict[tuple[str, float | None], dict[int, Any]] = {}

    def of(self, focus: FocusModel, name: str, share: float | None) -> dict[str, Any]:
        """The ``setting`` and the ``fitted`` of `baseline_point` for a baseline at a share of distant pairs."""
        setting = chosen(self.entries, name, share) if self.on else None
        if self.on and setting is None and share is not None and tunable(name):
            self.progress(f"Comparing {len(BASELINES[name].grid)} settings of {BASELINES[name].label}", 0.0)
            self.entries.append(Tuner(focus, self.text, **self.budget).tune(name, share))
            setting = chosen(self.entries, name, share)
        if (name, share) not in self._fitted:
            fitted = fit_baseline(focus, name, self.text, share=share or 0.0, setting=setting, **self.budget)
            self._fitted[name, share] = fitted
        return {"setting": setting, "fitted": self._fitted[name, share]}


def tunable(name: str) -> bool:
    """Whether a method is a baseline with settings to choose from."""
    return name in BASELINES and bool(BASELINES[name].grid)


def chosen(tuning: Sequence[dict[str, Any]], name: str, share: float | None) -> dict[str, float] | None:
    """The setting of a baseline at a share among results of `Tuner.tune`; None where it was not tuned."""
    found = (each["setting"] for each in tuning if (each["method"], each["share"]) == (name, share))
    return next(found, None)
