"""What pages show while a text is routed: the layers as they come, and how many are known."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from opening import TEXT, paste, shown
from streamlit.testing.v1.element_tree import UnknownElement

from focus_core.models import default_model
from workbench.engine import service
from workbench.tokens import previews
from workbench.widgets import strip as compare_strip

pytestmark = pytest.mark.skipif(not default_model.is_cached(), reason="the default model has not been fetched")


@pytest.fixture
def drawn(monkeypatch) -> list[dict[str, Any]]:
    """The strips that pages draw before all layers are known; each layer waits until the page has heard of it."""
    strips: list[dict[str, Any]] = []
    genuine, analyze = previews.preview_strip, service.analyze

    def draw(*given: Any) -> dict[str, Any]:
        strips.append(genuine(*given))
        return strips[-1]

    def slowly(*args: Any, on_layer: Any, **options: Any) -> Any:
        def tell(part: Any) -> None:
            on_layer(part)
            time.sleep(0.02)

        return analyze(*args, on_layer=tell, **options)

    monkeypatch.setattr(previews, "preview_strip", draw)
    monkeypatch.setattr(service, "analyze", slowly)
    return strips


@pytest.mark.parametrize(("layer", "expected"), [("7", 7), ("0", 0), ("", 15)])
def test_explore_draws_the_first_layer_and_the_chosen_one_as_they_come(drawn, layer, expected):
    text = f"{TEXT} That was layer {layer or 'none'}."
    app = paste("explore", text, token="5", **({"layer": layer} if layer else {}))
    assert "tokens" in shown(app) and app.number_input(key="token_box").value == 5
    assert [strip["layer"] for strip in drawn] == sorted({0, expected})
    trace = service.analysis(service.Settings("default", "untrained", 8, 2, 128, 4), text).trace
    for strip in drawn:
        row = trace.layers.index(strip["layer"])
        own = [cell["g"][0] for cell in strip["cells"] if "g" in cell]
        assert own and set(own) <= set(trace.groups[row].tolist())
        assert len(strip["groups"]) == trace.config.num_groups
        # A click on a token that has come selects it, and it stays selected.
        assert [token for cell in strip["cells"] for (token,) in cell["k"]] == list(range(len(trace.tokens)))
        assert strip["selected"] == 5
        assert np.isclose(sum(group["share"] for group in strip["groups"]), 1)


@pytest.mark.parametrize("page", ["attention", "linguistics", "group", "report"])
def test_other_pages_draw_layers_as_they_come_and_take_them_away(drawn, page):
    app = paste(page, f"{TEXT} That was {page}.", layer="7", token="5", window="16")
    shown(app)
    assert [strip["layer"] for strip in drawn] == [0, 7]
    assert [strip["selected"] for strip in drawn] == [5 if page == "attention" else None] * 2
    keys = [each.proto.id for each in app.main if isinstance(each, UnknownElement) and each.type == "bidi_component"]
    assert not [key for key in keys if "arriving" in key], keys
    assert page != "attention" or any("attention_strip" in key for key in keys)  # so they would be seen


def test_a_text_that_is_known_is_drawn_at_once(drawn):
    text = f"{TEXT} That was twice."
    paste("explore", text)
    count = len(drawn)
    assert count and "tokens" in shown(paste("explore", text)) and len(drawn) == count


def test_compare_draws_a_and_the_layers_of_b_while_b_is_routed(drawn, monkeypatch):
    text, heard = f"{TEXT} That was A.", []
    genuine, strip = service.analysis, compare_strip.strip_data

    def analysis(settings: service.Settings, text: str, on_layer: Any = None) -> service.Analysis:
        def tell(part: Any) -> None:
            on_layer(part)
            heard.append((settings.top_k, part.done))

        return genuine(settings, text, None if on_layer is None else tell)

    def strip_data(trace: Any, *rest: Any, **options: Any) -> dict[str, Any]:
        heard.append((trace.config.top_k, "strip"))
        return strip(trace, *rest, **options)

    monkeypatch.setattr(service, "analysis", analysis)
    monkeypatch.setattr(compare_strip, "strip_data", strip_data)
    assert "agree" in shown(paste("compare", text, differs="k", b_k="1", k="2", states="routed"))
    routed = [part for part in heard if part[1] != "strip"]
    assert routed[0] == (2, 1) and (1, 1) in routed and max(done for _, done in routed) <= 30
    assert heard.index((2, "strip")) < heard.index((1, 1)) < heard.index((1, 2))  # A's own, before B is known
    assert [strip["layer"] for strip in drawn] == [0, 15] * 2  # of A, then of B
