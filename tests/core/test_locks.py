"""One command at a time writes a place, and a place that cannot be written is known before the work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from focus_core.errors import FocusError
from focus_core.io.locks import claim_file, claim_folder, claims_file

HOLD = """
import sys, time
from pathlib import Path
from focus_core.io.locks import claim_file, claim_folder
with {"file": claim_file, "folder": claim_folder}[sys.argv[1]](Path(sys.argv[2])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system that takes no files")
def test_a_place_that_takes_no_files_is_not_said_to_be_held():
    with pytest.raises(FocusError, match="/proc/x cannot be written: name another place"), claim_file(Path("/proc/x")):
        pass


@pytest.fixture
def holder(tmp_path):
    """Another process that holds a place; ended at the end."""
    started = []

    def hold(kind: str, path: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLD, kind, str(path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        return process

    yield hold
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("kind", "claim"), [("file", claim_file), ("folder", claim_folder)])
def test_a_second_process_is_told_of_the_first_and_follows_it_when_it_is_killed(tmp_path, holder, kind, claim):
    place = tmp_path / "run" / "out"
    first = holder(kind, place)
    with pytest.raises(FocusError, match=rf"out is being written by process {first.pid}: wait"), claim(place):
        pass
    first.send_signal(signal.SIGKILL)
    first.wait()
    with claim(place):
        (place if kind == "file" else place / "x").write_text("mine")
    assert not [path for path in tmp_path.rglob("*") if "lock" in path.name]


def test_two_places_in_one_folder_do_not_meet(tmp_path, holder):
    holder("file", tmp_path / "a.json")
    with claim_file(tmp_path / "b.json"), claim_folder(tmp_path):
        pass


def test_nothing_is_left_where_nothing_was_written(tmp_path):
    with claim_file(tmp_path / "a" / "b" / "c.json"), claim_folder(tmp_path / "d" / "e"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_places_that_cannot_be_written_are_refused_before_the_work(tmp_path):
    (tmp_path / "file").write_text("x")
    os.mkfifo(tmp_path / "pipe")
    done = []
    for content in ("my notes", "{}", '{"my": "notes"}', "[1]"):
        (tmp_path / "notes").write_text(content)
        with pytest.raises(FocusError, match="notes is not a record"), claim_file(tmp_path / "notes"):
            pass
        assert (tmp_path / "notes").read_text() == content
    for content in ("", '{"schema": "x/1"}'):
        (tmp_path / "notes").write_text(content)
        with claim_file(tmp_path / "notes"):
            pass

    @claims_file()
    def work(out: Path | None = None) -> None:
        done.append(out)

    for place, words in ((tmp_path, "is a folder"), (tmp_path / "pipe", "pipe or device"), (Path("/dev/null"), "pipe")):
        with pytest.raises(FocusError, match=words):
            work(place)
    with pytest.raises(FocusError, match="is a file: name a folder"), claim_folder(tmp_path / "file"):
        pass
    with pytest.raises(OSError):
        work(out=tmp_path / "file" / "below.json")
    assert done == []
    work()
    work(out=tmp_path / "new.json")
    assert done == [None, tmp_path / "new.json"]
