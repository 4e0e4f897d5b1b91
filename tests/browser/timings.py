"""How long does the workbench take? First paint, first answer, a change of layer or share, and the way back to a page.

    python tests/browser/timings.py --out data/results/page-times.json

It starts a workbench of its own and takes about five minutes on a quiet machine. Prints a table; --out keeps a record.

Not a test: times depend on the machine. First paint is the page's title, an answer is the sentence on top with its
chart. A change runs from the key press to the redrawn page at rest. A page is cold when it opens with a text that
nothing has analysed; back is the way to it once everything is known.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from running import ROOT, launched_browser, running_app

from focus_core.results import record_run

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PAGES = {
    "Explore": "Layer",
    "Layers": "Layer",
    "Balance": "Layer",
    "Sparsity": "Layer",
    "Linguistics": "Layer",
    "Compare": "Layer of A",
    "Attention": "Layer",
    "Group": "Layer",
    "Report": "Layer in the preview",
}
"""Pages that analyse a text, and the slider of their layer."""
COLD = ("Linguistics", "Attention", "Compare")
"""Pages that do most work on a new text before they answer."""
READ = "Budget of distant pairs"
"""The slider of the share that narrow groups read, on pages where it acts."""
RECORDED = ("Speed", "Quality", "Train")
"""Pages that need none."""
PATIENCE_MS = 300_000
CHANGED = """before => {
    const main = document.querySelector('[data-testid=stMain]')
    const parts = [...main.querySelectorAll('[data-testid=stMarkdownContainer], iframe')]
        .filter(part => !part.closest('[data-testid=stSlider]'))
    const text = parts.map(part => part.srcdoc || part.innerText).join('|')
    if (before === null) return text
    return text !== before && document.querySelector('[data-test-script-state=notRunning]') !== null
        && document.querySelector('[data-stale=true]') === null
}"""
"""The page's sentences, if nothing is given; else whether they differ and nothing is being drawn any more."""


