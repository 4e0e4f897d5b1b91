"""Settings of baselines chosen on training text, with as many tries on as much text for each.

A setting is measured as any point of a frontier is: KL(untouched || sparse) of the whole model at the wanted share.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from focus_core.baselines import BASELINES
from focus_core.errors import FocusError
from focus_core.evaluation.retention import Untouched
from focus_core.frontier.measure import baseline_point, fit_baseline
from focus_core.progress import Progress, silent
from focus_core.routing.model import FocusModel
from focus_core.text import document_blocks, read_text
from focus_core.training.loop import calibration_blocks

TUNED_BLOCKS = 2
"""Blocks of training text on which settings are compared: the last ones, which nothing is fitted on meanwhile."""
FITTED_BLOCKS = 8
"""Blocks that k-means and hash tables are fitted on to compare settings; the chosen one is fitted on all."""


@dataclass(frozen=True)
class Pool:
    """Training text that baselines are fitted and tuned on.

    Attributes:
        blocks: (N, T) int64.
        sources: of each block: ``document`` is its name, ``block`` its number among those of the document, from 0.
    """

    blocks: Tensor
    sources: tuple[dict[str, Any], ...]


def training_pool(tokenizer: object, files: Sequence[Path], length: int, seed: int) -> Pool:
    """The `calibration_blocks` of training text, with their places in its documents.

    Args:
        tokenizer: a fast tokenizer of Transformers.
        files: the documents.
        length: T, tokens per block.
        seed: of the choice.

    Raises:
        FocusError: a document cannot be read, or none has a block.
    """
    parts = document_blocks(tokenizer, map(read_text, files), length)
    blocks = np.concatenate(parts)
    if not len(blocks):
        raise FocusError(f"No training text has {length:,} tokens: give a longer one with --train.")
    sources = [
        {"document": file.name, "block": block} for file, part in zip(files, parts) for block in range(len(part))
    ]
    chosen = calibration_blocks(np.arange(len(blocks))[:, None], seed).flatten().tolist()
    return Pool(calibration_blocks(blocks, seed), tuple(sources[number] for number in chosen))


class Tuner:
    """Compares the settings of baselines on one training text; states of the untouched model are computed once.

    Args:
        focus: the model; its routers are not used.
        text: (n, T) int64 training text.
        window: w, for all baselines.
        sinks: number of first tokens that every query keeps.
        seed: of random baselines.
        blocks: to compare settings on, at most half of the text.

    Attributes:
        held_rows: numbers of the blocks that settings are compared on.
        fitted_rows: numbers of the blocks that k-means and hash tables are fitted on meanwhile.
    """

    def __init__(
        self, focus: FocusModel, text: Tensor, *, window: int, sinks: int, seed: int = 0, blocks: int = TUNED_BLOCKS
    ) -> None:
        count = max(1, min(blocks, len(text) // 2))
        self.focus = focus
        self.budget: dict[str, Any] = {"window": window, "sinks": sinks, "seed": seed}
        self.held_rows = range(len(text) - count, len(text))
        self.fitted_rows = range(min(FITTED_BLOCKS, len(text) - count) or len(text))
        self.fitted_on = text[: self.fitted_rows.stop]
        self.held: np.ndarray = text[self.held_rows.start :].cpu().numpy()
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
        pool: training text.
        entries: those that the record holds; not changed. Each is a result of `Tuner.tune` with ``seconds`` that it
            took, ``tuned_on``, the blocks that settings were compared on, and ``fitted_on``, those that the baseline
            was fitted on meanwhile; older ones lack these three.
        on: whether to choose settings; the defaults otherwise.
        progress: told of each baseline whose settings are compared.
        budget: window, sinks and seed, as of `Tuner`.
    """

    def __init__(
        self,
        pool: Pool,
        entries: Sequence[dict[str, Any]],
        *,
        on: bool = True,
        progress: Progress = silent,
        **budget: Any,
    ) -> None:
        self.pool, self.entries, self.on, self.progress, self.budget = pool, list(entries), on, progress, budget
        self._fitted: dict[tuple[str, float | None], dict[int, Any]] = {}

    def of(self, focus: FocusModel, name: str, share: float | None) -> dict[str, Any]:
        """The ``setting`` and the ``fitted`` of `baseline_point` for a baseline at a share of distant pairs."""
        setting = chosen(self.entries, name, share) if self.on else None
        if self.on and setting is None and share is not None and tunable(name):
            self.progress(f"Comparing {len(BASELINES[name].grid)} settings of {BASELINES[name].label}", 0.0)
            self.entries.append(self._tuned(focus, name, share))
            setting = chosen(self.entries, name, share)
        if (name, share) not in self._fitted:
            fitted = fit_baseline(focus, name, self.pool.blocks, share=share or 0.0, setting=setting, **self.budget)
            self._fitted[name, share] = fitted
        return {"setting": setting, "fitted": self._fitted[name, share]}

    def _tuned(self, focus: FocusModel, name: str, share: float) -> dict[str, Any]:
        start = time.perf_counter()
        tuner = Tuner(focus, self.pool.blocks, **self.budget)
        entry = tuner.tune(name, share) | {"seconds": round(time.perf_counter() - start, 2)}
        rows = {"tuned_on": tuner.held_rows}
        if BASELINES[name].fit is not None:
            rows["fitted_on"] = tuner.fitted_rows
        return entry | {name: [self.pool.sources[row] for row in numbers] for name, numbers in rows.items()}


def tunable(name: str) -> bool:
    """Whether a method is a baseline with settings to choose from."""
    return name in BASELINES and bool(BASELINES[name].grid)


def chosen(tuning: Sequence[dict[str, Any]], name: str, share: float | None) -> dict[str, float] | None:
    """The setting of a baseline at a share among results of `Tuner.tune`; None where it was not tuned."""
    found = (each["setting"] for each in tuning if (each["method"], each["share"]) == (name, share))
    return next(found, None)
