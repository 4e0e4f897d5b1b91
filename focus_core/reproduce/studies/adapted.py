"""The base model adapted to the training text with full attention: the fair company of routers trained on that text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from focus_core.models import LoadedModel
from focus_core.reproduce.studies.lora import LoraSettings, target_modules, train_lora
from focus_core.routing.storage import weights_fingerprint
from focus_core.training.loop import TrainSettings, batch_rows


class Adapted(NamedTuple):
    """A model with merged adapters.

    Attributes:
        loaded: the model, its adapters merged into the weights.
        rank: r.
        parameters: that were trained.
        losses: of every step, in nats.
        folder: of the adapter that PEFT saved (safetensors).
    """

    loaded: LoadedModel
    rank: int
    parameters: int
    losses: list[float]
    folder: Path


class TrainingBlocks(IterableDataset[dict[str, Tensor]]):
    """Training blocks one by one, in the order in which `focus_core.training.loop.train` takes them.

    Args:
        blocks: (N, T) int64.
        settings: steps, batch size and seed.
    """

    def __init__(self, blocks: np.ndarray, settings: TrainSettings) -> None:
        self.blocks, self.settings = blocks, settings

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for step in range(self.settings.steps):
            for row in batch_rows(len(self.blocks), step, self.settings):
                yield {"input_ids": torch.from_numpy(self.blocks[row])}


def rank_for(model: nn.Module, parameters: int) -> int:
    """The rank at which adapters have about as many parameters as wanted, at least 1.

    Raises:
        FocusError: a model without known query, key and value projections.
    """
    names = set(target_modules(model))
    weights = (module.weight for name, module in model.named_modules() if name.rpartition(".")[2] in names)
    of_one: int = sum(sum(weight.shape) for weight in weights if isinstance(weight, Tensor))
    return max(1, round(parameters / of_one))


def adapt(
    loaded: LoadedModel,
    training_blocks: np.ndarray,
    *,
    parameters: int,
    steps: int,
    learning_rate: float,
    out: Path,
    batch_size: int = 2,
    seed: int = 0,
    on_step: Callable[[int, float], None] | None = None,
) -> Adapted:
    """Adapt a model with LoRA and full attention, on the batches that routers with the same settings are trained on.

    The adapter's folder is named by a hash of model, blocks and settings. A repeated call reads it.

    Args:
        loaded: a newly loaded model without routers; its weights change.
        training_blocks: (N, T) int64.
        parameters: to match, such as those of routers.
        steps: optimiser steps.
        learning_rate: peak rate.
        out: folder for adapters.
        batch_size: blocks a step.
        seed: of adapters and order of blocks.
        on_step: called with the step and its loss.

    Raises:
        FocusError: no projections to adapt.
    """
    settings = LoraSettings(rank_for(loaded.model, parameters), learning_rate, steps, batch_size, seed)
    identity: dict[str, Any] = {**asdict(settings), "model": weights_fingerprint(loaded.model)}
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode())
    digest.update(str(training_blocks.shape).encode() + np.ascontiguousarray(training_blocks).tobytes())
    folder = out / f"{settings.name}-{digest.hexdigest()[:12]}"
    order = TrainSettings(steps=steps, batch_size=batch_size, seed=seed)
    stream = TrainingBlocks(training_blocks, order)
    model, losses = train_lora(loaded.model, stream, settings, folder, on_step=on_step)
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    merged: Any = model.merge_and_unload()  # type: ignore[operator]
    return Adapted(loaded._replace(model=merged.eval()), settings.rank, trained, losses, folder)
