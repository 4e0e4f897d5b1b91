"""Formulas of FLOPs, bytes and network against independent counts."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import GPT2Config, LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import DynamicCache

from focus_core import FocusConfig, retrofit
from focus_core.errors import FocusError
from focus_core.routing.layer import reading_of
from focus_core.routing.narrow.attention import narrow_pairs
from focus_core.routing.narrow.cache.layer import NarrowLayer
from focus_core.routing.narrow.reads import blocks_read
from focus_core.scale.shapes import SHAPES, find_shape, shape_of
from focus_core.scale.work import (
    attended,
    cache_bytes,
    decode_step,
    pages_of,
    prefill_flops,
    read_together,
    router_parameters,
    sharded_bytes,
    tensor_parallel_bytes,
    training_flops,
    weight_bytes,
)
from focus_core.training.objectives import OBJECTIVES

SMALL = {"num_hidden_layers": 3, "hidden_size": 32, "intermediate_size": 48, "vocab_size": 99}
NARROW = FocusConfig(
    router="narrow", num_groups=8, top_k=1, window=32, chunk=16, read_share=0.2, count_weight=1.0, score="dot"
)


def llama(**changes):
    torch.manual_seed(0)
    config = LlamaConfig(**{**SMALL, "num_attention_heads": 4, "num_key_value_heads": 2, **changes})
    config._attn_implementation = "eager"
    return LlamaForCausalLM(config).eval()


def counted(call) -> int:
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


@pytest.mark.parametrize("tied", [True, False])
def test_a_shape_has_the_parameters_of_its_model(tied):
    model = llama(tie_word_embeddings=tied)
    shape = shape_of(model.config)
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    inner = [part for name, part in model.named_modules() if isinstance(part, torch.nn.Linear) and name != "lm_head"]
    assert shape.layers * shape.layer_weights == sum(part.weight.numel() for part in inner)
    size = model.lm_head.weight.nbytes + sum(part.weight.nbytes for part in inner)
    assert weight_bytes(shape, 4) == size


def test_stated_shapes_have_the_published_numbers_of_parameters():
    found = {name: shape.parameters for name, shape in SHAPES.items()}
    assert found == {"135m": 134_515_008, "8b": 8_030_261_248, "70b": 70_553_706_496}
    assert [SHAPES[name].sharing for name in ("135m", "8b", "70b")] == [3, 4, 8]


@pytest.mark.usefixtures("default_model")
def test_the_stated_default_model_is_the_real_one():
    own, stated = find_shape("default"), find_shape("135M")
    assert {**vars(own), "name": ""} == {**vars(stated), "name": ""}


def test_another_form_of_model_and_a_missing_one_are_one_sentence(tmp_path):
    GPT2Config(n_layer=1).save_pretrained(tmp_path)
    with pytest.raises(FocusError, match="Llama's form"):
        find_shape(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FocusError, match="There is no configuration"):
        find_shape(str(tmp_path))


@pytest.mark.parametrize("logits", [1, 40])
def test_flops_of_prefill_are_those_that_pytorch_counts(logits):
    model, tokens = llama(), 40
    shape = shape_of(model.config)
    ids = torch.arange(tokens)[None]
    found = counted(lambda: model(input_ids=ids, logits_to_keep=logits))
    flops = prefill_flops(shape, tokens, None, logits=logits)
    # Eager attention computes all T x T pairs; causal ones are T (T + 1) / 2 of them.
    per_pair = 4 * shape.head_dim * shape.heads * shape.layers
    assert found == flops.matmul + per_pair * tokens**2
    assert flops.exact == per_pair * tokens * (tokens + 1) / 2 and flops.pages == flops.assign == 0


@pytest.mark.parametrize("objective", ["mass", "lm"])
def test_flops_of_training_are_those_that_pytorch_counts(objective):
    model, tokens = llama(num_hidden_layers=12), 64
    shape = shape_of(model.config)
    focus = retrofit(model, FocusConfig(num_groups=2, top_k=1, window=4, route_dim=2))
    ids = torch.arange(tokens)[None]
    found = counted(lambda: OBJECTIVES[objective].loss(focus, ids).backward())
    # Routers, and the first layer, whose input needs no gradient, are the difference.
    assert training_flops(shape, tokens, objective).total == pytest.approx(found, rel=0.1)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("tokens", [20, 100, 700])
def test_pairs_and_pages_are_those_that_narrow_groups_attend(share, tokens):
    config = NARROW.replace(read_share=share)
    generator = torch.Generator().manual_seed(tokens)
    query, key = (torch.randn(1, heads, tokens, 16, generator=generator) for heads in (4, 2))
    groups = torch.randint(config.num_groups, (1, 2, tokens), generator=generator)
    reading = reading_of(config, config.top_k, config.read_share)
    found = narrow_pairs(query, key, groups, config.num_groups, reading, scale=0.25)
    real = float((found.causal - found.distant + found.distant_kept).float().mean())
    ours = attended(0, tokens, config)
    assert ours.exact == pytest.approx(real, rel=0.03, abs=tokens)

    parts, total = reading.parts(groups, config.num_groups)
    blocks = list(blocks_read(query, key, parts, total, reading, scale=0.25))
    pages = sum(float((block.sizes > 0).sum()) for block in blocks) / 2
    assert ours.pages == pytest.approx(pages, rel=0.1, abs=tokens)
    steps = [attended(place, place + 1, config) for place in range(tokens)]
    assert sum(step.exact for step in steps) == pytest.approx(ours.exact)
    assert sum(step.pages for step in steps) == pytest.approx(ours.pages)


def test_full_attention_has_every_pair_and_a_share_of_one_too():
    assert attended(0, 9, None).exact == 45 and attended(6, 9, None).exact == 7 + 8 + 9
    everything = attended(0, 500, NARROW.replace(read_share=1.0))
    assert everything.exact == attended(0, 500, None).exact


def test_pages_of_few_keys_are_as_many_as_keys():
    assert pages_of(3, NARROW) == 3
    assert pages_of(16_000, NARROW) == 1000 + 8 * 15 / 32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [150, 1500])
@pytest.mark.parametrize("bits", [None, 8])
def test_bytes_of_the_cache_are_those_of_the_real_one(bits, dtype, tokens):
    model = llama(max_position_embeddings=2048).to(dtype)
    shape, size = shape_of(model.config), dtype.itemsize
    ids = torch.randint(99, (1, tokens), generator=torch.Generator().manual_seed(0))
    full = DynamicCache(config=model.config)
    model(input_ids=ids, past_key_values=full)
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in full.layers)
    assert cache_bytes(shape, tokens, size, None) == held

    focus, narrow = retrofit(model, NARROW.replace(page_size=16)), DynamicCache(config=model.config)
    with torch.inference_mode(), focus.routing("hard", cache_bits=bits):
        focus(input_ids=ids, past_key_values=narrow)
    layers = narrow.layers
    assert all(isinstance(layer, NarrowLayer) for layer in layers)
    held = sum(_bytes(text) + _bytes(text.pages) for layer in layers for text in layer.texts)
    assert cache_bytes(shape, tokens, size, NARROW.replace(cache_bits=bits)) == pytest.approx(held, rel=0.1)


def _bytes(part) -> int:
    return sum(each.nbytes for each in vars(part).values() if isinstance(each, torch.Tensor))


def test_a_step_adds_up_to_prefill_and_reads_every_cached_byte_of_full_attention():
    shape, tokens = SHAPES["8b"], 1000
    steps = [decode_step(shape, place, 1, 2, None).flops for place in range(tokens)]
    whole = prefill_flops(shape, tokens, None, logits=tokens)
    assert sum(step.total for step in steps) == pytest.approx(whole.total)
    step = decode_step(shape, tokens, 4, 2, None)
    assert step.cache == 4 * cache_bytes(shape, tokens + 1, 2, None)
    assert step.flops.exact == 4 * decode_step(shape, tokens, 1, 2, None).flops.exact


def test_independent_heads_read_together_what_at_least_one_of_them_reads():
    generator = torch.Generator().manual_seed(0)
    chosen = torch.rand(4, 100_000, generator=generator) < 0.15
    assert read_together(0.15, 4) == pytest.approx(float(chosen.any(0).float().mean()), abs=0.01)
    assert read_together(0.15, 1) == pytest.approx(0.15) and read_together(0, 8) == 0


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_a_ring_sends_what_the_formula_says(gpus):
    """Each of n devices sends n - 1 of n parts to sum them, and as many to share the sums; twice a layer."""
    shape, tokens, size = SHAPES["70b"], 64, 2
    part = tokens * shape.width * size / gpus
    sent = sum(part for _ in range(2 * shape.layers) for _ in ("sum", "share") for _ in range(gpus - 1))
    assert tensor_parallel_bytes(shape, tokens, size, gpus) == pytest.approx(sent)


@pytest.mark.parametrize("router", ["layer", "head"])
def test_trained_parameters_are_those_of_the_real_routers(router):
    model, config = llama(), FocusConfig(router=router, num_groups=5, top_k=1, route_dim=6)
    trained = sum(part.numel() for part in retrofit(model, config).trainable_parameters())
    assert router_parameters(shape_of(model.config), config) == trained


def test_sharded_training_gathers_all_other_weights_once_or_twice():
    shape = SHAPES["8b"]
    others = shape.parameters * 2 * 7 / 8
    assert sharded_bytes(shape, 0, 2, 8, "mass") == others and sharded_bytes(shape, 0, 2, 8, "lm") == 2 * others
    assert sharded_bytes(shape, 800, 2, 8, "mass") == others + 7 * 400 and sharded_bytes(shape, 800, 2, 1, "lm") == 0
