"""Take the pictures of the README: `python tools/screenshots.py`, or with the names of some of them.

Starts a workbench of its own, with a short training for the Train page, and takes every picture in both themes when
its page has come to rest. Needs the `dev` extra and a Chromium; set FOCUS_CHROMIUM to its path if it is not found.
Pictures go to docs/images/.
"""

from __future__ import annotations

import io
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "images"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
WIDTH, HEIGHTS = 1500, (800, 1900)
PATIENCE_MS = 600_000
RUN = "guides"
BUSY = ("[data-testid=stSpinner]", "[data-testid=stProgress]", "[data-testid=stSkeleton]", "[data-stale=true]")
"""What is on a page while something is computed, loaded or replaced."""


@dataclass(frozen=True)
class Shot:
    """A picture.

    Attributes:
        page: the page's address.
        query: the settings in the link it shows.
        ready: what has to be there.
        height: the most pixels of it that are shown.
        press: name of a button to press first, unless what it starts has been done.
    """

    page: str
    query: str = ""
    ready: str = "[data-testid=stPlotlyChart] .main-svg"
    height: int = HEIGHTS[1]
    press: str = ""


SHOTS = {
    "home": Shot("", "", "[data-testid=stMain] .passage", press="With routing"),
    "explore": Shot("explore", "sample=story&layer=17&view=repeats&token=2605", ".cell"),
    "explore-map": Shot("explore", "sample=news&layer=12&view=map", ".cell"),
    "explore-scripts": Shot("explore", "sample=multilingual&layer=12&view=sizes", ".cell"),
    "layers": Shot("layers", "sample=story&layer=12&other=13"),
    "balance": Shot("balance", "sample=story&layer=12"),
    "sparsity": Shot("sparsity", "sample=story&layer=17&computed=mask"),
    "sparsity-mass": Shot("sparsity", "sample=story&layer=12&computed=mass"),
    "linguistics": Shot("linguistics", "sample=story&layer=12"),
    "group": Shot("group", "sample=story&layer=15&head=1&group=6"),
    "find": Shot("find", "sample=story&find_by=entity&find_entity=PERSON"),
    "attention": Shot("attention", "sample=story&layer=17&token=2605"),
    "effects": Shot("effects", "sample=story&layer=27", press="Run"),
    "speed": Shot("speed"),
    "quality": Shot("quality"),
    "write": Shot("write", "", press="Write"),
    "train": Shot("train", f"run={RUN}"),
    "compare": Shot("compare", "sample=story&layer=12&differs=routers&b_routers=untrained", ".cell"),
    "report": Shot("report", "sample=story&layer=12", "iframe", 1500),
}


def take(browser: Browser, url: str, shot: Shot, name: str, theme: str) -> Path:
    """Open a link in a session of its own and save what it shows, in 256 colours."""
    context = browser.new_context(
        viewport={"width": WIDTH, "height": HEIGHTS[0]},
        color_scheme="dark" if theme == "dark" else "light",
        reduced_motion="reduce",  # no figure between two states
    )
    try:
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.goto(f"{url}/{shot.page}?v=1&{shot.query}" if shot.page else url)
        if shot.press:
            button = page.get_by_role("button", name=shot.press, exact=True)
            button.wait_for()
            at_rest(page)
            if button.is_enabled():
                button.click()
                page.mouse.move(WIDTH - 1, HEIGHTS[0] - 1)  # no hint over the page
        page.locator(shot.ready).first.wait_for()
        at_rest(page)
        content = page.evaluate("document.querySelector('[data-testid=stMainBlockContainer]').scrollHeight")
        page.set_viewport_size({"width": WIDTH, "height": min(max(HEIGHTS[0], content), shot.height)})
        at_rest(page)
        complaints = page.locator("[data-testid=stException], [data-testid=stAlertContentError]").all_inner_texts()
        if complaints:
            raise SystemExit(f"{name}: {complaints[0]}")
        path = FOLDER / f"{name}-{theme}.png"
        image = Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, 2)
        image.save(path, optimize=True)
        return path
    finally:
        context.close()


def at_rest(page: Page) -> None:
    """Wait until for two seconds nothing runs, spins, or fades."""
    quiet_since = time.monotonic()
    started = quiet_since
    while time.monotonic() - quiet_since < 2:
        busy = page.locator(", ".join(BUSY)).count()
        if busy or not page.locator("[data-test-script-state=notRunning]").count():
            quiet_since = time.monotonic()
        if time.monotonic() - started > PATIENCE_MS / 1000:
            raise SystemExit(f"{page.url} never comes to rest.")
        page.wait_for_timeout(200)


def train() -> None:
    """A short run on the guides, so that the Train page has something to show; with blocks enough for an interval."""
    sys.path.insert(0, str(ROOT))
    from workbench.runs import jobs
    from workbench.views.train.tables import TrainRequest, text_record

    texts = [(path.name, path.read_bytes()) for path in sorted((ROOT / "docs").glob("*.md"))]
    request = TrainRequest("default", 8, 2, 32, 4, 30, 128, 2, 0.01, "mass", 0, eval_blocks=20)
    folder = jobs.new_folder(RUN)
    data = jobs.store_texts(folder, texts)
    records = [text_record(name, text) for name, text in texts]
    job = jobs.start(folder, request.arguments(data, folder), request.about(records))
    while job is not None and job.is_alive:
        time.sleep(1)
        job = jobs.find(RUN)
    if job is None or job.state != jobs.FINISHED:
        raise SystemExit(f"The training for the picture failed: {'' if job is None else job.last_words}")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for_server(server: subprocess.Popen[bytes], url: str) -> None:
    """Wait until the workbench answers."""
    while True:
        try:
            with urllib.request.urlopen(f"{url}/_stcore/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            if server.poll() is not None:
                raise SystemExit("The workbench did not start.") from None
            time.sleep(0.3)


def main() -> None:
    """Take every picture, or those that are named, in both themes."""
    wanted = sys.argv[1:] or list(SHOTS)
    unknown = [name for name in wanted if name not in SHOTS]
    if unknown:
        raise SystemExit(f"There is no picture {unknown[0]!r}: choose from {', '.join(SHOTS)}.")
    chromium = os.environ.get("FOCUS_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if chromium is None:
        raise SystemExit("No Chromium found: install one, or set FOCUS_CHROMIUM to its path.")
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as runs:
        os.environ["FOCUS_RUNS"] = runs  # the pictures show no runs of yours
        if "train" in wanted:
            print("training for the Train page …", flush=True)
            train()
        command = [sys.executable, "-m", "streamlit", "run", "workbench/app.py", "--server.headless=true"]
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        server = subprocess.Popen([*command, f"--server.port={port}"], cwd=ROOT, stdout=subprocess.DEVNULL)
        try:
            wait_for_server(server, url)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=chromium, headless=True, args=ARGUMENTS)
                for name in wanted:
                    for theme in ("light", "dark"):
                        print(take(browser, url, SHOTS[name], name, theme).relative_to(ROOT), flush=True)
                browser.close()
        finally:
            server.terminate()
            server.wait(20)


if __name__ == "__main__":
    main()
