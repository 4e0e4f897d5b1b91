"""Atomic writing of files: readers never see a part of one. JSON never holds a number that is not finite."""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def write_atomic(path: Path, data: str | bytes) -> Path:
    """Write a file atomically: readers see the old content or the new one, never a part.

    Args:
        path: file to write; its folder is created if needed.
        data: content; text is written as UTF-8.

    Returns:
        The path.

    Raises:
        OSError: the file cannot be written. The old content is unchanged.
    """
    with atomic_path(path) as temporary:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def valid_name(name: str) -> str:
    r"""The name of a file as valid Unicode: bytes that are no UTF-8, which systems allow in names, as \xff."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def to_json(value: Any, *, indent: int | None = 2, default: Callable[[Any], Any] | None = None) -> str:
    """JSON of plain values; a number that is not finite becomes null, and half of a surrogate pair its escape.

    Args:
        value: as `json.dumps` takes it.
        indent: spaces a level; None for one line.
        default: as that of `json.dumps`.
    """
    options: dict[str, Any] = {"indent": indent, "ensure_ascii": False, "default": default, "allow_nan": False}
    try:
        found = json.dumps(value, **options)
    except ValueError:  # only then, since the copy of a large record takes time
        found = json.dumps(_finite(json.loads(json.dumps(value, default=default))), **options)
    return found.encode(errors="backslashreplace").decode()


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary file name beside a path, for writers that take a name; renamed to the path at the end.

    The name is new for every call, so that several processes may write the same path. If the block fails, the temporary
    file is deleted and the old content is unchanged.

    Args:
        path: file to write; its folder is created if needed.

    Yields:
        The name to write to, in the same folder.

    Raises:
        OSError: the folder cannot be created, the disk is full, or the file cannot be renamed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
    try:
        yield temporary
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename, error.filename2 = str(path), None  # the user's name, not the temporary one
        elif "(os error 28)" in str(error):  # safetensors has its own class for errors of the system
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
        raise
