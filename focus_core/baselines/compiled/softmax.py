"""Softmax over the kept pairs of each row, in one visit of the row."""

from __future__ import annotations

import math

import numpy as np
import torch
from numba import njit
from torch import Tensor

from focus_core.attention.cpu.rows import ROWS, exponential_parts, over_rows
from focus_core.baselines.ranking import only

SAMPLED = 64
"""Logits of a row whose largest one is taken off before exponentials, unless their sum is then too large or small."""

_ZERO, _FAINT, _HUGE = np.float32(0), np.float32(1e-18), np.float32(1e18)


def kept_softmax(logits: Tensor, kept: Tensor) -> Tensor:
    """Turn logits into the attention weights of kept pairs, 0 for others, in place.

    Args:
        logits: (B, H, Tq, S) float32, overwritten.
        kept: bool, broadcastable to the logits; every query must have one.

    Returns:
        (B, H, Tq) float32 log-sum-exp of the kept logits.
    """
    if logits.device.type != "cpu" or not logits.is_contiguous():
        weights = logits.add_(only(kept)).softmax(-1)
        # Of the largest weight e^(l - lse), which spares a pass of exponentials.
        logsumexp = logits.amax(-1) - weights.amax(-1).log()
        logits.copy_(weights)
        return logsumexp
    rows, masks = logits.flatten(0, -2), _rows_of(kept, logits)
    logsumexp = torch.empty(len(rows))
    arrays = (rows.numpy(), masks.numpy(), logsumexp.numpy())
    over_rows(_softmax, len(rows), rows.numel(), *arrays)
    return logsumexp.view(logits.shape[:-1])


def kept_share(logits: Tensor, kept: Tensor, causal: Tensor) -> Tensor:
    """The share of the softmax over causal pairs that kept pairs hold, (B, H, Tq) float32.

    Args:
        logits: (B, H, Tq, S) float32.
        kept: bool, broadcastable to the logits; all of them causal.
        causal: (Tq, S) bool.
    """
    if logits.device.type != "cpu" or not logits.is_contiguous():
        return (logits + only(causal)).softmax(-1).mul_(kept).sum(-1)
    rows, masks = logits.flatten(0, -2), _rows_of(kept, logits)
    share = torch.empty(len(rows))
    arrays = (rows.numpy(), masks.numpy(), causal.contiguous().numpy(), share.numpy())
    over_rows(_share, len(rows), rows.numel(), *arrays)
    return share.view(logits.shape[:-1])


def _rows_of(kept: Tensor, logits: Tensor) -> Tensor:
    """(K, S) bool, K a divisor of the rows of the logits: row r of them has the mask of row r modulo K."""
    if kept.dim() > 2 and kept.shape[:-2].numel() == 1:
        kept = kept.flatten(0, -2)
    if kept.dim() > 2:
        kept = kept.expand(logits.shape).flatten(0, -2)
    return kept.contiguous()


@njit(**ROWS)
def _softmax(begin: int, stop: int, logits: np.ndarray, kept: np.ndarray, logsumexp: np.ndarray) -> None:
    factors, bits = np.empty(logits.shape[1], np.float32), np.empty(logits.shape[1], np.int32)
    powers = bits.view(np.float32)
    for number in range(begin, stop):
        row, mask = logits[number], kept[number % kept.shape[0]]
        shift = _largest_kept(row, mask, max(1, row.shape[0] // SAMPLED))
        total = _exponentials(row, mask, shift, factors, bits, powers)
        if not _FAINT < total < _HUGE:  # the largest one is far from the sample
            shift = _largest_kept(row, mask, 1)
            total = _exponentials(row, mask, shift, factors, bits, powers)
        one = np.float32(1) / total
        for place in range(row.shape[0]):
            row[place] = factors[place] * powers[place] * one
        logsumexp[number] = np.float32(shift + math.log(total))


@njit(**ROWS)
def _share(begin: int, stop: int, logits: np.ndarray, kept: np.ndarray, causal: np.ndarray, share: np.ndarray) -> None:
    factors, bits = np.empty(logits.shape[1], np.float32), np.empty(logits.shape[1], np.int32)
    powers = bits.view(np.float32)
    for number in range(begin, stop):
        row, mask, all_of_it = logits[number], kept[number % kept.shape[0]], causal[number % causal.shape[0]]
        shift = _largest_kept(row, all_of_it, max(1, row.shape[0] // SAMPLED))
        total = _exponentials(row, all_of_it, shift, factors, bits, powers)
        if not _FAINT < total < _HUGE:
            total = _exponentials(row, all_of_it, _largest_kept(row, all_of_it, 1), factors, bits, powers)
        held = _ZERO
        for place in range(row.shape[0]):
            held += factors[place] * powers[place] if mask[place] else _ZERO
        share[number] = held / total


@njit(**ROWS)
def _exponentials(
    row: np.ndarray, mask: np.ndarray, shift: np.float32, factors: np.ndarray, bits: np.ndarray, powers: np.ndarray
) -> np.float32:
    """Exponentials of a row as factors, 0 where not in the mask, times powers of two; and their sum."""
    total = _ZERO
    for place in range(row.shape[0]):
        factor, power = exponential_parts(row[place], shift)
        bits[place] = np.int32(power)
        factors[place] = factor if mask[place] else _ZERO
    for place in range(row.shape[0]):
        total += factors[place] * powers[place]
    return total


@njit(**ROWS)
def _largest_kept(row: np.ndarray, mask: np.ndarray, step: int) -> np.float32:
    """The largest of every `step`-th logit in the mask."""
    largest = np.float32(-np.inf)
    for place in range(0, row.shape[0], step):
        if mask[place] and row[place] > largest:
            largest = row[place]
    return largest
