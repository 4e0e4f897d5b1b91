"""What journeys do with a keyboard alone, and what they look at on a phone."""

from __future__ import annotations

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


def fits_a_phone(page: Any) -> None:
    """At 390 pixels nothing is wider than the page, and all that can be used lies on it."""
    page.set_viewport_size(PHONE)
    page.wait_for_function(
        """() => {
          const main = document.querySelector("[data-testid=stMain]");
          const inside = [...main.querySelectorAll("button, input, textarea, h2, h4, [role=slider], canvas, iframe")];
          const apart = (node) => node.closest("[data-testid=stPlotlyChart], [role=tablist], [data-testid=stDataFrame]");
          return document.documentElement.scrollWidth <= innerWidth && main.scrollWidth <= innerWidth && inside
            .filter((node) => node.getClientRects().length && !apart(node))
            .every((node) => node.getBoundingClientRect().right <= innerWidth + 1);
        }"""
    )
    page.set_viewport_size(WIDE)
