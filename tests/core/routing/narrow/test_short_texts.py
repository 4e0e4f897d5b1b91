"""Texts shorter than `full_below` get the attention of the untouched model, and go over to pages as if they had not."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from test_narrow_cache import FAMILIES, grown, routed, same, tokens, whole
from transformers import DynamicCache

from focus_core.routing.rules import RULES


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["gpt2", "llama", "cohere"])
def test_a_short_text_is_that_of_the_untouched_model_bit_for_bit(name, dtype):
    focus = routed(name).to(dtype)
    found = {}
    for mode, changes in (("off", {}), ("hard", {"full_below": 61})):
        with focus.routing(mode, **changes):
            found[mode] = whole(focus, tokens(3)), grown(focus, tokens(), DynamicCache(), range(50, 60))
    assert torch.equal(found["hard"][0], found["off"][0])
    ours, theirs = found["hard"][1], found["off"][1]
    assert torch.equal(ours[:, :50], theirs[:, :50])
    # Steps make the same call on keys that lie elsewhere, so sums may round otherwise.
    assert torch.allclose(ours, theirs, rtol=0, atol=4 * torch.finfo(dtype).eps * theirs.abs().max())


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    ("name", "full_below"),
    [
        *(("llama", place) for place in (1, 2, 3, 9, 29, 44)),
        *itertools.product(sorted(FAMILIES.keys() - {"llama"}), (2, 29)),
    ],
)
def test_one_token_after_another_grows_out_of_it(name, batch, full_below):
    focus, ids = routed(name, full_below=full_below), tokens(batch)
    for first in (1, 3, 28):
        assert same(grown(focus, ids, DynamicCache(), range(first, 60)), whole(focus, ids))


def test_a_text_that_was_cropped_to_a_short_one_is_short_again():
    focus, ids, other = routed(full_below=31), tokens(), tokens(seed=3)
    cache = DynamicCache()
    grown(focus, ids, cache, range(20, 60))
    for back, length in ((35, 25), (48, 1)):
        cache.crop(-back)
        assert cache.get_seq_length() == length
        mixed = torch.cat([ids[:, :length], other[:, length : length + 24]], 1)
        stay = copy.deepcopy(cache)
        assert same(grown(focus, mixed, cache, range(length + 1, length + 24)), whole(focus, mixed)[:, length:])
        assert same(grown(focus, mixed, stay, (length + 2,)), whole(focus, mixed)[:, length:])
        ids = mixed


def test_a_text_with_pages_stays_exact_where_full_attention_comes_later():
    focus, ids = routed(), tokens()
    cache = DynamicCache()
    grown(focus, ids[:, :40], cache, (20,))
    with focus.routing("hard", full_below=99):
        found = grown(focus, ids, cache, range(41, 60))
    # All tokens beyond the first 40 attend to everything, and those keep what they had.
    with focus.routing("hard", top_k=5):
        cache = DynamicCache()
        with focus.routing("hard"):
            grown(focus, ids[:, :40], cache, (20,))
        assert same(found, grown(focus, ids, cache, (41, 50)))


def test_padding_and_observers_take_the_way_of_longer_texts():
    focus, ids, mask = routed(full_below=61), tokens(2), torch.ones(2, 60, dtype=torch.long)
    mask[0, :7] = 0
    places = (mask.cumsum(1) - 1).clamp(min=0)
    found = grown(focus, ids, DynamicCache(), range(30, 60), attention_mask=mask, position_ids=places)
    for row, first in enumerate((7, 0)):
        assert same(found[row, first:], whole(focus, ids[row : row + 1, first:])[0])
    seen = []
    with focus.observe(lambda routing: seen.append(routing.key_groups.shape)):
        watched = grown(focus, ids, DynamicCache(), (59,))
    assert same(watched, whole(focus, ids)) and seen[:2] == [(4, 59)] * 2
    with focus.routing("hard", rule=RULES["hard"]):
        assert same(whole(focus, ids), watched)
