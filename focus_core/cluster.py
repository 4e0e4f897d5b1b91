"""Work on a Ray cluster: a connection, workers that load their model once, and results in the order of the work.

Ray is imported when it is asked for. Nothing here knows what the work is: see `focus_core.routing.portable`.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import socket
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeVar

from focus_core.errors import FocusError, require
from focus_core.progress import Progress, silent

LOCAL = "local"
"""The address of a cluster of this machine's own cores, which lives as long as the work."""

ADDRESS = re.compile(r"(?P<host>[\w.-]+|\[[\w:.]+\]):(?P<port>\d{1,5})|auto|local")
"""Addresses of a cluster that this machine is a node of: of its head, `auto` for the one here, and `local`."""

TRIES = 3
"""Times that a piece of work begins again when its worker ends, before the work is given up."""

LESS = "take fewer with --workers, or shorter blocks, and repeat the command to resume."
"""What to do where workers end again and again."""

_COMPARED = ("ray", "torch", "transformers", "tokenizers", "numpy", "spacy")
_ANSWER = 5  # seconds that a head has to accept a connection

T = TypeVar("T")


@dataclass(frozen=True)
class Cluster:
    """Where to work.

    Attributes:
        address: see `ADDRESS`.
        workers: how many; None for one on each core of the cluster, or fewer where memory is short.
    """

    address: str = LOCAL
    workers: int | None = None


class Worker(Protocol):
    """What runs on a worker: made from one argument, again if it ends."""

    def versions(self) -> dict[str, str]:
        """`versions` there."""
        ...

    def work(self, piece: Any) -> Any:
        """The result of a piece of work, which depends on nothing but the piece and the worker's argument."""
        ...


