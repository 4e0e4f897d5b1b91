"""Weights of layers: gradients against one backward pass, and what an error does against predictions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_narrow import FAMILIES, blocks, calls_of, model

from focus_core import FocusConfig, retrofit
from focus_core.attention import AttentionOutput
from focus_core.routing.narrow.fitting.gradients import calls_with_gradients
from focus_core.routing.narrow.fitting.layers import PROBED, layer_weights
from focus_core.routing.narrow.reading import Reading
from focus_core.routing.narrow.reference import narrow_reference
from focus_core.routing.rules import Rule, attend_fully, hard_groups

CONFIG = FocusConfig(
    router="narrow", num_groups=6, top_k=1, window=5, sink_tokens=2, chunk=16, read_share=0.2, page_size=4, score="dot"
)


def sparse_output(call, share):
    """(4, T, Dv), by the definition."""
    reading = Reading(CONFIG.window, CONFIG.sink_tokens, CONFIG.chunk, share=share, page_size=4)
    groups = call.groups.keys.int().argmax(-1)[None]
    return narrow_reference(*call.together(), groups, 6, reading, scale=call.geometry.scale).output[0]


def projections(focus):
    """The output projection of every layer."""
    return {
        layer: getattr(module, "o_proj", None) or module.c_proj for layer, module in focus.attention_modules.items()
    }


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_are_those_of_one_backward_pass(name):
    focus, ids = retrofit(model(name), CONFIG, seed=0), torch.from_numpy(blocks(1))
    found = dict(
        (call.layer, gradient)
        for call, gradient in calls_with_gradients(focus, ids, generator=torch.Generator().manual_seed(5))
    )
    assert list(found) == [1, 0] and not any(focus.model.get_input_embeddings().weight.grad or [])
    focus.model.get_input_embeddings().weight.requires_grad_(True)
    outputs = {}
    for layer, project in projections(focus).items():
        project.register_forward_pre_hook(lambda _, args, layer=layer: outputs.update({layer: args[0]}))
    with focus.routing("off"):
        chances = focus.model(ids, use_cache=False).logits[0].log_softmax(-1)
    tokens = torch.multinomial(chances.detach().exp(), 1, generator=torch.Generator().manual_seed(5))
    gradients = torch.autograd.grad(chances.gather(-1, tokens).sum(), list(outputs.values()))
    for layer, gradient in zip(outputs, gradients):
        expected = gradient[0].unflatten(-1, (4, 8)).transpose(0, 1)
        assert torch.allclose(found[layer].flatten(0, 1), expected, rtol=1e-3, atol=1e-5)


def test_fewer_drawn_predictions_stand_for_all(monkeypatch):
    focus, ids = retrofit(model(), CONFIG, seed=0), torch.from_numpy(blocks(1))

    def squares():
        draws = [calls_with_gradients(focus, ids, generator=torch.Generator().manual_seed(seed)) for seed in range(40)]
        return np.mean([[float(gradient.square().sum()) for _, gradient in each] for each in draws], 0)

    every = squares()
    monkeypatch.setattr("focus_core.routing.narrow.fitting.gradients.MOST_LOGITS", 97 * 40)
    assert squares() == pytest.approx(every, rel=0.2)


def test_a_layer_weighs_what_its_error_does_to_predictions():
    """Of one layer whose heads change a little, over many draws, beside the divergence of predictions."""
    focus, ids = retrofit(model(), CONFIG, seed=0), torch.from_numpy(blocks(1))
    weights = [layer_weights(focus, ids.numpy(), seed=seed) for seed in range(40)]

    def predictions(changed, head, share):
        def attend(call):
            found = attend_fully(call)
            if call.layer == changed:
                output = found.output.flatten(0, 1).clone()
                output[head] += 0.05 * (sparse_output(call, share)[head] - output[head])
                return AttentionOutput(output.view_as(found.output), found.logsumexp)
            return found

        with torch.no_grad(), focus.routing("hard", rule=Rule(attend, hard_groups)):
            return focus(ids, use_cache=False).logits[0].double().log_softmax(-1)

    calls, projected = calls_of(focus, ids), projections(focus)
    with torch.no_grad(), focus.routing("off"):
        states = focus.model(ids, use_cache=False, output_hidden_states=True).hidden_states

    def error_of(layer, head, share):
        """The difference in the hidden states that the layer adds to, over their length, squared."""
        full = attend_fully(calls[layer]).output.flatten(0, 1)
        changed = full.clone()
        changed[head] = sparse_output(calls[layer], share)[head]
        with torch.no_grad():
            difference = projected[layer]((changed - full).transpose(0, 1).flatten(1))
        return float((difference.square().sum(-1) / states[layer][0].square().sum(-1)).sum())

    for layer in (0, 1):
        before, moved = predictions(None, 0, 0), 0.0
        errors = 0.0
        for head in range(4):
            for share in PROBED:
                after = predictions(layer, head, share)
                moved += float((before.exp() * (before - after)).sum()) / 0.05**2
                errors += error_of(layer, head, share)
        assert np.mean([each[layer] for each in weights]) == pytest.approx(moved / errors, rel=0.15)
