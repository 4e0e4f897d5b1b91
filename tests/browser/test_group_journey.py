"""A group from its link to its effect, in a real browser; its name survives a new session."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


def test_a_group_is_named_found_again_and_measured(open_page, app_url):
    page = open_page("source=sample&sample=dialogue&layer=4")
    page.wait_for_selector(".cell")
    page.goto(f"{app_url}/group?v=1&routers=untrained&source=sample&sample=dialogue&layer=4&group=2")
    heading = page.get_by_role("heading", level=4)
    page.get_by_role("heading", name="Group 2 of layer 4").wait_for()
    for part in ("Its tokens", "In context", "What reads it", "What it reads", "In the layers beside it"):
        page.get_by_text(part, exact=True).wait_for()
    main = page.get_by_test_id("stMain")
    assert re.search(r"It holds \d+ tokens, [0-9.]+% of the text.*an even split is 12\.5%", main.inner_text())
    assert "layer=4" in page.url and "group=2" in page.url
    assert page.get_by_role("textbox", name="Your name of it").input_value() == ""
    page.get_by_role("textbox", name="Your name of it").fill("my ships")
    page.keyboard.press("Tab")
    page.get_by_role("heading", name="my ships").wait_for()
    assert heading.inner_text() == "Group 2 of layer 4: my ships"
    page.reload()
    page.get_by_role("heading", name="my ships").wait_for()
    assert heading.inner_text() == "Group 2 of layer 4: my ships"
    expect(page.get_by_role("textbox", name="Your name of it")).to_have_value("my ships")
    page.get_by_role("textbox", name="Your name of it").fill("")
    page.keyboard.press("Tab")
    page.get_by_role("heading", name="my ships").wait_for(state="detached")
    assert heading.inner_text().startswith("Group 2 of layer 4")


def test_an_effect_is_measured_in_the_browser(open_page, app_url):
    page = open_page("source=sample&sample=dialogue&layer=20")
    page.wait_for_selector(".cell")
    page.goto(f"{app_url}/effects?v=1&routers=untrained&source=sample&sample=dialogue&layer=20&group=2&window=64")
    page.get_by_role("button", name="Run", exact=True).click()
    page.locator("[data-testid=stPlotlyChart]").first.wait_for(timeout=300_000)
    page.get_by_text("of layer 20, head 0 changes the model's predictions").wait_for()
    assert "group=2" in page.url
    assert page.get_by_test_id("stDataFrame").count() >= 1
    assert "the p-values are about this text" in page.get_by_test_id("stMain").inner_text()
    assert page.get_by_role("button", name="Run", exact=True).is_disabled()
