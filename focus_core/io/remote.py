"""Texts and results in object stores, by fsspec: `s3://bucket/texts`, `gs://bucket/out`.

Documents are read one at a time and never stored on this machine. Results appear when they are whole: all files are
uploaded at the end, the one that lists them last. The packages of a store are imported when an address names it.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ParamSpec, TypeVar

from focus_core.errors import FocusError, require
from focus_core.io.left_out import tell_left_out
from focus_core.io.locks import LOCK, claim_file, claim_folder, claims
from focus_core.resources import runs_dir
from focus_core.text import JSONL_SUFFIXES, TABLE_SUFFIXES, TEXT_SUFFIXES, decode_text, no_texts

STORES = {"s3": ("s3fs", "s3"), "gs": ("gcsfs", "gcs"), "memory": ("fsspec", "s3")}
"""Package and extra of each kind of address; another store of fsspec is one line. `memory` is for tests."""

_PACKAGES = {"aiobotocore", "aiohttp", "asyncio", "botocore", "gcsfs", "google", "requests", "s3fs"}
"""Packages whose errors are of the store, and not of this program."""

P = ParamSpec("P")
R = TypeVar("R")


class StoreError(FocusError):
    """A store that cannot be used at all, whichever document is asked for."""


@dataclass(frozen=True)
class RemoteFile:
    """A file in an object store.

    Attributes:
        address: such as `s3://bucket/texts/a.txt`.
    """

    address: str

    def __str__(self) -> str:
        """The address."""
        return self.address

    @property
    def name(self) -> str:
        """The last part of the address."""
        return self.path.name

    @property
    def path(self) -> PurePosixPath:
        """The address as a path, with one slash after the scheme, to compare with others."""
        return PurePosixPath(self.address)

    def read_text(self) -> str:
        """The text, as `focus_core.text.read_text` reads it.

        Raises:
            FocusError: missing, not readable, empty, binary, or not UTF-8.
            StoreError: the store cannot be used.
        """
        return decode_text(self.read_bytes(), self.address)

    def read_bytes(self, start: int | None = None, end: int | None = None) -> bytes:
        """The content, or its bytes [start, end), which alone are fetched.

        Raises:
            FocusError: missing, or not readable.
            StoreError: the store cannot be used.
        """
        store, path = _open(self.address)
        with _one_sentence(self.address):
            return store.cat_file(path, start=start, end=end)

    @contextmanager
    def open(self, mode: str) -> Iterator[Any]:
        """The file from its beginning, a few megabytes of it in memory; the errors are those of `read_bytes`."""
        store, path = _open(self.address)
        with _one_sentence(self.address), store.open(path, mode) as file:
            yield file


def destination(out: str | Path) -> Path | RemoteFile:
    """The folder to write to, of this machine or of a store."""
    return RemoteFile(str(out).rstrip("/")) if is_remote(out) else Path(out)


def is_remote(address: str | Path) -> bool:
    """Whether an address is one of a store, and no path of this machine."""
    return isinstance(address, str) and "://" in address


def remote_texts(address: str, suffixes: tuple[str, ...] = TEXT_SUFFIXES) -> list[RemoteFile]:
    """The file at an address; of a folder its text files as `find_texts` finds them, in sorted order.

    Args:
        address: of the file or folder.
        suffixes: of the files to find in folders.

    Raises:
        FocusError: nothing is there, or no text.
        StoreError: the store cannot be used.
    """
    store, root = _open(address)
    with _one_sentence(address):
        found = sorted(store.find(root))
    if found == [root]:
        return [RemoteFile(address)]
    if not found:
        raise FocusError(f"There is no file or folder {address}: check the address.")
    inside = [path.removeprefix(f"{root}/") for path in found if path.startswith(f"{root}/")]
    texts = [path for path in inside if path.lower().endswith(suffixes) and "/." not in f"/{path}"]
    if not texts:
        raise FocusError(no_texts(address, suffixes))
    tables = tuple(each for each in TABLE_SUFFIXES if each not in suffixes)
    left = [path for path in inside if path.lower().endswith(tables) and "/." not in f"/{path}"]
    tell_left_out(address, left, JSONL_SUFFIXES)
    return [RemoteFile(f"{address.rstrip('/')}/{path}") for path in texts]


@contextmanager
def claim_output(out: str | Path) -> Iterator[Path]:
    """Hold a folder for one run, which is known to be able to write there.

    A folder in a store is held by an object with the run's own mark, which no second run can write.

    Args:
        out: a folder of this machine, or an address.

    Yields:
        Where the state for resuming belongs: the folder, or one of this machine in the folder of runs for an address.

    Raises:
        FocusError: another run holds it, or it cannot be written.
        OSError: a folder of this machine cannot be written.
    """
    if not is_remote(out):
        with claim_folder(Path(out)):
            yield Path(out)
        return
    address = str(out).rstrip("/")
    with _held(address, f"{address}/{LOCK}") as folder:
        yield folder


@contextmanager
def claim_record(out: str | Path) -> Iterator[Path]:
    """Hold a file for one run, which is known to be able to write it: of this machine, or in a store as `claim_output`.

    Args:
        out: a path of this machine, or an address.

    Yields:
        Where the state for resuming belongs, as `claim_output`.

    Raises:
        FocusError: another run holds it, it is no name of a file, or it cannot be written.
        OSError: its folder on this machine cannot be written.
    """
    if not is_remote(out):
        with claim_file(Path(out)):
            yield Path(out).parent
        return
    folder, _, name = str(out).rpartition("/")
    if not name or folder.endswith("/"):
        raise FocusError(f"{out} is no name of a file: give one, such as s3://bucket/folder/record.json.")
    with _held(str(out), f"{folder}/.{name}{LOCK}") as state:
        yield state


def claims_record(parameter: str = "out") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function hold the file that one of its arguments names, see `claim_record`; None holds nothing."""
    return claims(parameter, claim_record)


