"""Records: one JSON envelope for all measurements.

Every record has `schema` (kind and version), `made` (date and machine), `settings`, and `results` or `points`. Older
records have other descriptions of the machine; `made_of` and `machine_of` read all of them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from focus_core.errors import FocusError
from focus_core.files import write_atomic

REPRODUCTION = "focus-reproduce/1"
"""Schema of `focus reproduce`. Readers of records take it from here, since nothing imports the experiments."""

VERSIONS = ("python", "torch", "transformers")


def text_records(files: Iterable[Path]) -> list[dict[str, Any]]:
    """Name, size and SHA-256 of text files, so that others can compare theirs."""
    return [
        {
            "name": file.name,
            "bytes": file.stat().st_size,
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        }
        for file in files
    ]


def describe_machine(device: str = "cpu") -> dict[str, Any]:
    """The machine of a measurement: hardware and versions, without anything that identifies its owner.

    Args:
        device: "cpu" or "cuda", the device in use.

    Returns:
        ``device`` (name of the GPU or CPU in use), ``processor``, ``cores``, ``threads``, ``instructions``, ``system``
        and ``versions`` of Python, PyTorch and Transformers; None for a package that is not installed.
    """
    processor = _processor()
    return {
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else processor,
        "processor": processor,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "system": platform.system(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": _version("transformers"),
        },
    }


def made_now(device: str = "cpu") -> dict[str, Any]:
    """`made` of a record that is written now: the date, and `describe_machine`."""
    return {"date": datetime.now(UTC).isoformat(timespec="seconds"), **describe_machine(device)}


def made_of(record: dict[str, Any]) -> dict[str, Any]:
    """`made` of a record in the current form, also of records with an older description of the machine.

    Raises:
        KeyError: the record has no description of the machine.
    """
    machine: dict[str, Any] = record.get("machine") or {}
    made: dict[str, Any] = record["made"] if not machine else record.get("made") or {}
    versions = {name: machine[name] for name in VERSIONS if name in machine} | made.get("versions", {})
    return {**made, **{name: machine[name] for name in machine if name not in VERSIONS}, "versions": versions}


def machine_of(record: dict[str, Any]) -> dict[str, Any]:
    """The machine of a record as one flat table, versions by package; older forms lack some entries.

    Raises:
        KeyError: the record has no description of the machine.
    """
    made = made_of(record)
    return {name: made[name] for name in made if name not in ("date", "versions")} | made["versions"]


def plain(value: Any) -> Any:
    """The value after a round trip through JSON: dataclasses become objects, tuples become lists."""
    return json.loads(json.dumps(value, default=_fields))


def stamp(report: dict[str, Any], *, device: str = "cpu") -> dict[str, Any]:
    """The report as plain values, with `schema` first, and date and machine as `made`.

    Raises:
        KeyError: the report has no `schema`.
    """
    return {"schema": report["schema"], **plain(report), "made": made_now(device)}


def record_run(path: Path, report: dict[str, Any], *, device: str = "cpu") -> dict[str, Any]:
    """Stamp a report and write it atomically as JSON.

    Args:
        path: file to write.
        report: `schema`, `settings` and `results` or `points`.
        device: "cpu" or "cuda" that was used.

    Returns:
        The record as written.

    Raises:
        KeyError: the report has no `schema`.
        OSError: the file cannot be written.
    """
    record = stamp(report, device=device)
    write_atomic(path, json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    return record


def stored_or_run(
    path: Path, identity: dict[str, Any], run: Callable[[], dict[str, Any]], *, schema: str, device: str = "cpu"
) -> dict[str, Any]:
    """The record in a file if it has these settings; otherwise measure and write it.

    Args:
        path: the JSON file.
        identity: settings of the measurement.
        run: measures; its result is added to the record.
        schema: of a new record.
        device: "cpu" or "cuda" that a new record is measured on.

    Raises:
        FocusError: the file is damaged or holds a result of other settings.
    """
    wanted = plain(identity)
    if path.is_file():
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            same = stored["settings"] == wanted
        except (ValueError, KeyError, TypeError) as error:
            raise FocusError(f"{path} is damaged: delete it and repeat the command.") from error
        if not same:
            raise FocusError(f"{path} holds a result of other settings: choose another folder with --out.")
        return stored
    return record_run(path, {"schema": schema, "settings": wanted, **run()}, device=device)


def resume_record(
    path: Path,
    report: dict[str, Any],
    *,
    free: Collection[str] = (),
    older: dict[str, Any] | None = None,
    device: str | None = None,
) -> dict[str, Any]:
    """A record that grows point by point: that of the file, or a new one if there is no file.

    Args:
        path: the JSON file.
        report: `schema`, `settings` and inputs of the run. A stored record must have the same.
        free: names of settings that may differ, such as lists of points, which may grow.
        older: settings that older files lack, with the values they had then.
        device: "cpu" or "cuda" if points of different machines must not be mixed; None if they may be.

    Returns:
        The report with `points`, and `made` if there is a file.

    Raises:
        FocusError: the file is no such record, or has other settings, inputs or another machine.
    """
    fresh = {**plain(report), "points": []}
    if not path.exists():
        return fresh

    def fixed(settings: dict[str, Any]) -> dict[str, Any]:
        return (older or {}) | {name: value for name, value in settings.items() if name not in free}

    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        same = all(stored[name] == fresh[name] for name in fresh if name not in ("settings", "points"))
        same = same and fixed(stored["settings"]) == fixed(fresh["settings"])
        same = same and (device is None or _is_here(machine_of(stored), device))
        record = {**fresh, "points": list(stored["points"]), "made": made_of(stored)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FocusError(f"{path} is not a record of this command: name another file with --out.") from error
    if not same:
        other = "other settings or inputs" if device is None else "other settings or another machine"
        raise FocusError(f"{path} holds a measurement with {other}: name another file with --out.")
    return record


def _is_here(machine: dict[str, Any], device: str) -> bool:
    """Whether a record's machine is this one, by all of its entries."""
    here = machine_of({"made": describe_machine(device)})
    return all(here[name] == value for name, value in machine.items() if name in here)


def _fields(value: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} has no place in a record")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
