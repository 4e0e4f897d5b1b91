"""Families whose layers say otherwise which of them have a window, or rotate their keys."""

from __future__ import annotations

import pytest
import torch
from test_narrow_cache import CONFIG, SMALL, grown, same, tokens, whole
from transformers import (
    AutoModelForCausalLM,
    Cohere2Config,
    DynamicCache,
    Exaone4Config,
    PhimoeConfig,
    Qwen2MoeConfig,
)

from focus_core import retrofit
from focus_core.routing.decoder.families import own_window, rotates

MOE = {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "num_experts": 2, "num_experts_per_tok": 1}
MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9}
CONFIGS = {
    "qwen2_moe": (Qwen2MoeConfig, {**MOE}),
    "qwen2_moe_window": (Qwen2MoeConfig, {**MOE, **MIXED, "use_sliding_window": True, "max_window_layers": 1}),
    "exaone4": (Exaone4Config, {**MIXED, "sliding_window_pattern": "LG"}),
    "phimoe": (PhimoeConfig, {"num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 9}),
    "cohere2": (Cohere2Config, {**MIXED}),
}


def model(name):
    torch.manual_seed(0)
    made, changes = CONFIGS[name]
    model = AutoModelForCausalLM.from_config(made(**{**SMALL, **changes}))
    if "moe" in name:
        model.set_experts_implementation("eager")
    for parameter in model.parameters():
        parameter.data.mul_(4)  # attention that matters
    return model.eval().double()


@pytest.mark.parametrize("name", CONFIGS)
def test_all_groups_are_the_untouched_model(name):
    focus, ids = retrofit(model(name), CONFIG), tokens(2)
    with focus.routing("off"):
        untouched = whole(focus, ids)
    with focus.routing("hard", top_k=5, read_share=None):
        assert same(whole(focus, ids), untouched)


@pytest.mark.parametrize("name", CONFIGS)
def test_steps_equal_the_run_without_a_cache(name):
    focus, ids = retrofit(model(name), CONFIG), tokens(2)
    for cuts in (range(30, 60), (7, 8, 41)):
        assert same(grown(focus, ids, DynamicCache(config=focus.model.config), cuts), whole(focus, ids))


@pytest.mark.parametrize(
    "name, windows, rotated",
    [
        ("qwen2_moe", [None, None], [True, True]),
        ("qwen2_moe_window", [9, None], [True, True]),
        ("exaone4", [9, None], [True, False]),
        ("cohere2", [9, None], [True, False]),
    ],
)
def test_windows_and_rotation_are_those_of_each_layer(name, windows, rotated):
    modules = [layer.self_attn for layer in model(name).model.layers]
    assert [own_window(module) for module in modules] == windows
    assert [rotates(module) for module in modules] == rotated


def test_keys_that_were_not_rotated_are_grouped_as_they_are():
    focus, seen = retrofit(model("cohere2"), CONFIG), {}
    with focus.observe(lambda routing: seen.setdefault(routing.layer, routing.key_groups)):
        whole(focus, torch.full((1, 40), 7))
    assert all(len(head.unique()) == 1 for head in seen[1])  # one token, so one key, whatever its place
