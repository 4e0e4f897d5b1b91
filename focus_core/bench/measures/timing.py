"""Timing for all benchmarks: calls measured alternately, and their spread."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

STEADY_SECONDS = 1.0  # short calls repeat for about this long
MOST_REPETITIONS = 64


def alternate(calls: dict[str, Callable[[], Any]], repetitions: int, device: str) -> dict[str, list[float]]:
    """Seconds of each call, in turns after one warm-up each; short calls more often, for a steady median."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    started = time.perf_counter()
    for repetition in range(max(MOST_REPETITIONS, repetitions + 1)):
        if repetition > repetitions and time.perf_counter() - started > STEADY_SECONDS:
            break
        for name, call in calls.items():
            synchronize(device)
            start = time.perf_counter()
            call()
            synchronize(device)
            if repetition:
                times[name].append(time.perf_counter() - start)
    return times


def beside_load(
    calls: dict[str, Callable[[], Any]], alone: dict[str, list[float]], repetitions: int, device: str
) -> dict[str, Any]:
    """The same calls while one other process is busy.

    Args:
        calls: as in `alternate`.
        alone: their times without it.
        repetitions: as in `alternate`.
        device: "cpu" or "cuda".

    Returns:
        For each call its `spread`, and under ``slowdown`` the median over that alone.
    """
    with busy_process():
        runs = alternate(calls, repetitions, device)
    slowdown = {name: statistics.median(times) / statistics.median(alone[name]) for name, times in runs.items()}
    return {**{name: spread(times) for name, times in runs.items()}, "slowdown": slowdown}


@contextmanager
def busy_process() -> Iterator[None]:
    """Another process that takes all it gets of one core."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def synchronize(device: str) -> None:
    """Wait for a GPU to finish; on a CPU there is nothing to wait for."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def timed(call: Callable[[], Any], device: str) -> float:
    """Seconds of one call, to its end on the device."""
    synchronize(device)
    start = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - start


def spread(times: list[float]) -> dict[str, Any]:
    """Median, smallest, largest and all, in seconds."""
    return {"median": statistics.median(times), "min": min(times), "max": max(times), "runs": times}
