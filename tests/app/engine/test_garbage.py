"""Freed memory goes back to the system, and where it cannot, nothing happens."""

from __future__ import annotations

import ctypes
import sys

import psutil
import pytest

from workbench.engine.garbage import return_freed


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no malloc_trim")
def test_freed_memory_goes_back():
    if not hasattr(ctypes.CDLL(None), "malloc_trim"):
        pytest.skip("another C library")
    blocks = [bytearray(50_000) for _ in range(4_000)]  # each too small for a mapping of its own
    del blocks[:-1]  # the last one keeps the heap from shrinking by itself
    held = psutil.Process().memory_info().rss
    return_freed()
    assert psutil.Process().memory_info().rss < held - 100e6


@pytest.mark.parametrize("error", [TypeError, OSError, AttributeError])
def test_other_systems_go_on(monkeypatch, error):
    def library(name: None) -> None:
        raise error("none")

    monkeypatch.setattr(ctypes, "CDLL", library)
    return_freed()
