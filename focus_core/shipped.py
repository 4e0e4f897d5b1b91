"""Routers that come with the project, by name."""

from __future__ import annotations

from pathlib import Path

from focus_core.errors import FocusError
from focus_core.resources import data_dir

CONFIG = "focus_config.json"


def shipped_routers() -> list[str]:
    """Names of the routers that come with the project."""
    return sorted(path.parent.name for path in (data_dir() / "routers").glob(f"*/{CONFIG}"))


def routers_folder(name: str | Path) -> Path:
    """The folder of routers, given as a folder or as the name of shipped ones; a folder wins over a name.

    Raises:
        FocusError: neither a folder nor a shipped name.
    """
    if not str(name).strip():
        raise FocusError("The name of the routers is empty: give a folder, or the name of shipped ones.")
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    names = shipped_routers()
    if str(name) in names:
        return data_dir() / "routers" / str(name)
    raise FocusError(
        f"There are no saved routers at {str(name)!r}: give a folder that focus train wrote, or one of "
        f"{', '.join(names)}."
    )
