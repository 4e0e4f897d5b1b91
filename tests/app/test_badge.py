"""The badge of the routers says what they are: made for these weights, for others, or untrained."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from streamlit.testing.v1 import AppTest

from focus_core import FocusConfig
from focus_core.analysis.routed_text import Provenance
from focus_core.routing.model import OTHER_WEIGHTS

SAVED = Provenance("model", "0" * 12, "mine", "1" * 12, True)


def badge(provenance: Provenance) -> str:
    def page(trace):
        from workbench.widgets.badge import provenance_badge

        provenance_badge(trace, "story", "untouched model")

    trace = SimpleNamespace(provenance=provenance, config=FocusConfig(), head=None, reader=None, tokens=())
    app = AppTest.from_function(page, args=(trace,)).run()
    assert not app.exception, app.exception
    (shown,) = (each for each in app.markdown if "routers" in each.value)
    return f"{shown.value} {shown.proto.help}"


@pytest.mark.parametrize(
    ("provenance", "colour", "says"),
    [
        (SAVED, "green", "Saved routers"),
        (replace(SAVED, base_matches=False), "orange", OTHER_WEIGHTS),
        (replace(SAVED, trained=False), "orange", "initialised at random"),
    ],
)
def test_the_colour_and_the_hint_follow_from_what_they_were_made_for(provenance, colour, says):
    shown = badge(provenance)
    assert f":{colour}-badge[" in shown and says in shown
    assert ("other weights]" in shown) == (not provenance.base_matches)
