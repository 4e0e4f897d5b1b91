"""Errors that a user can act on, and the one place that asks for optional packages."""

from __future__ import annotations

import importlib
from types import ModuleType


class FocusError(ValueError):
    """Wrong input, in one sentence: the fault and the remedy.

    Every module raises this for any error that a user can cause. The command line prints the sentence and exits with
    status 2; the app shows it in a box. Programming errors stay ordinary exceptions.
    """


def require(name: str, extra: str) -> ModuleType:
    """Import an optional package, or say how to install it.

    Args:
        name: import name, such as ``"spacy"``.
        extra: the extra of this package that brings it, such as ``"cuda"``.

    Returns:
        The imported module.

    Raises:
        FocusError: the package is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise FocusError(
            f"This needs the package '{name}', which is not installed: run pip install 'focus-workbench[{extra}]'."
        ) from error