def put(data: bytes, address: str) -> None:
    """Write a file in a store, whole or not at all.

    Raises:
        FocusError: it cannot be written.
        StoreError: the store cannot be used.
    """
    store, path = _open(address)
    with _one_sentence(address):
        store.pipe_file(path, data)


def upload(files: Mapping[str, bytes | Path], address: str, *, last: str) -> list[RemoteFile]:
    """Write files to a folder in a store. That which lists the others is removed first and written last.

    Args:
        files: content, or a file of this machine, by name in the folder.
        address: of the folder.
        last: name of the file that readers begin with.

    Raises:
        StoreError: the store cannot be used.
    """
    store, root = _open(address)
    with _one_sentence(address):
        if store.exists(f"{root}/{last}"):
            store.rm_file(f"{root}/{last}")
        for name in sorted(files, key=lambda name: (name == last, name)):
            content = files[name]
            if isinstance(content, Path):
                store.put_file(str(content), f"{root}/{name}")
            else:
                store.pipe_file(f"{root}/{name}", content)
    return [RemoteFile(f"{address.rstrip('/')}/{name}") for name in files]


def exists(address: str) -> bool:
    """Whether there is a file at an address.

    Raises:
        FocusError: it cannot be looked at.
    """
    store, path = _open(address)
    with _one_sentence(address):
        return store.isfile(path)


def holds_files(address: str) -> bool:
    """Whether a folder in a store holds anything but the mark of a run.

    Raises:
        FocusError: it cannot be listed.
    """
    store, root = _open(address)
    with _one_sentence(address):
        return any(path != f"{root}/{LOCK}" for path in store.find(root))


@contextmanager
def _held(address: str, lock: str) -> Iterator[Path]:
    """Hold a place in a store by the object `lock`; yields a folder of this machine for the run."""
    folder = runs_dir() / ".stores" / hashlib.sha256(address.encode()).hexdigest()[:16]
    with claim_folder(folder, name=address), _mark(address, lock, folder / "mark"):
        yield folder
    with suppress(OSError):  # gone if it was created by this call
        folder.rmdir()


@contextmanager
def _mark(address: str, lock: str, own: Path) -> Iterator[None]:
    """Hold a place by an object that only one run can write; a run that was killed has the same mark again."""
    _open(address)  # refuses an address without a bucket
    store, path = _open(lock)
    if not own.exists():
        own.write_text(secrets.token_hex(16), encoding="ascii")
    mark = own.read_bytes()
    with _one_sentence(address):
        try:
            store.pipe_file(path, mark, mode="create")
        except FileExistsError:
            if store.cat_file(path) != mark:
                own.unlink()
                raise FocusError(
                    f"{address} is being written by another run: wait until it ends, or delete {lock} if it was killed."
                ) from None
    try:
        yield
    finally:
        with suppress(FocusError), _one_sentence(address):
            store.rm_file(path)
            own.unlink(missing_ok=True)


def _open(address: str) -> tuple[Any, str]:
    """The store of an address, without listings from before, and the path in it."""
    kind = address.split("://", 1)[0]
    if kind not in STORES:
        raise StoreError(f"{address} is in no store that is known here: give s3://, gs:// or a path of this machine.")
    package, extra = STORES[kind]
    require(package, extra)
    from fsspec import filesystem

    with _one_sentence(address):
        store = filesystem(kind)
        store.invalidate_cache()
    path = store._strip_protocol(address).rstrip("/")
    if not path:
        raise StoreError(f"{address} names no bucket: give one, such as {kind}://bucket/folder.")
    return store, path


@contextmanager
def _one_sentence(address: str) -> Iterator[None]:
    """Errors of a store as one sentence that says what to do."""
    try:
        yield
    except FocusError:
        raise
    except FileNotFoundError as error:
        raise FocusError(f"There is no {address}, or no such bucket: check the address.") from error
    except PermissionError as error:
        raise FocusError(f"No permission for {address}: ask for it, or sign in with other credentials.") from error
    except Exception as error:
        kinds = type(error).__mro__
        if not any(kind is OSError or kind.__module__.split(".")[0] in _PACKAGES for kind in kinds):
            raise
        if any("Credential" in kind.__name__ for kind in kinds):
            words = "there are no credentials for it: sign in, such as by aws configure or gcloud auth"
        else:
            words = f"the store does not answer or refuses ({type(error).__name__}): check the network and the endpoint"
        raise StoreError(f"{address} cannot be used, {words}.") from error
