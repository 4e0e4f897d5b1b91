"""Atomic writing of files: readers never see a part of one."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
        OSError: the folder cannot be created, or the file cannot be renamed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
