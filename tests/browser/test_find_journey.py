"""From a word to the page of the group that holds it, in a real browser."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


def test_a_word_leads_to_a_group_and_back(open_page):
    page = open_page("source=sample&sample=dialogue&find_by=word&find=the", "find")
    answer = page.get_by_role("heading", level=4)
    answer.wait_for()
    assert re.search(r"“the”: \d+% are in layer \d+, group \d, [0-9.]+ times as many as by chance", answer.inner_text())
    page.get_by_text("The matches in context").wait_for()
    expect(page.get_by_text("of the 240 groups of all layers hold significantly")).to_have_count(1)
    links = page.get_by_test_id("stMain").get_by_role("link", name=re.compile(r"^.*Layer \d+, group \d+"))
    expect(links).to_have_count(10)
    page.locator("[data-test-script-state=notRunning]").wait_for(state="attached")
    layer, group = re.findall(r"\d+", links.first.inner_text())[-2:]
    links.first.click()
    page.get_by_role("heading", name=f"Group {group} of layer {layer}").wait_for()
    assert f"layer={layer}" in page.url and f"group={group}" in page.url and "find=the" in page.url
    page.get_by_test_id("stSidebarNav").get_by_role("link", name="Find", exact=True).click()
    answer.wait_for()
    expect(page.get_by_role("textbox", name="A word or phrase")).to_have_value("the")
