"""Tables that fit a narrow terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table


def plain_table(title: str, *columns: str, left: Sequence[str] = ()) -> Table:
    """An empty table that fits a terminal of 80 characters: few lines, and cells that are folded, never cut off."""
    table = Table(title=title, box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    for name in columns:
        heading = name.replace(" ", "\n")  # so that a column is as wide as its widest word
        table.add_column(heading, justify="left" if name in left else "right", overflow="fold")
    return table
