"""Background jobs: one worker process at a time, its state on disk.

A job is a folder. It holds the task (`job.json`), the process (`process.json`), the outcome (`outcome.json`), the log
(`log.txt`) and the results. So a job outlives the page, the session and the app. Its state is read from the folder and
from the system's process list, never remembered.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, Timeout

from focus_core.io.files import to_json
from focus_core.io.reading import read_bytes, read_json
from focus_core.io.schema import table
from focus_core.errors import FocusError
from focus_core.io.files import write_atomic
from focus_core.resources import runs_dir
from focus_core.routing.storage import CONFIG
from workbench.runs.worker import JOB, OUTCOME, PROCESS, TEXT, told_to_stop

LOG = "log.txt"
RUNNING, STOPPING, FINISHED, STOPPED, FAILED, LOST = "running", "stopping", "finished", "stopped", "failed", "lost"
"""States of a job. "lost" means that its process is gone and wrote no outcome: killed, or the machine restarted."""
ROUTERS = ("fit", "train")
"""Kinds of jobs that make routers."""
RUN = "run:"
"""Marks routers of a finished run where routers are named, as in "run:my-run"."""

_FORMAT = 1
_INTERRUPTED = 130
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,59}")


@dataclass(frozen=True)
class Job:
    """A job as it stands.

    Attributes:
        folder: all files of the job; its name is the job's name.
        kind: "fit", "train", "bench" or "report", the `focus` command that it runs.
        arguments: of `focus`.
        about: the settings that the page shows; plain values.
        created: when it was first started, in ISO format.
        state: one of the states above.
    """

    folder: Path
    kind: str
    arguments: tuple[str, ...]
    about: dict[str, Any]
    created: str
    state: str

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def is_alive(self) -> bool:
        """Whether its process works."""
        return self.state in (RUNNING, STOPPING)

    @property
    def is_resumable(self) -> bool:
        """Whether `resume` can continue it."""
        return self.state in (STOPPED, FAILED, LOST)

    @property
    def last_words(self) -> str:
        """The last line that the process wrote, which is an error's sentence if it failed. Empty without a line."""
        try:
            text = read_bytes(self.folder / LOG).decode("utf-8", errors="replace")
        except (OSError, FocusError):
            return ""
        lines = [line.strip() for line in re.split(r"[\r\n]", text[-8000:]) if line.strip()]
        if lines and lines[-1].startswith("╰"):
            # A wrong option is named in a box.
            inside = list(takewhile(lambda line: line.startswith("│"), reversed(lines[:-1])))
            lines = [" ".join(line.strip("│ ") for line in reversed(inside))]
        return lines[-1][:400] if lines else ""


def jobs(*kinds: str) -> list[Job]:
    """All jobs, of these kinds or of any, newest first. Other folders are left out."""
    try:
        folders = list(runs_dir().iterdir())
    except OSError:
        return []
    found = [job for job in map(_read, folders) if job is not None and (not kinds or job.kind in kinds)]
    return sorted(found, key=lambda job: (job.created, job.name), reverse=True)


def find(name: str) -> Job | None:
    """The job of that name, None if there is none."""
    return _read(runs_dir() / name) if _NAME.fullmatch(name) else None


def finished_routers() -> dict[str, Path]:
    """Folders of the routers that finished runs wrote, by "run:" and the run's name, the newest first."""
    return {
        f"{RUN}{job.name}": job.folder
        for job in jobs(*ROUTERS)
        if job.state == FINISHED and (job.folder / CONFIG).is_file()
    }


def new_folder(name: str) -> Path:
    """Make the folder of a new job, readable by its owner only.

    Args:
        name: wished for; turned into small letters, digits and hyphens, and numbered if it is taken.

    Raises:
        FocusError: nothing is left of the name, or the folder cannot be made.
    """
    slug = re.sub(r"[^a-z0-9._]+", "-", name.lower()).strip("-._")[:50].rstrip("-._")
    if not slug:
        raise FocusError("The run needs a name with a letter or digit in it: give one.")
    try:
        runs_dir().mkdir(mode=0o700, parents=True, exist_ok=True)
        for number in range(1, 1000):
            folder = runs_dir() / (slug if number == 1 else f"{slug}-{number}")
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
                return folder
    except OSError as error:
        raise FocusError(f"The folder of runs {runs_dir()} cannot be written ({error.strerror}).") from error
    raise FocusError(f"There are too many runs called {slug!r}: give another name.")


def store_texts(folder: Path, texts: Iterable[tuple[str, bytes]]) -> list[Path]:
    """Keep copies of texts in a job's folder, readable by their owner only.

    Args:
        folder: of the job.
        texts: names and contents; a name loses what a file name cannot hold.
    """
    inside = folder / TEXT
    inside.mkdir(mode=0o700, exist_ok=True)
    paths: list[Path] = []
    for number, (name, content) in enumerate(texts):
        safe = re.sub(r"[^\w.-]+", "_", Path(name).name).strip("._")[:80] or "text"
        path = inside / (safe if not (inside / safe).exists() else f"{number}-{safe}")
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
        paths.append(path)
    return paths


