"""Tasks shared by threads: order, errors, and processes that were forked."""

from __future__ import annotations

import sys
import threading
import time

import pytest
import torch

from focus_core.attention.cpu import threads
from focus_core.attention.cpu.threads import in_threads


@pytest.fixture(params=["PyTorch's threads", "Python's threads"])
def way(request, monkeypatch):
    if request.param == "Python's threads":
        monkeypatch.setattr(threads, "_openmp", lambda: None)
    elif threads._openmp() is None:
        pytest.skip("PyTorch does not run on GNU OpenMP here.")


@pytest.fixture(params=[1, 2, 5])
def number(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("tasks", [0, 1, 2, 40])
def test_results_are_in_the_order_of_tasks(way, number, tasks):
    for _ in range(3):
        assert in_threads(lambda task: task * task, range(tasks)) == [task * task for task in range(tasks)]


def test_no_more_threads_work_than_pytorch_has(way, number):
    seen = set()

    def work(task):
        seen.add(threading.get_ident())
        time.sleep(0.01)

    in_threads(work, range(12))
    assert 1 <= len(seen) <= number


def test_an_error_is_raised_where_the_tasks_were_given(way, number):
    def work(task):
        if task == 3:
            raise ValueError("task three")
        return task

    with pytest.raises(ValueError, match="task three"):
        in_threads(work, range(8))
    assert in_threads(lambda task: task, range(4)) == [0, 1, 2, 3]


@pytest.mark.skipif(sys.platform == "win32", reason="Processes are not forked there.")
def test_a_forked_process_works_too(way, holds_in_a_fork):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert in_threads(lambda task: task, range(6)) == list(range(6))
        assert holds_in_a_fork(lambda: in_threads(lambda task: task + 1, range(6)) == list(range(1, 7)))
    finally:
        torch.set_num_threads(before)
