"""Compiled code in all threads of PyTorch's team: each calls it once, and no two take the same number."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from focus_core.routing.narrow.compiled.machine.team import has_team, in_team, take

needs_team = pytest.mark.skipif(not has_team(), reason="PyTorch does not run on GNU OpenMP here.")


@njit(nogil=True)
def count(taken, calls, found, step):
    take(calls.ctypes.data)
    while True:
        number = take(taken.ctypes.data)
        if number >= len(found):
            break
        for _ in range(1000):
            found[number] += step


@njit(nogil=True)
def count_in_team(number, *arguments):
    in_team(count, number, arguments)


@needs_team
@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.parametrize("tasks", [0, 1, 3, 400])
def test_every_thread_calls_once_and_every_number_is_taken_once(number, tasks):
    for _ in range(20):
        taken, calls, found = np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(tasks)
        count_in_team(number, taken, calls, found, 0.5)
        assert calls.tolist() == [number] and taken.tolist() == [tasks + number]
        assert (found == 500).all()
