"""The machine of a measurement, and how much of its memory this process took."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch


def describe_machine(device: str = "cpu") -> dict[str, Any]:
    """The machine of a measurement: hardware and versions, without anything that identifies its owner.

    Args:
        device: "cpu" or "cuda", the device in use.

    Returns:
        ``device`` (name of the GPU or CPU in use), ``processor``, ``cores``, ``threads``, ``instructions`` (the widest
        vectors that PyTorch uses, and matrix units), ``system`` and ``versions`` of Python, PyTorch and Transformers;
        None for a package that is not installed.
    """
    processor = _processor()
    return {
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else processor,
        "processor": processor,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "instructions": _instructions(),
        "system": platform.system(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": _version("transformers"),
        },
    }


def _instructions() -> str:
    """Two processors of one name can differ in matrix units: a virtual machine may hide them."""
    vectors = torch.backends.cpu.get_cpu_capability()
    return f"{vectors}, AMX" if torch.cpu.get_capabilities().get("amx_bf16") else vectors


def _processor() -> str:
    try:
        return cpu_name(Path("/proc/cpuinfo").read_text()) or _platform_name()
    except OSError:
        return _platform_name()


def _platform_name() -> str:
    return platform.processor() or platform.machine()


def cpu_name(cpuinfo: str) -> str:
    """The CPU of Linux's `/proc/cpuinfo`; empty where it names none.

    Virtual machines often leave the model out of the name, and generations differ by a factor of two here. A name
    without a number has the family and model beside it.
    """
    rows = (line.partition(":") for line in cpuinfo.splitlines())
    found = {key.strip(): value.strip() for key, _, value in reversed(list(rows))}
    name, numbers = found.get("model name", ""), ("cpu family", "model")
    if not name or any(letter.isdigit() for letter in name) or not all(each in found for each in numbers):
        return name
    return f"{name}, family {found['cpu family']} model {found['model']}"


def peak_memory() -> int | None:
    """Largest memory of this process so far, in bytes; None where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        import psutil

        return getattr(psutil.Process().memory_info(), "peak_wset", None)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
