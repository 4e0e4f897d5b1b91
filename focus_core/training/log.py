"""The log of a training run: one JSON object per line, readable during the run."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from focus_core.errors import FocusError
from focus_core.io.files import to_json
from focus_core.io.reading import parse_json, read_bytes
from focus_core.io.schema import number, table, text, whole
from focus_core.training.loop import Step

LOG = "progress.jsonl"
"""Name of the file in a run's folder."""


_PHASE = table({"phase": text(), "done": whole(0), "total": whole(0)})
_NUMBERS = {
    "step": whole(0),
    "loss": number(),
    "largest_group_share": number(0, 1),
    "tokens_per_second": number(),
}
_STEP = table(_NUMBERS)


class RunLog:
    """Appends phases and steps of a run to `progress.jsonl` in its folder; every line has its Unix time.

    Args:
        folder: of the run; created if needed.
        fresh: replace the file instead of appending to it.
    """

    def __init__(self, folder: Path, *, fresh: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / LOG
        if fresh:
            self._path.unlink(missing_ok=True)

    def phase(self, name: str, done: int = 0, total: int = 0) -> None:
        """Record that a phase ("loading", "training", ...) begins, or that `done` of `total` is finished."""
        self._append({"phase": name, "done": done, "total": total})

    def step(self, step: Step) -> None:
        """Record a finished training step."""
        self._append(asdict(step))

    def _append(self, entry: dict[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(to_json({"time": time.time(), **entry}, indent=None) + "\n")


@dataclass(frozen=True)
class Progress:
    """The progress of a run, from its log.

    Attributes:
        phase: the phase that began last; "" before the first.
        done: finished part of `total`.
        total: size of the phase; 0 where it is not counted.
        steps: the finished steps in order, each once.
    """

    phase: str
    done: int
    total: int
    steps: tuple[Step, ...]


def read_log(folder: Path) -> Progress:
    """The progress of a run so far, from the log in its folder.

    An incomplete last line is left out. Steps that a killed run repeated after its last checkpoint count once, in their
    last version.
    """
    try:
        lines = read_bytes(folder / LOG).decode("utf-8", errors="replace").splitlines()
    except (OSError, FocusError):
        return Progress("", 0, 0, ())
    phase, done, total = "", 0, 0
    steps: dict[int, Step] = {}
    for line in lines:
        try:
            entry = parse_json(line, LOG, table())
            if "phase" in entry:
                _PHASE(entry, "")
                phase, done, total = entry["phase"], entry["done"], entry["total"]
            else:
                _STEP(entry, "")
                steps[entry["step"]] = Step(**{name: entry[name] for name in _NUMBERS})
        except ValueError:
            continue
    return Progress(phase, done, total, tuple(steps[number] for number in sorted(steps)))
