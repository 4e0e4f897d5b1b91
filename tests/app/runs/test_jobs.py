"""Background jobs with real processes: one at a time, stopped, resumed, survived, lost."""

import json
import os
import signal
import stat
import sys
import time

import psutil
import pytest

from focus_core.errors import FocusError
from workbench.runs import jobs

BENCH = ["bench", "attention", "--size", "64", "--routing", "4/1", "--dtype", "float32", "--repetitions", "1", "--device", "cpu"]


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("FOCUS_RUNS", str(tmp_path / "runs"))
    yield tmp_path / "runs"
    for job in jobs.jobs():
        if (process := jobs._process(job.folder)) is not None:
            process.kill()


def wait(name, until, seconds=60):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        job = jobs.find(name)
        if until(job):
            return job
        time.sleep(0.1)
    raise AssertionError(f"{name} is {job.state}: {job.last_words}")


def start(name, *extra, about=None):
    folder = jobs.new_folder(name)
    return jobs.start(folder, [*BENCH, "--out", str(folder / "bench.json"), *extra], about or {})


def sleeper(name):
    """A long job: thousands of points."""
    return start(name, *(part for size in range(100, 3000) for part in ("--size", str(size))))


def test_a_job_runs_to_its_end_and_its_text_goes():
    folder = jobs.new_folder("First run!")
    assert folder.name == "first-run"
    (text,) = jobs.store_texts(folder, [("../../etc/pass wd", b"private")])
    assert text.parent == folder / "text" and text.name == "pass_wd"
    assert stat.S_IMODE(text.stat().st_mode) == 0o600 and stat.S_IMODE(folder.stat().st_mode) == 0o700
    job = jobs.start(folder, [*BENCH, "--out", str(folder / "bench.json")], {"tokens": 64})
    assert job.state == jobs.RUNNING and job.about == {"tokens": 64}
    job = wait("first-run", lambda job: not job.is_alive)
    assert job.state == jobs.FINISHED, job.last_words
    assert len(json.loads((folder / "bench.json").read_text())["points"]) == 1
    assert not text.exists()
    assert jobs.finished_routers() == {}  # no training
    jobs.delete(job)
    assert not folder.exists() and jobs.jobs() == []


def test_one_at_a_time_stop_resume_and_loss(runs):
    job = sleeper("long")
    wait("long", lambda job: (runs / "long" / "bench.json").exists())
    with pytest.raises(FocusError, match="long is still running"):
        start("other")
    assert not (runs / "other").exists()
    with pytest.raises(FocusError, match="stop it before"):
        jobs.delete(job)
    with pytest.raises(FocusError, match="nothing to resume"):
        jobs.resume(job)
    jobs.stop(job)
    job = wait("long", lambda job: not job.is_alive)
    assert job.state == jobs.STOPPED and job.last_words == "Stopped."
    before = len(json.loads((runs / "long" / "bench.json").read_text())["points"])

    job = jobs.resume(job)
    assert job.is_alive
    wait("long", lambda job: len(json.loads((runs / "long" / "bench.json").read_text())["points"]) > before)
    jobs._process(job.folder).kill()  # out of memory, say
    job = wait("long", lambda job: not job.is_alive)
    assert job.state == jobs.LOST and job.is_resumable


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [("--routing", "4/9", "top_k is 9"), ("--size", str(2 * 10**9), "--size must be a whole number from")],
)
def test_an_error_is_one_sentence(option, value, sentence):
    start("bad", option, value)
    job = wait("bad", lambda job: not job.is_alive)
    assert job.state == jobs.FAILED and sentence in job.last_words and job.is_resumable
    assert "│" not in job.last_words


def test_a_process_of_the_same_number_born_later_is_another(runs):
    folder = jobs.new_folder("old")
    (folder / "job.json").write_text(json.dumps({"format": 1, "arguments": ["train"], "about": {}, "created": "x"}))
    born = psutil.Process(os.getpid()).create_time()
    (folder / "process.json").write_text(json.dumps({"pid": os.getpid(), "born": born - 100}))
    assert jobs.find("old").state == jobs.LOST
    (folder / "process.json").write_text(json.dumps({"pid": os.getpid(), "born": born}))
    assert jobs.find("old").state == jobs.RUNNING
    (folder / "process.json").unlink()


def test_a_run_goes_on_whatever_the_clock_is_set_to(runs):
    job = sleeper("long")
    file = job.folder / "process.json"
    known = json.loads(file.read_text())
    file.write_text(json.dumps(known | {"born": known["born"] - 3600}))
    assert jobs.find("long").state == jobs.RUNNING


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals to ignore")
@pytest.mark.parametrize("ignored", [True, False])
def test_a_run_that_is_stopped_while_it_starts_is_stopped(runs, ignored):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler)
    try:
        job = sleeper("long")  # its process ignores what this one does, until it says otherwise
    finally:
        signal.signal(signal.SIGINT, before)
    jobs.stop(job)
    job = wait("long", lambda job: not job.is_alive)
    assert job.state == jobs.STOPPED and job.is_resumable
    assert jobs.resume(job).state == jobs.RUNNING


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 9}', '{"format": 1, "arguments": []}'])
def test_damaged_folders_are_no_jobs(runs, content):
    folder = jobs.new_folder("damaged")
    (folder / "job.json").write_text(content)
    (runs / "stray.txt").write_text("x")
    assert jobs.jobs() == [] and jobs.find("damaged") is None


@pytest.mark.parametrize("name", ["../damaged", "", "a/b", ".hidden", "x" * 99])
def test_names_cannot_leave_the_folder(name):
    assert jobs.find(name) is None


def test_names_are_tidied_and_numbered():
    assert jobs.new_folder("../../My Book.txt · K=8").name == "my-book.txt-k-8"
    assert jobs.new_folder("my-book.txt-k-8").name == "my-book.txt-k-8-2"
    with pytest.raises(FocusError, match="needs a name"):
        jobs.new_folder("../ · ")
