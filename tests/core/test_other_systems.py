"""Windows and macOS, emulated where they differ: modules that are absent, files that a lock holds, signals."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from focus_core.bench.measures.memory import working_bytes
from focus_core.errors import FocusError
from focus_core.io.locks import claim_file, claim_folder
from focus_core.machine import peak_memory

ROOT = Path(__file__).parents[2]


@pytest.fixture
def windows(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")


def test_every_command_loads_without_the_modules_that_windows_lacks():
    code = """
import builtins
usual = builtins.__import__

def strict(name, globals=None, *others, **named):
    absent = name.split(".")[0] in ("resource", "fcntl", "termios", "pwd", "grp", "tty", "pty")
    if absent and (globals or {}).get("__name__", "").split(".")[0] in ("focus_core", "workbench"):
        raise ModuleNotFoundError(name)
    return usual(name, globals, *others, **named)

builtins.__import__ = strict
import importlib, pkgutil, focus_core, workbench.runs.jobs, workbench.runs.worker, workbench.shell.server
for module in pkgutil.walk_packages(focus_core.__path__, "focus_core."):
    if ".reproduce." not in module.name and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
from typer.testing import CliRunner
from focus_core import cli
assert CliRunner().invoke(cli.app, ["--help"]).exit_code == 0
from focus_core.machine import peak_memory
peak_memory()
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_no_call_is_used_that_windows_lacks():
    lacking = re.compile(
        r"\bsignal\.SIG(?!INT|TERM|BREAK)|\bos\.(kill|killpg|fork|get[eg]?uid|setsid|uname|mkfifo|nice)\b"
    )
    for folder in ("focus_core", "workbench", "pages"):
        for path in (ROOT / folder).rglob("*.py"):
            assert not lacking.search(path.read_text(encoding="utf-8")), path


@pytest.mark.parametrize(("system", "unit"), [("darwin", 1), ("linux", 1024)])
def test_peak_memory_has_the_unit_of_the_system(monkeypatch, system, unit):
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(sys, "platform", system)
    assert peak_memory() == resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@pytest.mark.parametrize("error", [TypeError("bad argument"), OSError("no libc"), AttributeError("malloc_trim")])
def test_memory_of_a_call_is_unknown_where_the_c_library_is_another(monkeypatch, error):
    """Windows refuses CDLL(None); macOS has no malloc_trim."""

    def library(name: None) -> None:
        raise error

    monkeypatch.setattr(ctypes, "CDLL", library)
    assert working_bytes(lambda: pytest.fail("called"), "cpu") is None


@pytest.mark.parametrize("claim", [claim_file, claim_folder])
def test_a_lock_that_nobody_else_may_touch_still_names_its_holder(tmp_path, monkeypatch, windows, claim):
    """Windows lets no second handle read, write or delete a file that is locked."""
    held: set[Path] = set()
    for name in ("write_text", "read_text", "unlink"):
        usual = getattr(Path, name)

        def refusing(path: Path, *args: object, usual=usual, **options: object):
            if path in held:
                raise PermissionError(13, "Permission denied", str(path))
            return usual(path, *args, **options)

        monkeypatch.setattr(Path, name, refusing)
    place = tmp_path / "out"
    held |= {place / ".focus.lock", tmp_path / ".out.focus.lock"}
    with claim(place):
        code = f"""
import sys
from pathlib import Path
from focus_core.errors import FocusError
from focus_core.io.locks import {claim.__name__} as claim
sys.platform = "win32"  # after filelock, which would load msvcrt
try:
    with claim(Path({str(place)!r})):
        print("held twice")
except FocusError as error:
    print(error)
"""
        told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert f"out is being written by process {os.getpid()}: wait" in told.stdout, told.stdout + told.stderr
    assert not list(tmp_path.rglob("*.holder"))
    held.clear()
    with claim(place):
        pass


def test_a_place_that_is_held_is_refused_without_a_number_where_the_note_is_gone(tmp_path, windows):
    with claim_file(tmp_path / "a.json"):
        next(tmp_path.glob(".*.holder")).unlink()
        with pytest.raises(FocusError, match="another process"), claim_file(tmp_path / "a.json"):
            pass


def test_runs_are_started_and_stopped_as_windows_can(monkeypatch, windows, tmp_path):
    from workbench.runs import jobs

    monkeypatch.setenv("FOCUS_RUNS", str(tmp_path))
    monkeypatch.setattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 512, raising=False)
    monkeypatch.setattr(signal, "CTRL_BREAK_EVENT", 1, raising=False)
    assert jobs._apart() == {"creationflags": 512}
    sent: list[int] = []

    class Process:
        send_signal = staticmethod(sent.append)

    folder = tmp_path / "job"
    folder.mkdir()
    (folder / jobs.PROCESS).write_text('{"pid": 1, "born": 0}')
    monkeypatch.setattr(jobs, "_process", lambda folder: Process())
    jobs.stop(jobs.Job(folder, "train", ("train",), {}, "", jobs.RUNNING))
    assert sent == [signal.CTRL_BREAK_EVENT]


def test_a_worker_stops_at_ctrl_break(monkeypatch, tmp_path):
    from workbench.runs import worker

    taken: dict[int, object] = {}
    monkeypatch.setattr(signal, "SIGBREAK", 21, raising=False)
    monkeypatch.setattr(signal, "signal", lambda number, handler: taken.update({number: handler}))
    (tmp_path / worker.JOB).write_text('{"arguments": ["fetch"]}')
    monkeypatch.setattr(worker, "_run", lambda arguments: 0)
    assert worker.main(tmp_path) == 0
    assert taken[21] is signal.default_int_handler and taken[signal.SIGTERM] is signal.default_int_handler
