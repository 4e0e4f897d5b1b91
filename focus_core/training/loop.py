"""The training loop: a fixed order of blocks, checkpoints in one file each, resumable to the same result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from focus_core.errors import FocusError
from focus_core.io.files import atomic_path
from focus_core.io.reading import read_tensors
from focus_core.results import run_key
from focus_core.routing.layer import LayerRouting
from focus_core.routing.model import FocusModel
from focus_core.routing.storage import model_hash, weights_hash
from focus_core.training.calibrate import calibrate
from focus_core.training.objectives import DEFAULT_OBJECTIVE, OBJECTIVES

CHECKPOINT = "checkpoint.safetensors"


class DivergedError(FocusError):
    """A loss that is no longer finite."""


@dataclass(frozen=True)
class TrainSettings:
    """Length and settings of a training run.

    Attributes:
        steps: optimiser steps.
        batch_size: blocks per step.
        learning_rate: peak of AdamW's rate; linear warm-up over 5% of the steps, then cosine to 10%.
        weight_decay: of AdamW.
        objective: a key of `focus_core.training.objectives.OBJECTIVES`.
        seed: of the block order.
        save_every: steps between checkpoints.
        autocast: run the base model in bfloat16.
    """

    steps: int = 300
    batch_size: int = 2
    learning_rate: float = 0.01
    weight_decay: float = 0.0
    objective: str = DEFAULT_OBJECTIVE
    seed: int = 0
    save_every: int = 25
    autocast: bool = True

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch_size < 1 or self.save_every < 1:
            raise FocusError("steps, batch size and checkpoint interval must be at least 1.")
        if not 0 < self.learning_rate < math.inf:
            raise FocusError(f"The learning rate is {self.learning_rate}: it must be greater than 0, and finite.")
        if self.objective not in OBJECTIVES:
            raise FocusError(f"objective is {self.objective!r}: choose one of {', '.join(OBJECTIVES)}.")


@dataclass(frozen=True)
class Step:
    """The result of one step.

    Attributes:
        step: number of finished steps.
        loss: of this step, in nats.
        largest_group_share: share of tokens in the largest group, worst layer.
        tokens_per_second: of this step.
    """

    step: int
    loss: float
    largest_group_share: float
    tokens_per_second: float


class LargestGroup:
    """Watches assignments and keeps the share of tokens in the largest group, worst layer (and head)."""

    def __init__(self) -> None:
        self.share = 0.0

    def __call__(self, routing: LayerRouting) -> None:
        """Add one layer's assignment; see `focus_core.routing.model.Observer`."""
        sizes = routing.group_sizes()
        self.share = max(self.share, float(sizes.max() / sizes[0].sum()))


def train(
    focus: FocusModel,
    blocks: np.ndarray,
    settings: TrainSettings,
    folder: Path,
    on_step: Callable[[Step], None] = lambda step: None,
    *,
    on_phase: Callable[[str], None] = lambda phase: None,
    keep_checkpoint: bool = False,
) -> list[Step]:
    """Train the routers, calibrate their potentials, and write them to a folder.

    A checkpoint is written every `save_every` steps and on an interruption. A second call with the same settings
    resumes from it. On CPU it ends with the same routers as an uninterrupted run.

    Args:
        focus: model with routers; its base is not changed.
        blocks: (N, T) int64 training blocks.
        settings: see `TrainSettings`.
        folder: output; created if needed.
        on_step: called after every step; a KeyboardInterrupt it raises stops the run after a checkpoint.
        on_phase: called with "training" and "calibrating" when these begin.
        keep_checkpoint: keep the last checkpoint, for a caller with more work in the same run; a second call then finds
            all steps finished.

    Returns:
        The steps of this call, in order.

    Raises:
        FocusError: too little text, or a checkpoint of other settings; `DivergedError` if the loss is not finite.
        OSError: the folder cannot be written.
    """
    if len(blocks) < settings.batch_size:
        raise FocusError(
            f"The text fills {len(blocks)} blocks of {blocks.shape[1]} tokens, fewer than one batch of "
            f"{settings.batch_size}: give more text or shorter blocks."
        )
    folder.mkdir(parents=True, exist_ok=True)
    parameters = list(focus.trainable_parameters())
    optimizer = torch.optim.AdamW(
        parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay, betas=(0.9, 0.95)
    )
    model, start = model_hash(focus.model), weights_hash(focus.routers)
    key = run_key(settings=settings, routing=focus.config, blocks=blocks, model=model, start=start)
    done = _resume(folder / CHECKPOINT, focus, optimizer, key)
    history: list[Step] = []
    objective, device = OBJECTIVES[settings.objective].loss, focus.model.device
    focus.model.eval()
    on_phase("training")
    try:
        for step in range(done, settings.steps):
            started, largest = time.perf_counter(), LargestGroup()
            rows = torch.from_numpy(blocks[batch_rows(len(blocks), step, settings)]).to(device)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, settings)
            autocast = torch.autocast(device.type, torch.bfloat16, enabled=settings.autocast)
            with autocast, focus.observe(largest):
                result = objective(focus, rows)
                result.backward()
            loss = float(result.detach())
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            done = step + 1
            if not math.isfinite(loss):
                raise DivergedError(f"The loss became {loss} at step {done}: train again with a lower learning rate.")
            seconds = time.perf_counter() - started
            history.append(Step(done, loss, largest.share, rows.numel() / seconds))
            if done % settings.save_every == 0:
                _save(folder / CHECKPOINT, focus, optimizer, key, done)
            on_step(history[-1])
    except KeyboardInterrupt:
        _save(folder / CHECKPOINT, focus, optimizer, key, done)
        raise
    _save(folder / CHECKPOINT, focus, optimizer, key, done)
    on_phase("calibrating")
    calibrate(focus, calibration_blocks(blocks, settings.seed))
    focus.trained = True
    focus.save_pretrained(folder)
    if not keep_checkpoint:
        (folder / CHECKPOINT).unlink(missing_ok=True)
    return history


