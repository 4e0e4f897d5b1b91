"""A running workbench and a headless Chromium."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from focus_core import default_model

ROOT = Path(__file__).parents[2]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def browser(tmp_path_factory) -> Iterator[object]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    path = os.environ.get("FOCUS_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("no Chromium found: install one, or set FOCUS_CHROMIUM to its path")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, headless=True, args=ARGUMENTS)
        yield running
        running.close()


@pytest.fixture(scope="session")
def app_url(tmp_path_factory) -> Iterator[str]:
    if not default_model.is_cached():
        pytest.skip("the default model has not been fetched")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("app") / "log.txt"
    command = [sys.executable, "-m", "streamlit", "run", "workbench/app.py"]
    options = ["--server.headless=true", f"--server.port={port}"]
    with log.open("wb") as output:
        server = subprocess.Popen(command + options, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"{url}/_stcore/health", timeout=2):
                    break
            except OSError:
                if server.poll() is not None or time.monotonic() > deadline:
                    pytest.fail(f"The app did not start:\n{log.read_text(errors='replace')}")
                time.sleep(0.2)
        yield url
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
    assert "Traceback" not in log.read_text(errors="replace")


@pytest.fixture
def open_page(browser, app_url):
    """Open the app in a session of its own; returns a function of the query string."""
    contexts = []

    def open_one(query: str = ""):
        context = browser.new_context(viewport={"width": 1500, "height": 1200})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.goto(f"{app_url}/?v=1&routers=untrained&{query}")
        return page

    yield open_one
    for context in contexts:
        context.close()
