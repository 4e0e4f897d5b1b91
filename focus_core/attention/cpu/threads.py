"""Work shared by threads, for compiled code that runs without Python's lock."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

import torch

Task = TypeVar("Task")
Result = TypeVar("Result")


def in_threads(work: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
    """The results of all tasks, in their order, from as many threads as PyTorch has, this one included.

    Each thread takes the next task when it is done with one. This thread never waits for one that has not begun, so on
    a busy machine it does all the work itself; and idle threads sleep.

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

    threads = torch.get_num_threads()
    others = min(threads, len(tasks)) - 1
    begun = [_pool(threads, os.getpid()).submit(drain) for _ in range(others)]
    drain()
    for other in begun:
        if not other.cancel():
            other.result()
    return [results[place] for place in range(len(tasks))]


@lru_cache(maxsize=1)
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads that outlive a call; a forked process needs its own."""
    return ThreadPoolExecutor(max(1, threads - 1), thread_name_prefix="focus")
