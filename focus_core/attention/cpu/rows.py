"""Compiled loops over rows: shared by threads without Python's lock, and the exponentials of a row.

A kernel is compiled by Numba with `ROWS`. Its inner loops run over contiguous rows, so that they become vector
instructions. Sums may be taken in another order (`FAST`), but infinities keep their meaning.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numba import njit

from focus_core.attention.cpu.threads import in_threads

FAST = {"contract", "nsz", "reassoc", "arcp"}
"""Liberties of compiled arithmetic."""
ROWS: dict[str, Any] = {"nogil": True, "cache": True, "fastmath": FAST}
"""Options of `numba.njit` for kernels over rows."""
SHARED = 2**16
"""Entries below which one thread is faster."""

_LOG2_E = np.float32(1 / math.log(2))
_HALF, _ONE, _LEAST, _MOST, _BIAS, _STEP = (np.float32(each) for each in (0.5, 1, -126, 127, 127, 2**23))
# 2^f - 1 = f (a + f (b + ...)) for |f| <= 1/2, to 2e-9 of 2^f.
_A, _B, _C, _D, _E, _F = (
    np.float32(each)
    for each in (
        0.6931471824645996,
        0.24022647738456726,
        0.055503323674201965,
        0.009618437848985195,
        0.001339887734502554,
        0.0001535335322842002,
    )
)


def over_rows(kernel: Callable[..., None], rows: int, entries: int, *arguments: Any) -> None:
    """Call ``kernel(first, last, *arguments)`` for spans of rows, one for each thread of PyTorch.

    Args:
        kernel: compiled with `ROWS`; what it writes belongs to its rows.
        rows: in all.
        entries: of all rows, to know whether threads are worth their start.
        arguments: arrays and numbers.
    """
    threads = min(torch.get_num_threads(), rows) if entries >= SHARED else 1
    if threads < 2:
        kernel(0, rows, *arguments)
        return
    edges = [rows * part // threads for part in range(threads + 1)]
    in_threads(lambda span: kernel(*span, *arguments), list(pairwise(edges)))


@njit(inline="always")
def exponential_parts(logit: np.float32, shift: np.float32) -> tuple[np.float32, np.float32]:
    """``exp(logit - shift)`` as a factor and the bits of a power of two, as a float32 whole number.

    The power is stored as int32 and read as float32; both are loops without a branch.
    Below e^-87 and above e^88 it stays.
    """
    power = (logit - shift) * _LOG2_E
    power = power if power > _LEAST else _LEAST
    power = power if power < _MOST else _MOST
    whole = np.floor(power + _HALF)
    rest = power - whole
    factor = (((((_F * rest + _E) * rest + _D) * rest + _C) * rest + _B) * rest + _A) * rest + _ONE
    return factor, (whole + _BIAS) * _STEP
