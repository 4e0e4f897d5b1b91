"""Work on a real Ray cluster: results in their order, errors in one sentence, and bounded memory.

Two workers where their order matters; one is enough for an error, and each start of one takes seconds.
"""

from __future__ import annotations

import os

import numpy as np
import psutil
import pytest

from focus_core import FocusError
from focus_core.cluster import Lost, connected, in_order, spread

pytestmark = pytest.mark.usefixtures("cluster")


class Elsewhere:
    """A worker whose module only this process has."""

    def __init__(self, argument: str) -> None:
        self.argument = argument

    def versions(self) -> dict[str, str]:
        raise AssertionError("never reached: the class cannot be sent")

    def work(self, piece: int) -> int:
        raise AssertionError("never reached: the class cannot be sent")


def failing() -> type:
    """A class of workers, sent by its content, that end at one piece and refuse another."""

    class Failing:
        def __init__(self, argument: str) -> None:
            self.argument = argument

        def versions(self) -> dict[str, str]:
            from focus_core.cluster import versions

            return versions()

        def work(self, piece: int) -> int:
            from focus_core.errors import FocusError

            if piece == 3:
                raise FocusError(f"{self.argument} is wrong: give another.")
            if piece == 5:
                os._exit(1)
            if piece == 11:
                raise MemoryError
            return np.ones(2**20) if piece > 100 else piece * piece

    return Failing


def squaring() -> type:
    """The same for pieces of several numbers."""

    class Squaring(failing()):
        def work(self, piece: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(super(Squaring, self).work(each) for each in piece)

    return Squaring


def results(pieces, kind=None, workers=1, **options):
    with connected("local") as it:
        return list(in_order(it, kind or failing(), "This", pieces, workers=workers, threads=1, **options))


def test_results_come_in_order_without_piling_up_in_this_process_until_a_piece_is_refused():
    """50 of the results have 8 MB: this process holds one at a time. Ray's own shared memory is apart."""
    process, small, found = psutil.Process(), [4, 1, 2, 9, 8, 7, 6, 4, 1, 2], []
    before, largest = process.memory_full_info().uss, 0
    with connected("local") as it, pytest.raises(FocusError, match=r"^This is wrong: give another\.$"):
        for piece, result in in_order(it, failing(), "This", [*small, *range(101, 151), 3], workers=2, threads=1):
            found.append((piece, int(np.sum(result))))
            largest = max(largest, process.memory_full_info().uss)
    assert found == [(n, n * n) for n in small] + [(n, 2**20) for n in range(101, 151)]
    assert largest - before < 100 * 2**20


def test_what_no_worker_can_do_is_one_sentence(monkeypatch):
    monkeypatch.setattr("focus_core.cluster.TRIES", 1)  # each costs a start of a worker
    less = "take fewer with --workers, or shorter blocks, and repeat the command to resume"
    with pytest.raises(FocusError, match=f"^A worker has too little memory: {less}"):
        results([11])
    ended = "A worker ended 2 times at the same piece of work, perhaps for lack of memory"
    with pytest.raises(FocusError, match=f"^{ended}: {less}"):
        results([1, 5, 2])
    with pytest.raises(FocusError, match="A worker lacks a package: install focus-workbench on every node"):
        results([1], Elsewhere)


def test_no_work_has_no_results_and_workers_share_the_cores():
    assert results([]) == []
    with connected("local") as it:
        assert [spread(it, *given) for given in ((None, 2**20), (1, 2**20), (None, 2**60))] == [(2, 1), (1, 2), (1, 2)]


def test_a_piece_that_ends_its_workers_is_done_in_parts(monkeypatch):
    monkeypatch.setattr("focus_core.cluster.TRIES", 1)
    found = results(
        [(1, 2), (4, 11, 6), (7,), (5, 10), (8, 9)],
        squaring(),
        workers=2,
        apart=lambda piece: [(each,) for each in piece],
    )
    assert [piece for piece, _ in found] == [(1, 2), (4,), (11,), (6,), (7,), (5,), (10,), (8, 9)]
    given = [result for _, result in found]
    assert given[0] == (1, 4) and [given[place] for place in (1, 3, 4, 6, 7)] == [(16,), (36,), (49,), (100,), (64, 81)]
    assert given[2] == Lost("A worker has too little memory")
    assert given[5] == Lost("A worker ended 2 times at the same piece of work, perhaps for lack of memory")


def test_workers_of_other_versions_are_refused(monkeypatch):
    from focus_core import cluster as module

    own = module.versions()
    monkeypatch.setattr(module, "versions", lambda: {**own, "torch": "0.1"})  # of this process alone
    with pytest.raises(FocusError, match=rf"other versions \(torch {own['torch'].replace('+', '.')} instead of 0.1\)"):
        results([1])