RUN = 4
"""Neighbouring blocks that `calibrate` may join to a longer text."""


def calibration_blocks(blocks: np.ndarray, seed: int) -> Tensor:
    """Training blocks for the estimate of potentials, (N, T) int64: up to eight runs of four neighbours."""
    runs = len(blocks) // RUN
    if not runs:
        return torch.from_numpy(blocks)
    chosen = np.sort(np.random.default_rng(seed).permutation(runs)[:8])
    return torch.from_numpy(blocks[: runs * RUN].reshape(runs, RUN, -1)[chosen].reshape(-1, blocks.shape[1]))


def batch_rows(num_blocks: int, step: int, settings: TrainSettings) -> np.ndarray:
    """Rows of one step: every epoch is a new permutation, a function of seed and step alone."""
    per_epoch = num_blocks // settings.batch_size
    epoch, place = divmod(step, per_epoch)
    order = np.random.default_rng([settings.seed, epoch]).permutation(num_blocks)
    return order[place * settings.batch_size : (place + 1) * settings.batch_size]


def learning_rate(step: int, settings: TrainSettings) -> float:
    """Rate at a step, counted from 0: linear warm-up over 5% of the steps, then a cosine to 10%."""
    warmup = max(1, settings.steps // 20)
    if step < warmup:
        return settings.learning_rate * (step + 1) / warmup
    share = (step - warmup) / max(1, settings.steps - warmup)
    return settings.learning_rate * (0.1 + 0.45 * (1 + math.cos(math.pi * share)))


def _save(path: Path, focus: FocusModel, optimizer: torch.optim.Optimizer, key: str, done: int) -> None:
    tensors = {f"router.{name}": tensor for name, tensor in focus.routers.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors.update({f"optimizer.{index}.{name}": torch.as_tensor(value) for name, value in state.items()})
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata={"key": key, "step": str(done)})


def _resume(path: Path, focus: FocusModel, optimizer: torch.optim.Optimizer, key: str) -> int:
    """Load the checkpoint, if there is one, and return the number of finished steps."""
    if not path.exists():
        return 0
    try:
        metadata, tensors = read_tensors(path)
    except FocusError as error:
        raise FocusError(f"{path} is damaged: delete it to train from the start.") from error
    if "key" not in metadata and "run" in metadata:
        raise FocusError(f"{path} is of an older version, which did not store its text: delete it to train anew.")
    if metadata.get("key") != key:
        raise FocusError(
            f"{path} belongs to a run with other text, weights or settings: use those, or give another output folder."
        )
    try:
        focus.routers.load_state_dict(
            {name[len("router.") :]: tensor for name, tensor in tensors.items() if name.startswith("router.")}
        )
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            if name.startswith("optimizer."):
                _, index, value = name.split(".")
                state.setdefault(int(index), {})[value] = tensor
        check_moments(state, list(focus.trainable_parameters()))
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
        return int(metadata["step"])
    except (RuntimeError, ValueError, KeyError, IndexError) as error:
        raise FocusError(f"{path} is damaged: delete it to train from the start.") from error


def check_moments(state: Mapping[int, Mapping[str, Tensor]], parameters: Sequence[Tensor]) -> None:
    """Refuse moments of an optimizer that do not fit the parameters or are not finite.

    Raises:
        ValueError: there are such.
        IndexError: moments of a parameter that does not exist.
    """
    for index, values in state.items():
        shape = parameters[index].shape
        moments = [tensor for name, tensor in values.items() if name != "step"]
        if any(tensor.shape != shape for tensor in moments):
            raise ValueError(f"moments of parameter {index} have another shape")
        if not all(bool(tensor.isfinite().all()) for tensor in moments):
            raise ValueError(f"moments of parameter {index} are not finite")
