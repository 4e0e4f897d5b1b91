"""The journey of issue 2: open the app, type a text, read the groups."""

from __future__ import annotations

import csv
import re

import pytest
from hands import downloaded
from playwright.sync_api import expect

from focus_core import FocusConfig, analyze, load_model, retrofit

pytestmark = pytest.mark.browser

TEXT = "Nora kept the lamp at Corrie Point. 🥖 Every night she climbed, and every night Nora wrote: “all well”.\n"
HOSTILE = (
    "<script>window.hacked = 1</script> <img src=x onerror='window.hacked = 1'> **bold** $x$ :red[y]\n"
    "\tשלום, وداعا 你好 👩‍🍳 👍🏽 cafe\u0301 \u202eabc\u202c </span></div>"
)


def show_groups(page, text: str, *, whole: bool = True) -> None:
    """Route a text; wait for its first layer at least, which is drawn while the others come."""
    page.get_by_role("textbox", name="Your text").fill(text)
    page.get_by_role("button", name="Show groups").click()
    page.wait_for_selector(".cell")
    if whole:
        all_layers(page)


def all_layers(page) -> None:
    """The page says what it says once all layers have come."""
    page.get_by_role("heading", level=4).filter(has_text=re.compile(r"In layer \d+ routing")).wait_for()


def cells(page) -> list[dict[str, str]]:
    return page.locator(".cell").evaluate_all("nodes => nodes.map(node => ({...node.dataset}))")


def wait_for_text(page, text: str) -> list[dict[str, str]]:
    """The cells of the strip once it has been redrawn with this text; it is empty for a moment at each redrawing."""
    for _ in range(300):
        drawn = cells(page)
        if "".join(cell["text"] for cell in drawn) == text:
            return drawn
        page.wait_for_timeout(100)
    assert "".join(cell["text"] for cell in cells(page)) == text
    return cells(page)


def tip_of(page, cell) -> str:
    """What the card of a cell says; a strip that is redrawn under the mouse loses it, so the mouse comes again."""
    for _ in range(30):
        cell.hover()
        if said := page.locator(".tip").inner_text():
            return said
        page.mouse.move(0, 0)
        page.wait_for_timeout(100)
    return ""


@pytest.fixture(scope="module")
def trace():
    model, tokenizer, _ = load_model()
    focus = retrofit(model, FocusConfig(), seed=0)
    with focus.routing("hard", top_k=8):  # the untouched model, whose states the page routes by default
        return analyze(focus, tokenizer, TEXT)


def test_the_groups_on_the_page_are_those_of_the_engine(open_page, trace):
    page = open_page("source=paste&layer=4")
    show_groups(page, TEXT)
    drawn = wait_for_text(page, TEXT)
    # It may be redrawn just now, so this waits until the text is there.
    expect(page.locator(".text")).to_have_text(re.compile(r"^((?!Nora).)*(Nora((?!Nora).)*){2}$", re.DOTALL))
    assert [int(t) for cell in drawn for t in cell["tokens"].split()] == list(range(len(trace.tokens)))
    for cell in drawn:
        last = int(cell["tokens"].split()[-1])
        assert int(cell["group"]) == trace.groups[4, last]

    tip = tip_of(page, page.locator(".cell", has_text="lamp").first)
    token = trace.tokens.index("Ġlamp")
    assert f"token {token} " in tip and f"id {trace.input_ids[token]}" in tip
    assert "bytes 20 6c 61 6d 70" in tip
    assert "groups" in tip and "margin to the runner-up" in tip


def test_a_token_is_selected_by_click_and_by_keyboard_and_the_link_says_so(open_page):
    page = open_page("source=paste&layer=4")
    show_groups(page, TEXT)
    page.locator(".cell").nth(9).click()
    page.wait_for_selector(".cell.selected")
    page.get_by_text("it reads").wait_for()
    page.wait_for_url(lambda url: "token=" in url)
    assert "layer=4" in page.url and "Nora" not in page.url
    first = page.locator(".cell.selected").get_attribute("data-tokens")
    page.locator(".cell.selected").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_function(
        "before => { const find = root => [...root.querySelectorAll('*')].flatMap(n =>"
        " n.shadowRoot ? [...n.shadowRoot.querySelectorAll('.cell.selected')] : []);"
        " const cell = find(document)[0]; return cell && cell.dataset.tokens !== before; }",
        arg=first,
    )


