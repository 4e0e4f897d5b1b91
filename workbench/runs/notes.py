"""The user's notes on groups: one file in the folder of runs, so that they outlive pages, sessions and the app."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from filelock import FileLock, Timeout

from focus_core.errors import FocusError
from focus_core.io.files import to_json, write_atomic
from focus_core.io.reading import read_json
from focus_core.report.bundle import MAX_NOTE
from focus_core.resources import runs_dir
from focus_core.io.schema import table

NOTES = "notes.json"
_FORMAT = 1


def read(routers_hash: str) -> dict[str, str]:
    """The notes on the groups of some routers, by the name of the group, such as "15/6" for layer 15, group 6."""
    return dict(_load().get(routers_hash, {}))


def of_every_head(routers_hash: str) -> dict[str, dict[str, str]]:
    """The notes on some routers where there are any: by their hash, and by "hash/head-1" and so on for other heads."""
    return {
        name: dict(own)
        for name, own in _load().items()
        if own and (name == routers_hash or name.startswith(f"{routers_hash}/"))
    }


def keep(routers_hash: str, notes: Mapping[str, str]) -> None:
    """Keep notes on disk; an empty one is forgotten, and notes on other groups stay.

    Args:
        routers_hash: identifies the routers.
        notes: by the name of the group.

    Raises:
        FocusError: the file cannot be written.
    """
    folder = runs_dir()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(folder / ".notes.lock", timeout=10):
            every = _load()
            own = every.get(routers_hash, {}) | {name: note[:MAX_NOTE] for name, note in notes.items()}
            every[routers_hash] = {name: note for name, note in own.items() if note.strip()}
            content = {"format": _FORMAT, "notes": {routers: own for routers, own in every.items() if own}}
            write_atomic(folder / NOTES, to_json(content, indent=1))
    except (OSError, Timeout) as error:
        raise FocusError(f"The notes cannot be kept in {folder / NOTES}: check that it can be written.") from error


def _load() -> dict[str, dict[str, str]]:
    """All notes by routers; none where the file is missing or of another format."""
    path: Path = runs_dir() / NOTES
    try:
        found = read_json(path, table())
        if found.get("format") != _FORMAT:
            return {}
        return {
            str(routers): {str(name): str(note) for name, note in own.items()}
            for routers, own in dict(found["notes"]).items()
        }
    except (OSError, FocusError, KeyError, AttributeError, TypeError, ValueError):
        return {}
