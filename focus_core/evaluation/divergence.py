"""Losses, divergence and agreement of two sets of logits, in one visit of each row and without copies."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numba import njit
from torch import Tensor
from torch.nn import functional as F

from focus_core.attention.cpu.rows import ROWS, exponential_parts, over_rows

SUMMED = 2048
"""Entries summed in float32 at a time; their sums are added in float64."""

_ZERO = np.float32(0)


class Compared(NamedTuple):
    """Token by token, each (B, T - 1) float32; entry t is about the prediction of token t + 1.

    Attributes:
        losses: negative log-likelihood in nats.
        kl: KL(untouched || sparse) in nats.
        agrees: 1 where the most likely token is the same.
    """

    losses: Tensor
    kl: Tensor
    agrees: Tensor


def compare_logits(sparse: Tensor, full: Tensor, targets: Tensor) -> Compared:
    """Compare the predictions of some tokens.

    Args:
        sparse: (N, V) float32 logits of the attention that is measured.
        full: (N, V) float32 logits of the untouched model.
        targets: (N,) int64, the tokens that follow.

    Returns:
        (N,) float32 each.
    """
    if sparse.device.type != "cpu":
        log_sparse, log_full = sparse.log_softmax(-1), full.log_softmax(-1)
        kl = F.kl_div(log_sparse, log_full, reduction="none", log_target=True).sum(-1)
        agrees = (sparse.argmax(-1) == full.argmax(-1)).float()
        return Compared(F.nll_loss(log_sparse, targets, reduction="none"), kl, agrees)
    found = torch.empty(3, len(sparse))
    found[0], found[1] = sparse.amax(-1), full.amax(-1)
    logits = (each.detach().contiguous().numpy() for each in (sparse, full))
    over_rows(_compare, len(sparse), sparse.numel(), *logits, targets.contiguous().numpy(), found.numpy())
    return Compared(*found)


@njit(**ROWS)
def _compare(
    begin: int, stop: int, sparse: np.ndarray, full: np.ndarray, targets: np.ndarray, found: np.ndarray
) -> None:
    """`found` holds the largest logits of each row, and takes losses, divergences and agreement."""
    factors, bits = np.empty(SUMMED, np.float32), np.empty(SUMMED, np.int32)
    powers = bits.view(np.float32)
    for row in range(begin, stop):
        most, most_full = found[0, row], found[1, row]
        sum_sparse, sum_full, weighted = 0.0, 0.0, 0.0
        for start in range(0, sparse.shape[1], SUMMED):
            ours, theirs = sparse[row, start : start + SUMMED], full[row, start : start + SUMMED]
            sum_sparse += _sum(ours, most, factors, bits, powers)
            total, part = _weighted_sum(theirs, most_full, ours, most, factors, bits, powers)
            sum_full += total
            weighted += part
        found[0, row] = np.float32(math.log(sum_sparse) + most - sparse[row, targets[row]])
        found[1, row] = np.float32(weighted / sum_full - math.log(sum_full / sum_sparse))
        best, earlier = 0, False
        while full[row, best] != most_full:
            earlier = earlier or sparse[row, best] == most
            best += 1
        found[2, row] = np.float32(sparse[row, best] == most and not earlier)


@njit(**ROWS)
def _sum(
    logits: np.ndarray, shift: np.float32, factors: np.ndarray, bits: np.ndarray, powers: np.ndarray
) -> np.float32:
    """Sum of ``exp(logit - shift)``; the terms stay in `factors` times `powers`, which are the `bits`."""
    total = _ZERO
    for place in range(logits.shape[0]):
        factor, power = exponential_parts(logits[place], shift)
        bits[place] = np.int32(power)
        factors[place] = factor
    for place in range(logits.shape[0]):
        total += factors[place] * powers[place]
    return total


@njit(**ROWS)
def _weighted_sum(
    logits: np.ndarray,
    shift: np.float32,
    others: np.ndarray,
    shift_others: np.float32,
    factors: np.ndarray,
    bits: np.ndarray,
    powers: np.ndarray,
) -> tuple[np.float32, np.float32]:
    """`_sum`, and the sum of its terms times ``(logit - shift) - (other - its shift)``."""
    total, weighted = _sum(logits, shift, factors, bits, powers), _ZERO
    for place in range(logits.shape[0]):
        apart = (logits[place] - shift) - (others[place] - shift_others)
        weighted += factors[place] * powers[place] * apart
    return total, weighted
