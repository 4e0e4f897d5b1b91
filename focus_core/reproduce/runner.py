"""Runs an experiment cell by cell. Every finished cell is a file, so a repeated command resumes."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from focus_core.errors import FocusError
from focus_core.io.files import to_json, write_atomic
from focus_core.io.locks import LOCK, claim_file, claim_folder
from focus_core.io.reading import read_json
from focus_core.io.schema import Check, array, table, text
from focus_core.reproduce.context import Context, Scale
from focus_core.resources import runs_dir
from focus_core.results import REPRODUCTION, check_replaceable, plain, record_run, stored_or_run

CELL_SCHEMA = "focus-reproduce-cell/1"
SETTINGS, RESULT, CELLS = "run.json", "result.json", "cells"
_CELL = table({"settings": table(), "rows": array(table()), "made": table({"date": text()})})

MOST_MODELS = 1000
NEEDS = {
    "data": "training text: give files or folders with --data",
    "bench": "benchmark files: give their folder with --bench (docs/benchmarks.md lists them)",
    "treebank": "texts to align: give a CoNLL-U file with --treebank, or texts with --held-out",
}


@dataclass(frozen=True)
class Experiment:
    """One published table or figure.

    Attributes:
        title: one line for tables.
        cells: maps the context to the cells of the table by name, each with the plain values that identify it.
        run: maps context, name of a cell and its values to `{"rows": [...]}` and other results of the cell.
        columns: of the rows, in the order of the table.
        scale: small defaults, for about 15 minutes on 2 cores.
        options: inputs of `Context` and sizes of `Scale` that change the result, beside model, device and seed.
        beside: of these, those that change it only where another one is given, by name.
        instead: of these, those that change nothing where another one is given, by name.
        most_models: models that can be given; 0 where none is measured.
        needs: required inputs, keys of `NEEDS`.
        uses_routers: whether trained routers are measured; their hash then identifies the run.
        compare: maps the finished cells to rows with comparisons between cells; None to leave rows unchanged.
    """

    title: str
    cells: Callable[[Context], dict[str, dict[str, Any]]]
    run: Callable[[Context, str, dict[str, Any]], dict[str, Any]]
    columns: tuple[str, ...]
    scale: Scale = field(default_factory=Scale)
    options: tuple[str, ...] = ()
    beside: Mapping[str, str] = field(default_factory=dict)
    instead: Mapping[str, str] = field(default_factory=dict)
    most_models: int = 1
    needs: tuple[str, ...] = ()
    uses_routers: bool = False
    compare: Callable[[dict[str, dict[str, Any]]], dict[str, list[dict[str, Any]]]] | None = None

    def acts(self, option: str, given: Collection[str]) -> bool:
        """Whether one of the given options changes the result."""
        known = option in self.options and self.instead.get(option) not in given
        return known and (option not in self.beside or self.beside[option] in given)


def check_needs(name: str, experiment: Experiment, context: Context) -> None:
    """Refuse a run with missing inputs, and name the option for each.

    Raises:
        FocusError: an input in `experiment.needs` is missing.
    """
    given = {
        "data": bool(context.data),
        "bench": context.bench is not None,
        "treebank": context.treebank is not None or bool(context.held_out),
    }
    for need in experiment.needs:
        if not given[need]:
            raise FocusError(f"{name} needs {NEEDS[need]}.")


def run_experiment(
    name: str,
    experiment: Experiment,
    context: Context,
    *,
    out: Path | None = None,
    only: list[str] | None = None,
    copy: Path | None = None,
) -> dict[str, Any]:
    """Measure every cell that is not stored yet, and write the table.

    Args:
        name: of the experiment.
        experiment: to run.
        context: inputs; its folder is set here.
        out: folder of the run. None for a folder in the app's runs: that of a run with the same inputs, which resumes,
            else a new one.
        only: names of the cells to run; all when None.
        copy: a file that gets the record, too.

    Returns:
        The record, also in `result.json` of the folder: schema, settings, one row per measured setting, seconds per
        cell, and the cells that are still missing.

    Raises:
        FocusError: inputs are missing, a cell that does not exist, or a folder or copy of other settings.
    """
    with nullcontext() if copy is None else claim_file(copy):
        check_needs(name, experiment, context)
        identity = plain({"experiment": name, **context.inputs()})
        if experiment.uses_routers:
            identity["routers"] = context.attached_hash()
        if copy is not None:
            check_replaceable(copy, _known(name, identity))
        cells = experiment.cells(context)
        # Another version of the program may give cells of the same names other settings: its runs get own folders.
        run = {**identity, "cells": hashlib.sha256(json.dumps(plain(cells)).encode()).hexdigest()[:12]}
        context.folder = out if out is not None else _folder(name, run)
        with claim_folder(context.folder):
            record = _run(name, experiment, context, identity, cells, run, only)
        return record if copy is None else record_run(copy, record, device=context.device)


def _known(name: str, identity: dict[str, Any]) -> dict[str, Any]:
    """What is known of the record before the work."""
    settings = {key: value for key, value in identity.items() if key not in ("experiment", "model")}
    return {"schema": REPRODUCTION, "experiment": name, "model": identity["model"], "settings": settings}


def _run(
    name: str,
    experiment: Experiment,
    context: Context,
    identity: dict[str, Any],
    cells: dict[str, dict[str, Any]],
    run: dict[str, Any],
    only: list[str] | None,
) -> dict[str, Any]:
    _claim(context.folder, run)
    unknown = sorted(set(only or ()) - set(cells))
    if unknown:
        raise FocusError(f"{name} has no cell {unknown[0]!r}: choose from {', '.join(cells)}.")
    found: dict[str, dict[str, Any]] = {}

    def timed(cell: str) -> dict[str, Any]:
        start = time.monotonic()
        result = experiment.run(context, cell, cells[cell])
        return {**result, "seconds": round(time.monotonic() - start, 1)}

    def measure(cell: str) -> None:
        path, own = context.folder / CELLS / f"{cell}.json", plain({**identity, "cell": cells[cell]})
        found[cell] = stored_or_run(
            path, own, lambda: timed(cell), schema=CELL_SCHEMA, check=_CELL, device=context.device
        )

    def write() -> dict[str, Any]:
        report = _report(name, experiment, context, identity, cells, found)
        return record_run(context.folder / RESULT, report, device=context.device)

    stored = [cell for cell in cells if (context.folder / CELLS / f"{cell}.json").is_file()]
    for cell in stored:
        measure(cell)
    record = _read(context.folder / RESULT, table({"dates": table()}))
    if record is None or set(record["dates"]) != set(found):  # a finished run keeps the date of its record
        record = write()
    wanted = [cell for cell in cells if cell not in stored and (not only or cell in only)]
    for number, cell in enumerate(wanted):
        context.progress(f"{name}: {cell} ({number + 1} of {len(wanted)})", number / len(wanted))
        measure(cell)
        record = write()
    return record


def _report(
    name: str,
    experiment: Experiment,
    context: Context,
    identity: dict[str, Any],
    cells: dict[str, Any],
    found: dict[str, dict[str, Any]],
) -> dict[str, Any]:
    found = {cell: found[cell] for cell in cells if cell in found}
    rows = {cell: result["rows"] for cell, result in found.items()}
    if experiment.compare is not None:
        rows |= experiment.compare(found)
    extra = {key for result in found.values() for key in result} - {"schema", "settings", "rows", "made"}
    return {
        **_known(name, identity),
        "title": experiment.title,
        "cells": cells,
        "missing": [cell for cell in cells if cell not in found],
        "columns": ["cell", *experiment.columns],
        "results": [{"cell": cell, **row} for cell in found for row in rows[cell]],
        "dates": {cell: result["made"]["date"] for cell, result in found.items()},
        "libraries": {"scikit-learn": version("scikit-learn"), "scipy": version("scipy")},
        **{key: {cell: result[key] for cell, result in found.items() if key in result} for key in sorted(extra)},
    }


def _folder(name: str, identity: dict[str, Any]) -> Path:
    """The run's own folder among the app's runs: that of the same inputs, else the first free name."""
    number = 1
    while True:
        folder = runs_dir() / (f"reproduce-{name}" + (f"-{number}" if number > 1 else ""))
        if not folder.exists() or _settings(folder) == identity:
            return folder
        number += 1


def _claim(folder: Path, identity: dict[str, Any]) -> None:
    known = _settings(folder)
    if known is None and any(LOCK not in path.name for path in folder.iterdir()):
        raise FocusError(f"{folder} holds other files: choose another folder with --out.")
    if known is not None and known != identity:
        raise FocusError(f"{folder} holds a run with other settings: use those, or choose another folder with --out.")
    if known is None:
        write_atomic(folder / SETTINGS, to_json(identity) + "\n")


def _settings(folder: Path) -> dict[str, Any] | None:
    return _read(folder / SETTINGS, table())


def _read(path: Path, check: Check) -> dict[str, Any] | None:
    try:
        return read_json(path, check)
    except (OSError, FocusError):
        return None
