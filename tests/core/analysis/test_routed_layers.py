"""What `analyze` tells while it runs: the groups of every layer, and the final states, equal to what it returns."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from focus_core import FocusConfig, analyze, retrofit
from focus_core.analysis.reading import untouched
from focus_core.analysis.trace import RoutedLayer
from focus_core.evaluation.likelihood import losses_of_states, token_losses
from focus_core.routing.narrow.fitting.fit import fit_narrow

TEXT = "The ships came back to the harbour of the old town, and the town waited for the ships. " * 2


@pytest.fixture(params=["layer", "head", "narrow"])
def focus(tiny_llama, request):
    if request.param != "narrow":
        settings = FocusConfig(router=request.param, num_groups=20, top_k=1, window=20, sink_tokens=3)
        return retrofit(tiny_llama.model, settings)
    settings = FocusConfig(
        router="narrow",
        num_groups=6,
        top_k=1,
        window=20,
        sink_tokens=3,
        chunk=8,
        page_size=5,
        read_share=0.3,
        count_weight=1.0,
    )
    return fit_narrow(tiny_llama.model, np.random.default_rng(0).integers(1, 200, (4, 200)), settings)


def test_every_layer_is_told_in_order_with_the_groups_of_the_trace(focus, tiny_llama):
    told: list[RoutedLayer] = []
    with focus.routing("hard"):
        plain = analyze(focus, tiny_llama.tokenizer, TEXT)
        trace = analyze(focus, tiny_llama.tokenizer, TEXT, on_layer=told.append)
    assert np.array_equal(plain.scores, trace.scores) and np.array_equal(plain.assignment, trace.assignment)
    assert tuple(part.layer for part in told) == trace.layers
    assert [part.done for part in told] == list(range(1, len(trace.layers) + 1))
    assert {part.count for part in told} == {len(trace.layers)}
    for row, part in enumerate(told):
        assert np.array_equal(part.groups, trace.groups[row])
        own = np.arange(trace.config.num_groups) if trace.families is None else trace.families[row]
        assert np.array_equal(part.families, own)


def test_a_layer_is_told_before_the_next_one_runs(focus, tiny_llama):
    order: list[str] = []
    first = focus.decoder_layers[focus.layers[0]]
    handle = first.register_forward_hook(lambda module, args, output: order.append("first layer done"))
    with focus.routing("hard"):
        analyze(focus, tiny_llama.tokenizer, TEXT, on_layer=lambda part: order.append(f"told {part.layer}"))
    handle.remove()
    assert order[:3] == ["told 0", "first layer done", "told 1"]


def test_the_final_states_give_the_losses_of_the_pass(focus, tiny_llama):
    for changes, mode in ((untouched(focus.config), "off"), ({}, "hard")):
        states: list[np.ndarray] = []
        with focus.routing("hard", **changes):
            trace = analyze(focus, tiny_llama.tokenizer, TEXT, on_states=states.append)
        ids = torch.from_numpy(np.array(trace.input_ids))[None]
        found = losses_of_states(focus.model, ids, torch.from_numpy(states[0])[None])
        with focus.routing(mode):
            expected = token_losses(focus, ids)
        assert torch.allclose(found, expected, atol=1e-4)
