"""Training modes: routers alone, routers and then all weights, or all weights from the start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from focus_core.errors import FocusError
from focus_core.models.loading import check_configuration
from focus_core.routing.config import FocusConfig
from focus_core.routing.model import FocusModel
from focus_core.routing.routers import ROUTERS
from focus_core.training.loop import LargestGroup
from focus_core.training.objectives import OBJECTIVES, PUBLISHED_OBJECTIVE


@dataclass(frozen=True)
class Phase:
    """A part of a run with one set of trainable weights.

    Attributes:
        name: of the phase and of its folder of checkpoints.
        everything: train the base model's weights as well as the routers.
        objective: a key of `OBJECTIVES`.
        steps: optimiser steps.
    """

    name: str
    everything: bool
    objective: str
    steps: int


DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""Types of loaded weights, by their name in settings."""

MODES = ("centroid-only", "two-phase", "scratch")
"""The paper's three training modes."""


def phases(mode: str, objective: str, steps: int, full_steps: int) -> tuple[Phase, ...]:
    """The phases of a training mode.

    Args:
        mode: one of `MODES`.
        objective: of the centroids; weights of the base are always trained on the language-model loss.
        steps: of the centroids.
        full_steps: with all weights.

    Raises:
        FocusError: an unknown mode or objective, or a number of steps below 1.
    """
    if mode not in MODES:
        raise FocusError(f"mode is {mode!r}: choose one of {', '.join(MODES)}.")
    if objective not in OBJECTIVES:
        raise FocusError(f"objective is {objective!r}: choose one of {', '.join(OBJECTIVES)}.")
    if min(steps, full_steps) < 1:
        raise FocusError("Every phase needs at least 1 step.")
    centroids = Phase("centroids", False, objective, steps)
    everything = Phase("everything", True, PUBLISHED_OBJECTIVE, full_steps)
    return {"centroid-only": (centroids,), "two-phase": (centroids, everything), "scratch": (everything,)}[mode]


def check_trainable(config: FocusConfig) -> None:
    """Refuse settings of routers that no training is for.

    Raises:
        FocusError: narrow groups, which have no soft gate to train through.
    """
    if not ROUTERS[config.router].trained_by_gate:
        raise FocusError("Narrow groups are not trained but fitted to the model's keys: use focus fit.")


def scratch_model(architecture: str | Path, vocabulary: int, *, seed: int, dtype: torch.dtype) -> PreTrainedModel:
    """A decoder with random weights of any Transformers configuration.

    Args:
        architecture: a JSON file, or a folder with a config.json.
        vocabulary: size of the tokenizer in use; the configuration's must not be smaller.
        seed: of the weights.
        dtype: of the weights.

    Raises:
        FocusError: no such file, no causal language model, or a vocabulary that is too small.
    """
    path = Path(architecture)
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        raise FocusError(f"There is no configuration at {path}: give a folder with config.json, or a JSON file.")
    check_configuration(path)
    try:
        config = AutoConfig.from_pretrained(path)
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    except (ValueError, KeyError, OSError, TypeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160].rstrip(".")
        raise FocusError(
            f"{path} describes no causal language model of Transformers ({reason}): choose another."
        ) from error
    if config.get_text_config().vocab_size < vocabulary:
        raise FocusError(
            f"The configuration has room for {config.get_text_config().vocab_size:,} tokens and the tokenizer has "
            f"{vocabulary:,}: raise vocab_size, or choose another tokenizer with --model."
        )
    return model


class TrainingTask(nn.Module):
    """A model with routers and an objective, as one module; its forward returns the training loss.

    DistributedDataParallel and FSDP synchronise around the forward of the module they wrap, so the objective must run
    inside it.

    Args:
        focus: model with routers.
        objective: maps token blocks (B, T) to a loss.
        everything: also train the base model. Otherwise it stays frozen and in eval mode.
    """

    is_distributed_loading_by_transformers = False
    """Trainer's name for a model that manages its own placement, which it neither wraps nor moves."""

    def __init__(self, focus: FocusModel, objective: Callable[[FocusModel, Tensor], Tensor], *, everything: bool):
        super().__init__()
        self.focus = focus
        self.objective = objective
        self.everything = everything
        self.largest_group_share = 0.0
        self._no_split_modules = getattr(focus.model, "_no_split_modules", None)  # the modules that FSDP wraps
        for parameter in focus.model.parameters():
            parameter.requires_grad_(everything)

    def forward(self, input_ids: Tensor) -> dict[str, Tensor]:
        """The loss of a batch; also notes the share of its tokens in the largest group."""
        largest = LargestGroup()
        with self.focus.observe(largest):
            loss = self.objective(self.focus, input_ids)
        self.largest_group_share = largest.share
        return {"loss": loss}

    def train(self, mode: bool = True) -> TrainingTask:
        """Switch dropout on or off; never on in a base model that is not trained."""
        super().train(mode)
        self.focus.model.train(mode and self.everything)
        return self

    def tie_weights(self) -> None:
        """Tie the base model's shared weights again; FSDP asks for it."""
        tie: Any = self.focus.model.tie_weights
        tie()