def test_changing_the_layer_redraws_the_groups(open_page, trace):
    page = open_page("source=paste&layer=4")
    show_groups(page, TEXT)
    page.get_by_role("slider", name="Layer").press("ArrowRight")
    page.get_by_text("In layer 5 routing drops nothing").wait_for()
    expected = [int(trace.groups[5, int(cell["tokens"].split()[-1])]) for cell in wait_for_text(page, TEXT)]
    for _ in range(100):
        if [int(cell["group"]) for cell in cells(page)] == expected:
            break
        page.wait_for_timeout(50)
    assert [int(cell["group"]) for cell in cells(page)] == expected


def test_two_sessions_never_see_each_others_text(open_page):
    first, second = open_page("source=paste"), open_page("source=paste")
    first.get_by_role("textbox", name="Your text").fill("The heron stood in the reeds.")
    second.get_by_role("textbox", name="Your text").fill("A train left the northern station.")
    for page in (first, second):
        page.get_by_role("button", name="Show groups").click()
    wait_for_text(first, "The heron stood in the reeds.")
    wait_for_text(second, "A train left the northern station.")
    assert "northern" not in first.content() and "heron" not in second.content()


def test_hostile_text_is_shown_and_never_run(open_page):
    page = open_page("source=paste&view=table")
    show_groups(page, HOSTILE, whole=False)
    third = wait_for_text(page, HOSTILE)[2]
    page.locator(".cell").nth(2).click()  # layers may still come: the click counts all the same
    page.wait_for_selector(".cell.selected")
    page.get_by_text("it reads").wait_for()
    assert page.locator(".cell.selected").get_attribute("data-text") == third["text"]
    assert page.evaluate("window.hacked") is None
    assert page.locator(".text script, .text img").count() == 0


def test_the_download_holds_every_token_and_no_formula(open_page):
    page = open_page("source=paste&view=table")
    text = "=1+1 is a sum.\n@home +49 -7"
    show_groups(page, text)
    exported = downloaded(page, page.get_by_role("button", name="CSV", exact=True))
    with exported.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert "".join(row["text"].removeprefix("'") for row in rows) == text
    assert all(f"layer_{layer}_groups" in rows[0] for layer in range(30))
    assert not any(
        value.startswith(("=", "+", "-", "@")) for row in rows for value in row.values() if not is_number(value)
    )


def is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def test_nothing_moves_under_the_pointer_when_labels_come(open_page):
    page = open_page("source=paste&layer=4")
    show_groups(page, "The keeper of the lamp read the letters of the harbour to the children of the town. " * 12)
    choice = page.get_by_role("radio", name="Cost of routing")
    before = choice.bounding_box()
    page.locator(".legend button[data-group]").filter(has_text=re.compile("[a-z]")).first.wait_for()
    assert choice.bounding_box() == before


def test_the_strip_is_tinted_by_what_routing_costs_and_back(open_page):
    page = open_page("source=sample&sample=news&layer=12&window=32&k=1")
    all_layers(page)
    groups = page.locator(".cell").nth(120).evaluate("cell => cell.style.getPropertyValue('--fill')")
    page.get_by_role("radio", name="Cost of routing").click()
    page.get_by_text("What does routing cost at each token?").wait_for()
    page.locator(".legend .step").nth(8).wait_for()
    page.wait_for_url(lambda url: "tint=change" in url)
    shown = [cell for cell in cells(page) if cell.get("group")]
    tinted = page.locator(".cell .body[data-label^='+'], .cell .body[data-label^='−']")
    assert 10 < tinted.count() <= len(shown)
    assert "nats untouched" in tip_of(page, tinted.first)
    exported = downloaded(page, page.get_by_role("button", name="CSV", exact=True).first)
    with exported.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    cost = sum(float(row["change"]) for row in rows[1:]) / len(rows[1:])
    assert f"{cost:+.4f}" in page.get_by_test_id("stMain").inner_text()
    page.get_by_role("radio", name="Groups", exact=True).click()
    page.locator(".legend button[data-group]").first.wait_for()
    page.wait_for_function(
        "before => { const find = root => [...root.querySelectorAll('*')].flatMap(n =>"
        " n.shadowRoot ? [...n.shadowRoot.querySelectorAll('.cell')] : []);"
        " return find(document)[120]?.style.getPropertyValue('--fill') === before; }",
        arg=groups,
    )
