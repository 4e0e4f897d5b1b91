"""The log of a training run: one JSON object per line, readable during the run."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from focus_core.training.loop import Step

LOG = "progress.jsonl"
"""Name of the file in a run's folder."""


class RunLog:
    """Appends what a run does to `progress.jsonl` in its folder; every line carries its Unix time.

    Args:
        folder: of the run; created if needed.
        fresh: start the file anew instead of appending to it.
    """

    def __init__(self, folder: Path, *, fresh: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / LOG
        if fresh:
            self._path.unlink(missing_ok=True)

    def phase(self, name: str, done: int = 0, total: int = 0) -> None:
        """A part of the run begins ("loading", "training", ...), or has done so much of its total."""
        self._append({"phase": name, "done": done, "total": total})

    def step(self, step: Step) -> None:
        """A training step has ended."""
        self._append(asdict(step))

    def _append(self, entry: dict[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time": time.time(), **entry}) + "\n")


@dataclass(frozen=True)
class Progress:
    """What a log says.

    Attributes:
        phase: the part of the run that began last; "" before the first.
        done: how much of it is done.
        total: of how much; 0 where it is not counted.
        steps: the finished steps in order, each once.
    """

    phase: str
    done: int
    total: int
    steps: tuple[Step, ...]


def read_log(folder: Path) -> Progress:
    """What the log in a folder says so far.

    A last line that is still being written is left out. Steps that a killed run repeated after its last
    checkpoint count once, as they were done last.
    """
    try:
        lines = (folder / LOG).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return Progress("", 0, 0, ())
    phase, done, total = "", 0, 0
    steps: dict[int, Step] = {}
    for line in lines:
        try:
            entry = json.loads(line)
            if "phase" in entry:
                phase, done, total = str(entry["phase"]), int(entry["done"]), int(entry["total"])
            else:
                entry.pop("time")
                steps[entry["step"]] = Step(**entry)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return Progress(phase, done, total, tuple(steps[number] for number in sorted(steps)))
