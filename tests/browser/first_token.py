"""How long until the first coloured token, and what a browser loads before it: a warm server, a fresh browser.

    python tests/browser/first_token.py            # a workbench of its own; a quiet machine, about a minute
    python tests/browser/first_token.py --repeats 9

Not a test: seconds depend on the machine. Each visit has a browser session with an empty cache; the first one, which
warms the server, does not count. Printed are the median and the slowest visit, and the largest files.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from running import launched_browser, running_app
from timings import PATIENCE_MS, chromium_path


def visit(browser: Any, url: str) -> tuple[dict[str, float], list[tuple[str, int, float]]]:
    """Seconds to the marks of one visit, and the files that came before the first token: name, bytes, seconds."""
    context = browser.new_context(viewport={"width": 1500, "height": 1200})
    page, files, marks = context.new_page(), [], {}
    page.set_default_timeout(PATIENCE_MS)
    started = time.perf_counter()
    page.on("requestfinished", lambda request: files.append((request, time.perf_counter() - started)))
    page.goto(url, wait_until="commit")
    for name, mark in (("page", "[data-testid=stApp]"), ("title", "h2"), ("token", ".cell")):
        page.locator(mark).first.wait_for()
        marks[name] = time.perf_counter() - started
    before = [(request, at) for request, at in files if at <= marks["token"]]
    sizes = [(request.url.rpartition("/")[2][:60], request.sizes()["responseBodySize"], at) for request, at in before]
    context.close()
    return marks, sizes


def main() -> None:
    """Start a workbench, visit Explore, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--url", help="of a running workbench, to be measured in place of one of its own")
    given = parser.parse_args()
    log = Path(tempfile.mkdtemp()) / "log.txt"
    with launched_browser(chromium_path(parser)) as browser:
        if given.url:
            report(browser, given.url, given.repeats)
            return
        with running_app(log) as (url, _):
            report(browser, url, given.repeats)


def report(browser: Any, url: str, repeats: int) -> None:
    """Visit a workbench some times and print what was seen."""
    address = f"{url}/explore?v=1&source=sample&sample=news"
    visit(browser, address)
    visits = [visit(browser, address) for _ in range(repeats)]
    for name in visits[0][0]:
        seconds = [marks[name] for marks, _ in visits]
        print(f"{name}: {statistics.median(seconds):.2f} s, at most {max(seconds):.2f} s, of {repeats} visits")
    files = visits[-1][1]
    print(
        f"{len(files)} files with {sum(size for _, size, _ in files) / 1e6:.2f} MB before the first token; the largest:"
    )
    for name, size, at in sorted(files, key=lambda file: -file[1])[:12]:
        print(f"  {size / 1e3:8.0f} kB, at {at:.2f} s, {name}")


if __name__ == "__main__":
    main()
