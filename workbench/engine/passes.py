"""Work that is done once for all sessions, in a thread of its own, and told piece by piece to every page that waits.

A page that is left in the middle loses nothing: the work goes on, and the next page that asks for it joins in.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Part = TypeVar("Part")
Result = TypeVar("Result")


class SharedPass(Generic[Part, Result]):
    """One result, and the parts of it that are known while it is made. Failed work is tried again when next asked."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = False
        self._parts: list[Part] = []
        self._results: list[Result] = []
        self._error: BaseException | None = None

    def result(
        self, work: Callable[[Callable[[Part], None]], Result], on_part: Callable[[Part], None] | None = None
    ) -> Result:
        """The result; waits for it, and starts the work unless it is done or under way.

        Args:
            work: makes the result, and calls its argument with every part as soon as it is known.
            on_part: called in the caller's thread with every part, those known before this call included; it may raise
                to leave, as pages do that are left.

        Raises:
            Exception: whatever the work raised.
        """
        with self._changed:
            if not self._results and not self._running:
                self._running, self._parts, self._error = True, [], None
                threading.Thread(target=self._run, args=(work,), daemon=True).start()
        told = 0
        while True:
            with self._changed:
                while self._running and (on_part is None or len(self._parts) == told):
                    self._changed.wait()
                if not self._running:
                    break
                new = self._parts[told:]
            told += len(new)
            for part in new:
                if on_part is not None:
                    on_part(part)
        with self._changed:
            if self._results:
                return self._results[0]
            assert self._error is not None
            raise self._error

    def _run(self, work: Callable[[Callable[[Part], None]], Result]) -> None:
        try:
            found = [work(self._tell)]
            error = None
        except BaseException as failed:
            found, error = [], failed
        with self._changed:
            self._results, self._error, self._running, self._parts = found, error, False, []
            self._changed.notify_all()

    def _tell(self, part: Part) -> None:
        with self._changed:
            self._parts.append(part)
            self._changed.notify_all()
