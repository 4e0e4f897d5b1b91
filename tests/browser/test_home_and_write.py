"""The first minute: Home with its figure and tour, and the page on which both models write."""

from __future__ import annotations

import re

import pytest
from hands import fits_a_phone, tab_to

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture
def page(browser, app_url):
    context = browser.new_context(viewport={"width": 1500, "height": 1200}, reduced_motion="reduce")
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.goto(app_url)
    yield page
    context.close()


def test_home_shows_a_measured_example_and_the_tour_is_left_and_resumed(page):
    page.get_by_text("Focus lets a language model read a chosen part").wait_for()
    passage = page.locator(".passage")
    passage.locator("span.asks").first.wait_for()
    assert passage.evaluate("passage => passage.scrollHeight <= passage.clientHeight + 1")  # whole, start and end
    assert page.locator(".figure.routed").count() == 0  # without motion it waits for a press
    page.get_by_role("button", name="With routing").click()
    page.locator(".figure.routed").wait_for()
    page.get_by_text("With routing it reads").wait_for()
    page.get_by_role("heading", name="Claims that do not hold").wait_for()
    page.get_by_role("button", name="Start the tour").click()
    page.get_by_text("1 of 4: See the groups.").wait_for()
    page.locator(".cell").first.wait_for()
    page.wait_for_url(re.compile("/explore"))
    page.get_by_role("button", name="Leave", exact=True).click()
    page.get_by_text("1 of 4: See the groups.").wait_for(state="detached")
    page.get_by_test_id("stSidebarNav").get_by_role("link", name="Home", exact=True).click()
    page.get_by_role("button", name="Resume at step 1").click()
    page.get_by_text("1 of 4: See the groups.").wait_for()


def test_evidence_is_one_click_away(page):
    page.get_by_text("Every figure on this page is read from a record").wait_for()
    # By its address and by the keyboard: a slow machine still draws the page, and a click would go to another link.
    page.locator("a[href*=quality]").filter(has_text="Evidence").first.press("Enter")
    page.wait_for_url(re.compile("/quality"))
    page.get_by_text(re.compile("At 2,048 tokens")).first.wait_for()


def test_both_models_write_by_keyboard_alone_and_a_token_shows_the_likeliest_of_each(page):
    page.get_by_test_id("stSidebarNav").get_by_role("link", name="Write", exact=True).click()
    before = page.get_by_role("combobox", name="Document before the prompt")
    tab_to(page, before)
    page.keyboard.press("ArrowDown")  # opens the list at the document chosen now, the long story
    page.keyboard.type("dialogue")
    page.keyboard.press("Enter")
    tab_to(page, page.get_by_role("spinbutton", name="New tokens"))
    page.keyboard.press("Control+a")
    page.keyboard.type("5")
    tab_to(page, page.get_by_role("button", name="Write", exact=True))
    page.keyboard.press("Enter")
    page.get_by_role("heading", level=4).filter(has_text="token").first.wait_for()
    texts = page.locator(".written")
    texts.first.locator("button").nth(4).wait_for()
    assert texts.count() == 2 and texts.first.locator("button").count() == 5
    tab_to(page, texts.first.locator("button").first)
    for key in ("ArrowRight", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    page.get_by_text("The likeliest at token 3").wait_for()
    fits_a_phone(page)
    page.get_by_role("spinbutton", name="New tokens").fill("400")
    page.get_by_role("button", name="Write", exact=True).click()
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("heading", name="Stopped: this is what was written.").wait_for()
