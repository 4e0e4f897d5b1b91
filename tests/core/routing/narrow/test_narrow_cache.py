"""Narrow groups in a cache: every step, chunk and rollback gives what the definition gives for the text so far."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reading_budgets import budgets, directions
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    DynamicCache,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    StaticCache,
)

from focus_core import FocusConfig, FocusError, retrofit
from focus_core.bench.measures.memory import held_bytes
from focus_core.bench.reading import text_ids
from focus_core.routing.attach import attached
from focus_core.routing.narrow.cache.layer import NarrowLayer
from focus_core.routing.narrow.cache.text import CachedText
from focus_core.routing.narrow.reading import Reading
from focus_core.routing.narrow.reference import narrow_reference
from focus_core.routing.rules import Rule, attend_fully, hard_groups

SMALL = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "eos_token_id": 96,
    "bos_token_id": 1,
}
MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9, "head_dim": 8}
FAMILIES = {
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=256)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL)),
    "cohere": lambda: CohereForCausalLM(CohereConfig(**SMALL)),
    "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**SMALL, **MIXED)),
    "gpt_oss": lambda: GptOssForCausalLM(GptOssConfig(**SMALL, **MIXED, num_local_experts=2, num_experts_per_tok=1)),
}
CONFIG = FocusConfig(
    router="narrow", num_groups=5, top_k=2, window=6, sink_tokens=2, chunk=4, read_share=0.3, page_size=3
)
BUDGETS = {
    "pages": {},
    "groups": {"page_size": None},
    "top_k": {"read_share": None},
    "softer": {"count_weight": 1.0},
    "full at first": {"full_below": 31},
}


def routed(name="llama", **changes):
    torch.manual_seed(0)
    model = FAMILIES[name]().eval().double()
    if name == "gpt_oss":
        model.set_experts_implementation("eager")  # the others know no float64
    for parameter in model.parameters():
        parameter.data.mul_(4)  # attention that matters
    return retrofit(model, CONFIG.replace(**changes))


def tokens(batch=1, length=60, seed=1):
    return torch.randint(2, 95, (batch, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def whole(focus, ids, **options):
    return focus(ids, use_cache=False, **options).logits


@torch.no_grad()
def grown(focus, ids, cache, cuts, **options):
    """Logits of `ids`, given to the model in pieces that end at the cuts."""
    start, found = cache.get_seq_length(), []
    for stop in (*cuts, ids.shape[1]):
        piece = {
            name: part[:, :stop] if name == "attention_mask" else part[:, start:stop] for name, part in options.items()
        }
        found.append(focus(ids[:, start:stop], past_key_values=cache, use_cache=True, **piece).logits)
        start = stop
    return torch.cat(found, 1)


def same(found, expected):
    return torch.allclose(found, expected, rtol=1e-8, atol=1e-8)


@st.composite
def histories(draw):
    """Settings, and how a text grows: pieces of new tokens, and lengths to go back to."""
    num_groups = draw(st.integers(1, 6))
    by_share = draw(st.booleans())
    reading = Reading(
        window=draw(st.integers(0, 12)),
        sink_tokens=draw(st.integers(0, 5)),
        chunk=draw(st.integers(1, 9)),
        top_k=None if by_share else draw(st.integers(0, num_groups)),
        **(draw(budgets(4)) if by_share else {}),
        spread=draw(st.none() | st.tuples(*[st.floats(0, 1, width=32)] * 4)),
        directions=draw(directions(2, 8)),
        count_weight=draw(st.sampled_from([0.0, 0.5, 1.0])),
        page_size=draw(st.none() | st.integers(1, 8)),
        full_below=draw(st.sampled_from([0, 0, 10, 30])),
    )
    pieces = draw(st.lists(st.tuples(st.integers(0, 25), st.integers(0, 15)), min_size=1, max_size=7))
    return num_groups, reading, pieces, draw(st.sampled_from([None, 3.0])), draw(st.integers(0, 99))


@settings(deadline=None)
@given(history=histories())
def test_a_growing_text_equals_the_definition(history):
    num_groups, reading, pieces, softcap, seed = history
    generator = torch.Generator().manual_seed(seed)
    total = sum(new for new, _ in pieces) + 1
    query, key, value = (
        torch.randn(heads, total, width, generator=generator, dtype=torch.float64) * 1.5
        for heads, width in ((4, 8), (2, 8), (2, 6))
    )
    groups = torch.randint(0, num_groups, (2, total), generator=generator)
    text, length = None, 0
    for new, back in pieces:
        part = slice(length, length + new)
        if text is None:
            settings = num_groups, reading.page_size or 4, reading.sink_tokens, None, reading.directions
            text = CachedText(key, value, *settings)
            places = torch.arange(new, dtype=torch.float64)[None, :, None]
            known = None if reading.attends_all(new) and seed % 2 else groups[:, part]
            text.fill(key[:, part], value[:, part], known, (places, places), reading)
        else:
            # Widths of rotations count tokens: the group of each is looked up by its place.
            places = torch.arange(length, length + new, dtype=torch.float64)[None, :, None]
            found = text.attend(
                query[:, part],
                key[:, part],
                value[:, part],
                (places, places),
                lambda keys, rotation: groups[:, rotation[0][0, :, 0].long()],
                reading,
                0.4,
                softcap,
            )
            so_far = slice(length + new)
            expected = narrow_reference(
                *(each[None, :, so_far] for each in (query, key, value, groups)),
                num_groups,
                reading,
                scale=0.4,
                softcap=softcap,
            )
            assert torch.allclose(found.output, expected.output[0, :, part], atol=1e-9)
            assert torch.allclose(found.logsumexp, expected.logsumexp[0, :, part], atol=1e-9)
        length = max(0, length + new - back)
        text.crop(length)
        assert text.length == length


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", FAMILIES)
def test_steps_and_chunks_equal_the_run_without_a_cache(name, budget):
    focus, ids = routed(name, **BUDGETS[budget]), tokens(2)
    expected = whole(focus, ids)
    with focus.routing("hard", top_k=5):
        assert not same(expected, whole(focus, ids))
    for cuts in (range(1, 60), (7, 8, 30, 41, 42), (20,)):
        cache = DynamicCache() if len(cuts) == 1 else DynamicCache(config=focus.model.config)
        assert same(grown(focus, ids, cache, cuts), expected)
    assert any(isinstance(layer, NarrowLayer) for layer in cache.layers)


@pytest.mark.parametrize("length", [*range(1, 24), 40])
def test_generation_is_that_without_a_cache(length):
    focus = routed()
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    expected = focus.generate(tokens(2, length), use_cache=False, **options)
    assert torch.equal(focus.generate(tokens(2, length), **options), expected)


def test_padding_on_the_left_has_no_influence():
    focus, ids, mask = routed(), tokens(3), torch.ones(3, 60, dtype=torch.long)
    mask[0, :13], mask[1, :1] = 0, 0
    places = (mask.cumsum(1) - 1).clamp(min=0)
    found = grown(focus, ids, DynamicCache(), (25, 26, 40, 59), attention_mask=mask, position_ids=places)
    for row, first in enumerate((13, 1, 0)):
        assert same(found[row, first:], whole(focus, ids[row : row + 1, first:])[0])
    prompt, mask = ids[:, :30], mask[:, :30]
    options = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": None}
    together = focus.generate(prompt, attention_mask=mask, **options)[:, 30:]
    for row, first in enumerate((13, 1, 0)):
        alone = focus.generate(prompt[row : row + 1, first:], use_cache=False, **options)
        assert torch.equal(together[row], alone[0, 30 - first :])


def test_padding_on_the_right_of_a_continuation_has_no_influence():
    focus, prefix, tails = routed(), tokens(1, 37), tokens(3, 15, seed=2)
    cache = DynamicCache()
    grown(focus, prefix, cache, ())
    untouched = copy.deepcopy(cache)
    cache.batch_repeat_interleave(3)
    mask = torch.ones(3, 52, dtype=torch.long)
    mask[0, 41:], mask[2, 37:] = 0, 0
    with torch.no_grad():
        found = focus(tails, attention_mask=mask, past_key_values=cache).logits
    for row, size in enumerate((4, 15, 0)):
        ids = torch.cat([prefix, tails[row : row + 1, :size]], 1)
        assert same(found[row, :size], whole(focus, ids)[0, 37:])
    assert same(grown(focus, tokens(1, 50), untouched, (45,)), whole(focus, tokens(1, 50))[:, 37:])


@pytest.mark.parametrize("back", [1, 3, 4, 5, 17, 39, 40])
def test_cropping_leaves_no_trace(back):
    focus, ids, other = routed(), tokens(2), tokens(2, seed=3)
    cache = DynamicCache()
    grown(focus, ids[:, :40], cache, (20, 33))
    cache.crop(-back)
    assert cache.get_seq_length() == 40 - back
    mixed = torch.cat([ids[:, : 40 - back], other[:, 40 - back :]], 1)
    cuts = (44 - back, 45 - back)
    assert same(grown(focus, mixed, cache, cuts), whole(focus, mixed)[:, 40 - back :])


def test_rows_are_chosen_and_repeated():
    focus, ids = routed(), tokens(3)
    cache = DynamicCache()
    grown(focus, ids[:, :40], cache, (30,))
    cache.reorder_cache(torch.tensor([2, 0, 2]))
    rows = ids[[2, 0, 2]]
    rows[2, 40:] = tokens(1, seed=4)[0, 40:]
    assert same(grown(focus, rows[:, :55], cache, (41, 50)), whole(focus, rows)[:, 40:55])
    cache.batch_select_indices(torch.tensor([2, 1]))
    assert same(grown(focus, rows[[2, 1]], cache, ()), whole(focus, rows[[2, 1]])[:, 55:])


@pytest.mark.parametrize(
    "options",
    [{"num_beams": 3}, {"prompt_lookup_num_tokens": 4}, {"num_beams": 2, "num_return_sequences": 2}],
)
def test_beams_and_speculation_are_those_without_a_cache(options):
    focus, ids = routed(), tokens(1, 30).repeat(1, 2)[:, :45]
    options = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": None, **options}
    found = focus.generate(ids, **options)
    expected = {name: each for name, each in options.items() if "lookup" not in name}
    assert torch.equal(found, focus.generate(ids, use_cache=False, **expected))


def test_settings_of_reading_may_change_and_those_of_pages_may_not():
    focus, ids = routed(), tokens(1)
    cache = DynamicCache()
    with focus.routing("hard", top_k=5):
        full = grown(focus, ids[:, :40], cache, (20,))
        assert same(full, whole(focus, ids[:, :40]))
    for changes in ({"top_k": 5}, {"window": 3, "chunk": 9, "top_k": 5}, {"window": 30, "top_k": 5}):
        with focus.routing("hard", **changes):
            length = cache.get_seq_length() + 2
            assert same(grown(focus, ids[:, :length], cache, ()), whole(focus, ids)[:, length - 2 : length])
    for changes in ({"page_size": 4}, {"sink_tokens": 1}):
        with focus.routing("hard", **changes), pytest.raises(FocusError, match="empty cache"):
            grown(focus, ids, copy.deepcopy(cache), ())


def test_other_uses_of_a_cache_are_refused():
    focus, ids = routed(), tokens(1)
    cache = DynamicCache()
    grown(focus, ids[:, :40], cache, ())
    with focus.routing("off"), pytest.raises(FocusError, match="empty cache"):
        grown(focus, ids, copy.deepcopy(cache), ())
    with focus.routing("hard", rule=Rule(attend_fully, hard_groups)):
        with pytest.raises(FocusError, match="use_cache=False"):
            grown(focus, ids, copy.deepcopy(cache), ())
        filled = DynamicCache()
        grown(focus, ids[:, :40], filled, ())
    with pytest.raises(FocusError, match="empty cache"):
        grown(focus, ids, filled, ())
    with pytest.raises(FocusError, match="dynamic cache"):
        grown(focus, ids, StaticCache(config=focus.model.config, max_cache_len=99), ())
    cache.reset()
    assert cache.get_seq_length() == 0
    assert same(grown(focus, ids, cache, (30,)), whole(focus, ids))


def test_observers_see_the_new_tokens():
    focus, ids = routed(), tokens(1)
    cache, seen = DynamicCache(), []
    with focus.observe(lambda routing: seen.append(routing.key_weights.shape)):
        grown(focus, ids, cache, (40, 41))
    assert seen == [(2, new, 5) for new in (40, 40, 1, 1, 19, 19)]


def test_a_cache_in_8_bits_is_smaller_and_close():
    # Wide heads and pages of 16 keys, as real ones: there are few scales and sums for each number.
    config = LlamaConfig(**{**SMALL, "hidden_size": 256, "max_position_embeddings": 999})
    torch.manual_seed(0)
    focus = retrofit(LlamaForCausalLM(config).eval(), CONFIG.replace(page_size=16))
    ids = tokens(length=700)
    found = {}
    for bits in (None, 8):
        cache = DynamicCache()
        with focus.routing("hard", cache_bits=bits):
            logits = grown(focus, ids, cache, (600, 601, 690))[:, 600:]
        found[bits] = logits, held_bytes(cache)
    assert found[8][1] < 0.5 * found[None][1]
    assert 0 < (found[8][0] - found[None][0]).abs().max() < 0.02 * found[None][0].abs().max()
    with focus.routing("hard"), pytest.raises(FocusError, match="empty cache"):
        grown(focus, tokens(length=701), cache, ())


def test_a_cache_in_8_bits_can_be_cropped_copied_and_given_to_beams():
    focus, ids = routed(), tokens(length=83)
    with focus.routing("hard", cache_bits=8):
        cache = DynamicCache()
        straight = grown(focus, ids, cache, (60, 81))[:, 81:]
        cache.crop(-2)
        assert same(grown(focus, ids, cache, ()), straight)
        cache.crop(-40)  # what comes back from the pages stays rounded
        copied = copy.deepcopy(cache)
        again = [grown(focus, ids, each, ()) for each in (cache, copied)]
        assert same(*again) and again[0].isfinite().all()
        found = focus.generate(ids[:, :40], num_beams=3, max_new_tokens=9, do_sample=False)
    assert found.shape == (1, 49)


def test_the_default_model_predicts_after_full_pages_what_it_does_without_a_cache(default_model):
    ids = text_ids(default_model, None)[0][None, :1030]
    with attached(default_model) as (_, focus), focus.routing("hard"):
        expected, cache = whole(focus, ids), DynamicCache()
        found = grown(focus, ids, cache, (1000, 1001, 1002))
        assert found.shape == expected.shape
        assert all((text.pages.counts == text.pages.size).any() for layer in cache.layers for text in layer.texts)
    # Logits of 30; a page at its threshold may be read in one and not in the other.
    assert (found - expected).abs().max() < 5e-3