def seconds_of(work: Any) -> float:
    """Seconds that a call takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def session(browser: Any) -> Any:
    """A page in a browser session of its own."""
    page = browser.new_context(viewport={"width": 1500, "height": 1200}).new_page()
    page.set_default_timeout(PATIENCE_MS)
    return page


def answered(page: Any, name: str) -> None:
    """Wait for the sentence, the chart (the preview on the Report page) and the end of the run."""
    page.get_by_role("heading", level=4).first.wait_for()
    chart = "iframe" if name == "Report" else "[data-testid=stPlotlyChart] .main-svg"
    page.locator(chart).first.wait_for()


def at_rest(page: Any) -> None:
    """Wait until nothing runs."""
    quiet = 0
    while quiet < 5:
        page.wait_for_timeout(100)
        quiet = quiet + 1 if page.locator("[data-test-script-state=notRunning]").count() else 0


def change(page: Any, slider: str, key: str) -> float:
    """Seconds from a key press on a slider to the redrawn page."""
    at_rest(page)
    handle = page.get_by_role("slider", name=slider).first
    handle.focus()
    before = page.evaluate(CHANGED, None)

    def press() -> None:
        page.keyboard.press(key)
        page.wait_for_function(CHANGED, arg=before)

    return seconds_of(press)


def paste(page: Any, text: str, name: str = "Explore") -> None:
    """Analyse a text on a page, until the page answers and rests."""
    page.get_by_role("textbox", name="Your text").fill(text)
    page.get_by_role("button", name="Show groups").click()
    answered(page, name)
    at_rest(page)


def open_page(page: Any, name: str) -> float:
    """Go to a page by the sidebar; seconds until it answers."""

    def go() -> None:
        page.get_by_test_id("stSidebarNav").get_by_role("link", name=name, exact=True).click()
        page.get_by_role("heading", level=2, name=f"{name}:").wait_for()
        answered(page, name)

    return seconds_of(go)


def measure(browser: Any, url: str, texts: dict[int, str], repeats: int) -> dict[str, Any]:
    """Everything, against a running workbench that has had no session yet."""
    found: dict[str, Any] = {"first session": {}, "pages": {name: {} for name in (*PAGES, *RECORDED)}}
    query = "v=1&source=sample&sample=news"
    page = session(browser)
    started = time.perf_counter()
    page.goto(f"{url}/?{query}", wait_until="commit")
    page.get_by_test_id("stSidebarNav").wait_for()
    found["first session"]["sidebar"] = time.perf_counter() - started
    page.get_by_role("heading", level=2).wait_for()
    found["first session"]["title"] = time.perf_counter() - started
    answered(page, "Explore")
    found["first session"]["answer"] = time.perf_counter() - started
    page.context.close()

    for name, row in found["pages"].items():
        page = session(browser)
        started = time.perf_counter()
        page.goto(f"{url}/{name.lower() if name != 'Explore' else ''}?{query}", wait_until="commit")
        page.get_by_role("heading", level=2, name=f"{name}:").wait_for()
        row["first paint"] = time.perf_counter() - started
        at_rest(page)
        page.context.close()

    for tokens, text in texts.items():
        page = session(browser)
        page.goto(f"{url}/?v=1&source=paste")
        row = found["pages"]["Explore"]
        row[f"answer at {tokens}"] = seconds_of(lambda page=page, text=text: paste(page, text))
        for name, slider in PAGES.items():
            row = found["pages"][name]
            if name != "Explore":
                row[f"answer at {tokens}"] = open_page(page, name)
            keys = ["ArrowRight", "ArrowLeft"] * repeats
            row[f"layer at {tokens}"] = statistics.median(change(page, slider, key) for key in keys)
            if page.get_by_role("slider", name=READ).count():
                row[f"share at {tokens}"] = statistics.median(change(page, READ, key) for key in keys)
            errors = page.get_by_test_id("stAlertContentError").all_inner_texts()
            if errors:
                row["error"] = errors[0]
            print(f"{name} at {tokens} tokens: {row}", file=sys.stderr, flush=True)
        for name in PAGES:
            found["pages"][name][f"back at {tokens}"] = open_page(page, name)
        page.context.close()
        for number, name in enumerate(COLD):
            page = session(browser)
            page.goto(f"{url}/{name.lower()}?v=1&source=paste")
            changed = f"{number} {text}"[: len(text)]  # known to nobody
            cold = seconds_of(lambda page=page, changed=changed, name=name: paste(page, changed, name))
            found["pages"][name][f"cold at {tokens}"] = cold
            page.context.close()
    return found


def texts_of(lengths: list[int]) -> dict[int, str]:
    """The sample story, repeated and cut to some numbers of tokens of the default model."""
    from focus_core import load_model

    tokenizer = load_model().tokenizer
    story = (ROOT / "data" / "samples" / "story.txt").read_text(encoding="utf-8")
    ids = tokenizer(story * 3)["input_ids"]
    return {length: tokenizer.decode(ids[:length]) for length in lengths}


def table(found: dict[str, Any]) -> str:
    """The times of the pages in seconds, one line each."""
    columns = list(dict.fromkeys(name for row in found["pages"].values() for name in row))
    lines = ["| page | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name, row in found["pages"].items():
        cells = (row.get(column, "") for column in columns)
        lines.append(f"| {name} | " + " | ".join(f"{c:.2f}" if isinstance(c, float) else str(c) for c in cells) + " |")
    return "\n".join(lines)


def chromium_path(parser: argparse.ArgumentParser) -> str:
    """Where Chromium is; ends the program with a sentence if there is none."""
    chromium = os.environ.get("FOCUS_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if chromium is None:
        parser.error("no Chromium found: install one, or set FOCUS_CHROMIUM to its path")
    return chromium


def main() -> None:
    """Start a workbench, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[4400])
    parser.add_argument("--repeats", type=int, default=2, help="changes in each direction; the median counts")
    parser.add_argument("--out", type=Path, help="keep the times as a record")
    given = parser.parse_args()
    chromium = chromium_path(parser)
    texts = texts_of(given.tokens)
    log = Path(tempfile.mkdtemp()) / "log.txt"
    with launched_browser(chromium) as browser, running_app(log) as (url, _):
        found = measure(browser, url, texts, given.repeats)
    settings = {"tokens": given.tokens, "repeats": given.repeats, "unit": "seconds"}
    lengths = " ".join(map(str, given.tokens))
    command = f"python tests/browser/timings.py --tokens {lengths} --repeats {given.repeats}"
    record: dict[str, Any] = {"schema": "focus-page-times/1", "command": command}
    record |= {"settings": settings, **found}
    if given.out is not None:
        record_run(given.out, record)
    first = ", ".join(f"{name} {value:.1f} s" for name, value in found["first session"].items())
    print(f"First session of a server that has just started: {first}.\n\nSeconds:\n")
    print(table(found))


if __name__ == "__main__":
    main()
