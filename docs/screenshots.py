"""Take the pictures of the README: `python docs/screenshots.py [URL]`, while the workbench runs.

Needs the `dev` extra and a Chromium; set FOCUS_CHROMIUM to its path if it is not found.
Pictures go to docs/images/.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

FOLDER = Path(__file__).parent / "images"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
SHOTS = {
    "explore": "sample=story&layer=12&view=repeats&token=2605",
    "explore-map": "sample=news&layer=12&view=map",
    "explore-scripts": "sample=multilingual&layer=12&view=sizes",
}
"""Name of a picture and the settings in the link it shows."""


def take(browser: Browser, url: str, name: str, query: str, theme: str) -> Path:
    """Open a link in a session of its own and save what it shows."""
    context = browser.new_context(
        viewport={"width": 1500, "height": 1560}, color_scheme="dark" if theme == "dark" else "light"
    )
    try:
        page = context.new_page()
        page.goto(f"{url}/?v=1&{query}")
        page.wait_for_selector(".cell", timeout=120_000)
        page.wait_for_selector("[data-testid=stPlotlyChart] .plot-container")
        page.wait_for_selector("[data-testid=stStatusWidget]", state="detached")
        page.wait_for_timeout(1500)  # charts and tables fade in
        path = FOLDER / f"{name}-{theme}.png"
        page.screenshot(path=path)
        return path
    finally:
        context.close()


def main() -> None:
    """Take every picture in both themes."""
    url = (sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8501").rstrip("/")
    chromium = os.environ.get("FOCUS_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if chromium is None:
        raise SystemExit("No Chromium found: install one, or set FOCUS_CHROMIUM to its path.")
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, headless=True, args=ARGUMENTS)
        for name, query in SHOTS.items():
            for theme in ("light", "dark"):
                print(take(browser, url, name, query, theme))
        browser.close()


if __name__ == "__main__":
    main()
