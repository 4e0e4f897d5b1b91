"""Reading files that others may have written: one place for every check.

Regular files only, JSON of limited depth with finite numbers alone, and values checked by `focus_core.io.schema`. Wrong
content is a `FocusError`; a file that is missing or cannot be opened stays an `OSError`.
"""

from __future__ import annotations

import hashlib
import json
import math
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from focus_core.errors import FocusError
from focus_core.io.schema import Check, Wrong, anything

if TYPE_CHECKING:
    import torch

DEEPEST = 64
"""Deepest nesting of JSON that is read."""


def regular(path: Path) -> Path:
    """The path of a regular file; a pipe or a device would wait or never end.

    Raises:
        FocusError: a folder, pipe, device or socket.
        OSError: missing, or not to be looked at.
    """
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise FocusError(f"{path} is a folder: give a file.")
    if not stat.S_ISREG(mode):
        raise FocusError(f"{path} is a pipe or device, not a regular file: copy its content to a file and give that.")
    return path


def read_bytes(path: Path) -> bytes:
    """The content of a regular file.

    Raises:
        FocusError: no regular file, or one that would fill the memory, such as a sparse file that holds nothing.
        OSError: missing, or not readable.
    """
    size, free = regular(path).stat().st_size, psutil.virtual_memory().available
    if size > free // 2:
        raise FocusError(
            f"{path} has {size:,} bytes, and {free:,} are free in memory: give a smaller file, or divide it."
        )
    return path.read_bytes()


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def parse_json(data: bytes | str, name: str, check: Check = anything, *, finite: bool = True) -> Any:
    """The value of JSON that others may have written.

    Args:
        data: the content, text or UTF-8.
        name: of the file, in errors.
        check: of the value, see `focus_core.io.schema`.
        finite: whether to refuse NaN and infinity, which only other programs write.

    Raises:
        FocusError: no JSON, nested too deep, a number that is not finite, or a value that the check refuses.
    """
    try:
        value = json.loads(data)
        _check_plain(value, finite)
        check(value, "")
    except Wrong as error:
        raise FocusError(f"{name} is damaged or of another kind: {error}.") from error
    except RecursionError as error:
        raise FocusError(f"{name} is nested too deep: give a file that this program wrote.") from error
    except ValueError as error:
        raise FocusError(f"{name} is not valid JSON: copy it again, or give another file.") from error
    return value


def read_json(path: Path, check: Check = anything, *, finite: bool = True) -> Any:
    """The value of a JSON file, as `parse_json`.

    Raises:
        FocusError: as `parse_json`, or no regular file.
        OSError: missing, or not readable.
    """
    return parse_json(read_bytes(path), str(path), check, finite=finite)


def read_tensors(
    path: Path, wanted: Callable[[str], bool] = lambda name: True
) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    """Metadata and tensors of a safetensors file.

    Args:
        path: the file.
        wanted: whether to read the tensor of a name.

    Raises:
        FocusError: no regular file, or no safetensors file.
        OSError: missing, or not readable.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(regular(path), "pt") as file:
            names = filter(wanted, file.keys())
            return dict(file.metadata() or {}), {name: file.get_tensor(name) for name in names}
    except (SafetensorError, ValueError, TypeError) as error:
        if isinstance(error, FocusError):
            raise
        raise FocusError(f"{path} is damaged or no safetensors file: copy it again.") from error


def _check_plain(value: Any, finite: bool) -> None:
    """Refuse deep nesting, and numbers that are not finite."""
    for depth, each in _walk(value):
        if depth > DEEPEST:
            raise RecursionError
        if finite and isinstance(each, float) and not math.isfinite(each):
            raise Wrong("it holds a number that is not finite")


def _walk(value: Any) -> Iterator[tuple[int, Any]]:
    left = [(0, value)]
    while left:
        depth, each = left.pop()
        yield depth, each
        if isinstance(each, dict):
            left += [(depth + 1, inner) for inner in each.values()]
        elif isinstance(each, list):
            left += [(depth + 1, inner) for inner in each]
