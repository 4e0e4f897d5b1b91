"""Fixtures of the browser tests."""

from __future__ import annotations

import subprocess
from collections.abc import Generator, Iterator
from contextlib import suppress

import pytest
from running import launched_browser, running_app

from focus_core.models import default_model


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Generator[None, pytest.TestReport]:
    """Put what the page shows beside the error of a test that failed."""
    report = yield
    page = getattr(item, "funcargs", {}).get("first_page")
    if report.when == "call" and report.failed and page is not None:
        with suppress(Exception):  # the page may be what is broken
            state = page.locator("[data-test-script-state]").first.get_attribute("data-test-script-state", timeout=2000)
            shown = page.locator("body").inner_text(timeout=5000)
            report.sections.append(("What the page shows", f"{page.url}, script {state}\n{shown[:4000]}"))
    return report


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


WINDOW = {"width": 1500, "height": 1200}


@pytest.fixture(scope="module")
def first_page(browser) -> Iterator[object]:
    """A page that the tests of a file use one after the other: a new one would compile all scripts of the app."""
    context = browser.new_context(viewport=WINDOW)
    yield context.new_page()
    context.close()


@pytest.fixture
def open_page(browser, app_url, first_page):
    """Open a page of the app in a session of its own; returns a function of the query string and the page."""
    contexts = []
    free = [first_page]  # for the first reader of a test; others get a context of their own

    def open_one(query: str = "", name: str = ""):
        if free:
            page = free.pop()
        else:
            context = browser.new_context(viewport=WINDOW)
            contexts.append(context)
            page = context.new_page()
        page.set_default_timeout(60_000)
        routers = "" if "routers=" in query else "routers=untrained&"
        page.goto(f"{app_url}/{name}?v=1&{routers}{query}")
        return page

    yield open_one
    for context in contexts:
        context.close()
    if not free:  # nothing is left for the next test
        first_page.evaluate("localStorage.clear(); sessionStorage.clear()")
        first_page.context.clear_cookies()
        first_page.goto("about:blank")
        first_page.set_viewport_size(WINDOW)
        first_page.emulate_media(color_scheme="null", reduced_motion="null")
