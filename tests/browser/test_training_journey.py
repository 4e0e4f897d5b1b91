"""The journey of a training: started in the browser, it survives a reload and a restart, stops, resumes, finishes."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from hands import fits_a_phone, no_column_is_cut_off
from playwright.sync_api import expect

from workbench.runs import jobs

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(1200)]  # long on a busy machine

ROOT = Path(__file__).parents[2]
SECRET = "zanzibar"
TEXT = f"The keeper of {SECRET} wound the clock, and the wind came over the grey water again. " * 60
LONG = 100_000


class App:
    """A workbench that can be killed and started again at the same address."""

    def __init__(self, log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url, self.log = f"http://127.0.0.1:{self.port}", log
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "streamlit", "run", "workbench/app.py", "--server.headless=true"]
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [*command, f"--server.port={self.port}"], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/_stcore/health", timeout=2):
                    return
            except OSError:
                assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()
                time.sleep(0.2)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


@pytest.fixture
def model(tiny_llama, tmp_path) -> str:
    """A folder with a tiny model that takes the samples whole; no run waits for its weights."""
    tiny_llama.model.config.max_position_embeddings = 8192
    for part in (tiny_llama.model, tiny_llama.tokenizer):
        part.save_pretrained(tmp_path / "tiny")
    return str(tmp_path / "tiny")


@pytest.fixture
def app(tmp_path, monkeypatch):
    monkeypatch.setenv("FOCUS_RUNS", str(tmp_path / "runs"))
    running = App(tmp_path / "app.txt")
    yield running
    running.kill()
    for job in jobs.jobs():
        if (process := jobs._process(job.folder)) is not None:
            process.kill()
    assert "Traceback" not in running.log.read_text(errors="replace")


def open_train(page, app: App, model: str) -> None:
    """The Train page at a link that names a model, which a workbench that has just started asks about."""
    page.goto(f"{app.url}/train?v=1&source=sample&sample=news&model={model}")
    page.get_by_role("button", name="Open them").click()


def fill(page, name: str, values: dict[str, str]) -> None:
    page.get_by_role("combobox", name="Start with").click()
    page.get_by_role("option", name="new, per layer").click()
    page.get_by_role("button", name="Start training").wait_for()
    page.get_by_role("textbox", name="Training text").fill(TEXT)
    page.get_by_role("textbox", name="Name of the run").fill(name)
    for label, value in values.items():
        box = page.get_by_test_id("stForm").get_by_role("spinbutton", name=label)
        box.fill(value)
        box.press("Tab")
    page.get_by_role("button", name="Start training").click()


def live_step(page) -> int:
    """The step that the page shows, once it shows one that it did not load with."""
    sentence = page.get_by_text(re.compile(r"Step \d+ of"))
    sentence.wait_for()
    return int(re.search(r"Step (\d+) of", sentence.inner_text())[1])


def grows(page, above: int = 0) -> None:
    first = above or live_step(page)
    for _ in range(600):
        if live_step(page) > first:
            return
        page.wait_for_timeout(200)
    raise AssertionError(f"the page stands at step {first}")


def ended(page) -> None:
    """The run on the page has finished, with its verdict; says why if it failed."""
    verdict = page.get_by_text(
        re.compile("Too little held-out text|held-out tokens, k = 1 keeps|ended with an error|without a message")
    )
    try:
        verdict.wait_for(timeout=240_000)
    finally:
        words = [f"{job.name}: {job.state}, {job.last_words}" for job in jobs.jobs()]
    assert "held-out" in verdict.inner_text(), words


def test_a_run_survives_reload_and_restart_stops_resumes_and_finishes(app, browser, model):
    context = browser.new_context(viewport={"width": 1400, "height": 1200})
    page = context.new_page()
    page.set_default_timeout(120_000)
    open_train(page, app, model)
    small = {"Block length, T": "32", "Window, w": "4", "Held-out blocks": "1", "Blocks per step, B": "1"}
    fill(page, "Long run", {**small, "Steps": str(LONG)})
    expect(page.get_by_text(re.compile(r"Step \d+ of"))).to_be_in_viewport()  # the form may be longer than the screen
    grows(page)
    page.reload()
    grows(page)

    app.kill()
    assert jobs.find("long-run").state == jobs.RUNNING
    app.start()
    open_train(page, app, model)
    grows(page)
    assert SECRET not in page.content() and SECRET not in page.url

    page.get_by_role("button", name="Stop").click()
    stopped = page.get_by_text(re.compile(rf"Stopped at step \d+ of {LONG}"))
    stopped.wait_for()
    at = int(re.search(r"step (\d+)", stopped.inner_text())[1])
    page.get_by_role("button", name="Resume").click()
    grows(page, above=at)
    page.get_by_role("button", name="Stop").click()
    stopped.wait_for()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete for good").click()

    page.get_by_text("No run yet").wait_for()
    assert jobs.jobs() == []
    fill(page, "Short run", {**small, "Steps": "2", "Groups, K": "2", "Groups per token, k": "1"})
    ended(page)
    fits_a_phone(page)  # and leaves the page wide
    no_column_is_cut_off(page, 1)
    page.get_by_role("button", name="Use these routers").click()
    page.wait_for_url(re.compile("routers=run%3Ashort-run"))
    page.get_by_role("link", name="Explore").click()
    page.wait_for_selector(".cell")
    page.get_by_text("short-run @").first.wait_for()
    context.close()
