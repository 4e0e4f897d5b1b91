"""Groups of keys in one pass: rotary embedding taken back, scores against centroids, and the largest of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numba import njit
from torch import Tensor

from focus_core.attention.cpu.threads import in_threads
from focus_core.routing.narrow.compiled.machine.llvm import LANES, MASKED
from focus_core.routing.narrow.compiled.machine.memory import COMPILED, as_array, empty, zeros
from focus_core.routing.narrow.compiled.machine.ranking import place_of_largest
from focus_core.routing.narrow.compiled.machine.vectors import ROWS, dots
from focus_core.routing.narrow.compiled.machine.widening import square, wide
from focus_core.routing.narrow.rotary import RotatedPairs

if TYPE_CHECKING:
    from jaxtyping import Float, Int

TOKENS = 16
"""Tokens whose keys are taken at once, a multiple of `ROWS`."""
PART = 512
"""Fewer tokens are no part for a thread."""
LEAST_LENGTH = np.float32(1e-12)
"""Keys are not divided by less, as in `torch.nn.functional.normalize`."""


def group_keys(
    key: Float[Tensor, "B H T D"],
    position_embeddings: tuple[Tensor, Tensor] | None,
    pairs: RotatedPairs | None,
    centroids: Float[Tensor, "H K D"],
    potential: Float[Tensor, "H K"],
    factor: float,
    *,
    cosine: bool,
) -> Int[Tensor, "B H T"]:
    """The group with the largest ``factor S + v`` of each key, in float32; of equal ones the first.

    S is the score of a key before rotary embedding, k: ``k.c - |c|^2 / 2``, or the cosine of k and c.

    Args:
        key: position-encoded, on a CPU.
        position_embeddings: cosines and sines, (B or 1, T, r) each; None without rotary embedding.
        pairs: their layout; None without.
        centroids: c, of every key/value head.
        potential: v.
        factor: 1 / temperature.
        cosine: whether scores are cosines.
    """
    batch, heads, length, width = key.shape
    num_groups, even = centroids.shape[1], width + width % 2
    # Models lay the heads of a token side by side, so this copies nothing.
    keys = _array(key.transpose(1, 2))
    if pairs is None or position_embeddings is None:
        pairs, angles = RotatedPairs(0, 1, 0, 1), [np.zeros((1, length, 0), np.float32)] * 2
    else:
        angles = [_array(part) for part in position_embeddings]
    tiles = zeros((heads, -(-num_groups // LANES), even, LANES))
    bias = np.full((heads, tiles.shape[1] * LANES), MASKED, np.float32)
    _lay_out(_array(centroids.float()), _array(potential.float()), np.float32(factor), cosine, tiles, bias)
    groups = torch.empty(batch, heads, length, dtype=torch.int64)

    part = max(PART, -(-length // torch.get_num_threads()))

    def group_part(task: tuple[int, int]) -> None:
        text, start = task
        cos, sin = (each[min(text, len(each) - 1)] for each in angles)
        stop, found = min(start + part, length), groups[text].numpy()
        # Held here while addresses of it are used: Numba frees an array of its own after its last use by name.
        room = zeros((TOKENS, even)), empty((ROWS, bias.shape[1]))
        _group(keys[text], cos, sin, pairs, tiles, bias, np.float32(factor), cosine, start, stop, *room, found)

    in_threads(group_part, [(text, start) for text in range(batch) for start in range(0, length, part)])
    return groups


def _array(tensor: Tensor) -> np.ndarray:
    """Numbers side by side, in a dtype that compiled code reads."""
    return as_array((tensor if tensor.dtype in COMPILED else tensor.float()).contiguous())


@njit(nogil=True, cache=True)
def _lay_out(
    centroids: np.ndarray,
    potential: np.ndarray,
    factor: np.float32,
    cosine: bool,
    tiles: np.ndarray,
    bias: np.ndarray,
) -> None:
    """Write centroids as tiles (H, K / 16, D, 16), and what is added to the products of a key with them (H, K)."""
    for head in range(len(centroids)):
        for group in range(centroids.shape[1]):
            length, scale = square(centroids[head, group]), np.float32(1)
            if cosine:
                scale /= max(np.sqrt(length), LEAST_LENGTH)
            for column in range(centroids.shape[2]):
                tiles[head, group // LANES, column, group % LANES] = centroids[head, group, column] * scale
            bias[head, group] = potential[head, group]
            if not cosine:
                bias[head, group] -= factor * length / 2


@njit(nogil=True, cache=True, error_model="numpy")
def _group(
    keys: np.ndarray,
    cos: np.ndarray,
    sin: np.ndarray,
    pairs: RotatedPairs,
    tiles: np.ndarray,
    bias: np.ndarray,
    factor: np.float32,
    cosine: bool,
    start: int,
    stop: int,
    plain: np.ndarray,
    products: np.ndarray,
    groups: np.ndarray,
) -> None:
    """Groups of the keys from `start` to `stop` of all heads, of one text (T, H, D).

    `plain` is room for keys before rotary embedding, zeros beyond their width; `products` for products of `ROWS` keys.
    """
    heads, number, even, stride = keys.shape[1], tiles.shape[1], tiles.shape[2], bias.shape[1]
    count, angle_step = pairs.number, pairs.angle_step
    turns = np.empty((TOKENS, 2, count), np.float32)
    plain_at, products_at = plain.ctypes.data, products.ctypes.data
    for first in range(start, stop, TOKENS):
        last = min(first + TOKENS, stop)
        for token in range(first, last):
            if angle_step == 1:
                _take_angles(cos, sin, token, np.uintp(1), np.uintp(count), turns, token - first)
            else:
                _take_angles(cos, sin, token, np.uintp(angle_step), np.uintp(count), turns, token - first)
        for head in range(heads):
            for token in range(first, last):
                _turn_back(keys, token, head, pairs, turns, token - first, plain)
            tiles_at, bias_at = tiles[head].ctypes.data, bias[head].ctypes.data
            for row in range(0, last - first, ROWS):
                for tile in range(number):
                    at, out = tiles_at + 4 * LANES * even * tile, products_at + 4 * LANES * tile
                    dots(row, row + 1, row + 2, row + 3, plain_at, even, at, out, stride)
                for place in range(min(ROWS, last - first - row)):
                    scale = factor
                    if cosine:
                        scale /= max(np.sqrt(square(plain[row + place])), LEAST_LENGTH)
                    own = products_at + 4 * stride * place
                    groups[head, first + row + place] = place_of_largest(own, bias_at, scale, number)


# Below, places have no sign, and dividing by 0 is not looked for, so that LLVM makes vectors of the loops.
@njit(nogil=True, inline="always", error_model="numpy")
def _take_angles(
    cos: np.ndarray, sin: np.ndarray, token: int, step: np.uintp, count: np.uintp, turns: np.ndarray, row: int
) -> None:
    """Write the cosines and sines of a token, divided by what they scale a key with."""
    for pair in range(count):
        c, s = wide(cos[token, pair * step]), wide(sin[token, pair * step])
        scale = c * c + s * s
        turns[row, 0, pair], turns[row, 1, pair] = c / scale, s / scale


@njit(nogil=True, inline="always")
def _turn_back(
    keys: np.ndarray, token: int, head: int, pairs: RotatedPairs, turns: np.ndarray, row: int, plain: np.ndarray
) -> None:
    """Write a key before rotary embedding."""
    count, step, apart = pairs.number, pairs.step, pairs.apart
    for column in range(2 * count, keys.shape[2]):
        plain[row, column] = wide(keys[token, head, column])
    if step == 1:
        _turn_all(keys, token, head, turns, row, np.uintp(count), np.uintp(1), np.uintp(apart), plain)
    else:
        _turn_all(keys, token, head, turns, row, np.uintp(count), np.uintp(step), np.uintp(apart), plain)


@njit(nogil=True, inline="always")
def _turn_all(
    keys: np.ndarray,
    token: int,
    head: int,
    turns: np.ndarray,
    row: int,
    count: np.uintp,
    step: np.uintp,
    apart: np.uintp,
    plain: np.ndarray,
) -> None:
    for pair in range(count):
        one, other = pair * step, pair * step + apart
        a, b = wide(keys[token, head, one]), wide(keys[token, head, other])
        plain[row, one] = a * turns[row, 0, pair] + b * turns[row, 1, pair]
        plain[row, other] = b * turns[row, 0, pair] - a * turns[row, 1, pair]