def start(folder: Path, arguments: Iterable[str], about: dict[str, Any]) -> Job:
    """Start a job in its new folder.

    Args:
        folder: from `new_folder`; deleted again if the job cannot be started.
        arguments: of `focus`; the first is the command.
        about: the settings to show; plain values.

    Raises:
        FocusError: another job is running, or the folder cannot be written.
    """
    command = [str(argument) for argument in arguments]
    created = datetime.now(UTC).isoformat(timespec="seconds")
    description = {"format": _FORMAT, "arguments": command, "about": about, "created": created}
    try:
        _write(folder / JOB, description)
        _launch(folder)
    except (FocusError, OSError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise FocusError(f"The run cannot be started: {error.strerror or error}.") from error
        raise
    return _known(folder)


def resume(job: Job) -> Job:
    """Resume a job that stopped, failed or was lost; its command continues from its last checkpoint.

    Raises:
        FocusError: another job is running, or this one cannot be resumed.
    """
    if not job.is_resumable:
        raise FocusError(f"The run {job.name} is {job.state}: there is nothing to resume.")
    _launch(job.folder)
    return _known(job.folder)


def stop(job: Job) -> None:
    """Ask a job to save its work and end; it does so within a step."""
    process = _process(job.folder)
    if process is not None:
        with contextlib.suppress(psutil.Error):
            _write(job.folder / PROCESS, _load(job.folder / PROCESS) | {"stopping": True})
            process.send_signal(signal.CTRL_BREAK_EVENT if sys.platform == "win32" else signal.SIGINT)


def delete(job: Job) -> None:
    """Delete a job with all that it made.

    Raises:
        FocusError: it is running.
    """
    if _process(job.folder) is not None:
        raise FocusError(f"The run {job.name} is running: stop it before you delete it.")
    shutil.rmtree(job.folder, ignore_errors=True)


def _launch(folder: Path) -> None:
    """Start the worker of a folder in a session of its own, unless another one is running."""
    try:
        with FileLock(runs_dir() / ".lock", timeout=10):
            busy = next((job for job in jobs() if job.is_alive), None)
            if busy is not None:
                raise FocusError(
                    f"{busy.name} is still running, and only one training, measurement or report runs at a time: "
                    "wait for it or stop it."
                )
            for old in (OUTCOME, PROCESS):
                (folder / old).unlink(missing_ok=True)
            root = str(Path(__file__).resolve().parents[2])
            path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
            with (folder / LOG).open("ab") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", "workbench.runs.worker", str(folder)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    env={**os.environ, "PYTHONPATH": path},
                    **_apart(),
                )
            born = psutil.Process(process.pid).create_time()
            _write(folder / PROCESS, {"pid": process.pid, "born": born})
    except Timeout as error:
        raise FocusError("Another run is just being started: try again in a moment.") from error


def _apart() -> dict[str, Any]:
    """Options of a process that neither ends with the app nor gets the Ctrl-C of its terminal."""
    if sys.platform == "win32":  # a group of its own, which can be sent CTRL_BREAK
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


def _process(folder: Path) -> psutil.Process | None:
    """The living process of a job. A later one of the same number was born at another time, and for another folder.

    Either tells them apart: the time of birth moves when the clock is set, and a command can be hidden.
    """
    try:
        known = _load(folder / PROCESS)
        process = psutil.Process(int(known["pid"]))
        same = abs(process.create_time() - float(known["born"])) < 1 or str(folder) in process.cmdline()
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except (OSError, ValueError, KeyError, TypeError, psutil.Error):
        return None


def _read(folder: Path) -> Job | None:
    try:
        described = _load(folder / JOB)
        if described["format"] != _FORMAT:
            return None
        arguments = tuple(map(str, described["arguments"]))
        about, created = dict(described["about"]), str(described["created"])
        return Job(folder, arguments[0], arguments, about, created, _state(folder))
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None


def _state(folder: Path) -> str:
    if _process(folder) is not None:  # asked before the outcome is read: the process writes it last
        return STOPPING if told_to_stop(folder) else RUNNING
    try:
        status = _load(folder / OUTCOME)["status"]
    except (OSError, ValueError, KeyError):
        return STOPPED if told_to_stop(folder) else LOST  # one that was stopped while it started writes nothing
    return {0: FINISHED, _INTERRUPTED: STOPPED}.get(status, FAILED)


def _known(folder: Path) -> Job:
    job = _read(folder)
    if job is None:
        raise FocusError(f"The run in {folder} has been deleted.")
    return job


def _load(path: Path) -> dict[str, Any]:
    return read_json(path, table())


def _write(path: Path, content: dict[str, Any]) -> None:
    write_atomic(path, to_json(content, indent=1))
