"""Many sessions at once: do they ever see an error, or each other's text? Does memory stay bounded?

    python tests/browser/soak.py --sessions 10 --minutes 5     # against a workbench of its own

Prints one JSON object. `test_sessions.py` runs a short form of it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from running import launched_browser, running_app

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PAGES = ("Layers", "Balance", "Explore")
"""Where every session goes in turn after it has seen its own text."""

PATIENCE_S = 180


def soak(browser: Any, url: str, *, sessions: int, seconds: float, memory: Callable[[], int]) -> dict[str, Any]:
    """Let every session paste text after text and look at pages, all at the same time.

    Args:
        browser: a Playwright browser.
        url: of a running workbench.
        sessions: how many, each a browser context of its own.
        seconds: no new round starts after this time; at least one round runs.
        memory: resident bytes of the server.

    Returns:
        Rounds, texts analysed, errors and foreign words seen (lists, to be empty), seconds of the slowest text,
        and memory after every round.
    """
    contexts = [browser.new_context(viewport={"width": 1300, "height": 1000}) for _ in range(sessions)]
    pages = [context.new_page() for context in contexts]
    report: dict[str, Any] = {"rounds": 0, "texts": 0, "errors": [], "foreign": [], "slowest_s": 0.0, "memory": []}
    try:
        for page in pages:
            page.set_default_timeout(180_000)
            page.goto(f"{url}/?v=1&source=paste&routers=untrained")
            page.locator("textarea").wait_for()
        started = time.monotonic()
        while report["rounds"] == 0 or time.monotonic() - started < seconds:
            _round(pages, report)
            report["memory"].append(memory())
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


def resident_bytes(process: int) -> int:
    """Memory that a process holds now, 0 where the system does not say (not Linux)."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


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
    parser.add_argument("--minutes", type=float, default=5)
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
        )
    print(json.dumps({"sessions": given.sessions, **report}, indent=2))
    sys.exit(bool(report["errors"] or report["foreign"]))


if __name__ == "__main__":
    main()
