"""A report as files: their names, their contents, and writing them to a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from focus_core.analysis.tables import to_csv, to_parquet
from focus_core.io.files import write_atomic
from focus_core.io.remote import RemoteFile, destination, upload
from focus_core.report.frames import report_frames
from focus_core.report.html import to_html, to_json
from focus_core.report.model import Report
from focus_core.report.visible import visible

TABLES = ("cards", "tokens", "examples", "tags", "persistence")
INDEX = "report.json"
"""The file that readers begin with; in a store it appears when all others are there."""
FILES = ("report.html", INDEX, *(f"{name}.{kind}" for name in TABLES for kind in ("csv", "parquet")))
"""Names of all files that a report may have."""


def report_files(report: Report) -> dict[str, bytes]:
    """The report in every format, by file name: HTML, JSON, and each table as CSV and Parquet.

    CSV is for people: control characters are made visible and formulas defused. JSON and Parquet hold exact values.
    """
    files = {"report.html": to_html(report).encode(), INDEX: to_json(report)}
    for name, table in report_frames(report).items():
        readable = table.copy()
        for column in readable.columns[readable.dtypes.map(lambda dtype: dtype.kind not in "biuf")]:
            readable[column] = [visible(value) if isinstance(value, str) else value for value in readable[column]]
        files[f"{name}.csv"] = to_csv(readable)
        files[f"{name}.parquet"] = to_parquet(table)
    return files


def write_files(files: dict[str, bytes], folder: str | Path) -> Sequence[Path | RemoteFile]:
    """Write files to a folder, each atomically, or upload them to one of a store; returns their paths."""
    place = destination(folder)
    if isinstance(place, RemoteFile):
        return upload(files, place.address, last=INDEX)
    return [write_atomic(place / name, data) for name, data in files.items()]
