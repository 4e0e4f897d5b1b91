"""The process of one background job: `python -m workbench.runs.worker FOLDER`. Runs one `focus` command, never Streamlit.

It works in the job's folder, outlives the app that started it, and writes its outcome at the end.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
from pathlib import Path

from focus_core.io.files import write_atomic
from focus_core.io.reading import read_json
from focus_core.io.schema import table

JOB, PROCESS, OUTCOME, TEXT = "job.json", "process.json", "outcome.json", "text"
"""Files of a job's folder: the task, its process, the outcome, and the copy of the user's text while it is needed."""

_FAILED, _INTERRUPTED = 1, 130


def main(folder: Path) -> int:
    """Do the job that a folder describes; returns the exit status of its command.

    SIGINT and SIGTERM, on Windows CTRL_BREAK, all stop it as Ctrl-C would, so that training writes its checkpoint, also when the app was
    started in a way that ignores SIGINT. The copy of the text is deleted once the job is done.
    """
    for name in ("SIGINT", "SIGTERM", "SIGBREAK"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.default_int_handler)
    try:
        if told_to_stop(folder):  # by a signal that was ignored before these lines
            raise KeyboardInterrupt
        arguments = read_json(folder / JOB)["arguments"]
        _choose_waiting(arguments[0])
        status = _run(arguments)
    except KeyboardInterrupt:
        status = _INTERRUPTED
    if status == 0:
        shutil.rmtree(folder / TEXT, ignore_errors=True)
    with contextlib.suppress(OSError):  # a full disk: the job then counts as lost
        write_atomic(folder / OUTCOME, json.dumps({"status": status}))
    return status


def told_to_stop(folder: Path) -> bool:
    """Whether the app asked the job to end, which it notes before it sends the signal."""
    try:
        return bool(read_json(folder / PROCESS, table()).get("stopping"))
    except (OSError, ValueError):
        return False


def _choose_waiting(command: str) -> None:
    """How OpenMP's threads wait, before PyTorch is imported: asleep, to leave the cores to the app (see app.py).

    A measurement of speed waits as PyTorch does by default, so that it says the same as in a terminal.
    """
    if command == "bench":
        os.environ.pop("OMP_WAIT_POLICY", None)
    else:
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def _run(arguments: list[str]) -> int:
    from focus_core.cli import app

    try:
        app(args=arguments, prog_name="focus")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "memory" in str(error).lower():
            print("The memory ran out: choose shorter blocks, fewer blocks a step, or a smaller size.", file=sys.stderr)
            return _FAILED
        print(f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}", file=sys.stderr)
        return _FAILED
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
