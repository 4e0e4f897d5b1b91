"""Estimate the column potentials that make routing causal (docs/method.md, "Calibrated balance")."""

from __future__ import annotations

import torch
from torch import Tensor

from focus_core.routing.layer import LayerRouting
from focus_core.routing.model import FocusModel
from focus_core.routing.sinkhorn import column_potentials

ROUNDS = 200
"""Rounds of the pooled Sinkhorn; its columns converge to 1e-4."""

LENGTH = 2048
"""Length in tokens that shorter blocks are joined to: potentials of short texts do not balance long ones."""

TOKENS = 1 << 14
"""Size of the pool in tokens, unless one block has more."""


def calibrate(focus: FocusModel, blocks: Tensor) -> None:
    """Set every router's potentials so that groups are balanced over a sample of text.

    One forward pass under hard routing. Each layer pools its scores over all tokens of the batch, solves Sinkhorn on
    the pool, and routes with the result. The next layer is therefore calibrated on routed hidden states.

    Args:
        focus: model with trained routers; its potentials are overwritten.
        blocks: (N, T) int64 token blocks, on any device. The first 16,384 tokens are used. Rows are joined to texts of
            up to 2,048 tokens, within the model's positions, so rows of one text should follow each other.
    """

    def solve(routing: LayerRouting) -> None:
        router = routing.router
        pooled = routing.scores.unflatten(0, (-1, router.num_heads)).transpose(0, 1).flatten(1, 2)
        potential = column_potentials(pooled, temperature=focus.config.temperature, rounds=ROUNDS)
        potential = potential - potential.mean(1, keepdim=True)
        router.potential.copy_(potential.view_as(router.potential))

    input_ids = _joined(focus, blocks[: max(1, TOKENS // blocks.shape[1])]).to(focus.model.device)
    with torch.inference_mode(), focus.routing("hard", balance="calibrated"), focus.observe(solve):
        focus.model.base_model(input_ids=input_ids, use_cache=False)


def _joined(focus: FocusModel, blocks: Tensor) -> Tensor:
    """Rows joined to texts of `LENGTH` tokens; rows that fill no whole text are dropped."""
    count, length = blocks.shape
    limit = getattr(focus.model.config.get_text_config(), "max_position_embeddings", None) or LENGTH
    together = max(1, min(count, LENGTH // length, limit // length))
    return blocks[: count // together * together].reshape(-1, together * length)
