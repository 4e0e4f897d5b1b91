"""A report read back from its JSON."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from focus_core.errors import FocusError
from focus_core.io.reading import parse_json, read_bytes
from focus_core.io.remote import RemoteFile, StoreError, exists
from focus_core.io.schema import array, table
from focus_core.report.files import INDEX
from focus_core.report.model import SCHEMA, Report
from focus_core.results import plain


def read_report(folder: Path) -> Report:
    """The report that `write_report` wrote to a folder.

    Raises:
        FocusError: there is none, or it is damaged or of another version.
    """
    path = folder / INDEX
    try:
        found = parse_json(read_bytes(path), str(path), table())
        if found.get("schema") != SCHEMA:
            raise FocusError(f"{path} is of another version: make the report again.")
        return _made(Report, found)
    except OSError as error:
        raise FocusError(f"There is no report in {folder}: make it again.") from error
    except (TypeError, KeyError, AttributeError) as error:
        raise FocusError(f"{path} is no report: make it again.") from error


def check_unlike(out: Path | RemoteFile, known: dict[str, Any], numbers: dict[str, Sequence[Any]]) -> None:
    """Refuse to write over a report on other texts, or of other settings. The same report may be made again.

    Args:
        out: folder of the new report, of this machine or of a store.
        known: fields of the new report that are known before the work.
        numbers: fields of its cards, with all their values.

    Raises:
        FocusError: the folder holds such a report, or a damaged one.
    """
    try:
        if isinstance(out, Path):
            data = read_bytes(out / INDEX) if (out / INDEX).exists() else None
        else:
            index = f"{out.address}/{INDEX}"
            data = RemoteFile(index).read_bytes() if exists(index) else None
        if data is None:
            return
        found = parse_json(data, INDEX, table({"cards": array(table())}))
        same = all(found.get(name) == value for name, value in plain(known).items())
        for name, values in numbers.items():
            same = same and {card.get(name) for card in found["cards"]} == set(values)
    except StoreError:
        raise
    except FocusError:
        same = False
    if not same:
        raise FocusError(f"{out} holds a report of other texts, settings or model: name another place, or remove it.")


def _made(kind: Any, value: Any) -> Any:
    """A value of a type of the report's model, from what JSON has of it."""
    if isinstance(kind, types.UnionType):
        return None if value is None else _made(next(each for each in get_args(kind) if each is not type(None)), value)
    if get_origin(kind) is tuple:
        return tuple(_made(get_args(kind)[0], each) for each in value)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return kind(**{name: _made(hint, value[name]) for name, hint in _hints(kind).items() if name in value})
    if hasattr(kind, "_fields"):  # a named tuple, which JSON has as a list
        return kind(*value)
    return value


@cache
def _hints(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}
