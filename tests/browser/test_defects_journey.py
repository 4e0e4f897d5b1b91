"""Defects that only a browser shows: Back, the card of the last lines, toolbars under fingers, the copied link."""

from __future__ import annotations

import re

import pytest
from hands import no_column_is_cut_off
from playwright.sync_api import expect
from test_journeys import TEXT, all_layers, show_groups, wait_for_text

from focus_core.shipped import DEFAULT

pytestmark = pytest.mark.browser

LAYER = re.compile(r"layer=5\b")


def layer_of(page) -> str | None:
    return page.get_by_role("slider", name="Layer").get_attribute("aria-valuetext")


def test_back_and_forward_follow_the_layer_and_the_page(open_page):
    page = open_page("source=sample&sample=news&layer=4")
    page.wait_for_selector(".cell")
    page.wait_for_url(re.compile("view="))
    page.get_by_role("slider", name="Layer").press("ArrowRight")
    page.get_by_text("In layer 5 routing").wait_for()
    page.wait_for_url(LAYER)
    page.go_back()
    page.get_by_text("In layer 4 routing").wait_for()
    page.go_forward()
    page.get_by_text("In layer 5 routing").wait_for()


def test_the_card_of_any_token_is_inside_the_window(open_page):
    page = open_page("source=sample&sample=multilingual&layer=4")
    all_layers(page)
    page.set_viewport_size({"width": 900, "height": 330})
    cells = page.locator(".cell")
    for number in (cells.count() - 1, cells.count() // 2):
        box = None
        for _ in range(20):  # once the words are tagged the strip is drawn anew, without a card
            cells.nth(number).evaluate("cell => cell.scrollIntoView({block: 'center'})")
            cells.nth(number).hover()
            box = page.locator(".tip").bounding_box()
            if box:
                break
        assert box and box["y"] >= 0 and box["y"] + box["height"] <= 330 and box["x"] >= 0


def test_the_link_is_copied(browser, app_url):
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(f"{app_url}/?v=1&routers=untrained&source=sample&sample=news&layer=7")
    page.wait_for_selector(".cell")
    page.get_by_role("button", name="Copy link").click()
    page.get_by_role("button", name="Link copied").wait_for()
    assert "layer=7" in page.evaluate("navigator.clipboard.readText()")
    context.close()


def test_on_a_touch_screen_no_toolbar_lies_on_a_title(browser, app_url):
    context = browser.new_context(viewport={"width": 800, "height": 1100}, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(f"{app_url}/?v=1&routers=untrained&source=sample&sample=news&layer=7&view=sizes")
    page.get_by_test_id("stPlotlyChart").locator(".gtitle").last.wait_for()
    titles = page.locator("[data-testid=stPlotlyChart] .gtitle").all()
    bars = page.locator(".modebar, [data-testid=stElementToolbar]").all()
    seen = [bar.bounding_box() for bar in bars if float(bar.evaluate("bar => getComputedStyle(bar).opacity")) > 0.05]
    for title in titles:
        one = title.bounding_box()
        for two in filter(None, seen):
            apart = one["x"] + one["width"] <= two["x"] or two["x"] + two["width"] <= one["x"]
            apart |= one["y"] + one["height"] <= two["y"] or two["y"] + two["height"] <= one["y"]
            assert apart, (title.text_content(), one, two)
    context.close()


def test_a_pasted_book_is_refused_soon_and_its_beginning_can_be_taken(open_page, model_folder):
    page = open_page(f"source=paste&layer=1&model={model_folder}")  # a tiny model, which takes 512 tokens
    page.get_by_role("button", name="Open them").click()
    box = page.get_by_role("textbox", name="Your text")
    box.wait_for()
    box.focus()
    book = ("The wind came over the grey water and shook the windows. " * 6000)[:300_000]
    page.keyboard.insert_text(book)
    page.get_by_role("button", name="Show groups").click()
    offer = page.get_by_role("button", name="Use the first 512 tokens")
    offer.click(timeout=30_000)
    offer.wait_for(state="hidden")
    wait_for_text(page, book[:512])
    expect(box).to_have_value(book[:512])
    assert page.get_by_test_id("stAlertContentError").count() == 0


def test_the_hint_is_gone_while_the_text_is_routed(open_page):
    page = open_page("source=paste&layer=4")
    page.get_by_text("You will see:").wait_for()
    show_groups(page, TEXT, whole=False)
    wait_for_text(page, TEXT)
    assert page.get_by_text("You will see:").count() == 0


@pytest.mark.parametrize(
    ("name", "query", "tables"),
    [
        ("explore", f"routers={DEFAULT}&source=sample&sample=news&layer=7&token=440", 1),  # the partners of a token
        ("quality", "", 1),  # every method
        ("layers", "source=sample&sample=news", 2),
        ("group", "source=sample&sample=news&layer=7&group=3&window=64", 6),
    ],
)
def test_no_column_of_these_tables_is_beyond_its_edge(open_page, name, query, tables):
    no_column_is_cut_off(open_page(query, name), tables)  # 1,500 pixels wide
