"""Journeys through all pages: each answers its question on a pasted text, follows its controls, and makes links."""

from __future__ import annotations

import csv
import re

import pytest
from hands import downloaded

pytestmark = [pytest.mark.browser, pytest.mark.slow]

TEXT = (
    "Nora Finch kept the lamp at Corrie Point for thirty years. Every night she climbed the narrow stairs, wound the "
    "old brass clock and wrote two words in the book. The wind came over the grey water and shook the windows. "
    "Her brother, who sold rope and oil in the village, never believed that she was happy there. "
) * 5
"""Long enough for intervals (over 200 words) and for pairs beyond the window."""

ANSWERS = {
    "Explore": r"In layer 4 routing keeps \d+% of the distant pairs",
    "Layers": r"From one layer to the next groups .* persist",
    "Balance": r"Sequence Sinkhorn .* this text",
    "Sparsity": r"\d+% of the causal pairs are computed",
    "Linguistics": r"of which group a word is in",
    "Compare": r"A and B agree|A and B form the same groups",
}
"""What a page says first, on any text that is long enough."""

RECORDED = {
    "Speed": r"On .*, routed attention is (faster from|not faster)",
    "Quality": r"At [0-9,]+ tokens the routers \(.*\) keep",
}
"""The same for the pages that show recorded runs."""


def go_to(page, name: str) -> None:
    page.get_by_test_id("stSidebarNav").get_by_role("link", name=name, exact=True).click()
    page.get_by_role("heading", level=2, name=re.compile(f"^{name}:")).wait_for()


def says(page, pattern: str) -> str:
    """The sentence that answers the page's question, once it is there."""
    answer = page.get_by_role("heading", level=4).filter(has_text=re.compile(pattern)).first
    answer.wait_for()
    return answer.inner_text()


def settled(page) -> str:
    """What the page says once nothing runs and nothing more is drawn."""
    text = ""
    for _ in range(300):
        page.locator("[data-test-script-state=notRunning]").wait_for(state="attached")
        before, text = text, page.get_by_test_id("stMain").inner_text()
        if text == before:
            return text
        page.wait_for_timeout(300)
    raise AssertionError("the page never comes to rest")


def moves(page, label: str, key: str = "ArrowRight") -> None:
    """Press a key on a slider; something on the page has to change."""
    before = settled(page)
    page.get_by_role("slider", name=label).first.press(key)
    page.wait_for_function("before => document.querySelector('[data-testid=stMain]').innerText !== before", arg=before)


@pytest.fixture
def complaints():
    """Errors that a browser logged on the pages that `watch` was called with."""
    found: list[str] = []

    def watch(page) -> list[str]:
        page.on("pageerror", lambda error: found.append(str(error)))
        page.on("console", lambda message: message.type == "error" and found.append(message.text))
        return found

    return watch


def has_no_error(page) -> None:
    for box in ("stException", "stAlertContentError"):
        assert page.get_by_test_id(box).all_inner_texts() == []


def test_every_page_answers_on_a_pasted_text_and_follows_layer_and_k(open_page, complaints):
    page = open_page("source=paste&layer=4")
    logged = complaints(page)
    page.get_by_role("textbox", name="Your text").fill(TEXT)
    page.get_by_role("button", name="Show groups").click()
    for number, (name, answer) in enumerate(ANSWERS.items()):
        go_to(page, name)
        says(page, answer)
        page.get_by_test_id("stPlotlyChart").locator(".main-svg").first.wait_for()
        moves(page, "Layer of A" if name == "Compare" else "Layer")
        moves(page, "Groups per token, k", ("ArrowRight", "ArrowLeft")[number % 2])
        page.get_by_text(f"k {(3, 2)[number % 2]} ·").first.wait_for()  # the badge
        page.get_by_test_id("stPlotlyChart").locator(".main-svg").first.wait_for()
        has_no_error(page)
        if name == "Explore":  # later pages start at the same layer
            moves(page, "Layer", "ArrowLeft")
        page.wait_for_url(re.compile(f"k={(3, 2)[number % 2]}"))
        assert "Nora" not in page.url
    for name, answer in RECORDED.items():
        go_to(page, name)
        says(page, answer)
        page.get_by_test_id("stPlotlyChart").locator(".main-svg").first.wait_for()
        has_no_error(page)
    go_to(page, "Train")
    page.get_by_role("button", name="Start fitting").wait_for(state="attached")
    go_to(page, "Report")
    says(page, r"240 groups in 30 layers")
    page.frame_locator("iframe").first.get_by_role("heading", name="group 0").first.wait_for()
    has_no_error(page)
    assert logged == []


@pytest.mark.parametrize(
    ("path", "query", "answer", "detail"),
    [
        ("layers", "layer=7&other=20", r"From one layer", r"^Layers 7 and 20: AMI"),
        ("sparsity", "k=1&window=16&layer=7&computed=layers", r"\d+% of the causal pairs", r"^Layer 7: [\d.]+%"),
        ("compare", "differs=layer%2Ck&layer=3&b_layer=9&b_k=1", r"A and B", r"^B, layer 9"),
    ],
)
def test_a_link_opens_the_same_page_for_somebody_else(open_page, path, query, answer, detail):
    seen = []
    given = f"source=sample&sample=news&routers=untrained&{query}"
    for _ in range(2):
        page = open_page(given, path)
        seen.append((says(page, answer), page.get_by_text(re.compile(detail)).first.inner_text()))
        page.get_by_test_id("stPlotlyChart").locator(".main-svg").first.wait_for()
        given = page.url.partition("?v=1&")[2]  # the second reader gets the link that the first one's page has made
    assert seen[0] == seen[1]
    assert set(query.split("&")) <= set(given.split("&"))


def test_a_chart_is_exported_with_where_it_comes_from(open_page):
    page = open_page("source=sample&sample=news&k=1&layer=7&computed=layers", "sparsity")
    sentence = page.get_by_text(re.compile(r"Layer 7: [\d.]+% of the causal pairs are kept"))
    sentence.wait_for()
    page.get_by_text("Table and downloads").click()
    page.locator("[data-test-script-state=notRunning]").wait_for(state="attached")  # or the click may be lost
    exported = downloaded(page, page.get_by_role("button", name="CSV", exact=True))
    with exported.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["layer"]) for row in rows] == list(range(30))
    kept = re.search(r"([\d.]+)% of the causal", sentence.inner_text())[1]
    assert f"{float(rows[7]['kept']):.1%}" == f"{kept}%"
    assert {row["top_k"] for row in rows} == {"1"} and {row["routers"] for row in rows} == {"untrained"}
    assert all(len(row["text_sha256"]) == 64 for row in rows)
