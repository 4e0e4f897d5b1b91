"""A group from its link to its effect, in a real browser; its name survives a new session."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.browser


def test_a_group_is_named_found_again_and_measured(open_page, app_url):
    page = open_page("source=sample&sample=dialogue&layer=4")
    page.wait_for_selector(".cell")
    page.goto(f"{app_url}/group?v=1&routers=untrained&source=sample&sample=dialogue&layer=4&group=2")
    page.get_by_role("heading", name="Group 2 of layer 4").wait_for()
    page.get_by_role("textbox", name="Your name of it").fill("my ships")
    page.keyboard.press("Tab")
    page.get_by_role("heading", name="my ships").wait_for()
    page.reload()
    page.get_by_role("heading", name="my ships").wait_for()
    page.get_by_role("textbox", name="Your name of it").fill("")
    page.keyboard.press("Tab")


def test_an_effect_is_measured_in_the_browser(open_page, app_url):
    page = open_page("source=sample&sample=dialogue&layer=20")
    page.wait_for_selector(".cell")
    page.goto(f"{app_url}/effects?v=1&routers=untrained&source=sample&sample=dialogue&layer=20&group=2&window=64")
    page.get_by_role("button", name="Run", exact=True).click()
    page.locator("[data-testid=stPlotlyChart]").first.wait_for(timeout=300_000)
    page.get_by_text("of layer 20, head 0 changes the model's predictions").wait_for()
