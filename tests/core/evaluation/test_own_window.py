"""The model's own sliding window: baselines, shares and exposure see no pair beyond it."""

import numpy as np
import pytest
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from focus_core import FocusConfig, retrofit
from focus_core.baselines import BASELINES
from focus_core.evaluation import evaluate
from focus_core.evaluation.exposure import exposure
from focus_core.frontier.measure import baseline_point
from focus_core.routing.layer import heads_in_groups
from focus_core.routing.rules import Rule, attend_fully

LENGTH, OWN = 72, 24
CONFIG = FocusConfig(num_groups=4, top_k=1, window=6, sink_tokens=2, route_dim=8)
SHAPE = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def mistral():
    torch.manual_seed(0)
    return MistralForCausalLM(MistralConfig(sliding_window=OWN, **SHAPE)).eval()


def gemma():
    torch.manual_seed(0)
    types = ["sliding_attention", "full_attention"]
    return Gemma3ForCausalLM(Gemma3TextConfig(sliding_window=OWN, layer_types=types, head_dim=8, **SHAPE)).eval()


MODELS = {
    "mistral": (mistral, (OWN, OWN)),
    "gemma": (gemma, (OWN, None)),
    "phi": (lambda: Phi3ForCausalLM(Phi3Config(sliding_window=OWN, pad_token_id=0, **SHAPE)), (OWN, OWN)),
    "qwen, off": (lambda: Qwen2ForCausalLM(Qwen2Config(sliding_window=OWN, **SHAPE)), (None, None)),
    "gpt-oss": (
        lambda: GptOssForCausalLM(
            GptOssConfig(sliding_window=OWN, head_dim=8, num_local_experts=2, num_experts_per_tok=1, **SHAPE)
        ),
        (OWN, None),
    ),
    "llama": (lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)), (None, None)),
}


def blocks():
    return np.random.default_rng(0).integers(1, 90, (2, LENGTH))


@pytest.mark.parametrize("name", MODELS)
def test_the_window_that_is_counted_is_the_one_that_attention_gets(name):
    make, expected = MODELS[name]
    focus, seen = retrofit(make().eval(), CONFIG), {}

    def attend(call):
        seen[call.layer] = (call.geometry.sliding_window, call.routing.sliding_window)
        return attend_fully(call)

    with torch.no_grad(), focus.routing("soft", balance="calibrated", rule=Rule(attend)):
        focus(torch.from_numpy(blocks()), use_cache=False)
    assert focus.sliding_windows == expected
    assert list(seen.values()) == [(own, own) for own in expected]


@pytest.mark.parametrize("make", [mistral, gemma])
@pytest.mark.parametrize("name", [name for name, each in BASELINES.items() if each.tunable])
def test_a_baseline_that_keeps_everything_is_the_untouched_model(make, name):
    focus, ids = retrofit(make(), CONFIG), blocks()
    untouched = evaluate(focus, ids, routing="off")
    text = torch.from_numpy(np.random.default_rng(1).integers(1, 90, (1, LENGTH)))
    point = baseline_point(focus, name, ids, share=1.0, window=6, sinks=2, training_text=text)
    assert point.perplexity == pytest.approx(untouched.perplexity, rel=1e-5)
    assert abs(point.kl) < 1e-6
    assert point.kept_share == point.causal_kept_share == 1


def test_baselines_spend_their_share_inside_the_window():
    focus, ids = retrofit(mistral(), CONFIG), blocks()
    text = torch.from_numpy(np.random.default_rng(1).integers(1, 90, (1, LENGTH)))
    for name, each in BASELINES.items():
        if each.tunable and name != "magicpig":  # its number of tables has few steps on so short a text
            point = baseline_point(focus, name, ids, share=0.4, window=6, sinks=2, training_text=text)
            assert point.kept_share == pytest.approx(0.4, abs=0.05), name


@pytest.mark.parametrize("make", [mistral, gemma])
def test_shares_count_only_pairs_inside_the_window(make):
    focus, ids = retrofit(make(), CONFIG), blocks()
    members = {}

    def look(routing):
        members[routing.layer] = (routing, routing.membership())

    with torch.no_grad(), focus.routing("hard"), focus.observe(look):
        focus(torch.from_numpy(ids), use_cache=False)
    row = evaluate(focus, ids, routing="hard")
    i, j = np.indices((LENGTH, LENGTH))
    causal = kept = distant = 0
    removed = []
    for own, (_, (keys, queries)) in zip(focus.sliding_windows, members.values(), strict=True):
        inside = (i >= j) & (i - j < (own or LENGTH))
        far = inside & (i - j > CONFIG.window)
        for key, query in zip(keys.numpy(), queries.numpy()):
            same = (query[:, None] & key[None]).any(-1) | (j < CONFIG.sink_tokens)
            causal, distant, kept = causal + inside.sum(), distant + far.sum(), kept + (far & same).sum()
            removed.append((far & ~same).sum())
    assert row.kept_share == pytest.approx(kept / distant)
    assert row.causal_kept_share == pytest.approx((causal - distant + kept) / causal)
    assert row.exposure == pytest.approx(distant / causal)
    heads = [routing.router.num_heads for routing, _ in members.values()]
    rows = [
        torch.cat([heads_in_groups(part, count)[0] for part in each], -1)
        for count, (_, each) in zip(heads, members.values())
    ]
    found = exposure(LENGTH, CONFIG, rows, sliding_windows=focus.sliding_windows)
    assert found.distant_share == pytest.approx(distant / causal)
    per_layer = len(removed) // len(rows)
    first = np.reshape(removed, (len(rows), per_layer))[:, : heads[0]]
    assert found.removed == pytest.approx(first.mean())


@pytest.mark.parametrize("tokens", [1, 5, 24, 25, 60])
@pytest.mark.parametrize("window", [0, 6, 23, 30])
@pytest.mark.parametrize("own", [None, 1, 5, 24, 100])
def test_exposure_counts_pairs_as_a_loop_does(tokens, window, own):
    pairs = [i - j for i in range(tokens) for j in range(i + 1) if own is None or i - j < own]
    found = exposure(tokens, CONFIG.replace(window=window), sliding_windows=[own])
    assert (found.causal, found.distant) == (len(pairs), sum(distance > window for distance in pairs))
