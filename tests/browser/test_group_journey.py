"""A group from its link to its effect, in a real browser, by keyboard alone; its name survives a new session."""

from __future__ import annotations

import re

import pytest
from hands import fits_a_phone, tab_to
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


def test_a_group_is_named_found_again_and_measured(open_page):
    page = open_page("source=sample&sample=dialogue&layer=4&group=2", "group")
    heading = page.get_by_role("heading", level=4)
    page.get_by_role("heading", name="Group 2 of layer 4").wait_for()
    for part in ("Its tokens", "In context", "What reads it", "What it reads", "In the layers beside it"):
        page.get_by_text(part, exact=True).wait_for()
    main = page.get_by_test_id("stMain")
    assert re.search(r"It holds \d+ tokens, [0-9.]+% of the text.*an even split is 12\.5%", main.inner_text())
    assert "layer=4" in page.url and "group=2" in page.url
    name = page.get_by_role("textbox", name="Your name of it")
    assert name.input_value() == ""
    page.locator("[data-test-script-state=notRunning]").wait_for(state="attached")
    tab_to(page, page.get_by_role("slider", name="Layer"))
    tab_to(page, name)
    page.keyboard.type("my ships")
    page.keyboard.press("Tab")
    page.get_by_role("heading", name="my ships").wait_for()
    assert heading.inner_text() == "Group 2 of layer 4: my ships"
    page.reload()
    page.get_by_role("heading", name="my ships").wait_for()
    assert heading.inner_text() == "Group 2 of layer 4: my ships"
    expect(name).to_have_value("my ships")
    fits_a_phone(page)
    tab_to(page, name)
    page.keyboard.press("Control+a")
    page.keyboard.press("Delete")
    page.keyboard.press("Tab")
    page.get_by_role("heading", name="my ships").wait_for(state="detached")
    assert heading.inner_text().startswith("Group 2 of layer 4")


@pytest.mark.slow
def test_an_effect_is_measured_in_the_browser(open_page):
    # Near the end: few layers run again for each set.
    page = open_page("source=sample&sample=code&layer=28&group=2&window=64", "effects")
    page.get_by_text(re.compile(r"It runs the first \d+ of the [\d,]+ tokens")).wait_for()
    page.locator("[data-test-script-state=notRunning]").wait_for(state="attached")
    chosen = page.get_by_test_id("stMultiSelect")
    expect(chosen).to_contain_text(re.compile(r"2: .+ \(\d+ tokens\)"))  # the group is still chosen when it has a label
    draws = page.get_by_role("slider", name="Random sets, at most")
    tab_to(page, draws)
    page.keyboard.press("Home")
    page.get_by_text("With 19 random sets and 1 group").wait_for()
    run = page.get_by_role("button", name="Run", exact=True)
    tab_to(page, run)
    page.keyboard.press("Enter")
    page.locator("[data-testid=stPlotlyChart]").first.wait_for(timeout=300_000)
    page.get_by_text("Removing group 2 of layer 28, head 0 changes the model's predictions").wait_for()
    assert "group=2" in page.url
    assert page.get_by_test_id("stDataFrame").count() >= 1
    assert "the p-values are about this text" in page.get_by_test_id("stMain").inner_text()
    expect(run).to_be_disabled()
    fits_a_phone(page)


def test_attention_is_walked_by_keyboard_and_fits_a_phone(open_page):
    page = open_page("source=sample&sample=dialogue&layer=4&token=300&window=64", "attention")
    page.get_by_role("heading", level=4).first.wait_for()
    page.locator("[data-test-script-state=notRunning]").wait_for(state="attached")
    tab_to(page, page.get_by_role("slider", name="Layer"))
    page.keyboard.press("ArrowRight")
    page.wait_for_url(re.compile(r"layer=5\b"))
    page.locator("[data-test-script-state=notRunning]").wait_for(state="attached")
    cell = page.locator(".cell.selected")
    tab_to(page, cell)
    cells = page.locator(".cell").evaluate_all("cells => cells.map(cell => cell.dataset.tokens)")
    after = cells[cells.index(cell.get_attribute("data-tokens")) + 1]
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(cell).to_have_attribute("data-tokens", after)
    expect(page.get_by_role("spinbutton", name="Token", exact=True)).to_have_value(after.split()[-1])
    page.wait_for_url(re.compile(rf"token={after.split()[-1]}\b"))
    fits_a_phone(page)
