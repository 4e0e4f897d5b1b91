"""Work shared by threads, for compiled code that runs without Python's lock."""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, TypeVar

import torch

Task = TypeVar("Task")
Result = TypeVar("Result")

_PART = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_PROCESS = os.getpid()


def in_threads(work: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
    """The results of all tasks, in their order, from as many threads as PyTorch has, this one included.

    Each thread takes the next task when it is done with one. The threads are those of PyTorch's operators, where these
    are GNU OpenMP's: they wait awake for a while after each operator, and would take the cores from others. Elsewhere
    they are Python's own, which sleep when idle; this thread never waits for one that has not begun.

    Args:
        work: releases Python's lock for most of its time.
        tasks: the longest first, where they differ.
    """
    results: dict[int, Result] = {}
    left = deque(enumerate(tasks))

    def drain() -> None:
        while left:
            try:
                place, task = left.popleft()
            except IndexError:  # another thread took the last one
                return
            results[place] = work(task)

    threads = min(torch.get_num_threads(), len(tasks))
    openmp = team() if threads > 1 else None
    if openmp is not None:
        _in_team(openmp, drain, threads)
    else:
        begun = [_pool(torch.get_num_threads(), os.getpid()).submit(drain) for _ in range(threads - 1)]
        drain()
        for other in begun:
            if not other.cancel():
                other.result()
    return [results[place] for place in range(len(tasks))]


def _in_team(openmp: Any, work: Callable[[], None], threads: int) -> None:
    """Run `work` once in each thread of a team; the first error is raised when all are done."""
    errors: list[BaseException] = []

    def part(_: Any) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    openmp.GOMP_parallel(_PART(part), None, threads, 0)
    if errors:
        raise errors[0]


def team() -> Any:
    """GNU OpenMP, if the threads of PyTorch's operators are its own; None in a forked process, which has no threads."""
    return _openmp() if os.getpid() == _PROCESS else None


@lru_cache(maxsize=1)
def _openmp() -> Any:
    """GNU OpenMP, if PyTorch runs on it; what compilers call for a parallel region is a stable part of it."""
    try:
        # Only one that is loaded already: another team would compete with PyTorch's.
        found = ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        found.GOMP_parallel.argtypes = [_PART, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        found.GOMP_parallel.restype = None
    except (AttributeError, OSError):  # another system, or another OpenMP
        return None
    return found


@lru_cache(maxsize=1)
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads that outlive a call; a forked process needs its own."""
    return ThreadPoolExecutor(max(1, threads - 1), thread_name_prefix="focus")
