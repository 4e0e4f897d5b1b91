"""Work that is shared by sessions: done once, told piece by piece, and tried again after an error."""

from __future__ import annotations

import threading

import pytest

from workbench.engine.passes import SharedPass


def test_parts_are_told_in_order_and_the_work_is_done_once():
    shared: SharedPass[int, str] = SharedPass()
    calls: list[int] = []
    go_on = threading.Event()

    def work(tell):
        calls.append(1)
        tell(1)
        go_on.wait(10)
        tell(2)
        return "done"

    told: list[int] = []
    threading.Timer(0.05, go_on.set).start()
    assert shared.result(work, told.append) == "done" and told[:1] == [1]
    assert shared.result(work, told.append) == "done" and calls == [1]
    assert shared.result(work) == "done"


def test_who_leaves_stops_nothing_and_who_comes_later_hears_all():
    shared: SharedPass[int, str] = SharedPass()
    go_on, starts = threading.Event(), []

    def work(tell):
        starts.append(1)
        tell(1)
        go_on.wait(10)
        tell(2)
        return "done"

    def leave(part: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shared.result(work, leave)
    told: list[int] = []

    def hear(part: int) -> None:
        told.append(part)
        go_on.set()

    assert shared.result(work, hear) == "done" and starts == [1] and told[0] == 1


def test_an_error_reaches_everybody_and_the_next_call_tries_again():
    shared: SharedPass[int, str] = SharedPass()

    def fail(tell):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        shared.result(fail)
    assert shared.result(lambda tell: "yes") == "yes"
