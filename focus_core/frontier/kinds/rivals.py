"""Learned baselines of a run of the protocol, trained on its training text when the first of them is measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from focus_core.baselines import LEARNED
from focus_core.baselines.learned.lesson import Learner, Sizes
from focus_core.baselines.learned.train import Learned, LearnedSettings, learned
from focus_core.models import LoadedModel
from focus_core.models.positions import positions_of
from focus_core.progress import Progress, silent
from focus_core.routing.model import FocusModel
from focus_core.text import read_text, token_blocks

LENGTH = 1024
"""Tokens of a block of training text, where the model has as many positions."""


class Rivals:
    """Trains or reads the learned baselines of one model.

    Args:
        loaded: the model.
        train: training text.
        folder: of the trained weights; created if needed.
        tokens: of training text to learn from.
        window: w.
        sinks: first tokens that all methods keep.
        seed: of initial values and of the order of the text.
        progress: told of every block.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        train: Sequence[Path],
        folder: Path,
        *,
        tokens: int,
        window: int,
        sinks: int,
        seed: int,
        progress: Progress = silent,
    ) -> None:
        # The names of the files tell weights and settings, but not a folder's configuration.
        self.folder = folder / loaded.info.configuration
        self.loaded, self.train, self.progress = loaded, train, progress
        self.settings = LearnedSettings(
            tokens=tokens, window=window, sinks=sinks, sizes=Sizes.within(window), seed=seed
        )
        self._trained: Learned | None = None

    @property
    def report(self) -> dict[str, Any]:
        """That of the training by name of the baseline; empty before the first is asked for."""
        return {} if self._trained is None else self._trained.report

    def layers(self, focus: FocusModel, name: str) -> dict[int, Learner] | None:
        """The learners of a baseline by layer; None for one that is not learned.

        Raises:
            FocusError: the training text is too short, or a baseline does not converge.
            OSError: the weights cannot be written.
        """
        if name not in LEARNED:
            return None
        if self._trained is None:
            length = min(LENGTH, positions_of(self.loaded.model) or LENGTH)
            blocks = token_blocks(self.loaded.tokenizer, map(read_text, self.train), length)
            self._trained = learned(focus, blocks, self.folder, self.settings, self.progress)
        return self._trained.layers[name]
