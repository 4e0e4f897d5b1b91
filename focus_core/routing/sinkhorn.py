"""Sinkhorn balance of router scores, in log space (the "Sinkhorn box" of arXiv 2604.03260).

With S the scores and tau the temperature, Q = exp(S / tau) is normalised in turn over tokens (columns) and over
groups (rows). In log space log Q_tc = S_tc / tau + u_t + v_c, so every state of the iteration is two vectors of
potentials. The result is softmax(S_t / tau + v): a token depends on the others through v alone. The calibrated, causal
form freezes v.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


def _working_dtype(scores: Tensor) -> torch.dtype:
    return torch.float64 if scores.dtype == torch.float64 else torch.float32


def column_potentials(
    scores: Float[Tensor, "B T K"],
    *,
    temperature: float,
    rounds: int,
    valid: Bool[Tensor, "B T"] | None = None,
) -> Float[Tensor, "B K"]:
    """Column log-potentials v after `rounds` of column-then-row normalisation.

    Columns are scaled to sum to T/K (T real tokens), rows to 1.

    Args:
        scores: (B, T, K) router scores, any float dtype.
        temperature: tau.
        rounds: N, at least 1.
        valid: (B, T) bool, False for padding, which is left out of the sums. None if every token is real.

    Returns:
        (B, K) float32 (float64 for float64 scores), differentiable with respect to `scores`.
    """
    logits = scores.to(_working_dtype(scores)) / temperature
    num_tokens, num_groups = logits.shape[1], logits.shape[2]
    if valid is None:
        log_target = logits.new_full((logits.shape[0], 1), math.log(num_tokens / num_groups))
    else:
        # A large finite value instead of -inf keeps the gradient of a fully padded row defined.
        logits = logits.masked_fill(~valid[..., None], torch.finfo(logits.dtype).min / 4)
        log_target = (valid.sum(1, keepdim=True).clamp(min=1) / num_groups).log().to(logits.dtype)
    row = logits.new_zeros(logits.shape[:2])
    column = logits.new_zeros(logits.shape[0], num_groups)
    for _ in range(rounds):
        column = log_target - torch.logsumexp(logits + row[..., None], dim=1)
        row = -torch.logsumexp(logits + column[:, None], dim=2)
        if valid is not None:
            row = row.masked_fill(~valid, 0.0)
    return column


def potential_softmax(
    scores: Float[Tensor, "B T K"], potential: Float[Tensor, "*B K"], temperature: float
) -> Float[Tensor, "B T K"]:
    """softmax(S / tau + v) over groups: a row-normalised assignment for given column potentials.

    Args:
        scores: (B, T, K) router scores.
        potential: (K,) shared by all rows, or (B, K).
        temperature: tau.

    Returns:
        (B, T, K) float32 (float64 for float64 scores), rows sum to 1.
    """
    return torch.softmax(potential_logits(scores, potential, temperature), dim=-1)


def potential_logits(
    scores: Float[Tensor, "B T K"], potential: Float[Tensor, "*B K"], temperature: float
) -> Float[Tensor, "B T K"]:
    """S / tau + v: what `potential_softmax` takes the softmax of; the largest is that of the same group."""
    logits = scores.to(_working_dtype(scores)) / temperature
    if potential.ndim == 2:
        potential = potential[:, None]
    return logits + potential.to(logits)


def sinkhorn(
    scores: Float[Tensor, "B T K"],
    *,
    temperature: float = 0.1,
    rounds: int = 10,
    valid: Bool[Tensor, "B T"] | None = None,
) -> Float[Tensor, "B T K"]:
    """Balanced soft assignment of tokens to groups.

    Every column depends on the whole text, so this form looks into the future of a causal model. Rows sum to 1
    exactly; columns sum to T/K only in the limit of many rounds (see `marginal_error`).

    Args:
        scores: (B, T, K) router scores, any float dtype; computed in float32 (float64 for float64).
        temperature: tau.
        rounds: N.
        valid: (B, T), False for padding. Padding rows of the result are meaningless.

    Returns:
        (B, T, K) assignment; gradients flow through the rounds.
    """
    potential = column_potentials(scores, temperature=temperature, rounds=rounds, valid=valid)
    return potential_softmax(scores, potential, temperature)


def marginal_error(assignment: Float[Tensor, "B T K"], valid: Bool[Tensor, "B T"] | None = None) -> Float[Tensor, " B"]:
    """Largest relative deviation of a group's mass from its fair share T/K.

    0 is perfect balance; K - 1 is every token in one group.

    Returns:
        (B,) float.
    """
    if valid is None:
        share = assignment.mean(dim=1)
    else:
        weights = valid[..., None].to(assignment.dtype)
        share = (assignment * weights).sum(1) / weights.sum(1).clamp(min=1)
    return (share * assignment.shape[-1] - 1).abs().amax(-1)
