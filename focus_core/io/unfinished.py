"""Runs that resume: results of pieces of work, in a folder that the same run finds again after an interruption."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from focus_core.errors import FocusError
from focus_core.io.files import atomic_path
from focus_core.io.locks import LOCK, claim_folder
from focus_core.resources import runs_dir

UNFINISHED = ".unfinished"
"""Folder of unfinished runs, in that of all runs."""

T = TypeVar("T")
R = TypeVar("R")


@contextmanager
def unfinished(key: str) -> Iterator[Path]:
    """A folder for the results of a run's pieces, empty or as an earlier run of the same key left it.

    It is emptied when the block ends without an error, and stays after one. Where it cannot be written, or the same run
    works on this machine already, the folder is a temporary one, and nothing resumes.

    Args:
        key: of everything that decides the results, see `focus_core.results.run_key`.
    """
    folder = runs_dir() / UNFINISHED / key[:32]
    with ExitStack() as held:
        try:
            held.enter_context(claim_folder(folder))
        except (FocusError, OSError):
            folder = Path(held.enter_context(TemporaryDirectory()))
        yield folder
        for path in folder.iterdir():
            if not path.name.startswith(LOCK):
                path.unlink()
    with suppress(OSError):  # gone if it was created by this call
        folder.rmdir()


def resumed(
    folder: Path,
    pieces: Sequence[T],
    work: Callable[[Sequence[T]], Generator[R]],
    *,
    save: Callable[[R, Path], object],
    load: Callable[[Path], R],
    name: str = "",
) -> Generator[R]:
    """The result of each piece in order: read from the folder, or worked out and written there.

    Every result comes from its file, so an interruption changes none.

    Args:
        folder: of `unfinished`.
        pieces: the work.
        work: gives the results of some pieces in their order.
        save: writes a result to a file that does not exist.
        load: reads it.
        name: of these pieces, where the folder has others.

    Raises:
        FocusError: a file in the folder is damaged.
    """
    files = [folder / f"{name}{number:08}" for number in range(len(pieces))]
    missing = [number for number, file in enumerate(files) if not file.exists()]
    with closing(work([pieces[number] for number in missing])) as results:
        for file in files:
            if not file.exists():
                with atomic_path(file) as temporary:
                    save(next(results), temporary)
            try:
                found = load(file)
            except (FocusError, ValueError, KeyError, TypeError) as error:
                raise FocusError(f"{file} is damaged: delete it and repeat the command.") from error
            yield found
