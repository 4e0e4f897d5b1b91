"""Progress of long work: one callback type, and its display in a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, float], None]
"""Called with a short sentence on the current work and the share done so far, 0 to 1."""


def silent(message: str, fraction: float) -> None:
    """A progress callback that shows nothing."""


@contextmanager
def terminal_progress() -> Iterator[Progress]:
    """Show progress on stderr: a bar in a terminal, one line per step where the output is a file or a pipe.

    Yields:
        The callback to pass on.
    """
    if not sys.stderr.isatty():
        last = ""

        def line(message: str, fraction: float) -> None:
            nonlocal last
            if message != last:
                print(f"{message} ({fraction:.0%})", file=sys.stderr, flush=True)
            last = message

        yield line
        return

    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = None

        def update(message: str, fraction: float) -> None:
            nonlocal task
            if task is None:  # no bar for work that is already done
                task = bar.add_task(message, total=1.0)
            bar.update(task, description=message, completed=fraction)

        yield update
