"""The table and the figure of a frontier as files beside its record."""

from __future__ import annotations

from pathlib import Path

from focus_core.files import write_atomic


def write_beside(out: Path, table: str, figure: str) -> None:
    """Write a table (.md) and a figure (.svg) beside the file of their record, each atomically."""
    for ending, text in ((".md", table), (".svg", figure)):
        write_atomic(out.with_suffix(ending), text + "\n")
