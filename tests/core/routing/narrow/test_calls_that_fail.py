"""Calls that are refused or stopped leave the model and its cache as they were; unusual ones give the usual results."""

from __future__ import annotations

import copy

import pytest
import torch
from test_narrow_cache import CONFIG, grown, routed, same, tokens, whole
from transformers import DynamicCache

from focus_core import FocusError, FocusModel, retrofit
from focus_core.attention import focus_attention, kept_pairs
from focus_core.routing.narrow.attention import narrow_attention
from focus_core.routing.narrow.fitting.fit import fit_narrow
from focus_core.routing.narrow.reading import Reading


@pytest.mark.parametrize("full_below", [0, 99])
def test_a_refused_call_changes_no_cache(full_below):
    focus, ids = routed(full_below=full_below), tokens()
    cache = DynamicCache()
    grown(focus, ids[:, :40], cache, ())
    for length in (41, 45):
        with focus.routing("hard", sink_tokens=5), pytest.raises(FocusError, match="settings"):
            grown(focus, ids[:, :length], cache, ())
    with pytest.raises(FocusError, match="attention mask"), torch.no_grad():
        focus(ids[:, 40:42], past_key_values=cache, attention_mask=torch.ones(1, 1, 2, 42))
    with pytest.raises(FocusError, match="in the cache included"), torch.no_grad():
        focus(ids[:, 40:42], past_key_values=cache, attention_mask=torch.tensor([[0, 1]]))
    assert cache.get_seq_length() == 40
    with focus.routing("off"), pytest.raises(FocusError, match="empty cache"):
        grown(focus, ids, copy.deepcopy(cache), ())
    assert same(grown(focus, ids, cache, (41, 50)), whole(focus, ids)[:, 40:])


def test_a_refused_call_leaves_nothing_for_the_next():
    focus, ids = routed(), tokens()
    with pytest.raises(FocusError, match="Packed"), torch.no_grad():
        focus(ids, position_ids=torch.arange(60)[None] % 30)
    with focus.routing("off"):
        untouched = whole(focus, ids)
    with focus.routing("hard", top_k=5, read_share=None):
        assert same(whole(focus, ids), untouched)


def test_a_padded_text_that_goes_on_without_a_mask_can_be_cropped():
    focus, ids, mask = routed(), tokens(2), torch.ones(2, 40, dtype=torch.long)
    mask[0, :5] = 0
    places = (mask.cumsum(1) - 1).clamp(min=0)
    cache = DynamicCache()
    grown(focus, ids[:, :40], cache, (), attention_mask=mask, position_ids=places)
    later = torch.arange(35, 55)[None] + torch.tensor([[0], [5]])
    with torch.no_grad():
        focus(ids[:, 40:42], past_key_values=cache, position_ids=later[:, :2])
        cache.crop(-2)
        found = focus(ids[:, 40:], past_key_values=cache, position_ids=later).logits
    for row, first in enumerate((5, 0)):
        assert same(found[row], whole(focus, ids[row : row + 1, first:])[0, 40 - first :])


@pytest.mark.parametrize("full_below", [0, 99])
def test_a_cache_may_leave_inference_mode(full_below):
    focus, ids = routed(full_below=full_below), tokens()
    cache = DynamicCache()
    with torch.inference_mode():
        focus(ids[:, :40], past_key_values=cache)
        copied = copy.deepcopy(cache)
    for each in (cache, copied):
        found = grown(focus, ids, each, range(41, 60))
        each.crop(-15)
        assert same(found, whole(focus, ids)[:, 40:])
        assert same(grown(focus, ids, each, (50,)), found[:, 5:])


def test_a_fit_that_is_stopped_leaves_no_routers():
    focus = routed()
    model, blocks = focus.detach().float(), tokens(2, 200).numpy()

    def stop(what, share):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_narrow(model, blocks, CONFIG, progress=stop)
    again = retrofit(model, CONFIG)
    focus.detach()  # a second time, of routers that are gone
    for use in (lambda: focus.routing("hard").__enter__(), lambda: focus(tokens()), lambda: focus.generate(tokens())):
        with pytest.raises(FocusError, match="detached"):
            use()
    with pytest.raises(FocusError, match="already has routers"):
        FocusModel.from_pretrained(model, "smollm2-135m-narrow64")
    with pytest.raises(FocusError, match="load one with focus_core"):
        FocusModel.from_pretrained("default", "smollm2-135m-narrow64")
    assert not torch.equal(whole(again, tokens()), _untouched(again))


def _untouched(focus):
    with focus.routing("off"):
        return whole(focus, tokens())


LAYOUTS = {
    "turned": lambda part: part.transpose(-1, -2).contiguous().transpose(-1, -2),
    "every second": lambda part: torch.stack([part, part], -1).flatten(-2)[..., ::2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("which", range(3))
def test_numbers_may_lie_anywhere_in_memory(layout, which):
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(1, heads, 90, 16, generator=generator) for heads in (4, 2, 2)]
    moved = [LAYOUTS[layout](part) if place == which else part for place, part in enumerate(parts)]
    members = torch.rand(1, 90, 4, generator=generator) < 0.4
    for backend in ("auto", "cpu", "chunked", "dense"):
        expected = focus_attention(*parts, members, window=7, backend="dense").output
        found = focus_attention(*moved, members, window=7, backend=backend).output
        assert torch.allclose(found, expected, atol=1e-5)
    groups = torch.randint(0, 4, (1, 2, 90), generator=generator)
    for full_below in (0, 40, 99):
        reading = Reading(window=6, sink_tokens=2, chunk=5, share=0.3, page_size=3, full_below=full_below)
        found, expected = (narrow_attention(*each, groups, 4, reading, scale=0.3).output for each in (moved, parts))
        assert torch.allclose(found, expected, atol=1e-5)


def test_nothing_gives_nothing():
    for shape in ((0, 2, 9, 8), (1, 2, 0, 8)):
        empty = torch.zeros(shape)
        members = torch.zeros(shape[0], shape[2], 3, dtype=torch.bool)
        for backend in ("auto", "cpu", "chunked", "dense"):
            found = focus_attention(empty, empty, empty, members, window=3, backend=backend)
            assert found.output.shape == shape and found.logsumexp.shape == shape[:3]
        reading = Reading(window=6, sink_tokens=2, chunk=5, share=0.3, page_size=3)
        groups = torch.zeros(shape[:3], dtype=torch.long)
        assert narrow_attention(empty, empty, empty, groups, 4, reading, scale=0.3).output.shape == shape
    with pytest.raises(FocusError, match="same shape"):
        kept_pairs(
            torch.ones(1, 9, 3, dtype=torch.bool), query_membership=torch.ones(1, 4, 3, dtype=torch.bool), window=2
        )
