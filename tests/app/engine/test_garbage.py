"""Freed memory goes back to the system, and where it cannot, nothing happens."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import psutil
import pytest

from workbench.engine.garbage import HEAPS, return_freed, share_heaps

THREADS = """
import ctypes, sys, tempfile, threading
from pathlib import Path

from workbench.engine.garbage import share_heaps

if sys.argv[1] == "shared":
    share_heaps()
everyone = threading.Barrier(12)

def work():
    kept = [bytearray(50_000) for _ in range(100)]
    everyone.wait()

threads = [threading.Thread(target=work) for _ in range(12)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
library = ctypes.CDLL(None)
library.fopen.restype = ctypes.c_void_p
path = Path(tempfile.mkdtemp()) / "heaps.xml"
file = ctypes.c_void_p(library.fopen(str(path).encode(), b"w"))
library.malloc_info(0, file)
library.fclose(file)
print(path.read_text().count("<heap "))
"""
"""Prints how many heaps twelve threads allocated from, by the C library's own account."""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no malloc_trim")
def test_freed_memory_goes_back():
    if not hasattr(ctypes.CDLL(None), "malloc_trim"):
        pytest.skip("another C library")
    blocks = [bytearray(50_000) for _ in range(4_000)]  # each too small for a mapping of its own
    del blocks[:-1]  # the last one keeps the heap from shrinking by itself
    held = psutil.Process().memory_info().rss
    return_freed()
    assert psutil.Process().memory_info().rss < held - 100e6


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other heaps")
def test_threads_share_heaps():
    if not hasattr(ctypes.CDLL(None), "malloc_info"):
        pytest.skip("another C library")

    def heaps(how: str, **variables: str) -> int:
        environment = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
        command = [sys.executable, "-c", THREADS, how]
        done = subprocess.run(command, env=environment | variables, capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert heaps("shared") == HEAPS < heaps("not")
    assert heaps("shared", MALLOC_ARENA_MAX="4") == 4, "the user's own number was overruled"


@pytest.mark.parametrize("error", [TypeError, OSError, AttributeError])
def test_other_systems_go_on(monkeypatch, error):
    def library(name: None) -> None:
        raise error("none")

    monkeypatch.setattr(ctypes, "CDLL", library)
    return_freed()
    share_heaps()
