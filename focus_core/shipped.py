"""Routers that come with the project, by name."""

from __future__ import annotations

from pathlib import Path

from focus_core.errors import FocusError
from focus_core.io.reading import read_json
from focus_core.io.schema import table, text
from focus_core.resources import data_dir

CONFIG = "focus_config.json"
RECORD = "training.json"
"""How routers were made, beside them."""
_RECORD = table({"model": table({"name": text()})})
DEFAULT = "smollm2-135m-narrow64"
"""Those that people get who name none."""
PUBLISHED = "smollm2-135m-k8"
"""Those of the published form, one router for each layer, which `focus reproduce` takes."""
FORMS = ("best", "published")
"""Names that stand for shipped routers of any model."""


def shipped_routers() -> list[str]:
    """Names of the routers that come with the project, the default ones first."""
    names = (path.parent.name for path in (data_dir() / "routers").glob(f"*/{CONFIG}"))
    return sorted(names, key=lambda name: (name != DEFAULT, name))


def routers_made_for(model: str) -> list[str]:
    """Names of the shipped routers that were made for the model of this name, the default ones first.

    A folder, a file or a hub id has to contain the name of the model that they were made for, without the ending of a
    file, in upper or lower case. What fits is decided by the weights, when routers are attached.

    Args:
        model: a name, a path or a hub id.

    Raises:
        FocusError: a damaged record.
    """
    return [name for name in shipped_routers() if _base_model(name) in model.lower()]


def _base_model(name: str) -> str:
    """The model that shipped routers were made for, in lower case."""
    record = read_json(data_dir() / "routers" / name / RECORD, _RECORD)
    return record["model"]["name"].lower().removesuffix(".gguf")


def routers_of_form(form: str) -> list[str]:
    """Names of the shipped routers of one of `FORMS`, of all models; "best" are all, the default ones first."""
    return [name for name in shipped_routers() if form != "published" or name == PUBLISHED]


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
