"""The table and the figure of a frontier as files beside its record."""

from __future__ import annotations

from pathlib import Path

from focus_core.errors import FocusError
from focus_core.io.files import write_atomic
from focus_core.io.reading import read_bytes

MARKS = {".md": "| method |", ".svg": '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 '}
"""What our tables and figures contain, by the ending of their names."""


def check_beside(out: Path) -> None:
    """Refuse a record whose table or figure would take the place of another file.

    Raises:
        FocusError: the record ends in one of these, or another file has the name of one.
    """
    if out.suffix in MARKS:
        raise FocusError(f"The table and the figure are written beside {out}: give --out a name that ends in .json.")
    for ending, mark in MARKS.items():
        place = out.with_suffix(ending)
        if place.exists() and mark.encode() not in read_bytes(place):
            raise FocusError(f"{place} is another file and would be replaced: name another record with --out.")


def write_beside(out: Path, table: str, figure: str) -> None:
    """Write a table (.md) and a figure (.svg) beside the file of their record, each atomically."""
    for ending, text in ((".md", table), (".svg", figure)):
        write_atomic(out.with_suffix(ending), text + "\n")
