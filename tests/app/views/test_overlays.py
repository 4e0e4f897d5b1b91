"""Values that tint the strip on Explore: their numbers, colours and sentences, and the page on the real model."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from opening import TEXT, paste, shown
from synthetic import synthetic_trace

from focus_core import FocusConfig, retrofit
from focus_core.analysis.display.cells import build_cells
from focus_core.analysis.display.palette import contrast, ink
from focus_core.analysis.token_values import BothLosses
from focus_core.models import default_model
from workbench.charts.tints import BETTER, GROUND, WORSE, round_end, tint
from workbench.engine import service
from workbench.views.explore.overlays import change_overlay, loss_overlay, unread_overlay
from workbench.widgets.strip import strip_data

real_model = pytest.mark.skipif(not default_model.is_cached(), reason="the default model has not been fetched")


def losses() -> BothLosses:
    untouched = np.array([np.nan, 2.0, 4.0, 0.5], dtype=np.float32)
    return BothLosses(untouched, untouched + np.array([0, 0.4, -0.2, 0.0], dtype=np.float32))


def test_tints_go_from_the_ground_to_the_tone_and_stay_legible():
    for dark in (False, True):
        for tone in (WORSE[dark], BETTER[dark]):
            assert tint(1, tone, dark=dark)[0] == tint(9, tone, dark=dark)[0] == tone
            assert tint(0.01, tone, dark=dark) == tint(float("nan"), tone, dark=dark) == ("", "")
            away = [contrast(tint(weight, tone, dark=dark)[0], GROUND[dark]) for weight in (0.1, 0.3, 0.6, 1)]
            assert away == sorted(away)
            assert all(contrast(*tint(weight / 20, tone, dark=dark)) >= 4.5 for weight in range(1, 21))
    assert [round_end(value) for value in (0.07, 0.1, 0.11, 2, 2.1, 51)] == pytest.approx([0.08, 0.1, 0.12, 2, 3, 60])


@pytest.mark.parametrize("dark", [False, True])
def test_the_strip_shows_values_in_place_of_groups(dark):
    trace = synthetic_trace("a b c d")
    found = change_overlay(trace, losses())
    data = found.tint(strip_data(trace, (), build_cells(trace.text, trace.offsets), 1), dark=dark)
    assert found.end == pytest.approx(0.4)
    assert [cell["l"] for cell in data["cells"]] == ["", "+.4", "−.2", ""]
    assert data["cells"][1]["c"] == [WORSE[dark], ink(WORSE[dark])]
    assert data["cells"][2]["c"] == list(tint(-float(found.values[2]) / 0.4, BETTER[dark], dark=dark))
    assert data["cells"][0]["c"] == data["cells"][3]["c"] == ["", ""]
    assert data["cells"][1]["v"] == "loss 2.000 nats untouched, 2.400 with routing (+0.400)"
    assert data["cells"][0]["v"] == "the first token is not predicted"
    steps = data["scale"]["steps"]
    assert [step["text"] for step in steps] == ["−.4", "−.3", "−.2", "−.1", "0", "+.1", "+.2", "+.3", "+.4"]
    assert steps[0]["fill"] == BETTER[dark] and steps[-1]["fill"] == WORSE[dark]
    assert found.table["change"].tolist()[1:] == pytest.approx([0.4, -0.2, 0])


def test_sentences_hold_the_means():
    trace = synthetic_trace("a b c d")
    of_loss = loss_overlay(trace, losses().untouched)
    assert of_loss.said[:2] == ["the first token is not predicted", "loss 2.000 nats untouched"]
    assert of_loss.table["loss_untouched"].tolist()[1:] == [2, 4, 0.5]
    said = of_loss.sentences
    assert f"{6.5 / 3:.2f} nats per token on average" in said and "among 9 equally" in said
    assert (
        "+0.0667 nats per token on average, which establishes no difference"
        in change_overlay(trace, losses()).sentences
    )
    long = synthetic_trace(" ".join("x" * 641))
    rising = np.linspace(0.9, 1.1, 641, dtype=np.float32)
    both = BothLosses(np.where(np.arange(641) == 0, np.nan, 2.0), np.where(np.arange(641) == 0, np.nan, 2.0 + rising))
    assert "+1.0002 nats per token on average (95% +0.9" in change_overlay(long, both).sentences
    assert "over 40 stretches of this text)." in change_overlay(long, both).sentences
    missed = unread_overlay(trace, 1, np.array([0.0, 0.04, 0.5, 0.06], dtype=np.float32))
    assert (
        "miss in layer 1?" in missed.sentences
        and "15.0% of its attention on tokens that are dropped" in missed.sentences
    )
    assert "50% at most" in missed.sentences and missed.label(2) == "50" and missed.said[1].startswith("4.0% of its")


@real_model
def test_the_page_gives_the_losses_of_the_models_own_logits():
    app = paste("explore", TEXT, layer="6", tint="loss")
    said = shown(app)
    base = service.load_base("default")
    ids = torch.tensor(np.array(service.encoding("default", TEXT).input_ids))[None]
    with torch.inference_mode(), base.lock:
        plain = float(base.model(ids, labels=ids, use_cache=False).loss)
        focus = retrofit(base.model, FocusConfig(num_groups=8, top_k=2), seed=0)
        with focus.routing("hard", top_k=1, window=16, sink_tokens=0):
            routed = float(focus(ids, labels=ids, use_cache=False).loss)
        focus.detach()
    assert f"Its loss is {plain:.2f} nats per token on average" in said
    cost = shown(paste("explore", TEXT, layer="6", tint="change", k="1", window="16", sinks="0"))
    shown_cost = float(re.search(r"The loss changes by (\S+) nats", cost)[1])
    assert shown_cost == pytest.approx(routed - plain, abs=1e-3)
    missed = shown(paste("explore", TEXT, layer="6", tint="unread", k="1", window="16"))
    assert "How much does each token miss in layer 6?" in missed and "are dropped, on average" in missed


@real_model
def test_losses_of_a_text_that_was_routed_need_no_pass_of_the_layers(monkeypatch):
    text = f"{TEXT} That was enough."
    passes: list[str] = []
    genuine = service.routed

    def routed(base, settings, work):
        passes.append(settings.states)
        return genuine(base, settings, work)

    monkeypatch.setattr(service, "routed", routed)
    assert "Its loss is" in shown(paste("explore", text, tint="loss"))
    assert passes == ["untouched"]
    assert "What does routing cost" in shown(paste("explore", text, tint="change"))
    assert passes == ["untouched", "routed"]  # one pass under routing, none of the untouched model
    assert "How much does each token miss in layer 3" in shown(paste("explore", text, tint="unread", layer="3"))
    assert len(passes) == 3


@real_model
def test_one_token_has_no_loss():
    app = paste("explore", "A", tint="change")
    assert "single token" in app.error[0].value
