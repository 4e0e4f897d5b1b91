"""Timing for all benchmarks: calls measured alternately, and their spread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
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


def synchronize(device: str) -> None:
    """Wait for a GPU to finish; on a CPU there is nothing to wait for."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def spread(times: list[float]) -> dict[str, Any]:
    """Median, smallest, largest and all, in seconds."""
    return {"median": statistics.median(times), "min": min(times), "max": max(times), "runs": times}
