"""What journeys do with a keyboard alone, and what they look at on a phone."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

PHONE = {"width": 390, "height": 844}
WIDE = {"width": 1500, "height": 1200}


def tab_to(page: Any, target: Any, most: int = 120) -> None:
    """Press Tab until an element has the focus, as somebody without a mouse does; it has to be reached."""
    target.wait_for()
    for _ in range(most):
        # Read after the key, since a page that is drawn anew may replace the element that has the focus.
        if target.evaluate("node => node.getRootNode().activeElement === node"):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not reach {target}")


def press(button: Any, then: Any) -> None:
    """Click, and once more if nothing follows for half a minute: a button that is drawn anew may lose a click."""
    from playwright.sync_api import TimeoutError

    for _ in range(2):
        if button.is_visible():
            button.click()
        with suppress(TimeoutError):
            then.wait_for(timeout=30_000)
            return
    then.wait_for()


def downloaded(page: Any, button: Any) -> Path:
    """The file that a button brings; clicked once more if none comes for half a minute, as in `press`."""
    from playwright.sync_api import TimeoutError

    with suppress(TimeoutError):
        with page.expect_download(timeout=30_000) as download:
            button.click()
        return Path(download.value.path())
    with page.expect_download() as download:
        button.click()
    return Path(download.value.path())


OUTSIDE = """() => {
  const main = document.querySelector("[data-testid=stMain]");
  const apart = (node) => node.closest("[data-testid=stPlotlyChart], [role=tablist], [data-testid=stDataFrame]");
  // The input of a slider is not seen and lies askew near the ends; what is seen is the slider.
  const seen = (node) => node.type === "range" ? node.closest("[data-testid=stSlider]") || node : node;
  const wide = [document.documentElement, main].filter((node) => node.scrollWidth > innerWidth);
  const used = [...main.querySelectorAll("button, input, textarea, h2, h4, [role=slider], iframe")];
  return wide.concat(used.filter((node) => node.getClientRects().length && !apart(node)
    && seen(node).getBoundingClientRect().right > innerWidth + 1)).map((node) => node.outerHTML.slice(0, 200));
}"""
"""What is wider than the window, and what can be used and lies beyond it."""


def fits(page: Any) -> None:
    """Nothing is wider than the page, and all that can be used lies on it."""
    outside = []
    for _ in range(200):  # charts follow a change of the width after a while
        outside = page.evaluate(OUTSIDE)
        if not outside:
            break
        page.wait_for_timeout(100)
    assert outside == []


def fits_a_phone(page: Any) -> None:
    """The same at 390 pixels; then the page is wide again."""
    page.set_viewport_size(PHONE)
    fits(page)
    page.set_viewport_size(WIDE)


def no_column_is_cut_off(page: Any, tables: int) -> None:
    """The first tables of a wide page show all their columns without scrolling."""
    scrollers = page.locator("[data-testid=stDataFrame] .dvn-scroller")
    scrollers.nth(tables - 1).wait_for(state="attached")
    page.locator("[data-test-script-state=notRunning]").wait_for(state="attached")
    page.wait_for_timeout(500)
    beyond = scrollers.evaluate_all("nodes => nodes.map(node => node.scrollWidth - node.clientWidth)")
    assert max(beyond[:tables]) <= 0, beyond
