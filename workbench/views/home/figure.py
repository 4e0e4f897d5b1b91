"""The figure of the first page: one token of a real text, and the tokens it reads without and with routing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from streamlit.components.v2 import component

from focus_core.errors import FocusError
from focus_core.io.reading import read_json
from focus_core.io.schema import table
from workbench.tokens import previews

_FOLDER = Path(__file__).parent
_component = component(
    "focus-home-figure",
    html='<div class="figure"><div class="bar"><button type="button" data-state="full">Full attention</button>'
    '<button type="button" data-state="routed">With routing</button>'
    '<button type="button" class="pause">Pause</button></div>'
    '<div class="passage" role="group" aria-label="A story, and what its last word reads"></div>'
    '<p class="says" aria-live="polite"></p></div>',
    css=(_FOLDER / "figure.css").read_text(encoding="utf-8"),
    js=(_FOLDER / "figure.js").read_text(encoding="utf-8"),
)


def load() -> dict[str, Any] | None:
    """The measured example; None where it is missing or of other routers than the shipped ones."""
    try:
        found = read_json(previews.folder() / previews.FIGURE, table())
    except (OSError, FocusError):
        return None
    known = previews.index()
    if found.get("format") != previews.FORMAT or found.get("routers") != known.get("routers"):
        return None
    return found


def sentences(found: dict[str, Any]) -> dict[str, str]:
    """What is said of each state of the figure."""
    counts, word = found["counts"], found["word"]
    read = counts["near"] + counts["first"] + counts["chosen"]
    chosen = f"{counts['chosen']} of {counts['distant']:,} distant ones that it chose"
    return {
        "full": f"Full attention: to go on after “{word}”, the model reads all {counts['before']:,} tokens before it.",
        "routed": f"With routing it reads {read:,} of them: {counts['near']} near ones, the first {counts['first']}, "
        f"and {chosen}. Summaries stand for the rest.",
    }


def asking(found: dict[str, Any]) -> int:
    """How many of the last pieces make the word whose reading is shown."""
    pieces, word = found["pieces"], str(found["word"]).casefold()
    return next((n for n in range(1, 9) if "".join(pieces[-n:]).strip().casefold().endswith(word)), 1)


def draw(found: dict[str, Any]) -> None:
    """Draw the figure; it moves by itself unless the reader's system asks for less motion."""
    data = {**sentences(found), "pieces": found["pieces"], "kept": found["kept"], "asking": asking(found)}
    _component(key="home_figure", data=data)