def versions() -> dict[str, str]:
    """Versions on which results depend, by package; that of `focus_core` is a hash of its code."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for package in _COMPARED:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    code = hashlib.sha256()
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        code.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return {**found, "focus_core": code.hexdigest()[:12]}


@contextmanager
def connected(address: str) -> Iterator[ModuleType]:
    """A connection to a cluster; one that exists already is used and stays.

    Yields:
        Ray.

    Raises:
        FocusError: Ray is not installed, the address is none, or nobody answers there.
    """
    match = ADDRESS.fullmatch(address)
    if match is None:
        raise FocusError(
            f"{address!r} is no address of a Ray cluster: give that of its head, host:6379, auto or local."
        )
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster that is started here reports to nobody
    ray = require("ray", "ray")
    if ray.is_initialized():
        yield ray
        return
    if match["host"]:
        _knock(address, match["host"].strip("[]"), int(match["port"]))
    options = {"include_dashboard": False} if address == LOCAL else {}
    try:
        with redirect_stdout(sys.stderr):  # standard output is for results alone
            ray.init(address=address, log_to_driver=False, logging_level="ERROR", **options)
    except Exception as error:  # Ray raises Exception itself where a node does not start in time
        raise FocusError(
            f"The Ray cluster at {address} cannot be used ({_first_line(error)}): give it the versions of "
            "Python and Ray of this machine, and this machine its token with RAY_AUTH_MODE=token."
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


@dataclass(frozen=True)
class Lost:
    """In place of the result of a piece of work that ended every worker that began it.

    Attributes:
        reason: what happened, as the beginning of a sentence.
    """

    reason: str


@dataclass(eq=False)
class _Asked:
    """A piece of work that has begun, or waits to begin again in parts."""

    piece: Any
    reference: Any = None
    done: bool = False


class _Queue:
    """Pieces of work in their order, from when they are taken until their results are given.

    Args:
        pieces: the work.
        most: pieces here at once, parts not counted.
        apart: see `in_order`.
    """

    def __init__(self, pieces: Iterable[Any], most: int, apart: Callable[[Any], Sequence[Any]] | None) -> None:
        self.rest, self.most, self.apart = iter(pieces), most, apart
        self.asked: deque[_Asked] = deque()

    def next(self) -> _Asked | None:
        """The piece to begin now; parts of earlier ones come first."""
        found = next((each for each in self.asked if each.reference is None), None)
        if found is None and len(self.asked) < self.most and (piece := next(self.rest, None)) is not None:
            self.asked.append(found := _Asked(piece))
        return found

    def given(self, ray: ModuleType) -> Generator[tuple[Any, Any]]:
        """The pieces before the first that is not done, each with its result."""
        while self.asked and self.asked[0].done:
            first = self.asked.popleft()
            result = _result(ray, first.reference)
            if isinstance(result, Lost):
                parts = self.apart(first.piece) if self.apart else ()
                if len(parts) > 1:
                    self.asked.extendleft(_Asked(part) for part in reversed(parts))
                    return
                if self.apart is None:
                    _found(result)
            piece = first.piece
            del first  # or the worker would keep this result while the next one is waited for
            yield piece, result


def in_order(
    ray: ModuleType,
    kind: type[Worker],
    argument: Any,
    pieces: Iterable[T],
    *,
    workers: int,
    threads: int,
    ahead: int = 4,
    apart: Callable[[T], Sequence[T]] | None = None,
    progress: Progress = silent,
) -> Generator[tuple[T, Any]]:
    """Each piece of work with its result, in the order of the pieces, whichever worker did it.

    A worker that ends is started again with its piece of work. Results that wait for an earlier one stay where they
    were made.

    Args:
        ray: from `connected`.
        kind: class of the workers.
        argument: of every worker; sent once.
        pieces: the work; taken as workers are free.
        workers: how many; those that find free cores begin.
        threads: cores of each.
        ahead: pieces begun or waiting, as a multiple of the workers.
        apart: the parts of a piece that ended every worker, which are done in its place; those that end every worker
            again are given with `Lost`. None if such a piece is an error.
        progress: told when no worker has begun yet.

    Raises:
        FocusError: raised by a worker, other versions there, or a piece of work that ends every worker.
    """
    sent = ray.put(argument)
    options = {"num_cpus": threads, "max_restarts": -1, "max_task_retries": TRIES}
    actors = [ray.remote(**options)(kind).remote(sent) for _ in range(workers)]
    try:
        pending: dict[Any, tuple[_Asked | None, Any]] = {each.versions.remote(): (None, each) for each in actors}
        idle: list[Any] = []
        queue = _Queue(pieces, ahead * workers, apart)
        progress("Waiting for workers", 0.0)
        while True:
            while idle and (begun := queue.next()) is not None:
                actor = idle.pop()
                begun.reference = actor.work.remote(begun.piece)
                pending[begun.reference] = begun, actor
            if not queue.asked and (idle or not pending):
                return
            ready, _ = ray.wait(list(pending), num_returns=1)
            for reference in ready:
                ended, actor = pending.pop(reference)
                if ended is None:
                    _compare(_found(_result(ray, reference)))
                else:
                    ended.done = True
                idle.append(actor)
            yield from queue.given(ray)
    finally:
        for actor in actors:
            ray.kill(actor)


def spread(ray: ModuleType, wanted: int | None, memory: int) -> tuple[int, int]:
    """How many workers there are, and how many cores each has.

    Args:
        ray: from `connected`.
        wanted: workers; None for as many as cores and memory allow.
        memory: bytes that one needs.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
    if not nodes:
        raise FocusError("The Ray cluster has no cores: add a node that has some, with ray start --num-cpus.")
    cores = [int(node["CPU"]) for node in nodes]
    if wanted is None:
        room = [max(1, int(node.get("memory", memory)) // memory) for node in nodes]
        wanted = sum(map(min, cores, room))
    return wanted, max(1, min(cores) // -(-wanted // len(nodes)))


def _knock(address: str, host: str, port: int) -> None:
    """Refuse an address where nobody listens; Ray would wait there for minutes."""
    try:
        socket.create_connection((host, port), timeout=_ANSWER).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise FocusError(
            f"No Ray cluster answers at {address} ({_first_line(error)}): check the address, or give local for one of "
            "this machine's own."
        ) from error


def _compare(there: dict[str, str]) -> None:
    """Refuse a worker on which results may differ."""
    differing = [
        f"{name} {there.get(name)} instead of {own}" for name, own in versions().items() if there.get(name) != own
    ]
    if differing:
        raise FocusError(f"A worker has other versions ({', '.join(differing)}): install those of this machine there.")


def _result(ray: ModuleType, reference: Any) -> Any:
    """The result of a worker or `Lost`, its other errors in one sentence."""
    errors = ray.exceptions
    try:
        return ray.get(reference)
    except errors.RayTaskError as error:
        if isinstance(error.cause, FocusError):
            raise FocusError(str(error.cause)) from error
        if isinstance(error.cause, MemoryError) or "allocate memory" in str(error.cause):
            return Lost("A worker has too little memory")
        raise
    except (errors.RayActorError, errors.WorkerCrashedError, errors.OutOfMemoryError) as error:
        if "No module named" in str(error):
            raise FocusError(
                "A worker lacks a package: install focus-workbench on every node of the cluster."
            ) from error
        return Lost(f"A worker ended {TRIES + 1} times at the same piece of work, perhaps for lack of memory")


def _found(result: Any) -> Any:
    """A result that is not `Lost`."""
    if isinstance(result, Lost):
        raise FocusError(f"{result.reason}: {LESS}")
    return result


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".:")
