"""Keep the garbage collector away from the objects of libraries, which live as long as the server."""

from __future__ import annotations

import gc


def freeze_loaded() -> None:
    """Exclude every object of this moment from garbage collection; call this after a library was imported.

    Streamlit collects garbage at the end of every run and sends no message meanwhile. The half a million objects of
    PyTorch and Transformers made that 0.2 s, most of the time of a change of layer. Reference counts still free
    excluded objects, but cycles among them stay. So call this once for each large library, never in a loop.
    """
    gc.collect()
    gc.freeze()
