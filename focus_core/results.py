"""Records: one JSON envelope for all measurements.

Every record has `schema` (kind and version), `made` (date and machine), `settings`, and `results` or `points`. Older
records have other descriptions of the machine; `made_of` and `machine_of` read all of them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from focus_core.errors import FocusError
from focus_core.io.files import to_json, valid_name, write_atomic
from focus_core.io.reading import parse_json, read_json, regular
from focus_core.io.schema import Check, array, table, text
from focus_core.machine import describe_machine

REPRODUCTION = "focus-reproduce/1"
"""Schema of `focus reproduce`. Readers of records take it from here, since nothing imports the experiments."""

VERSIONS = ("python", "torch", "transformers")

POINT = table()
STORED = table({"settings": table()})
"""Check of any record, see `focus_core.io.schema`."""
MADE = table(optional={"date": text(), "versions": table()})


def text_records(files: Iterable[Path]) -> list[dict[str, Any]]:
    """Name, size and SHA-256 of text files, so that others can compare theirs."""
    return [{"name": valid_name(file.name), "bytes": file.stat().st_size, "sha256": _sha256(file)} for file in files]


def _sha256(path: Path) -> str:
    with regular(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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


class UnwrittenError(OSError):
    """A record that could not be written.

    Attributes:
        record: the result, for another place.
    """

    def __init__(self, error: OSError, record: dict[str, Any]) -> None:
        super().__init__(error.errno, error.strerror, error.filename)
        self.record = record


class UnstoredError(FocusError):
    """A record that could not be written to a store.

    Attributes:
        record: the result, for another place.
    """

    def __init__(self, error: FocusError, record: dict[str, Any]) -> None:
        super().__init__(str(error))
        self.record = record


def plain(value: Any) -> Any:
    """The value after a round trip through JSON: dataclasses become objects, tuples lists, NaN and infinity null."""
    return json.loads(to_json(value, indent=None, default=_fields))


def run_key(**parts: Any) -> str:
    """A hash of all that decides the result of a run, for resuming it.

    Args:
        parts: by name: plain values, dataclasses or arrays; hashes stand for models, texts and routers.
    """

    def spelt(value: Any) -> Any:
        if hasattr(value, "tobytes"):  # an array; numpy is not imported for this
            return [str(value.dtype), list(value.shape), hashlib.sha256(value.tobytes()).hexdigest()]
        return _fields(value)

    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=spelt).encode()).hexdigest()


def stamp(report: dict[str, Any], *, device: str = "cpu") -> dict[str, Any]:
    """The report as plain values, with `schema` first, and date and machine as `made`.

    Raises:
        KeyError: the report has no `schema`.
    """
    return {"schema": report["schema"], **plain(report), "made": made_now(device)}


def _write(place: str, data: str) -> None:
    """Write to a file or an address of a store."""
    from focus_core.io.remote import is_remote, put  # it reads texts, and NumPy with them, which the bench does without

    if is_remote(place):
        put(data.encode(), place)
    else:
        write_atomic(Path(place), data)


def record_run(path: str | Path, report: dict[str, Any], *, device: str = "cpu") -> dict[str, Any]:
    """Stamp a report and write it atomically as JSON.

    Args:
        path: file to write, of this machine or an address of a store.
        report: `schema`, `settings` and `results` or `points`.
        device: "cpu" or "cuda" that was used.

    Returns:
        The record as written.

    Raises:
        KeyError: the report has no `schema`.
        UnwrittenError: the file cannot be written; the record is in the error.
        UnstoredError: the same of a store.
    """
    record = stamp(report, device=device)
    data = to_json(record) + "\n"
    try:
        if isinstance(path, Path):
            write_atomic(path, data)
        else:
            _write(path, data)
    except OSError as error:
        raise UnwrittenError(error, record) from error
    except FocusError as error:
        raise UnstoredError(error, record) from error
    return record


def check_replaceable(
    path: str | Path, report: dict[str, Any], *, free: Collection[str] = (), name: str | Path | None = None
) -> None:
    """Refuse to replace the record of another run. The same run may be repeated, which replaces its record.

    Args:
        path: file of the record, of this machine or an address of a store.
        report: what is known of the new record before the work, such as `schema`, `model`, `settings` and `data`.
        free: names of settings that may differ.
        name: of the place in the error, where it is not the file.

    Raises:
        FocusError: the file holds anything else.
    """
    stored = _stored(path)
    if stored is None:
        return
    old, new = (
        {**each, "settings": {name: value for name, value in each["settings"].items() if name not in free}}
        for each in ({"settings": {}, **stored}, plain(report))
    )
    if any(old.get(name) != value for name, value in new.items()):
        raise FocusError(
            f"{name or path} holds the result of another run, with other settings, texts or model: name another place, "
            "or remove it."
        )


def _stored(path: str | Path) -> dict[str, Any] | None:
    """The record in a file or at an address of a store; None where there is none, {} where it is no record."""
    from focus_core.io.remote import RemoteFile, exists, is_remote  # see `_write`

    try:
        if is_remote(path):
            address = str(path)
            return parse_json(RemoteFile(address).read_bytes(), address, STORED) if exists(address) else None
        return read_json(Path(path), STORED) if Path(path).is_file() and Path(path).stat().st_size else None
    except FocusError:
        return {}


def stored_or_run(
    path: Path,
    identity: dict[str, Any],
    run: Callable[[], dict[str, Any]],
    *,
    schema: str,
    check: Check = STORED,
    device: str = "cpu",
) -> dict[str, Any]:
    """The record in a file if it has these settings; otherwise measure and write it.

    Args:
        path: the JSON file.
        identity: settings of the measurement.
        run: measures; its result is added to the record.
        schema: of a new record.
        check: of a stored record.
        device: "cpu" or "cuda" that a new record is measured on.

    Raises:
        FocusError: the file is damaged or holds a result of other settings.
    """
    wanted = plain(identity)
    if path.exists():
        try:
            stored = read_json(path, check)
        except FocusError as error:
            raise FocusError(f"{path} is damaged: delete it and repeat the command.") from error
        if stored["settings"] != wanted:
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
    point: Check = POINT,
    rows: str = "points",
) -> dict[str, Any]:
    """A record that grows point by point: that of the file, or a new one if there is no file.

    Args:
        path: the JSON file.
        report: `schema`, `settings` and inputs of the run. A stored record must have the same.
        free: names of settings that may differ, such as lists of points, which may grow.
        older: settings that older files lack, with the values they had then.
        device: "cpu" or "cuda" if points of different machines must not be mixed; None if they may be.
        point: check of each point.
        rows: name of the list that grows.

    Returns:
        The report with that list, and `made` if there is a file.

    Raises:
        FocusError: the file is no such record, or has other settings, inputs or another machine.
    """
    fresh = {**plain(report), rows: []}
    if not path.exists():
        return fresh

    def fixed(settings: dict[str, Any]) -> dict[str, Any]:
        return (older or {}) | {name: value for name, value in settings.items() if name not in free}

    try:
        entries = {name: table() for name in ("settings", "made", "machine")}
        stored = read_json(path, table({rows: array(point)}, {**entries, "made": MADE}))
        same = all(stored[name] == fresh[name] for name in fresh if name not in ("settings", rows))
        same = same and fixed(stored["settings"]) == fixed(fresh["settings"])
        same = same and (device is None or _is_here(machine_of(stored), device))
        record = {**fresh, rows: list(stored[rows]), "made": made_of(stored)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FocusError(f"{path} is not a record of this command: name another file with --out.") from error
    if not same:
        other = "other settings or inputs" if device is None else "other settings or another machine"
        raise FocusError(f"{path} holds a measurement with {other}: name another file with --out.")
    return record


def record_rows(
    path: Path, report: dict[str, Any], measure: Callable[..., object], *, device: str = "cpu"
) -> dict[str, Any]:
    """A record whose ``results`` grow: that of the file is gone on with, and written whenever there are more.

    Args:
        path: the JSON file.
        report: see `resume_record`.
        measure: called with the stored rows as ``rows``, and as ``on_rows`` what to tell all rows so far.
        device: "cpu" or "cuda"; rows of another machine are not mixed with those of this one.

    Returns:
        The finished record.

    Raises:
        FocusError: as in `resume_record`.
        OSError: the file cannot be written.
    """
    record = resume_record(path, report, device=device, rows="results")

    def keep(rows: list[dict[str, Any]]) -> None:
        record.update(record_run(path, {**record, "results": rows}, device=device))

    measure(rows=record["results"], on_rows=keep)
    return record


def _is_here(machine: dict[str, Any], device: str) -> bool:
    """Whether a record's machine is this one, by all of its entries."""
    here = machine_of({"made": describe_machine(device)})
    return all(here[name] == value for name, value in machine.items() if name in here)


def _fields(value: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} has no place in a record")
