"""Records of runs: plain JSON with versions, device and date beside every figure."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import transformers

from focus_core.errors import FocusError
from focus_core.files import write_atomic


def text_records(files: Iterable[Path]) -> list[dict[str, Any]]:
    """Name, size and SHA-256 of text files, so that others can tell whether theirs are the same."""
    return [
        {
            "name": file.name,
            "bytes": file.stat().st_size,
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        }
        for file in files
    ]


def stamp(report: dict[str, Any]) -> dict[str, Any]:
    """The report as plain values, with versions, device and date added."""
    made = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {os.cpu_count()} cores",
        "threads": torch.get_num_threads(),
    }
    return {**_plain(report), "made": made}


def record_run(path: Path, report: dict[str, Any]) -> dict[str, Any]:
    """Stamp a report and write it as JSON, atomically; returns it."""
    record = stamp(report)
    write_atomic(path, json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    return record


def stored_or_run(path: Path, identity: dict[str, Any], run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result in a file if it was made with these settings; else make it and write it atomically.

    Raises:
        FocusError: the file holds a result of other settings.
    """
    wanted = json.loads(json.dumps(identity))
    if path.is_file():
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["settings"] != wanted:
            raise FocusError(f"{path} holds a result of other settings: choose another folder with --out.")
        return stored
    return record_run(path, {"settings": wanted, **run()})


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
