"""Inputs of an experiment: model, texts, scale, and the untouched model's results for comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from focus_core.errors import FocusError
from focus_core.evaluation import Evaluation, evaluate, perplexity_difference
from focus_core.evaluation.retention import RETENTION
from focus_core.models import LoadedModel, check_positions, load_model
from focus_core.models.loading import revision_of
from focus_core.progress import Progress, silent
from focus_core.resources import data_dir
from focus_core.results import text_records
from focus_core.routing.attach import attach
from focus_core.routing.model import FocusModel, Mode, retrofit
from focus_core.routing.storage import routers_hash
from focus_core.shipped import PUBLISHED
from focus_core.text import find_texts, read_text, token_blocks
from focus_core.training.stream import TokenStream, find_sources


@dataclass(frozen=True)
class Scale:
    """Size of an experiment. Each experiment has its own small defaults; options of the command change them.

    Attributes:
        steps: optimiser steps of routers or adapters.
        full_steps: steps with all weights.
        length: T, tokens of a block; the longest one where lengths are compared.
        batch_size: blocks per step.
        blocks: held-out blocks, evenly spaced.
        window: w, below the published 128 so that short blocks have distant pairs.
        limit: items per benchmark task.
    """

    steps: int = 100
    full_steps: int = 100
    length: int = 512
    batch_size: int = 2
    blocks: int = 8
    window: int = 64
    limit: int = 50

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < 1:
                raise FocusError(f"--{name.replace('_', '-')} is {value}: it must be at least 1.")


@dataclass
class Context:
    """Inputs of a run; costly ones are made on first access.

    Attributes:
        scale: see `Scale`.
        folder: of the run.
        data: training texts.
        held_out: texts for perplexity; the end of the training text if there are none.
        models: names for `load_model`; the first is the model of every experiment but `scale`.
        routers: folder of trained routers; the shipped ones of the published form when None.
        bench: folder with benchmark files.
        tasks: benchmarks of the experiment lora; its own when empty.
        ranks: of its adapters; its own when empty.
        rates: learning rates that the search for those of its adapters starts from; its own when empty.
        choose: texts to choose learning rates by; the training texts when empty.
        treebank: CoNLL-U file.
        device: "cpu" or "cuda".
        seed: of everything random.
        progress: told the current step and the share done.
    """

    scale: Scale
    folder: Path
    data: Sequence[Path] = ()
    held_out: Sequence[Path] = ()
    models: Sequence[str] = ("default",)
    routers: str | None = None
    bench: Path | None = None
    tasks: Sequence[str] = ()
    ranks: Sequence[int] = ()
    rates: Sequence[float] = ()
    choose: Sequence[Path] = ()
    treebank: Path | None = None
    device: str = "cpu"
    seed: int = 0
    progress: Progress = silent

    def load(self) -> LoadedModel:
        """A newly loaded model, for cells that change it."""
        return load_model(self.models[0], device=self.device, progress=self.progress)

    @cached_property
    def loaded(self) -> LoadedModel:
        """The shared model, for cells that do not change it; they detach the routers that they attach."""
        return self.load()

    def attached(self) -> FocusModel:
        """The model with the chosen routers, or the shipped ones of the published form."""
        return attach(self.loaded, self.routers or PUBLISHED, untrained=False)

    def attached_hash(self) -> str:
        """Hash of these routers, which identifies them in records."""
        focus = self.attached()
        try:
            return routers_hash(focus.routers)
        finally:
            focus.detach()

    @cached_property
    def training_files(self) -> list[Path]:
        """The training texts.

        Raises:
            FocusError: there are none.
        """
        if not self.data:
            raise FocusError("This experiment trains on text: give files or folders with --data.")
        return find_texts(self.data)

    @cached_property
    def held_files(self) -> list[Path]:
        """Held-out texts; empty if none were named."""
        return find_texts(self.held_out) if self.held_out else []

    @cached_property
    def blocks(self) -> np.ndarray:
        """(N, T) int64 training blocks; without held-out texts, all but the last twentieth."""
        every = self._cut(self.training_files)
        return every if self.held_files else every[: -max(1, len(every) // 20)]

    @cached_property
    def held(self) -> np.ndarray:
        """(N, T) int64 evenly spaced held-out blocks.

        From the held-out texts; without those, from the end of the training text, or from the sample story.
        """
        if self.held_files or not self.data:
            every = self._cut(self.held_files or [data_dir() / "samples" / "story.txt"])
        else:
            every = self._cut(self.training_files)
            every = every[-max(1, len(every) // 20) :]
        return _spaced(every, self.scale.blocks)

    @cached_property
    def choose_files(self) -> list[Path]:
        """Texts to choose by; empty if none were named."""
        return find_texts(self.choose) if self.choose else []

    @cached_property
    def choosing(self) -> np.ndarray:
        """(N, T) int64 evenly spaced blocks to choose learning rates by, never those of the tables."""
        every = self._cut(self.choose_files) if self.choose_files else self.blocks
        return _spaced(every, self.scale.blocks)

    def _cut(self, files: Sequence[Path]) -> np.ndarray:
        check_positions(self.loaded, self.scale.length)
        return token_blocks(self.loaded.tokenizer, (read_text(file) for file in files), self.scale.length)

    def stream(self) -> TokenStream:
        """The training text as an endless shuffled stream of blocks, for Trainer."""
        check_positions(self.loaded, self.scale.length)
        sources = find_sources(self.training_files)
        return TokenStream(sources, self.loaded.tokenizer, self.scale.length, seed=self.seed)

    @cached_property
    def untouched(self) -> Evaluation:
        """The untouched model on the held-out blocks, evaluated once per process; the loaded model may have routers."""
        self.progress("Evaluating the untouched model", 0.0)
        return evaluate(retrofit(self.load().model), self.held, routing="off")

    def measure(
        self, focus: FocusModel, plan: Sequence[tuple[Mode, int | None, str | None]], **more: Any
    ) -> list[dict[str, Any]]:
        """Rows of settings on the held-out blocks, each with its difference from the untouched model.

        Args:
            focus: model with routers.
            plan: (routing, k, balance) as in `standard_settings`.
            more: values at the start of every row.
        """
        rows = []
        for mode, top_k, balance in plan:
            found = evaluate(focus, self.held, routing=mode, top_k=top_k, balance=balance)
            rows.append({**more, **row(found, self.untouched)})
        return rows

    def inputs(self) -> dict[str, Any]:
        """Identity of the inputs: model, texts by hash, scale, seed. No paths."""
        return {
            "model": self.loaded.info.identity,
            "scale": asdict(self.scale),
            "seed": self.seed,
            "device": self.device,
            "data": text_records(self.training_files) if self.data else [],
            "held_out": text_records(self.held_files),
            **({"choose": text_records(self.choose_files)} if self.choose else {}),
            **({"bench": text_records(_files(self.bench))} if self.bench is not None else {}),
            **({"treebank": text_records(_files(self.treebank))} if self.treebank is not None else {}),
            **({"models": [revision_of(name) for name in self.models[1:]]} if self.models[1:] else {}),
        }


def _files(place: Path) -> list[Path]:
    """A file, or the files of a folder in order."""
    return [place] if place.is_file() else sorted(path for path in place.glob("*") if path.is_file())


def _spaced(blocks: np.ndarray, count: int) -> np.ndarray:
    return blocks[np.linspace(0, len(blocks) - 1, min(count, len(blocks))).round().astype(int)]


def row(found: Evaluation, untouched: Evaluation | None) -> dict[str, Any]:
    """An evaluation as a row, always with kept share and largest group.

    Args:
        found: the evaluation.
        untouched: the untouched model on the same blocks; None to leave the difference out.
    """
    values = {key: value for key, value in found.to_dict().items() if key not in RETENTION and key != "block_nll"}
    if untouched is None:
        return values
    gap = perplexity_difference(found.block_nll, untouched.block_nll)
    return {**values, **gap.to_dict()}
