"""Which paths of this machine the app may open for whoever uses it.

Bound to loopback, whoever reaches the app may open what its user may. Served to others, paths are off, unless roots
are named in $FOCUS_ALLOWED_ROOTS (`start.py --allow-root`). Named roots limit paths in both cases.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable
from pathlib import Path

from focus_core.errors import FocusError

ROOTS = "FOCUS_ALLOWED_ROOTS"
"""Variable with the allowed folders, separated as in PATH."""
SERVED_AT = "FOCUS_SERVED_AT"
"""Variable with the address that the running server listens on; unset where no server runs."""


def is_loopback(address: str) -> bool:
    """Whether a server at this address is reached from this machine alone."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return False


def roots() -> tuple[Path, ...] | None:
    """The folders below which paths may be opened, links resolved; None if any path may."""
    named = _named()
    if named:
        return tuple(root.resolve() for root in named)
    address = os.environ.get(SERVED_AT)
    return None if address is None or is_loopback(address) else ()


def allowed(path: str) -> Path:
    """A path that may be opened, with links resolved where there are roots.

    Whether it exists is not looked at before, so that a refusal does not tell.

    Args:
        path: as the user spells it.

    Raises:
        FocusError: outside the roots, or no path.
    """
    within = roots()
    try:
        given = Path(path).expanduser()
        if within is None:
            return given
        if _below(_absolute(given), (*_named(), *within)):  # asked before a network share of Windows would be
            found = given.resolve()
            if _below(found, within):
                return found
    except (OSError, ValueError, RuntimeError) as error:
        raise FocusError(f"{path!r} is no path: check it.") from error
    if within:
        raise FocusError(f"{path} is not in a folder that this workbench may open: ask who runs it for --allow-root.")
    raise FocusError(
        "Paths are off, because this workbench is served beyond its own machine: who runs it can start it with "
        "--allow-root FOLDER."
    )


def allowed_folder(path: str) -> Path:
    """As `allowed`, for a folder that is read as a whole: no file in it may lead out of the roots.

    Raises:
        FocusError: as `allowed`, or a link in it leads outside.
    """
    folder = allowed(path)
    if roots() is not None and folder.is_dir():
        inside = [*folder.glob("*"), *folder.glob("*/*")]
        if len(allowed_files(inside)) < len(inside):
            raise FocusError(f"{path} has a link that leads out of the folders that this workbench may open.")
    return folder


def allowed_files(paths: Iterable[Path]) -> list[Path]:
    """Those of some files that may be opened, such as those found in an allowed folder; links are followed."""
    within = roots()
    return [path for path in paths if within is None or _below(path.resolve(), within)]


def check_model(model: str) -> None:
    """Refuse a model that whoever uses the app may not open: with roots, any but the default one and those below.

    Raises:
        FocusError: outside the roots, or a hub id, which would be downloaded for a stranger.
    """
    from focus_core.models import default_model  # with PyTorch, which the start of the server does not wait for

    if roots() is not None and model not in ("default", default_model.NAME):
        allowed_folder(model)


def _named() -> tuple[Path, ...]:
    """The roots as they are spelt, made absolute."""
    return tuple(_absolute(Path(root).expanduser()) for root in os.environ.get(ROOTS, "").split(os.pathsep) if root)


def _absolute(path: Path) -> Path:
    """A path without `..`, by its letters alone."""
    return Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would look at the disk


def _below(path: Path, within: Iterable[Path]) -> bool:
    return any(path.is_relative_to(root) for root in within)
