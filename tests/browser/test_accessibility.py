"""Every page under axe-core, in light and in dark: it finds nothing serious or critical."""

from __future__ import annotations

import json
import re

import pytest
from test_pages import settled
from test_report_file import planted

from focus_core.report.html import to_html

pytestmark = [pytest.mark.browser, pytest.mark.slow]

STREAMLITS_OWN = {
    "list": "ul:not([data-testid=stSidebarNavItems]), ol",
    "listitem": "li:not([role]):not([data-testid=stSidebarNavItems] li)",
}
"""Rules of axe that Streamlit breaks, where nothing here can mend it, and what is checked all the same.

Its navigation wraps the links of a section, `li`, with their title in a `div` inside the `ul`.
"""
GRAVE = ("serious", "critical")


@pytest.fixture(scope="module")
def faults():
    """Faults of a frame, one line for each element: the rule, the element and the reason."""
    pytest.importorskip("axe_playwright_python", reason="axe-core is not installed")
    from axe_playwright_python.base import AXE_SCRIPT
    from axe_playwright_python.sync_playwright import Axe

    narrowed = [{"id": rule, "selector": selector} for rule, selector in STREAMLITS_OWN.items()]
    # Once for each frame, which is looked at in light and in dark.
    axe = Axe(f"if (!window.axe) {{ {AXE_SCRIPT};axe.configure({json.dumps({'rules': narrowed})}) }}")

    def find(frame, *rules: str) -> list[str]:
        only = {"runOnly": {"type": "rule", "values": list(rules)}} if rules else {}
        found = axe.run(frame, options={"resultTypes": ["violations"], **only}).response["violations"]
        return [
            f"{fault['id']}: {node['html'][:160]}: {node['failureSummary']}"
            for fault in found
            if fault["impact"] in GRAVE
            for node in fault["nodes"]
        ]

    return find


def in_all_frames(page, faults, *rules: str) -> list[str]:
    settled(page)
    return [fault for frame in page.frames for fault in faults(frame, *rules)]


def is_routed(page) -> None:
    """Show what routing keeps in the figure of Home, whose colours are others."""
    button = page.get_by_test_id("stMain").locator("button[data-state=routed]")
    button.click()
    page.locator(".figure.routed").wait_for()


def is_dark(page, dark: bool) -> None:
    """Change the system's theme, which the app follows; the page is drawn anew."""
    page.emulate_media(color_scheme="dark" if dark else "light")
    page.wait_for_function(
        "dark => { const [red] = getComputedStyle(document.querySelector('[data-testid=stApp]')).backgroundColor"
        ".match(/\\d+/g); return (red < 128) === dark; }",
        arg=dark,
    )


def test_no_page_has_a_serious_fault_in_light_or_dark(open_page, faults):
    page = open_page("source=sample&sample=dialogue&layer=4&token=300")
    page.locator(".cell.selected").wait_for()
    links = page.get_by_test_id("stSidebarNav").get_by_role("link")
    names = [name.strip().splitlines()[-1] for name in links.all_inner_texts()]
    assert {"Home", "Explore", "Effects", "Report"} <= set(names)
    found = {}
    page.emulate_media(reduced_motion="reduce")  # a colour on its way to another one is no fault
    for number, name in enumerate(names):
        links.and_(page.get_by_role("link", name=name, exact=True)).click()
        page.get_by_role("heading", level=2).filter(has_text=re.compile(f"^{name}:|^Focus")).wait_for()
        if name == "Home":
            is_routed(page)
        for dark in (False, True) if number % 2 == 0 else (True, False):  # one change of theme for each page
            is_dark(page, dark)
            # Only colours differ in the dark.
            wrong = in_all_frames(page, faults, *(("color-contrast", "link-in-text-block") if dark else ()))
            if wrong:
                found[f"{name}, {'dark' if dark else 'light'}"] = wrong
    assert found == {}


@pytest.mark.parametrize("size", [(10, 1, 8), (4, 3, 64)])  # all cards in the page, and each when it is shown
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_report_has_no_serious_fault(browser, faults, tmp_path, size, scheme):
    (tmp_path / "report.html").write_text(to_html(planted(*size)))
    page = browser.new_page(color_scheme=scheme)
    page.goto((tmp_path / "report.html").as_uri() + ("#group-1-2-3" if size[1] > 1 else "#group-1-3"))
    page.locator(".card.shown").wait_for()
    page.get_by_role("searchbox").fill("sea")
    page.locator("#found li").first.wait_for()
    assert faults(page.main_frame) == []
    page.close()


def test_the_check_is_not_blind(browser, faults):
    page = browser.new_page()
    page.set_content(
        "<html lang=en><title>t</title><main><p style='color: #aaa'>Too faint</p><li>Alone</li><button></button>"
    )
    rules = {line.partition(":")[0] for line in faults(page.main_frame)}
    page.close()
    assert rules == {"color-contrast", "listitem", "button-name"}
