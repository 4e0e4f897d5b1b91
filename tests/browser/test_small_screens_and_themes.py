"""What only a browser shows: badges and choices on narrow screens, charts after a change of theme, the list of runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import psutil
import pytest
from hands import PHONE, fits
from playwright.sync_api import expect
from running import running_app

from focus_core.models import default_model

WHOLE = """[...document.querySelectorAll('.stMarkdownBadge')].filter(badge => badge.checkVisibility({visibilityProperty: true}))
    .every(badge => badge.scrollWidth <= badge.clientWidth + 1)"""
"""Whether no badge that is seen is cut off."""

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def phone(browser, app_url):
    """Opens pages one after the other in one window, which reads the scripts of the app once."""
    context = browser.new_context(viewport=PHONE, color_scheme="dark")
    page = context.new_page()
    page.set_default_timeout(60_000)

    def opened(address: str, there: str = "h4"):
        settings = "&v=1&routers=untrained&source=sample&sample=news" if address else ""  # with some, "/" is Explore
        page.goto(f"{app_url}/{address}{settings}")
        page.locator(there).first.wait_for()
        page.locator("[data-test-script-state=notRunning]").wait_for(state="attached")
        return page

    yield opened
    context.close()


def test_badges_are_whole_on_a_narrow_screen(phone):
    page = phone("balance?layer=4")
    badges = page.locator(".stMarkdownBadge").filter(visible=True)  # of each there is an unseen one that is measured
    expect(badges).to_have_count(4, timeout=60_000)  # the last ones come when the text is routed
    expect(badges.filter(has_text="states of the")).to_be_visible()
    page.locator("[data-test-script-state=notRunning]").wait_for(state="attached")
    page.wait_for_function(WHOLE)  # they are fitted a moment after they are drawn
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_every_kind_of_search_is_on_a_narrow_screen(phone):
    page = phone("find?find_by=word&find=the")
    for name in ("Part of speech", "Word", "Pattern", "Entity", "Label of a group"):
        box = page.get_by_role("radio", name=name).or_(page.get_by_role("button", name=name, exact=True)).bounding_box()
        assert box and box["x"] >= 0 and box["x"] + box["width"] <= PHONE["width"], name


CHART, CELL = "[data-testid=stPlotlyChart] .main-svg", ".cell"
PAGES = {
    "explore": ("layer=4&token=300&window=64", CELL),
    "find": ("find_by=word&find=the", "[data-testid=stDataFrame]"),
    "layers": ("layer=4", CHART),
    "sparsity": ("layer=4", CHART),
    "compare": ("layer=4&differs=layer", CELL),
    "quality": ("", CHART),
    "speed": ("", CHART),
    "balance": ("layer=4", CHART),
    "linguistics": ("layer=4", CHART),
    "train": ("", "[data-testid=stForm]"),
    "report": ("layer=4", "iframe"),
}
"""What is seen of pages that no journey looks at on a phone, and what has to be there."""


@pytest.mark.parametrize("name", PAGES)
def test_pages_fit_a_narrow_screen(phone, name):
    """Group, Attention, Effects and Write are looked at by their journeys, with what is typed and measured there."""
    query, there = PAGES[name]
    fits(phone(f"{name}?{query}", there))


def test_home_fits_a_narrow_screen(phone):
    fits(phone("", ".passage"))


TITLES = "[data-testid=stPlotlyChart] :is(.gtitle, .xtitle, .ytitle)"
DRAWN = (
    "([titles, dark]) => [...document.querySelectorAll(titles)].every(title =>"
    " (Number(getComputedStyle(title).fill.match(/\\d+/)[0]) > 128) === dark)"
)
"""Whether charts are drawn for a dark page, or a light one."""


def test_charts_follow_the_theme_while_the_page_is_open(open_page):
    page = open_page("source=sample&sample=news&layer=4", "balance")  # in light, as every page at first
    page.locator(TITLES).nth(3).wait_for()
    page.locator("[data-test-script-state=notRunning]").wait_for(state="attached")
    for scheme in ("dark", "light"):  # and after a part of the page was drawn alone
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function(DRAWN, arg=[TITLES, scheme == "dark"])
        page.get_by_role("slider", name="Layer").press("ArrowRight")
        page.get_by_text(re.compile("^Layer [56] as routed")).wait_for()


def test_charts_have_the_theme_that_is_configured(browser, tmp_path):
    """Though the browser asks for the other one."""
    with running_app(tmp_path / "log.txt", "--theme.base=dark") as (url, _):
        page = browser.new_page(color_scheme="light")
        page.set_default_timeout(60_000)
        page.goto(f"{url}/speed?v=1")
        page.locator(TITLES).first.wait_for()
        page.wait_for_function(DRAWN, arg=[TITLES, True])
        page.close()


@pytest.mark.skipif(not default_model.is_cached(), reason="the default model has not been fetched")
def test_the_list_of_runs_is_never_stale(browser, tmp_path):
    """The run on show is asked to stop, and another than the one on show ends."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    about = {"num_groups": 8, "steps": 100, "objective": "lm", "texts": []}
    for name, pid in (("works", process.pid), ("rests", None)):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        job = {"format": 1, "arguments": ["train"], "about": about, "created": "2026-01-01T00:00:00+00:00"}
        (folder / "job.json").write_text(json.dumps(job))
        known = {"pid": pid, "born": psutil.Process(pid).create_time()} if pid else {"pid": 0, "born": 0}
        (folder / "process.json").write_text(json.dumps(known))
    (tmp_path / "runs" / "rests" / "outcome.json").write_text(json.dumps({"status": 130}))
    try:
        with running_app(tmp_path / "log.txt", FOCUS_RUNS=str(tmp_path / "runs")) as (url, _):
            page = browser.new_page()
            page.set_default_timeout(60_000)
            page.goto(f"{url}/train?v=1")
            box = page.get_by_role("combobox", name="Run")
            expect(box).to_have_value("works · running", timeout=60_000)
            place = tmp_path / "runs" / "works" / "process.json"
            known = place.read_text()
            place.write_text(json.dumps(json.loads(known) | {"stopping": True}))
            expect(box).to_have_value("works · stopping")
            place.write_text(known)
            expect(box).to_have_value("works · running")
            box.click()
            page.get_by_role("option", name="rests · stopped").click()
            page.get_by_text("Stopped at step 0 of 100").wait_for()
            (tmp_path / "runs" / "works" / "outcome.json").write_text(json.dumps({"status": 130}))
            process.kill()
            process.wait()
            page.wait_for_timeout(4000)
            box.click()
            expect(page.get_by_role("option", name="works · stopped")).to_be_visible()
            page.close()
    finally:
        process.kill()
