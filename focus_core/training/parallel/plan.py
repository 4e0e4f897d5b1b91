"""The command of a run on several GPUs and its memory, from the configuration of a model alone."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from focus_core.errors import FocusError
from focus_core.models.default_model import default_model_dir
from focus_core.models.gguf import quiet_transformers
from focus_core.models.loading import check_configuration, hub_answers, loading_error, looks_like_a_path
from focus_core.routing.config import FocusConfig
from focus_core.training.modes import Phase
from focus_core.training.parallel.memory import MemoryEstimate, estimate_memory


@dataclass(frozen=True)
class TrainingPlan:
    """A run that has not been started.

    Attributes:
        command: the command line, for one machine.
        memory: of each GPU.
        host: bytes of the whole model, which every process loads on its own CPU first.
    """

    command: str
    memory: MemoryEstimate
    host: int


def plan_training(
    model: str,
    gpus: int,
    phase: Phase,
    config: FocusConfig,
    *,
    length: int,
    micro_batch: int,
    dtype: torch.dtype,
    precision: str,
    options: Sequence[str] = (),
) -> TrainingPlan:
    """Plan a run; loads no weights and needs no GPU.

    Args:
        model: "default", a folder or JSON file with a Transformers configuration, or a hub id.
        gpus: processes, each with a GPU; with more than one the weights are divided among them.
        phase: the trained weights and the objective.
        config: of the routers.
        length: T, tokens per block.
        micro_batch: blocks per process and forward pass.
        dtype: of the base model's weights.
        precision: "bf16" for autocast.
        options: of `focus train`, beyond the model and the sharding.

    Raises:
        FocusError: no configuration of a causal language model.
    """
    sharded = gpus > 1
    start = f"torchrun --nproc-per-node {gpus} -m focus_core.cli train --shard" if sharded else "focus train --trainer"
    settings: dict[str, Any] = {"length": length, "micro_batch": micro_batch, "dtype": dtype, "precision": precision}
    found = model_configuration(model)
    try:
        memory = estimate_memory(found, config, phase, **settings, world_size=gpus, sharded=sharded)
    except (ValueError, KeyError, OSError, TypeError) as error:
        if isinstance(error, FocusError):
            raise
        raise _no_model(model) from error
    return TrainingPlan(
        shlex.join([*start.split(), "--model", model, *options]), memory, memory.weights * (gpus if sharded else 1)
    )


def model_configuration(model: str) -> Any:
    """The Transformers configuration of a model, without its weights.

    Args:
        model: as in `plan_training`.

    Raises:
        FocusError: there is none.
    """
    path = default_model_dir() if model == "default" else Path(model)
    path = path / "config.json" if path.is_dir() else path
    try:
        if path.is_file():
            check_configuration(path)
            return AutoConfig.from_pretrained(path)
        if Path(model).exists() or looks_like_a_path(model):
            raise _no_model(model)
        # Without the hub every file would be tried for half a minute.
        with quiet_transformers():
            return AutoConfig.from_pretrained(model, local_files_only=not hub_answers())
    except (ValueError, KeyError, OSError, TypeError) as error:
        if isinstance(error, FocusError):
            raise
        raise (_no_model(model) if Path(model).exists() else loading_error(error, model, model)) from error


def _no_model(model: str) -> FocusError:
    return FocusError(f"There is no configuration of a causal language model at {model}: give another.")
