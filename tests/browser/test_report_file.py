"""report.html in a real browser: search, folds, links and keys, with a few groups and with thousands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from focus_core.report.html import to_html
from focus_core.report.model import Card, Document, Example, Interval, Report, TagShare, Together, TokenCount

pytestmark = pytest.mark.browser

HOSTILE = "</script><img src=x onerror='window.hacked = 1'>"
WORDS = ("sea", "ship", "lamp", "harbour", "stair", "night", "storm", "rope")


def planted(layers: int, heads: int, groups: int) -> Report:
    """A report with a hostile token in one group, and the token "albatross", names and a user's name in one other."""
    cards = []
    for layer in range(layers):
        for head in range(heads):
            for group in range(groups):
                own = (layer, group) == (1, 3) and head == heads - 1
                evil = (layer, head, group) == (0, 0, 1)
                cards.append(
                    Card(
                        layer,
                        group,
                        100,
                        Interval(1 / groups, 0.5 / groups, 2 / groups),
                        100,
                        0.9,
                        frequent=(
                            TokenCount(" albatross" if own else " the", 1, 40, 60, 2.0),
                            *(TokenCount(f" {word}", 2, 9 - at, 70, 1.0) for at, word in enumerate(WORDS)),
                            *([TokenCount(HOSTILE, 3, 5, 5, 1.0)] if evil else []),
                        ),
                        random=tuple(
                            Example("text.txt", 40 * at, "They saw ", "the", f" {word} again.", 0.8)
                            for at, word in enumerate(WORDS)
                        ),
                        tags=(
                            TagShare("PROPN" if own else "DET", 70, Interval(0.7, 0.6, 0.8), 0.02 if own else 0.68),
                            TagShare("NOUN", 30, Interval(0.3, 0.2, 0.4), 0.3),
                        ),
                        persistence=tuple(
                            Together(other, 0.3, 1 / groups) for other in range(layers) if other != layer
                        ),
                        note="# sailors\nwho go to sea" if own else "",
                        head=head if heads > 1 else None,
                    )
                )
    origin = {
        **dict.fromkeys(("model", "model_revision", "routers", "routers_hash", "balance", "states"), "planted"),
        "routers_trained": True,
        "num_groups": groups,
        "top_k": 1,
        "window": 4,
        "sink_tokens": 1,
        "text_sha256": "0" * 64,
    }
    made = {"date": "2026-01-01", "device": "none", "versions": {}}
    document = Document("text.txt", 400, "0" * 64)
    return Report("Planted", origin, (document,), 800, 400, 0, 64, "none", "none", 2, tuple(cards), made)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    sizes = {"some": (30, 1, 8), "thousands": (30, 3, 64)}
    for name, size in sizes.items():
        (folder / f"{name}.html").write_text(to_html(planted(*size)))
    return {name: folder / f"{name}.html" for name in sizes}


@pytest.fixture
def opened(browser, files):
    """Open a report offline; it must ask for nothing but itself and raise no error."""
    contexts, faults = [], []

    def open_one(name: str, address: str = "", **options):
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}} | options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: (faults.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: None if request.url.startswith("file:") else faults.append(request.url))
        page.goto(files[name].as_uri() + address)
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert not faults


def search(page, query: str):
    page.get_by_role("searchbox", name="Find groups").fill(query)
    return page.locator("#found li")


def in_view(page, title: str) -> bool:
    """Whether a card is drawn, below the search box and on the screen."""
    return page.get_by_role("heading", name=title, exact=True).evaluate(
        "(title) => { const at = title.getBoundingClientRect(), bar = document.querySelector('#bar');"
        " return at.top >= bar.getBoundingClientRect().bottom - 1 && at.bottom <= window.innerHeight }"
    )


@pytest.mark.parametrize("name, head", [("some", ""), ("thousands", ", head 2")])
@pytest.mark.parametrize(
    "query", ["albatross", "ALBATROSS", "sailors", "go to sea", "propn", "names", "layer 1 sailor"]
)
def test_search_finds_a_group_by_token_label_and_part_of_speech(opened, name, head, query):
    page = opened(name)
    found = search(page, query)
    assert found.first.get_by_role("link").inner_text() == f"Layer 1{head}, group 3"
    assert page.get_by_role("status").inner_text().startswith("1 of ")
    page.keyboard.press("Enter")
    page.locator(".card.shown").wait_for()
    assert page.url.endswith("#group-1-2-3" if head else "#group-1-3")
    assert in_view(page, f"Layer 1{head}, group 3")
    assert page.evaluate("document.activeElement.className") == "card shown"


def test_search_by_numbers(opened):
    page = opened("thousands")
    assert search(page, "layer 29 head 1 group 63").all_inner_texts()[0].startswith("Layer 29, head 1, group 63")
    assert page.get_by_role("status").inner_text() == "1 of 5,760 groups."
    search(page, "63")
    assert page.get_by_role("status").inner_text() == "90 of 5,760 groups; the first 40 are listed."
    search(page, "nothing like it")
    assert "No group" in page.get_by_role("status").inner_text() and page.locator("#found li").count() == 0


