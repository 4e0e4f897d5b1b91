"""Estimate the column potentials that make routing causal (docs/method.md, "Calibrated balance")."""

from __future__ import annotations

import torch
from torch import Tensor

from focus_core.retrofitting import FocusModel, Observer
from focus_core.router import Router
from focus_core.sinkhorn import column_potentials

ROUNDS = 200
"""Rounds of the pooled Sinkhorn; at these sizes its columns have converged to 1e-4."""


def calibrate(focus: FocusModel, blocks: Tensor, *, batch_rows: int = 16) -> None:
    """Set every router's potentials so that groups are balanced over a sample of text.

    One forward pass under hard routing: each layer pools its scores over all tokens of the batch, solves
    Sinkhorn on the pool, and routes with the result, so that the next layer is calibrated on what it will really see.

    Args:
        focus: model with trained routers; its potentials are overwritten.
        blocks: (N, T) int64 token blocks, on any device; the first `batch_rows` are used.
        batch_rows: rows of the pool.
    """

    def solve(layer: int, router: Router, scores: Tensor, valid: Tensor | None) -> None:
        pooled = scores.reshape(1, -1, scores.shape[-1])
        potential = column_potentials(pooled, temperature=focus.config.temperature, rounds=ROUNDS)[0]
        router.potential.copy_(potential - potential.mean())

    input_ids = blocks[:batch_rows].to(focus.model.device)
    with torch.inference_mode(), focus.routing("hard", balance="calibrated"), focus.observe(Observer(solve)):
        focus.model.base_model(input_ids=input_ids, use_cache=False)
