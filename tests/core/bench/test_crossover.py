"""The place from which sparse attention pays: the rule, and what is stored of it."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from focus_core import FocusConfig, crossover, retrofit
from focus_core.bench import crossover as module
from focus_core.bench.crossover import crossover_file, full_below_for

NARROW = FocusConfig(router="narrow", num_groups=8, top_k=2, window=8, chunk=16, read_share=0.2)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("FOCUS_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "PLACES", (32, 64))


def routed(config=NARROW, layers=1):
    size = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=99, num_hidden_layers=layers, max_position_embeddings=256, **size))
    return retrofit(model.eval(), config)


@pytest.mark.parametrize(
    ("ratios", "of_model", "expected"),
    [
        ((0.9, 0.8), [(0.9, 0.9)], 32),
        ((0.8,), [(0.9, 0.9)], 32),
        ((0.8,), [(0.9, 1.06), (1.05, 1.05)], 64),
        ((1.1, 0.8), [(0.9, 0.9)], 64),
        ((0.9, 1.1), [], 256),
        ((1.2, 1.1), [], 256),
        ((1.0, 1.0), [(1.05, 1.05)], 32),
        ((0.9, 0.8), [(0.9, 1.06), (1.05, 1.05)], 64),
        ((0.9, 0.8), [(1.06, 0.9), (1.05, 1.05)], 64),
        ((0.9, 0.8), [(0.9, 1.06), (1.06, 0.9)], 256),
    ],
)
def test_choosing_begins_where_attention_is_faster_from_then_on_and_the_model_hardly_slower(
    monkeypatch, ratios, of_model, expected
):
    attention, model = iter(ratios), iter(of_model)
    monkeypatch.setattr(module, "_ratio", lambda *_: next(attention))
    monkeypatch.setattr(module, "_model_ratios", lambda *_: next(model))
    focus = routed()
    assert crossover(focus) == expected
    assert next(attention, None) is next(model, None) is None  # no place is tried for nothing
    assert [full_below_for(focus, tokens) for tokens in (1, expected - 1, expected, 300)] == [expected, expected, 0, 0]


@pytest.mark.parametrize("directions", [0, 3])
def test_what_is_timed_has_the_form_of_the_settings(directions):
    spread = {"count_spread": True, "spread_directions": directions}
    reading = module._reading(NARROW.replace(**spread), 64, (4, 2, 8), "cpu")
    assert (reading.full_below, reading.share, len(reading.spread_weights(4))) == (64, 0.2, 4)
    assert (reading.directions is not None) == bool(directions)
    focus = routed(NARROW.replace(**spread))
    seen = []
    with focus.routing("hard", read_share=0.5, full_below=9), focus.observe(lambda layer: seen.append(layer.config)):
        assert min(module._model_ratios(32, focus)) > 0
    assert seen and {(each.read_share, each.full_below, each.spread_directions) for each in seen} == {
        (0.5, 0, directions)
    }


def test_it_is_measured_once_and_again_when_asked_or_when_the_file_is_damaged(monkeypatch):
    focus, measured = routed(), []
    measure = module._measured
    monkeypatch.setattr(module, "_measured", lambda *given: measured.append(given) or measure(*given))
    first = crossover(focus)
    assert first in (32, 64, 256) and len(measured) == 1
    (rule,) = json.loads(crossover_file().read_text())["rules"].values()
    assert rule["full_below"] == first and {"32"} <= set(rule["points"]) <= {"32", "64"} >= set(rule["steps"])
    assert set(rule["reads"]) == set(rule["steps"])
    assert min(ratio for name in ("points", "reads", "steps") for ratio in rule[name].values()) > 0

    assert crossover(focus) == first and len(measured) == 1
    crossover(focus, again=True)
    assert len(measured) == 2
    crossover_file().write_text('{"rules": {"x": 3}}')
    crossover(focus)
    assert len(measured) == 3


def test_other_settings_threads_and_models_have_rules_of_their_own(monkeypatch):
    focus, measured = routed(), []
    monkeypatch.setattr(module, "_ratio", lambda *_: measured.append(1) or 0.9)
    monkeypatch.setattr(module, "_model_ratios", lambda *_: (0.5, 0.5))
    crossover(focus)
    with focus.routing("hard", read_share=0.5):
        crossover(focus)
    assert len(measured) == 4
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    crossover(focus)
    assert len(measured) == 6
    crossover(routed(layers=2))
    assert len(measured) == 8


def test_other_routers_do_not_mix_the_two():
    focus = routed(FocusConfig(num_groups=4, top_k=2))
    assert crossover(focus) == full_below_for(focus, 5) == 0
    assert not crossover_file().exists()


def test_an_unwritable_cache_is_no_error(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FOCUS_CACHE", str(tmp_path / "file"))
    assert crossover(routed()) in (32, 64, 256)
