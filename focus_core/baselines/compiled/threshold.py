"""The largest scores of every row: the threshold is found by counting, not by sorting.

A count of the scores above a guess is one pass of vector instructions over a row. About eight of them find a threshold
with the wanted count among thousands of scores: the guesses narrow an interval by its counts and by halves in turn.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numba import njit
from torch import Tensor

from focus_core.attention.cpu.rows import ROWS, over_rows

GUESSES = 16
"""Passes after which the interval is checked for equal scores, which no threshold parts."""

_ZERO, _ONE, _HALF, _FOUR = (np.float32(each) for each in (0, 1, 0.5, 4))
_NEAR, _FAR = np.float32(0.02), np.float32(0.98)


def largest(scores: Tensor, counts: Tensor, first: Tensor | None = None, end: Tensor | None = None) -> Tensor:
    """The entries of each row with the largest scores; of equal ones the last.

    Args:
        scores: (R, N) float32, no NaN.
        counts: (R,) whole numbers, how many entries of each row.
        first: (R,), the first entry of each row that may be chosen; 0 when None.
        end: (R,), the end of those that may be chosen; N when None.

    Returns:
        (R, N) bool. Rows with fewer entries to choose from than wanted have them all.
    """
    rows, width = scores.shape
    first = torch.zeros_like(counts) if first is None else first
    end = torch.full_like(counts, width) if end is None else end
    if scores.device.type != "cpu":
        return _sorted(scores, counts, first, end)
    chosen = torch.empty(scores.shape, dtype=torch.bool)
    limits = (each.to(torch.int64).contiguous().numpy() for each in (counts, first, end))
    over_rows(_mark_largest, rows, scores.numel(), scores.contiguous().numpy(), *limits, chosen.numpy())
    return chosen


def largest_blocks(scores: Tensor, size: int, counts: Tensor, first: Tensor, end: Tensor, keys: int) -> Tensor:
    """The keys of each row in the blocks with the largest scores; of the last block the last keys.

    Args:
        scores: (R, N) float32 of blocks of `size` keys, no NaN.
        size: of a block.
        counts: (R,) whole numbers, how many keys of each row.
        first: (R,), the first key of each row that may be chosen.
        end: (R,), the end of those that may be chosen.
        keys: S, at most N * size.

    Returns:
        (R, S) bool. Rows with fewer keys to choose from than wanted have them all.
    """
    if scores.device.type != "cpu":
        return _sorted_blocks(scores, size, counts, first, end, keys)
    chosen = torch.empty((len(scores), keys), dtype=torch.bool)
    limits = (each.to(torch.int64).contiguous().numpy() for each in (counts, first, end))
    scored = scores.contiguous().numpy()
    over_rows(_mark_largest_blocks, len(scores), chosen.numel(), scored, size, *limits, chosen.numpy())
    return chosen


def largest_groups(scores: Tensor, labels: Tensor, counts: Tensor, first: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """The keys of each row in the groups with the largest scores; of the last group, or of equal ones, the last keys.

    Args:
        scores: (R, C) float32 of groups, no NaN.
        labels: (L, S) integers, the group of every key; row r of the scores has those of row r L / R.
        counts: (R,) whole numbers, how many keys of each row.
        first: (R,), the first key of each row that may be chosen.
        end: (R,), the end of those that may be chosen.

    Returns:
        (R, S) bool; and (R, C) float32, how many keys of each group may be chosen and are not.
    """
    same = len(scores) // max(1, len(labels))
    if scores.device.type != "cpu":
        index = labels.long().repeat_interleave(same, 0)
        chosen = _sorted(scores.gather(1, index), counts, first, end)
        places = torch.arange(labels.shape[1], device=scores.device)
        rest = ~chosen & (places >= first[:, None]) & (places < end[:, None])
        return chosen, torch.zeros_like(scores).scatter_add_(1, index, rest.float())
    chosen = torch.empty((len(scores), labels.shape[1]), dtype=torch.bool)
    unread = torch.empty_like(scores, memory_format=torch.contiguous_format)
    limits = (each.to(torch.int64).contiguous().numpy() for each in (counts, first, end))
    given = (scores.contiguous().numpy(), labels.to(torch.int32).contiguous().numpy())
    over_rows(_mark_largest_groups, len(scores), chosen.numel(), *given, *limits, chosen.numpy(), unread.numpy())
    return chosen, unread


def _sorted(scores: Tensor, counts: Tensor, first: Tensor, end: Tensor) -> Tensor:
    """`largest` by sorting."""
    places = torch.arange(scores.shape[1], device=scores.device)
    allowed = (places >= first[:, None]) & (places < end[:, None])
    order = scores.masked_fill(~allowed, float("-inf")).flip(1).argsort(dim=1, descending=True, stable=True)
    ranks = torch.empty_like(order).scatter_(1, order, places.expand_as(order)).flip(1)
    return (ranks < counts[:, None]) & allowed


def _sorted_blocks(scores: Tensor, size: int, counts: Tensor, first: Tensor, end: Tensor, keys: int) -> Tensor:
    """`largest_blocks` by sorting."""
    edge = torch.arange(scores.shape[1], device=scores.device) * size
    stop = end[:, None].minimum(edge + size)
    own = (stop - first[:, None].maximum(edge)).clamp(min=0)
    order = scores.masked_fill(own == 0, float("-inf")).argsort(dim=1, descending=True)
    held = own.gather(1, order)
    left = counts[:, None] - (held.cumsum(1) - held)
    taken = torch.zeros_like(held).scatter_(1, order, left.clamp(min=0).minimum(held))
    begin, places = (stop - taken).repeat_interleave(size, 1)[:, :keys], torch.arange(keys, device=scores.device)
    return (places >= begin) & (places >= first[:, None]) & (places < end[:, None])


@njit(**ROWS)
def _at_least(row: np.ndarray, weights: np.ndarray, least: np.float32) -> np.float32:
    """The weight of the scores that are `least` or more, their number without weights; exact below 2^24."""
    count = _ZERO
    if weights.shape[0] == 0:
        for place in range(row.shape[0]):
            count += _ONE if row[place] >= least else _ZERO
    else:
        for place in range(row.shape[0]):
            count += weights[place] if row[place] >= least else _ZERO
    return count


@njit(**ROWS)
def _moments(row: np.ndarray) -> tuple[np.float32, np.float32]:
    """Mean and standard deviation, about."""
    total, squares, zero = _ZERO, _ZERO, row[0]
    for place in range(row.shape[0]):
        apart = row[place] - zero
        total += apart
        squares += apart * apart
    mean = total / np.float32(row.shape[0])
    return zero + mean, np.float32(math.sqrt(max(squares / np.float32(row.shape[0]) - mean * mean, _ZERO)))


@njit(**ROWS)
def _smallest(row: np.ndarray, least: np.float32) -> np.float32:
    """The smallest score that is `least` or more."""
    found = np.float32(np.inf)
    for score in row:
        if least <= score < found:
            found = score
    return found


@njit(**ROWS)
def _threshold(
    row: np.ndarray, weights: np.ndarray, total: np.float32, wanted: np.float32
) -> tuple[np.float32, np.float32]:
    """The largest score that as much weight as wanted reaches, or one below it, and how much reaches it.

    More than wanted reaches it where scores are equal or weights are not 1. Some of the total is wanted, and not all.
    """
    mean, spread = _moments(row)
    if not math.isfinite(spread) or not math.isfinite(mean):
        return _threshold_by_sorting(row, weights, wanted)
    low, high = np.float32(-np.inf), np.float32(np.inf)
    many, few = total, _ZERO  # reach low and high
    part = wanted / many
    guess = np.float32(mean + spread * np.float32(math.log((_ONE - part) / part)) * np.float32(0.5877))  # logistic
    step = np.float32(0.25) * spread + np.float32(1e-6) * abs(mean) + np.float32(1e-30)
    passes = 0
    while True:
        count = _at_least(row, weights, guess)
        passes += 1
        if count == wanted:
            return guess, count
        if count > wanted:
            low, many = guess, count
        else:
            high, few = guess, count
        if passes >= GUESSES:
            least = _smallest(row, low)
            above = np.nextafter(least, np.float32(np.inf))
            count = _at_least(row, weights, above)
            if count < wanted:
                return least, many
            low, many = above, count
            if count == wanted:
                return low, count
        if high == np.float32(np.inf):
            guess = low + step
            step *= _FOUR
        elif low == np.float32(-np.inf):
            guess = high - step
            step *= _FOUR
        else:
            guess = _between(low, high, (many - wanted) / (many - few) if passes % 2 == 0 else _HALF)


@njit(**ROWS)
def _threshold_by_sorting(row: np.ndarray, weights: np.ndarray, wanted: np.float32) -> tuple[np.float32, np.float32]:
    """`_threshold` where some scores are infinite."""
    least, count = np.float32(np.inf), _ZERO
    for score in np.sort(row)[::-1]:
        least = np.float32(score)
        count = _at_least(row, weights, least)
        if count >= wanted:
            break
    return least, count


@njit(**ROWS)
def _between(low: np.float32, high: np.float32, place: np.float32) -> np.float32:
    """A number above `low` and below `high`, at about this place between them; `high` where there is none."""
    guess = low + (high - low) * min(max(place, _NEAR), _FAR)
    if guess <= low or guess >= high:
        guess = low + (high - low) * _HALF
    return guess if guess > low else np.nextafter(low, high)


@njit(**ROWS)
def _mark(row: np.ndarray, wanted: int, chosen: np.ndarray) -> None:
    """Mark the largest scores of a row."""
    if wanted <= 0 or wanted >= row.shape[0]:
        chosen[:] = wanted > 0
        return
    least, count = _threshold(row, row[:0], np.float32(row.shape[0]), np.float32(wanted))
    for place in range(row.shape[0]):
        chosen[place] = row[place] >= least
    surplus = int(count) - wanted
    place = 0
    while surplus > 0:
        if row[place] == least:
            chosen[place] = False
            surplus -= 1
        place += 1


@njit(**ROWS)
def _mark_largest(
    begin: int,
    stop: int,
    scores: np.ndarray,
    counts: np.ndarray,
    first: np.ndarray,
    end: np.ndarray,
    chosen: np.ndarray,
) -> None:
    for row in range(begin, stop):
        low, high = max(0, first[row]), min(end[row], scores.shape[1])
        high = max(low, high)
        chosen[row, :low] = False
        chosen[row, high:] = False
        _mark(scores[row, low:high], counts[row], chosen[row, low:high])


@njit(**ROWS)
def _mark_largest_blocks(
    begin: int,
    stop: int,
    scores: np.ndarray,
    size: int,
    counts: np.ndarray,
    first: np.ndarray,
    end: np.ndarray,
    chosen: np.ndarray,
) -> None:
    whole = np.empty(scores.shape[1], np.bool_)
    for row in range(begin, stop):
        low, high = max(0, first[row]), min(end[row], chosen.shape[1])
        chosen[row, :] = False
        left = counts[row]
        if high <= low or left <= 0:
            continue
        start, last = low // size, -(-high // size)
        able, sure = scores[row, start:last], whole[start:last]
        _mark(able, left // size, sure)  # these fit, whatever the lengths of the first and the last
        for block in range(start, last):
            if whole[block]:
                left -= _take(chosen[row], max(low, block * size), min(high, (block + 1) * size), left)
        while left > 0:
            best = -1
            for block in range(last - start):
                if not sure[block] and (best < 0 or able[block] >= able[best]):
                    best = block
            if best < 0:
                break
            sure[best] = True
            block = start + best
            left -= _take(chosen[row], max(low, block * size), min(high, (block + 1) * size), left)


@njit(**ROWS)
def _take(chosen: np.ndarray, first: int, end: int, left: int) -> int:
    """Mark the last keys from `first` to before `end`, at most `left`; how many they are."""
    taken = min(left, end - first)
    chosen[end - taken : end] = True
    return taken


@njit(**ROWS)
def _mark_largest_groups(
    begin: int,
    stop: int,
    scores: np.ndarray,
    labels: np.ndarray,
    counts: np.ndarray,
    first: np.ndarray,
    end: np.ndarray,
    chosen: np.ndarray,
    unread: np.ndarray,
) -> None:
    sizes, same = np.zeros(scores.shape[1], np.float32), scores.shape[0] // labels.shape[0]
    before, low, high = -1, 0, 0
    for row in range(begin, stop):
        group = labels[row // same]
        if row // same != before or first[row] < low or end[row] < high:
            sizes[:] = 0
            before, low, high = row // same, max(0, first[row]), max(0, first[row])
        while high < min(end[row], labels.shape[1]):
            sizes[group[high]] += _ONE
            high += 1
        while low < min(first[row], high):
            sizes[group[low]] -= _ONE
            low += 1
        chosen[row, :] = False
        wanted = counts[row]
        if wanted >= high - low:
            chosen[row, low:high] = True
            unread[row, :] = 0
        elif wanted <= 0:
            unread[row, :] = sizes
        else:
            least, reached = _threshold(scores[row], sizes, np.float32(high - low), np.float32(wanted))
            keys = (scores[row], group[low:high], sizes, least, int(reached) - wanted)
            _mark_groups(*keys, chosen[row, low:high], unread[row])


@njit(**ROWS)
def _mark_groups(
    scores: np.ndarray,
    group: np.ndarray,
    sizes: np.ndarray,
    least: np.float32,
    surplus: int,
    chosen: np.ndarray,
    unread: np.ndarray,
) -> None:
    """Mark the keys of groups with scores of `least` or more, without the first `surplus` ones of equal score."""
    for place in range(group.shape[0]):
        chosen[place] = scores[group[place]] >= least
    for number in range(scores.shape[0]):
        unread[number] = _ZERO if scores[number] >= least else sizes[number]
    place = 0
    while surplus > 0:
        if scores[group[place]] == least:
            chosen[place] = False
            unread[group[place]] += _ONE
            surplus -= 1
        place += 1
