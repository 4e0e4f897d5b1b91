"""The processes of a run, as `torchrun` or `accelerate launch` started them."""

from __future__ import annotations

import os


def world_size() -> int:
    """Number of processes of this run; 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Whether this process is the one that writes files and reports progress."""
    return int(os.environ.get("RANK", "0")) == 0
