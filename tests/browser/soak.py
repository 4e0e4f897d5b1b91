"""Many sessions at once: do they ever see an error, or each other's text? Does memory stay bounded?

    python tests/browser/soak.py --sessions 10 --minutes 10 --out data/results/soak.json

It starts a workbench of its own, with the default routers. Prints one JSON object, which --out keeps as a record.
`test_sessions.py` runs a short form of it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from running import launched_browser, running_app
from scipy import stats

from focus_core.results import record_run
from focus_core.shipped import DEFAULT

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PAGES = ("Layers", "Balance", "Explore")
"""Where every session goes in turn after it has seen its own text."""

PATIENCE_S = 600
SAMPLE_S = 5.0
WARM_S = 180.0
"""Memory is said to be flat, or not, after this time: caches have filled by then."""


def soak(
    browser: Any, url: str, *, sessions: int, seconds: float, memory: Callable[[], int], routers: str = ""
) -> dict[str, Any]:
    """Let every session paste text after text and look at pages, all at the same time.

    Args:
        browser: a Playwright browser.
        url: of a running workbench.
        sessions: how many, each a browser context of its own.
        seconds: no new round starts after this time; at least one round runs.
        memory: resident bytes of the server.
        routers: their name in links; the default ones without a name.

    Returns:
        Rounds, texts analysed, errors and foreign words seen (lists, to be empty), seconds of the slowest text, memory
        over time as pairs of seconds and bytes, and the same after every round, when no session waits for anything.
    """
    contexts = [browser.new_context(viewport={"width": 1300, "height": 1000}) for _ in range(sessions)]
    pages = [context.new_page() for context in contexts]
    report: dict[str, Any] = {"rounds": 0, "texts": 0, "errors": [], "foreign": [], "slowest_s": 0.0}
    report |= {"memory": [], "memory_at_rest": []}
    try:
        for page in pages:
            page.set_default_timeout(PATIENCE_S * 1000)
            page.goto(f"{url}/?v=1&source=paste" + (f"&routers={routers}" if routers else ""))
            page.locator("textarea").wait_for()
        started = time.monotonic()
        with sampled(memory, report["memory"]):
            while report["rounds"] == 0 or time.monotonic() - started < seconds:
                _round(pages, report)
                report["memory_at_rest"].append((round(time.monotonic() - started, 1), memory()))
    finally:
        for context in contexts:
            context.close()
    return report


def _round(pages: list[Any], report: dict[str, Any]) -> None:
    number = report["rounds"]
    asked = time.monotonic()
    for session, page in enumerate(pages):
        page.locator("textarea").fill(_text(session, number))
        page.get_by_role("button", name="Show groups").click()
    for session, page in enumerate(pages):
        while _word(session, number) not in _drawn(page):
            if time.monotonic() - asked > PATIENCE_S:
                raise TimeoutError(f"Session {session} has waited {PATIENCE_S} s for its text.")
            page.wait_for_timeout(100)
        report["slowest_s"] = max(report["slowest_s"], round(time.monotonic() - asked, 1))
        report["texts"] += 1
        shown = _drawn(page) + page.inner_text("body")
        report["foreign"] += [
            _word(other, number) for other in range(len(pages)) if other != session and _word(other, number) in shown
        ]
    for name in PAGES:
        for page in pages:
            page.get_by_test_id("stSidebarNav").get_by_role("link", name=name).click()
        for session, page in enumerate(pages):
            page.get_by_role("heading", level=2, name=name).wait_for()
            page.get_by_text("pasted text").first.wait_for()  # the badge: the analysis is there
            for box in page.get_by_test_id("stAlertContentError").all():
                report["errors"].append(f"session {session}, {name}: {box.inner_text()}")
    report["rounds"] += 1


def _drawn(page: Any) -> str:
    """The text in the token strip."""
    return page.locator(".cell").evaluate_all("cells => cells.map(cell => cell.dataset.text).join('')")


@contextmanager
def sampled(memory: Callable[[], int], into: list[tuple[float, int]]) -> Iterator[None]:
    """Append seconds and bytes to a list, every `SAMPLE_S` seconds, at the start and at the end."""
    started, done = time.monotonic(), threading.Event()

    def sample() -> None:
        into.append((round(time.monotonic() - started, 1), memory()))

    def watch() -> None:
        while not done.wait(SAMPLE_S):
            sample()

    sample()
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        sample()


def steadiness(samples: list[tuple[float, int]], after: float = WARM_S) -> dict[str, float] | None:
    """How memory changes after some seconds; None if there are fewer than eight samples of it.

    Args:
        samples: seconds and bytes, the memory at rest of each round.
        after: where it begins.

    Returns:
        `low_mb`, `high_mb`, the slope of the least-squares line `mb_per_minute`, and its 95% interval (Student's t),
        `from_mb_per_minute` to `to_mb_per_minute`.
    """
    late = [(seconds / 60, size / 1e6) for seconds, size in samples if seconds >= after]
    if len(late) < 8:
        return None
    minutes, sizes = zip(*late, strict=True)
    line = stats.linregress(minutes, sizes)
    margin = stats.t.ppf(0.975, len(late) - 2) * line.stderr
    found = {
        "low_mb": min(sizes),
        "high_mb": max(sizes),
        "mb_per_minute": line.slope,
        "from_mb_per_minute": line.slope - margin,
        "to_mb_per_minute": line.slope + margin,
    }
    return {name: round(float(value), 2) for name, value in found.items()}


def resident_bytes(process: int) -> int:
    """Memory that a process holds now."""
    return int(psutil.Process(process).memory_info().rss)


def _word(session: int, number: int) -> str:
    """A word that only one session's text has."""
    letters = "abcdefghij"
    return "Qu" + "".join(letters[int(digit)] for digit in f"{session:02}{number:03}") + "zx"


def _text(session: int, number: int) -> str:
    sentence = f"The {_word(session, number)} went down to the river and came back with stories of the sea. "
    return f"{_word(session, number)}. " + sentence * (8 + session)


def main() -> None:
    """Start a workbench, soak it, print the report; status 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--routers", default="", help="name of the routers; the default ones without it")
    parser.add_argument("--out", type=Path, help="keep the report as a record")
    given = parser.parse_args()
    chromium = os.environ.get("FOCUS_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if chromium is None:
        parser.error("no Chromium found: install one, or set FOCUS_CHROMIUM to its path")
    folder = Path(tempfile.mkdtemp())
    with launched_browser(chromium) as browser, running_app(folder / "log.txt") as (url, server):
        report = soak(
            browser,
            url,
            sessions=given.sessions,
            seconds=given.minutes * 60,
            memory=lambda: resident_bytes(server.pid),
            routers=given.routers,
        )
    settings = {"sessions": given.sessions, "minutes": given.minutes, "routers": given.routers or DEFAULT}
    command = f"python tests/browser/soak.py --sessions {given.sessions} --minutes {given.minutes:g}"
    record = {"schema": "focus-soak/1", "command": command + (f" --routers {given.routers}" if given.routers else "")}
    record |= {"settings": settings, **report, "after_third_minute": steadiness(report["memory_at_rest"])}
    if given.out is not None:
        record = record_run(given.out, record)
    print(json.dumps(record, indent=2))
    sys.exit(bool(report["errors"] or report["foreign"]))


if __name__ == "__main__":
    main()
