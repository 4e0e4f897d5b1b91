"""Frontiers whose texts or record are in object stores: files of this machine while they are worked on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from focus_core.errors import FocusError
from focus_core.io.files import write_atomic
from focus_core.io.remote import RemoteFile, claim_record, exists, is_remote, remote_texts, upload
from focus_core.text import TEXT_SUFFIXES


@contextmanager
def on_this_machine(
    out: str | Path, *texts: Sequence[str | Path]
) -> Iterator[tuple[Path, tuple[tuple[Path, ...], ...]]]:
    """The record of a frontier and its texts on this machine, for those that are in a store.

    Texts are copied to a temporary folder. A record grows in the folder of runs, beside what was learned for it, and
    both are uploaded when the block ends without an error. After one they stay, for a run that resumes here.

    Args:
        out: file of the record, or an address of it.
        texts: lists of files and folders, or of addresses.

    Yields:
        The file of the record, and each list with paths of this machine alone.

    Raises:
        FocusError: a text is not there, or another run writes the record.
        StoreError: the store cannot be used.
    """
    with ExitStack() as held:
        path = held.enter_context(_record(str(out))) if is_remote(out) else Path(out)
        copies = Path(held.enter_context(TemporaryDirectory()))
        numbered = enumerate((number, place) for number, places in enumerate(texts) for place in places)
        found: list[list[Path]] = [[] for _ in texts]
        for index, (number, place) in numbered:
            found[number].append(_copied(str(place), copies / str(index)) if is_remote(place) else Path(place))
        yield path, tuple(map(tuple, found))


@contextmanager
def _record(out: str) -> Iterator[Path]:
    """A file of this machine for a record in a store, as it is there if this is no run that resumes.

    Raises:
        FocusError: another machine wrote the record since a run was stopped here.
    """
    address, _, name = out.rpartition("/")
    with claim_record(out) as state:
        folder, before = state / "record", state / "before"
        path, stored = folder / name, RemoteFile(out).read_bytes() if exists(out) else b""
        if not path.exists():
            write_atomic(before, stored)
            if stored:
                write_atomic(path, stored)
                with suppress(FocusError):  # nothing was learned for it
                    _copied(f"{address}/{path.stem}-learned", folder, suffixes=("",))
        elif before.read_bytes() != stored:
            raise FocusError(f"{out} has changed since a run was stopped here: delete {folder} to leave that run.")
        try:
            yield path
        except BaseException:
            if path.exists() and path.read_bytes() == stored:  # nothing to resume
                shutil.rmtree(folder)
            raise
        files = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*") if file.is_file()}
        upload(files, address, last=name)
        shutil.rmtree(folder)
        before.unlink()


def _copied(address: str, folder: Path, suffixes: tuple[str, ...] = TEXT_SUFFIXES) -> Path:
    """The copy of a file or folder, under its own name, in a folder of this machine."""
    top = folder / PurePosixPath(address).name
    for file in remote_texts(address, suffixes):
        inside = str(file).removeprefix(address).strip("/")  # no part of it begins with a dot
        write_atomic(top / inside if inside else top, file.read_bytes())
    return top
