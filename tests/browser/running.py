"""A running workbench and a headless Chromium, for the tests and for soak.py."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def launched_browser(path: str) -> Iterator[Any]:
    """A Playwright browser on the Chromium at a path."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=ARGUMENTS)
        yield browser
        browser.close()


@contextmanager
def running_app(log: Path, *more: str, **variables: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A workbench on a free port: its address and its process. It must not have printed a traceback at the end.

    Args:
        log: where its output goes.
        more: options of `streamlit run`.
        variables: of its environment.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "streamlit", "run", "workbench/app.py"]
    options = ["--server.headless=true", f"--server.port={port}", *more]
    # Notes and runs of the tests, not the user's.
    environment = {"FOCUS_RUNS": str(log.parent / "runs"), **os.environ, **variables}
    with log.open("wb") as output:
        server = subprocess.Popen(command + options, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 180
        while True:
            try:
                with urllib.request.urlopen(f"{url}/_stcore/health", timeout=2):
                    break
            except OSError:
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"The app did not start:\n{log.read_text(errors='replace')}") from None
                time.sleep(0.2)
        yield url, server
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
    assert "Traceback" not in log.read_text(errors="replace"), log.read_text(errors="replace")
