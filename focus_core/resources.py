"""Folders of the files that come with the project, and of runs; no other module names them.

In a clone the files are in `data/` and `pages/` beside the packages. `pip install` copies them into the packages as
`focus_core/_data` and `workbench/_pages` (see setup.py).
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

_PACKAGE = Path(__file__).resolve().parent
_ROOT = _PACKAGE.parent


def _in_clone() -> bool:
    return (_ROOT / "pyproject.toml").is_file() and (_ROOT / "data").is_dir()


def data_dir() -> Path:
    """The folder with `routers/`, `samples/` and measured results; the program never writes to it."""
    return _ROOT / "data" if _in_clone() else _PACKAGE / "_data"


def pages_dir() -> Path:
    """The folder with one script per page of the app."""
    return _ROOT / "pages" if _in_clone() else app_path().parent / "_pages"


def runs_dir() -> Path:
    """The folder of all runs of this user: $FOCUS_RUNS, else `runs` in the user's data folder."""
    chosen = os.environ.get("FOCUS_RUNS")
    return Path(chosen).expanduser().absolute() if chosen else platformdirs.user_data_path("focus-workbench") / "runs"


def app_path() -> Path:
    """The app's entry point, for `streamlit run`."""
    return _ROOT / "workbench" / "app.py"
