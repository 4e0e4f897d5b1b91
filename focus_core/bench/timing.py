"""What all benchmarks share: calls timed in turn, a description of the machine, a record that grows point by point."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch

from focus_core.errors import FocusError
from focus_core.files import write_atomic

STEADY_SECONDS = 1.0  # short calls repeat for about this long
MOST_REPETITIONS = 64


def alternate(calls: dict[str, Callable[[], Any]], repetitions: int, device: str) -> dict[str, list[float]]:
    """Seconds of each call, taken in turn after one warm-up each; short calls more often, for a steady median."""
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
    """Wait for a GPU; a CPU is done when it returns."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def spread(times: list[float]) -> dict[str, Any]:
    """Median, smallest, largest and all, in seconds."""
    return {"median": statistics.median(times), "min": min(times), "max": max(times), "runs": times}


def describe_machine(device: str) -> dict[str, Any]:
    """Versions and the kind of machine, nothing that names it."""
    processor = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else processor,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
    }


def load_record(
    path: Path,
    schema: str,
    settings: dict[str, Any],
    device: str,
    *,
    free: Collection[str],
    older: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The record to go on with: that of the file, or a fresh one if there is no file.

    Args:
        path: the JSON file.
        schema: its schema.
        settings: of the run that is asked for, plain values.
        device: "cpu" or "cuda".
        free: names of settings that may differ: the lists of what to measure may grow.
        older: settings that older files do not have, with what they were then.

    Returns:
        ``schema``, ``machine``, ``settings`` and ``points``.

    Raises:
        FocusError: the file is no such record, or holds other settings or those of another machine.
    """
    fresh = {"schema": schema, "machine": describe_machine(device), "settings": settings, "points": []}
    if not path.exists():
        return fresh

    def fixed(found: dict[str, Any]) -> dict[str, Any]:
        return (older or {}) | {name: value for name, value in found.items() if name not in free}

    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        same = record["schema"] == schema and fixed(record["settings"]) == fixed(settings)
        same = same and record["machine"] == fresh["machine"]
        points = record["points"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FocusError(f"{path} is no benchmark file: name another file to write to.") from error
    if not same:
        raise FocusError(
            f"{path} holds a benchmark of other settings or another machine: name another file to write to."
        )
    return fresh | {"points": points}


def save_record(path: Path, record: dict[str, Any]) -> None:
    """Replace the file in one step.

    Raises:
        FocusError: it cannot be written.
    """
    try:
        write_atomic(path, json.dumps(record, indent=1))
    except OSError as error:
        raise FocusError(f"{path} cannot be written: choose a file in a folder you may write to.") from error
