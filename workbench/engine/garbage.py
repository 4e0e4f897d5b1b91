"""Memory of a server that runs for long: no collection of objects that stay, and freed memory back to the system."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os

RETURN_EVERY_S = 10.0
"""Freed memory goes back this often."""
HEAPS = 2
"""Heaps that the threads of the server share."""
_M_ARENA_MAX = -8  # mallopt(3): the constant of glibc's malloc.h


def share_heaps() -> None:
    """Let all threads share a few heaps; call this before they start. `MALLOC_ARENA_MAX` of the user has precedence.

    Every run of a page and every analysis has a thread of its own. The GNU C library gives threads up to eight heaps a
    core, and each keeps freed blocks between used ones: what is resident grew by the hour, what is held did not.
    """
    if "MALLOC_ARENA_MAX" in os.environ:
        return
    try:
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, HEAPS)
    except (OSError, AttributeError, TypeError):  # another C library; Windows has no CDLL(None)
        return


def freeze_loaded() -> None:
    """Exclude every object of this moment from garbage collection; call this after a library was imported.

    Streamlit collects garbage at the end of every run and sends no message meanwhile. The half a million objects of
    PyTorch and Transformers made that 0.2 s, most of the time of a change of layer. Reference counts still free
    excluded objects, but cycles among them stay. So call this once for each large library, never in a loop.
    """
    gc.collect()
    gc.freeze()


def return_freed() -> None:
    """Give memory that was freed back to the system, where its C library can.

    Every run of a page has a thread of its own, and the GNU C library keeps what each thread freed for later. Resident
    memory then grows with the number of runs, though nothing is held.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError, TypeError):  # another C library; Windows has no CDLL(None)
        return


async def return_freed_regularly() -> None:
    """`return_freed` every `RETURN_EVERY_S`, until cancelled; pages free as much as analyses do."""
    while True:
        await asyncio.sleep(RETURN_EVERY_S)
        await asyncio.to_thread(return_freed)
