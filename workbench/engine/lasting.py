"""What the server loads once and keeps: told to the garbage collector, so that it stops walking through it."""

from __future__ import annotations

import gc


def keep() -> None:
    """Let the garbage collector leave alone everything that is there now; call after a library was imported.

    Streamlit collects all garbage at the end of every run, and while it does so no message is sent. PyTorch's and
    Transformers' half a million objects took it 0.2 s each time, most of a change of layer. Objects that are
    dropped later are still freed by their reference counts; only cycles among them would stay, so this is called
    once for each large library and never in a loop.
    """
    gc.collect()
    gc.freeze()
