"""The token strip of `trace.show()`, as a notebook or a saved page draws it."""

from __future__ import annotations

import numpy as np
import pytest

from focus_core import FocusConfig, analyze, retrofit
from focus_core.routing.narrow.fitting.fit import fit_narrow

pytestmark = pytest.mark.browser
TEXTS = ("</script><b>bold</b> & \"quotes\" 'too' \u202e.\nA second line.", "Another text of its own.")


@pytest.fixture
def traces(tiny_llama):
    focus = retrofit(tiny_llama.model, FocusConfig(num_groups=4, top_k=2, window=4, route_dim=8))
    with focus.routing("hard"):
        return [analyze(focus, tiny_llama.tokenizer, text) for text in TEXTS]


@pytest.fixture
def page(browser):
    context = browser.new_context(viewport={"width": 1000, "height": 700})
    page = context.new_page()
    page.errors = []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    yield page
    assert page.errors == []
    context.close()


def test_strips_on_one_page_draw_their_own_text(page, traces):
    outputs = [*traces, traces[0]]
    page.set_content("<p>A notebook</p>" + "".join(trace._repr_html_() for trace in outputs))
    drawn = page.evaluate(
        "[...document.querySelectorAll('[data-focus-strip]')].map(host =>"
        " [...host.shadowRoot.querySelectorAll('.cell')].map(cell => cell.dataset.text).join(''))"
    )
    assert drawn == [TEXTS[0], TEXTS[1], TEXTS[0]]
    assert page.locator("b", has_text="bold").count() == 0


def test_the_card_and_the_slider_follow_the_layer(page, traces, tmp_path):
    trace = traces[0]
    page.goto(trace.show(layer=0).save(tmp_path / "strip.html").as_uri())
    for row in range(len(trace.layers)):
        page.locator("input[type=range]").fill(str(row))
        cells = page.locator(".cell").evaluate_all("cells => cells.map(cell => ({...cell.dataset}))")
        for cell in cells:
            assert int(cell["group"]) == trace.groups[row, int(cell["tokens"].split()[-1])]
        page.locator(".cell").nth(9).hover()
        card = page.locator(".tip")
        assert card.is_visible()
        assert card.inner_text().startswith(f"“{TEXTS[0][9]}” in group {trace.groups[row][9]}\n")
        weight = f"{trace.groups[row][9]} ({trace.assignment[row, 9].max():.2f})"
        assert f"groups and weights: {weight}" in card.inner_text() and "; not joined: " in card.inner_text()
        assert f"token 9 · id {trace.input_ids[9]}" in card.inner_text()
        assert "margin to the runner-up" in card.inner_text()
        page.mouse.move(2, 2)
        assert not card.is_visible()


def test_a_group_can_be_singled_out_by_keyboard(page, traces):
    page.set_content(traces[1]._repr_html_())
    page.locator(".legend button").first.press("Enter")
    faded = page.locator(".cell").evaluate_all("cells => cells.map(cell => cell.classList.contains('faded'))")
    row = len(traces[1].layers) // 2
    assert faded == [not member for member in traces[1].membership[row, :, 0]]
    page.locator(".cell").first.focus()
    page.keyboard.press("ArrowRight")
    assert "token 1" in page.locator(".tip").inner_text()


@pytest.fixture
def many_groups(tiny_llama):
    """A trace of narrow groups, more than there are colours."""
    blocks = np.random.default_rng(0).integers(1, 200, (4, 200))
    settings = {"router": "narrow", "num_groups": 24, "top_k": 1, "window": 8, "read_share": 0.3, "chunk": 8}
    focus = fit_narrow(tiny_llama.model, blocks, FocusConfig(**settings))
    return analyze(focus, tiny_llama.tokenizer, "The ships came back to the harbour of the old town. " * 4)


def test_a_legend_of_many_groups_lists_the_largest_and_finds_any(page, many_groups):
    trace, row = many_groups, len(many_groups.layers) // 2
    page.set_content(trace._repr_html_())
    buttons = page.locator(".legend button[data-group]")
    sizes = np.bincount(trace.groups[row], minlength=24)
    order = sorted(range(24), key=lambda group: (-sizes[group], group))
    assert [int(group) for group in buttons.evaluate_all("all => all.map(one => one.dataset.group)")] == order
    assert sum(button.is_visible() for button in buttons.all()) == 12
    page.get_by_role("button", name="all 24 groups").click()
    assert sum(button.is_visible() for button in buttons.all()) == 24
    page.locator(".legend input").fill(str(order[5]))
    faded = page.locator(".cell").evaluate_all("cells => cells.map(cell => cell.classList.contains('faded'))")
    assert faded == [group != order[5] for group in trace.groups[row]]
    page.locator(".legend input").fill("99")
    assert page.locator(".cell.faded").count() == 0
    page.locator(".cell").nth(60).hover()
    card = page.locator(".tip").inner_text()
    assert f"in group {trace.groups[row, 60]}\nnext: group " in card and "less by score" in card
    assert "reads pages of groups" in card
