"""Peak memory of one call, and memory held by an object, for the benchmarks."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


def working_bytes(call: Callable[[], Any], device: str) -> int | None:
    """Peak memory of one call beyond the memory held before it and its result.

    On CUDA from the allocator. On Linux CPUs from the peak of the resident set, which is reset after freed memory has
    been returned to the system. None where neither can be read.
    """
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        result = call()
        peak = torch.cuda.max_memory_allocated(device)
        return max(0, peak - before - _bytes(result))
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = _status_bytes("VmRSS")
    except (OSError, AttributeError, TypeError):  # not Linux (Windows: no CDLL), or a C library without malloc_trim
        return None
    result = call()
    return max(0, _status_bytes("VmHWM") - before - _bytes(result))


def held_bytes(holder: Any) -> int:
    """Bytes of the tensors that an object holds, in its attributes, lists and mappings at any depth.

    A storage counts once and whole, however many tensors are views of it, since it stays in memory as long as one does.
    Modules are left out.

    Args:
        holder: such as a key/value cache.
    """
    storages: dict[int, int] = {}
    seen: set[int] = set()
    waiting = [holder]
    while waiting:
        part = waiting.pop()
        if id(part) in seen or isinstance(part, (type, nn.Module)):
            continue
        seen.add(id(part))
        if isinstance(part, Tensor):
            storage = part.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        elif isinstance(part, Mapping):
            waiting += part.values()
        elif isinstance(part, (list, tuple, set)):
            waiting += part
        else:
            waiting += getattr(part, "__dict__", {}).values()
    return sum(storages.values())


def _bytes(result: Any) -> int:
    return sum(tensor.nbytes for tensor in (result if isinstance(result, tuple) else (result,)))


def _status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(name)
