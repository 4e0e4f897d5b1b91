"""Open a page of the workbench on the real model, without a browser."""

from __future__ import annotations

from pathlib import Path

from streamlit.testing.v1 import AppTest

ROOT = Path(__file__).parents[2]
TEXT = "Mara rowed to the island. " + "The water was grey and the wind was cold. " * 12 + "Mara rowed home."


def open_page(name: str, **query: str) -> AppTest:
    """Run the app at a link to a page."""
    app = AppTest.from_file(str(ROOT / "workbench" / "app.py"), default_timeout=120)
    app.query_params["v"] = "1"
    for key, value in query.items():
        app.query_params[key] = value
    app.switch_page(str(ROOT / "pages" / f"{name}.py"))
    return app.run()


def paste(name: str, text: str, **query: str) -> AppTest:
    """Run a page on a pasted text, with untrained routers unless the query says otherwise."""
    app = open_page(name, **{"source": "paste", "routers": "untrained", **query})
    app.text_area(key="paste").set_value(text)
    next(button for button in app.button if button.label == "Show groups").click()
    return app.run()


def agreed(app: AppTest) -> AppTest:
    """Agree to what a link or session file names."""
    return app.button(key="open_named").click().run()


def open_named(name: str, **query: str) -> AppTest:
    """Run the app at a link that names something of one's own, and agree to it where the app asks."""
    app = open_page(name, **query)
    return agreed(app) if any(button.key == "open_named" for button in app.button) else app


def shown(app: AppTest) -> str:
    """What the page says; fails if it raised or shows an error."""
    assert not app.exception, app.exception
    assert not app.error, [error.value for error in app.error]
    return "\n".join(element.value for element in [*app.markdown, *app.info, *app.caption])
