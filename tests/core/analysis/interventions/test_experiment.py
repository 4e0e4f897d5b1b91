"""Experiments on models with random weights: identities that hold for routers of every kind."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_narrow import fitted
from transformers import GPT2Config, GPT2LMHeadModel

from focus_core import FocusConfig, FocusError, retrofit
from focus_core.analysis.interventions import (
    Experiment,
    Intervention,
    Site,
    cut,
    force,
    intervening,
    knock_out,
    link_weights,
    restore,
)
from focus_core.analysis.interventions.experiment import MAX_TOKENS
from focus_core.routing.rules import AttentionCall, Rule, attend_hard, hard_groups

LENGTH = 150
IDS = np.random.default_rng(5).integers(1, 200, LENGTH)


def routed(loaded, kind):
    if kind in ("layer", "head"):
        return retrofit(loaded.model, FocusConfig(router=kind, num_groups=4, top_k=1, window=20, sink_tokens=3))
    budget = {"top_k": 2} if kind == "narrow groups" else {"read_share": 0.3, "page_size": 5}
    if kind == "need and spread":
        budget |= {"by_error": True, "count_spread": True, "spread_directions": 2}
    settings = FocusConfig(
        router="narrow",
        **{"num_groups": 6, "top_k": 1, "window": 20, "sink_tokens": 3, "chunk": 8, "count_weight": 1.0, **budget},
    )
    return fitted(loaded.model, np.random.default_rng(0).integers(1, 200, (4, 200)), settings)


@pytest.fixture(params=["layer", "head", "narrow", "narrow groups", "need and spread"])
def focus(tiny_llama, request):
    return routed(tiny_llama, request.param)


def logits_of(focus):
    with torch.inference_mode():
        return focus(torch.from_numpy(IDS)[None], use_cache=False).logits


def test_no_intervention_gives_the_same_logits(focus):
    for layer in (0, 2):
        with intervening(focus, layer, 1, Intervention()):
            found = logits_of(focus)
        assert torch.allclose(found, logits_of(focus), atol=1e-5)


def test_weights_are_those_of_the_routed_attention(focus):
    """The links as masks give the output of the rule itself, for each head and in each layer."""
    checked = []

    def attend(call: AttentionCall):
        whole = attend_hard(call)
        per_head = call.routing.router.num_heads > 1
        for head in range(2):
            site = Site.of(call, head)
            weights, logsumexp = link_weights(site, site.links())
            rows = (head, slice(0, 2)) if per_head else (0, slice(2 * head, 2 * head + 2))
            assert torch.allclose(weights.sum(-1), torch.ones(2, LENGTH), atol=1e-5)
            assert torch.allclose(weights @ site.value, whole.output[rows], atol=1e-5)
            assert torch.allclose(logsumexp, whole.logsumexp[rows], atol=1e-4)
            checked.append((call.layer, head))
        return whole

    with torch.inference_mode(), focus.routing("hard", rule=Rule(attend, hard_groups)):
        focus(torch.from_numpy(IDS)[None], use_cache=False)
    assert len(checked) == 6


def test_an_empty_group_changes_nothing_at_all(focus):
    experiment = Experiment(focus, IDS, 1, 0)
    for edit in (knock_out([]), knock_out([0, 1]), force([]), cut(np.zeros((0, 3)))):
        found = experiment.run(Intervention(edits=(edit,)))
        assert found.links == 0
        assert not found.loss.any() and not found.kl.any()


def test_starting_at_the_layer_equals_a_whole_run(focus):
    experiment = Experiment(focus, IDS, 2, 1)
    intervention = Intervention(edits=(knock_out(experiment.eligible()[:40]),))
    found = experiment.run(intervention)
    with intervening(focus, 2, 1, intervention):
        with_it = logits_of(focus)[0, :-1].log_softmax(-1)
    without = logits_of(focus)[0, :-1].log_softmax(-1)
    targets = torch.from_numpy(IDS)[1:, None]
    expected = (without - with_it).gather(-1, targets)[:, 0]
    assert found.links > 0 and np.abs(found.loss).max() > 1e-6
    assert np.allclose(found.loss, expected.numpy(), atol=2e-5)
    kl = (without.exp() * (without - with_it)).sum(-1)
    assert np.allclose(found.kl, kl.numpy(), atol=2e-5)


def test_the_past_of_the_first_changed_link_stays(focus):
    experiment = Experiment(focus, IDS, 0, 0)
    key = 70
    found = experiment.run(Intervention(edits=(knock_out([key]), force([key]))))
    window = focus.config.window
    assert not found.kl[: key + window].any()


def test_knocked_out_keys_have_no_weight_beyond_the_window(focus):
    experiment = Experiment(focus, IDS, 1, 1)
    keys = experiment.eligible()[::3]
    site, links = Intervention(edits=(knock_out(keys),)).apply(experiment.site)
    weights = link_weights(site, links)[0]
    beyond = site.distant()[:, keys]
    assert not weights[:, :, keys][:, beyond].any()
    assert torch.allclose(weights.sum(-1), torch.ones(2, LENGTH), atol=1e-5)


def test_forcing_every_key_is_full_attention(focus):
    experiment = Experiment(focus, IDS, 1, 1)
    _, links = Intervention(edits=(force(np.arange(LENGTH)),)).apply(experiment.site)
    causal = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    assert bool((links.exact == causal).all()) and not bool(links.summarised.any())


def test_layers_are_left_as_they_were(tiny_llama):
    focus = routed(tiny_llama, "narrow")
    experiment = Experiment(focus, IDS, 2, 0)
    with pytest.raises(FocusError, match="no token 999"):
        experiment.run(Intervention(edits=(knock_out([999]),)))
    with pytest.raises(FocusError, match="no distant link"):
        experiment.run(Intervention(edits=(restore(50, 45),)))
    assert not any("forward" in vars(module) for module in focus.model.modules())


def test_gpt2_blocks_are_reused(tiny_llama):
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=220, n_embd=32, n_layer=3, n_head=4, n_positions=256)).eval()
    focus = retrofit(model, FocusConfig(num_groups=4, top_k=1, window=16))
    experiment = Experiment(focus, IDS, 2, 3)
    intervention = Intervention(edits=(knock_out(experiment.eligible()),))
    with intervening(focus, 2, 3, intervention):
        with_it = logits_of(focus)[0, :-1].log_softmax(-1)
    expected = (logits_of(focus)[0, :-1].log_softmax(-1) - with_it).gather(-1, torch.from_numpy(IDS)[1:, None])[:, 0]
    assert np.allclose(experiment.run(intervention).loss, expected.numpy(), atol=2e-5)


@pytest.mark.parametrize(
    ("layer", "head", "ids", "words"),
    [
        (9, 0, IDS, "Layer 9 has no router"),
        (0, 7, IDS, "head 7 is not there"),
        (0, 0, IDS[:1], "2 to 1,024 tokens"),
        (0, 0, np.ones(MAX_TOKENS + 1, dtype=np.int64), "2 to 1,024 tokens"),
    ],
)
def test_refusals(tiny_llama, layer, head, ids, words):
    focus = routed(tiny_llama, "head")
    with pytest.raises(FocusError, match=words):
        Experiment(focus, ids, layer, head)


def test_soft_routing_is_refused(tiny_llama):
    focus = routed(tiny_llama, "layer")
    with focus.routing("soft"), pytest.raises(FocusError, match="hard routing"):
        Experiment(focus, IDS, 0, 0)
