"""Fixtures of the browser tests."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from running import launched_browser, running_app

from focus_core.models import default_model


@pytest.fixture(scope="session")
def browser(chromium) -> Iterator[object]:
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    playwright.expect.set_options(timeout=60_000)  # as patient as the pages of the tests
    with launched_browser(chromium) as running:
        yield running


@pytest.fixture(scope="session")
def app(tmp_path_factory) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Address and process of a running workbench."""
    if not default_model.is_cached():
        pytest.skip("the default model has not been fetched")
    with running_app(tmp_path_factory.mktemp("app") / "log.txt") as running:
        yield running


@pytest.fixture(scope="session")
def app_url(app) -> str:
    return app[0]


@pytest.fixture
def open_page(browser, app_url):
    """Open a page of the app in a session of its own; returns a function of the query string and the page."""
    contexts = []

    def open_one(query: str = "", name: str = ""):
        context = browser.new_context(viewport={"width": 1500, "height": 1200})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        routers = "" if "routers=" in query else "routers=untrained&"
        page.goto(f"{app_url}/{name}?v=1&{routers}{query}")
        return page

    yield open_one
    for context in contexts:
        context.close()
