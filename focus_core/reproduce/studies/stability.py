"""The stability study: training in two phases, with the size and stability of groups (published: section on collapse).

First the routers alone, then all weights. At intervals the loop routes a fixed batch, the probe. It records the share
of the largest group, and the share of tokens that kept their first group since the last measurement.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from focus_core.errors import FocusError
from focus_core.reproduce.studies.variants import Variant
from focus_core.routing.layer import LayerRouting
from focus_core.routing.model import FocusModel

PHASES = ("centroids", "everything")


@dataclass(frozen=True)
class StudySettings:
    """Length and settings of the training of a variant.

    Attributes:
        steps: with the routers alone.
        full_steps: with all weights, after that.
        batch_size: blocks per step.
        learning_rate: of the routers, AdamW, constant.
        base_learning_rate: of the base model's weights in the second phase.
        probe_every: steps between measurements on the probe.
        seed: of the block order.
        autocast: run the base model in bfloat16.
    """

    steps: int = 100
    full_steps: int = 100
    batch_size: int = 2
    learning_rate: float = 0.01
    base_learning_rate: float = 1e-4
    probe_every: int = 10
    seed: int = 0
    autocast: bool = True

    def __post_init__(self) -> None:
        if min(self.steps, self.full_steps, self.batch_size, self.probe_every) < 1:
            raise FocusError("Steps of both phases, batch size and probe interval must be at least 1.")


@dataclass(frozen=True)
class Point:
    """One measurement on the probe.

    Attributes:
        step: finished steps, over both phases.
        phase: "centroids" or "everything".
        loss: language-model loss of the step before, in nats; of the first batch at step 0.
        largest: share of the probe's tokens in the largest group, mean over layers.
        worst: the same in the layer where it is largest.
        stability: share of the probe's tokens with the same first group as at the last measurement, mean over layers;
            None at the first.
    """

    step: int
    phase: str
    loss: float
    largest: float
    worst: float
    stability: float | None


class _Watch:
    """Keeps the last states and assignment of every layer."""

    def __init__(self) -> None:
        self.states: dict[int, Tensor] = {}
        self.assignments: dict[int, Tensor] = {}

    def __call__(self, routing: LayerRouting) -> None:
        self.states[routing.layer] = routing.hidden_states.detach()
        self.assignments[routing.layer] = routing.key_weights


def variant_loss(focus: FocusModel, input_ids: Tensor, variant: Variant, watch: _Watch | None = None) -> tuple:
    """Language-model loss through the soft gate, and the variant's own term; both scalars in nats.

    The balance in force is the model's own (`focus.config.balance`), unlike in `objectives.language_model`.
    """
    watch = watch or _Watch()
    with focus.routing("soft"), focus.observe(watch):
        loss = focus(input_ids=input_ids, labels=input_ids, use_cache=False).loss
    terms = [variant.penalty(assignment) for assignment in watch.assignments.values()] if variant.penalty else []
    return loss, torch.stack(terms).mean() if terms else loss.new_zeros(())


def train_variant(
    focus: FocusModel,
    blocks: np.ndarray,
    probe: Tensor,
    variant: Variant,
    settings: StudySettings,
    on_point: Callable[[Point], None] = lambda point: None,
    on_phase_end: Callable[[str], None] = lambda phase: None,
) -> list[Point]:
    """Train a new retrofit in both phases and measure its groups.

    Args:
        focus: model with routers made with the variant's settings; its base is changed in the second phase.
        blocks: (N, T) int64 training blocks.
        probe: (P, T) int64, measured and never trained on.
        variant: see `focus_core.reproduce.studies.variants`.
        settings: see `StudySettings`.
        on_point: called after every measurement.
        on_phase_end: called with the name of a phase when it has ended.

    Returns:
        The measurements in order, the first before any step.

    Raises:
        FocusError: fewer blocks than a batch, or a loss that is not finite.
    """
    if len(blocks) < settings.batch_size:
        raise FocusError(f"The text fills {len(blocks)} blocks, fewer than one batch: give more text.")
    device, rng = focus.model.device, np.random.default_rng(settings.seed)
    routers = {layer: focus.router(layer) for layer in focus.layers}
    if variant.prepare is not None:
        for router in routers.values():
            variant.prepare(router)
    groups = [{"params": [p for p in focus.trainable_parameters() if p.requires_grad], "lr": settings.learning_rate}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0)
    focus.model.eval()
    points: list[Point] = []
    before: dict[int, Tensor] | None = None

    def look(step: int, phase: str, loss: float) -> None:
        nonlocal before
        with torch.autocast(device.type, torch.bfloat16, enabled=settings.autocast):
            now = _first_groups(focus, probe)
        points.append(Point(step, phase, loss, *_shares(now, focus.config.num_groups), _kept(before, now)))
        before = now
        on_point(points[-1])

    step, loss = 0, float("nan")
    for phase, steps in zip(PHASES, (settings.steps, settings.full_steps)):
        if phase == "everything":
            weights = list(focus.model.parameters())
            for parameter in weights:
                parameter.requires_grad_(True)
            optimizer.add_param_group({"params": weights, "lr": settings.base_learning_rate})
        for done in range(1, steps + 1):
            rows = torch.from_numpy(blocks[rng.choice(len(blocks), settings.batch_size, replace=False)]).to(device)
            watch = _Watch()
            with torch.autocast(device.type, torch.bfloat16, enabled=settings.autocast):
                language, penalty = variant_loss(focus, rows, variant, watch)
            loss = float(language.detach())
            if not math.isfinite(loss):
                raise FocusError(f"The loss became {loss} at step {step + 1}: use lower learning rates.")
            if not step:
                look(0, phase, loss)
            (language + penalty).backward()
            torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            if variant.after_step is not None:
                for layer, router in routers.items():
                    variant.after_step(router, watch.states[layer], watch.assignments[layer], step)
            if done % settings.probe_every == 0 or done == steps:
                look(step, phase, loss)
        on_phase_end(phase)
    return points


@torch.no_grad()
def _first_groups(focus: FocusModel, probe: Tensor) -> dict[int, Tensor]:
    watch = _Watch()
    with focus.routing("soft"), focus.observe(watch):
        focus.model.base_model(input_ids=probe.to(focus.model.device), use_cache=False)
    return {layer: assignment.argmax(-1).reshape(-1).cpu() for layer, assignment in watch.assignments.items()}


def _shares(first: dict[int, Tensor], num_groups: int) -> tuple[float, float]:
    largest = [float(torch.bincount(groups, minlength=num_groups).max()) / len(groups) for groups in first.values()]
    return sum(largest) / len(largest), max(largest)


def _kept(before: dict[int, Tensor] | None, now: dict[int, Tensor]) -> float | None:
    if before is None:
        return None
    return float(torch.stack([(before[layer] == now[layer]).float().mean() for layer in now]).mean())
