"""The table and the figure of a frontier as files beside its record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from focus_core.files import write_atomic
from focus_core.frontier.figure import figure
from focus_core.frontier.kinds_figure import kinds_figure
from focus_core.frontier.kinds_record import SCHEMA as KINDS
from focus_core.frontier.kinds_table import kinds_markdown
from focus_core.frontier.speeds import Speeds
from focus_core.frontier.table import markdown


def write_beside(out: Path, record: dict[str, Any], speeds: Speeds) -> None:
    """Write the table (.md) and the figure (.svg) of a record beside its file, each atomically."""
    if record.get("schema") == KINDS:
        table, drawing = kinds_markdown(record, speeds), kinds_figure(record)
    else:
        table, drawing = markdown(record, speeds), figure(record, speeds)
    for ending, text in ((".md", table), (".svg", drawing)):
        write_atomic(out.with_suffix(ending), text + "\n")
