"""Reports of the progress of a training run: to its log, as bars on standard error, or not at all."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from tqdm import tqdm

from focus_core.training.log import RunLog
from focus_core.training.loop import Step

_UNITS = {"training": "step", "centroids": "step", "everything": "step", "evaluating": "setting"}


class Watch(Protocol):
    """Receives every phase and step of a run."""

    def phase(self, name: str, done: int = 0, total: int = 0) -> None:
        """A phase of the run begins, or `done` of `total` is finished."""

    def step(self, step: Step) -> None:
        """A training step has ended."""

    def note(self, sentence: str) -> None:
        """Show a remark, such as an estimate of memory."""

    def close(self) -> None:
        """The run is over, finished or not."""


class Silent:
    """Shows nothing."""

    def phase(self, name: str, done: int = 0, total: int = 0) -> None:
        """See `Watch`."""

    def step(self, step: Step) -> None:
        """See `Watch`."""

    def note(self, sentence: str) -> None:
        """See `Watch`."""

    def close(self) -> None:
        """See `Watch`."""


class Bars:
    """Shows a bar on standard error for every phase that counts steps or settings."""

    def __init__(self) -> None:
        self._name = ""
        self._bar: tqdm | None = None

    def phase(self, name: str, done: int = 0, total: int = 0) -> None:
        """See `Watch`."""
        if name != self._name:
            self._fill()
            self._name = name
            if name in _UNITS:
                self._bar = tqdm(total=total, unit=_UNITS[name], desc=name.capitalize())
        if self._bar is not None:
            self._bar.n = done
            self._bar.refresh()

    def step(self, step: Step) -> None:
        """See `Watch`."""
        if self._bar is not None:
            self._bar.n = step.step
            self._bar.set_postfix_str(
                f"loss {step.loss:.4f}, largest group {step.largest_group_share:.1%}, "
                f"{step.tokens_per_second:,.0f} tokens/s"
            )

    def note(self, sentence: str) -> None:
        """See `Watch`."""
        print(sentence, file=sys.stderr)

    def close(self) -> None:
        """See `Watch`."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _fill(self) -> None:
        """Fill the bar of a phase that has ended."""
        if self._bar is not None:
            self._bar.n = self._bar.total
            self._bar.refresh()
        self.close()


class LoggedWatch:
    """Writes phases and steps to a run's log before it tells another watch."""

    def __init__(self, log: RunLog, watch: Watch) -> None:
        self._log = log
        self._watch = watch

    def phase(self, name: str, done: int = 0, total: int = 0) -> None:
        """See `Watch`."""
        self._log.phase(name, done, total)
        self._watch.phase(name, done, total)

    def step(self, step: Step) -> None:
        """See `Watch`."""
        self._log.step(step)
        self._watch.step(step)

    def note(self, sentence: str) -> None:
        """See `Watch`."""
        self._watch.note(sentence)

    def close(self) -> None:
        """See `Watch`."""
        self._watch.close()


@contextmanager
def watched(log: RunLog | None, watch: Watch | None) -> Iterator[Watch]:
    """The watch that a run reports to, closed at the end.

    Args:
        log: of the run; None in processes other than the main one, which report nothing.
        watch: shown beside it; None for `Bars`.
    """
    told = Silent() if log is None else LoggedWatch(log, watch or Bars())
    try:
        yield told
    finally:
        told.close()
