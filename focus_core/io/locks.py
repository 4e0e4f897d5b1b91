"""One command at a time writes a folder or a record; whether it can be written is tried before the work."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from filelock import FileLock, Timeout

from focus_core.errors import FocusError
from focus_core.io.files import valid_name
from focus_core.io.reading import read_json
from focus_core.io.schema import table

_OF_RECORDS = {"schema", "made", "machine"}
"""Entries of records of this and of older versions, which have at least one."""
LOCK = ".focus.lock"
"""Name of the lock in a folder that is written; that of a file has its name in front."""

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def claim_folder(folder: Path, name: str | None = None) -> Iterator[None]:
    """Hold a folder for one process, which is known to be able to write there.

    The operating system drops the lock of a process that ends in any way.

    Args:
        folder: created if needed; removed again if it was created here and is empty at the end.
        name: of the place in errors, where the user knows it by another.

    Raises:
        FocusError: another process holds it, it is no folder, or its name is no Unicode, which PyArrow and safetensors
            want.
        OSError: it cannot be written.
    """
    if valid_name(str(folder)) != str(folder):
        raise FocusError(f"The name {valid_name(str(folder))} is not Unicode: name another folder to write to.")
    if folder.exists() and not folder.is_dir():
        raise FocusError(f"{folder} is a file: name a folder to write to.")
    with _made(folder), _locked(folder / LOCK, name or folder):
        yield


@contextmanager
def claim_file(path: Path) -> Iterator[None]:
    """Hold a file for one process, as `claim_folder`.

    Args:
        path: need not exist; its folder is created if needed, and removed again if it is empty at the end.

    Raises:
        FocusError: another process holds it, it is a folder, pipe or device, or it holds anything but a record.
        OSError: its folder cannot be written.
    """
    if path.is_dir():
        raise FocusError(f"{path} is a folder: name a file to write.")
    if path.exists() and not path.is_file():
        raise FocusError(f"{path} is a pipe or device: name a regular file to write.")
    if path.exists() and path.stat().st_size and not _is_record(path):
        raise FocusError(f"{path} is not a record of this command: name another file with --out.")
    with _made(path.parent), _locked(path.with_name(f".{path.name}{LOCK}"), path):
        yield


def _is_record(path: Path) -> bool:
    """Whether a file may be replaced by a record: texts and other files of the user may not."""
    try:
        found = read_json(path, table())
    except FocusError:
        return False
    return not _OF_RECORDS.isdisjoint(found)


def claims_folder(
    parameter: str = "out", *, when: Callable[[], bool] = lambda: True
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function hold the folder that one of its arguments names, while it runs.

    Args:
        parameter: name of the argument; None as its value holds nothing.
        when: whether to hold it, such as in one of several processes alone.
    """
    return claims(parameter, lambda folder: claim_folder(Path(folder)), when=when)


def claims_file(parameter: str = "out") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function hold the file that one of its arguments names, while it runs; None holds nothing."""
    return claims(parameter, lambda path: claim_file(Path(path)))


def claims(
    parameter: str, claim: Callable[[Any], AbstractContextManager[Any]], *, when: Callable[[], bool] = lambda: True
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function hold the place that one of its arguments names, while it runs; None holds nothing.

    Args:
        parameter: name of the argument.
        claim: holds the place that the argument names.
        when: whether to hold it.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def holding(*args: P.args, **kwargs: P.kwargs) -> R:
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            place = given.arguments[parameter]
            if place is None or not when():
                return function(*args, **kwargs)
            with claim(place):
                return function(*args, **kwargs)

        return holding

    return decorate


@contextmanager
def _locked(lock: Path, held: Path | str) -> Iterator[None]:
    guard = FileLock(lock)
    try:
        guard.acquire(timeout=0)
    except Timeout as error:
        if not lock.exists():  # a file system such as /proc takes no files, and refuses them by another word
            raise FocusError(f"{held} cannot be written: name another place with --out.") from error
        holder = _holder(lock)
        by = f"process {holder}" if holder else "another process"
        raise FocusError(
            f"{held} is being written by {by}: wait until it ends, or name another place with --out."
        ) from error
    try:
        _note(lock).write_text(f"{os.getpid()}\n", encoding="ascii")
        yield
    finally:
        for path in {_note(lock), lock}:
            with suppress(OSError):  # Windows does not delete a file that is held; its release does
                path.unlink()
        guard.release()


def _note(lock: Path) -> Path:
    """The file with the number of the process that holds a lock; on Windows nobody writes or reads a held file."""
    return lock.with_name(f"{lock.name}.holder") if sys.platform == "win32" else lock


def _holder(lock: Path) -> str:
    """The number of the process that wrote a lock; empty where it cannot be read."""
    try:
        written = _note(lock).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
    return written if written.isdecimal() else ""


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """A folder that exists; those created here are removed again if they are empty at the end."""
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        with suppress(OSError):  # not empty
            for each in new:
                each.rmdir()
