"""Losses and unread attention of every token, against the logits and against the attention of single tokens."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from focus_core import FocusConfig, analyze, retrofit
from focus_core.analysis.interventions.attention import token_attention
from focus_core.analysis.token_values import both_losses, losses_from_states, routed_losses, unread_attention
from focus_core.routing.narrow.fitting.fit import fit_narrow

TEXT = "The ships came back to the harbour of the old town, and the town waited for the ships. " * 2


@pytest.fixture(params=["layer", "head", "narrow"])
def focus(tiny_llama, request):
    if request.param != "narrow":
        settings = FocusConfig(router=request.param, num_groups=4, top_k=1, window=20, sink_tokens=3)
        return retrofit(tiny_llama.model, settings)
    settings = FocusConfig(
        **dict(router="narrow", num_groups=6, top_k=1, window=20, sink_tokens=3, chunk=8, page_size=5),
        **dict(read_share=0.3, count_weight=1.0),
    )
    return fit_narrow(tiny_llama.model, np.random.default_rng(0).integers(1, 200, (4, 200)), settings)


def test_losses_are_those_of_the_logits(focus, tiny_llama):
    with focus.routing("hard", window=10):
        trace = analyze(focus, tiny_llama.tokenizer, TEXT)
        found = both_losses(focus, trace.input_ids)
    ids = torch.from_numpy(np.array(trace.input_ids))[None]
    for mode, losses in (("off", found.untouched), ("hard", found.routed)):
        with torch.inference_mode(), focus.routing(mode, window=10):
            logs = focus(ids, use_cache=False).logits[0].double().log_softmax(-1)
        assert np.isnan(losses[0])
        expected = [-float(logs[place, token]) for place, token in enumerate(trace.input_ids[1:])]
        assert np.allclose(losses[1:], expected, atol=1e-4)
    assert np.abs(found.change[1:]).max() > 1e-4 and np.abs(found.change[1:10]).max() < 1e-4


def test_unread_attention_is_that_of_each_token(focus, tiny_llama):
    """In the routed model, where the attention of single tokens is known by another path."""
    head, query_head = (0, 1) if focus.config.router == "narrow" else (0, 0)
    with focus.routing("hard", window=12):
        trace = analyze(focus, tiny_llama.tokenizer, TEXT, head=head, query_head=query_head)
        found = unread_attention(focus, trace, routed=True)
        assert found.shape == (len(trace.layers), len(trace.tokens))
        assert not found[:, :13].any() and (found[:, -1] > 0).any()
        for layer, token in ((0, 60), (1, 120), (2, len(trace.tokens) - 1)):
            heads = range(2) if trace.head is None else [trace.head]  # all heads share the groups of a layer
            lost = []
            for each in heads:
                one = token_attention(focus, trace.input_ids, layer, each, token)
                lost.append((one.full * ~one.exact).sum(1))
            expected = lost[0][query_head] if trace.query_head is not None else np.mean(lost)
            assert found[layer, token] == pytest.approx(expected, abs=1e-5)


def test_some_layers_alone_are_as_all_of_them(focus, tiny_llama):
    with focus.routing("hard", window=12):
        trace = analyze(focus, tiny_llama.tokenizer, TEXT)
        for routed in (False, True):
            found = unread_attention(focus, trace, routed=routed)
            assert np.array_equal(unread_attention(focus, trace, routed=routed, layers=[1]), found[[1]])
            assert np.array_equal(unread_attention(focus, trace, routed=routed, layers=[2, 0]), found[[2, 0]])


def test_losses_from_states_are_those_of_a_pass(focus, tiny_llama):
    states: list[np.ndarray] = []
    with focus.routing("hard", window=10):
        trace = analyze(focus, tiny_llama.tokenizer, TEXT, on_states=states.append)
        expected = routed_losses(focus, trace.input_ids)
    found = losses_from_states(focus.model, trace.input_ids, states[0])
    assert np.allclose(found, expected, atol=1e-4, equal_nan=True) and np.isnan(found[0])
    assert np.isnan(losses_from_states(focus.model, trace.input_ids[:1], states[0][:1])).all()


def test_unread_attention_of_the_untouched_model(tiny_llama):
    """Groups at other settings than the pass: the weights are Transformers' own, the keys those of the trace."""
    tiny_llama.model.set_attn_implementation("eager")
    ids = torch.tensor(tiny_llama.tokenizer(TEXT)["input_ids"])[None]
    with torch.inference_mode():
        weights = [each[0].mean(0).numpy() for each in tiny_llama.model(ids, output_attentions=True).attentions]
    focus = retrofit(tiny_llama.model, FocusConfig(num_groups=4, top_k=1, window=20, sink_tokens=3))
    with focus.routing("hard", top_k=4, window=0, sink_tokens=0):
        states = analyze(focus, tiny_llama.tokenizer, TEXT)
    with focus.routing("hard"):
        trace = analyze(focus, tiny_llama.tokenizer, TEXT)
        trace = dataclasses.replace(trace, membership=_first_groups(states.assignment))
        found = unread_attention(focus, trace)
    for layer, row in enumerate(weights):
        groups = states.assignment[layer].argmax(-1)
        for token in (40, 100, ids.shape[1] - 1):
            unread = sum(row[token, key] for key in range(3, token - 20) if groups[key] != groups[token])
            assert found[layer, token] == pytest.approx(unread, abs=1e-5)


def _first_groups(assignment: np.ndarray) -> np.ndarray:
    return assignment.argmax(-1)[..., None] == np.arange(assignment.shape[-1])