@pytest.mark.parametrize("name", ["some", "thousands"])
def test_many_groups_are_folded_and_open_one_by_one(opened, name):
    page = opened(name)
    folds, cards = page.locator("details.fold"), page.locator("article:visible")
    assert folds.count() == (30 if name == "some" else 90) and cards.count() == 0
    assert page.locator("article").count() == (240 if name == "some" else 0)
    page.locator(".fold > summary").nth(1).click()
    cards.first.wait_for()
    assert cards.count() == (8 if name == "some" else 64)
    page.get_by_role("button", name="Close all").click()
    assert cards.count() == 0
    every = page.get_by_role("button", name="Open all")
    if name == "some":
        every.click()
        expect(page.locator("details.fold[open]")).to_have_count(30)
        assert cards.count() == 240
    else:
        assert every.is_disabled()
    assert "sailors" in folds.nth(1 if name == "some" else 5).locator("summary").inner_text()


def test_few_groups_are_open(browser):
    page = browser.new_page()
    page.set_content(to_html(planted(2, 1, 8)))
    assert page.locator("article:visible").count() == 16
    page.close()


@pytest.mark.parametrize("name, place", [("some", "29-7"), ("thousands", "29-2-63")])
def test_a_link_opens_its_group_and_can_be_copied(opened, name, place):
    page = opened(name, f"#group-{place}", permissions=["clipboard-read", "clipboard-write"])
    card = page.locator(".card.shown")
    card.wait_for()
    title = "Layer 29, group 7" if name == "some" else "Layer 29, head 2, group 63"
    assert in_view(page, title)
    card.get_by_role("button", name=f"Copy link to {title}").click()
    card.get_by_text("Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == page.url and copied.endswith(f"#group-{place}")
    # The page's own links, and Back.
    page.get_by_role("link", name="5", exact=True).first.click()
    page.wait_for_url(re.compile("#layer-5"))
    expect(page.locator("details.fold[open]")).to_have_count(2)
    page.go_back()
    page.wait_for_url(copied)
    expect(card).to_be_focused()
    assert in_view(page, title)


def test_the_keyboard_alone_is_enough(opened):
    page = opened("some")
    page.keyboard.press("/")
    page.keyboard.type("rope")
    assert page.get_by_role("status").inner_text().startswith("240 of 240 groups")
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    page.wait_for_url(re.compile("#group-0-1$"))
    expect(page.locator("#group-0-1")).to_be_focused()
    page.keyboard.press("Tab")  # on from the card: its own address, then the button that copies it
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#group-0-1"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.dataset.copy") == "group-0-1"
    page.keyboard.press("/")
    page.keyboard.press("Escape")
    assert page.get_by_role("searchbox").input_value() == "" and page.locator("#found li").count() == 0
    page.locator(".fold > summary").nth(3).focus()
    page.keyboard.press("Enter")
    page.locator("#group-3-0").wait_for()


@pytest.mark.parametrize("name", ["some", "thousands"])
def test_hostile_text_is_found_and_does_nothing(opened, name):
    page = opened(name)
    found = search(page, "onerror")
    assert "</script><img" in found.inner_text()
    found.get_by_role("link").click()
    page.locator(".card.shown").get_by_text("</script><img").wait_for()
    assert page.locator("img").count() == 0 and page.evaluate("window.hacked") is None


@pytest.mark.parametrize("name", ["some", "thousands"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_needs_no_scrolling_to_the_side(opened, name, scheme):
    page = opened(name, "#group-1-3", viewport={"width": 390, "height": 844}, color_scheme=scheme)
    search(page, "sea")
    page.locator("#found li").first.wait_for()
    page.locator("#found a").first.click()
    page.locator(".card.shown").wait_for()
    assert in_view(page, f"Layer 1{', head 2' if name == 'thousands' else ''}, group 3")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    light = (
        sum(map(int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))[:3])) > 382
    )
    assert light == (scheme == "light")


def test_thousands_of_groups_open_and_answer_at_once(opened):
    page = opened("thousands")
    loaded = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    answer = page.evaluate(
        "() => { const box = document.querySelector('#search'); box.value = 'sea'; const before = performance.now();"
        " box.dispatchEvent(new Event('input')); return performance.now() - before; }"
    )
    assert loaded < 5000 and answer < 500


def test_a_printed_report_shows_its_groups(opened):
    page = opened("some")
    page.evaluate("window.onbeforeprint = null; window.dispatchEvent(new Event('beforeprint'))")
    expect(page.locator("details.fold[open]")).to_have_count(30)
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    expect(page.locator("details.fold[open]")).to_have_count(0)
