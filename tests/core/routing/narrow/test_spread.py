"""Weights of spread: the fit against SciPy and a planted one, summaries against the sums that they stand for."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from tiny_narrow import (
    SMALL,
    assert_a_share_of_one_is_the_untouched_model,
    assert_padding_and_a_cache_change_nothing,
    blocks,
    model,
)
from transformers import MistralConfig, MistralForCausalLM

from focus_core import FocusConfig, FocusError, FocusModel, retrofit
from focus_core.routing.narrow.fitting.fit import fit_narrow
from focus_core.routing.narrow.fitting.spread import EVERY, TRIED, fit_spread, least, slopes_of_spread
from focus_core.routing.narrow.reading import Reading
from focus_core.routing.narrow.reference import narrow_reference
from focus_core.routing.narrow.summaries import RunningSums
from focus_core.routing.rules import Rule, attend_fully, hard_groups

CONFIG = FocusConfig(
    router="narrow", num_groups=6, top_k=1, window=5, sink_tokens=2, chunk=16, read_share=0.2, page_size=4,
    count_spread=True, score="dot",
)  # fmt: skip


@pytest.fixture(scope="module")
def fitted():
    return fit_narrow(model(), blocks(6), CONFIG)


def test_the_spread_is_the_variance_about_the_mean():
    generator = torch.Generator().manual_seed(0)
    key = torch.randn(1, 2, 40, 8, generator=generator, dtype=torch.float64) + 3
    groups = torch.randint(0, 4, (1, 2, 40), generator=generator)
    found = RunningSums.of_none(key, key, 5).add(groups, key, key).summaries().spread[..., 0]
    for head in range(2):
        for group in range(4):
            members = key[0, head, groups[0, head] == group]
            assert found[0, head, group].item() == pytest.approx(members.var(0, correction=0).mean().item())
    assert (found[..., 4] == 0).all()


def test_keys_spread_alike_in_all_directions_weigh_half_their_variance():
    # log of the mean of exp(q k) over a Gaussian is q mean + |q|^2 variance / 2.
    generator = torch.Generator().manual_seed(3)
    key = torch.randn(1, 1, 4000, 4, generator=generator, dtype=torch.float64) * 0.5 + 1
    query = torch.randn(1, 1, 4000, 4, generator=generator, dtype=torch.float64)
    groups = torch.zeros(1, 1, 4000, dtype=torch.long)
    summaries = RunningSums.of_none(key, key, 1).add(groups, key, key).summaries()
    reading = Reading(window=0, sink_tokens=0, chunk=1, share=0.0, spread=(0.5,))
    beyond = reading.beyond_mean(reading.variances(query[:, :, None], summaries.spread, 1.0))
    logits = query @ summaries.keys.mT + beyond[:, :, 0]
    true = (query @ key.mT).logsumexp(-1) - np.log(4000)
    assert (logits[..., 0] - true).abs().mean() < 0.1 * ((query @ summaries.keys.mT)[..., 0] - true).abs().mean()


def divergence(weight, query, key, value, groups, reading, scale, head):
    """Of summaries under a weight, by plain loops over the queries of a head."""
    exact = narrow_reference(query, key, value, groups, 6, reading, scale=scale).exact[0, head]
    keys, own_groups = key[0, head // 2], groups[0, head // 2]
    pages, members = {}, {group: 0 for group in range(6)}
    for place in range(reading.sink_tokens, len(keys)):
        group = int(own_groups[place])
        pages.setdefault((group, members[group] // reading.page_size), []).append(place)
        members[group] += 1
    total = 0.0
    for row in range(0, len(keys), EVERY):
        border = reading.border(row)
        logits = scale * keys[: row + 1] @ query[0, head, row]
        found, true, length = [], [], (scale * query[0, head, row].norm()) ** 2
        unread = np.zeros(row + 1, dtype=bool)
        for places in pages.values():
            there = [place for place in places if place < border and not exact[row, place]]
            if there:
                unread[there] = True
                spread = keys[there].var(0, correction=0).mean()
                logit = scale * query[0, head, row] @ keys[there].mean(0) + np.log(len(there))
                found.append(logit + weight * length * spread)
                true.append(logits[there].logsumexp(0))
        if found:
            rest = logits[~unread].logsumexp(0)
            found, true = (torch.stack([*part, rest]).log_softmax(0) for part in (found, true))
            total += float((true.exp() * (true - found)).sum())
    return total


def test_fitted_weights_are_the_minimum_that_scipy_finds(fitted):
    ids, calls = torch.from_numpy(blocks(1)), {}
    slopes = slopes_of_spread(fitted, blocks(1))

    def attend(call):
        calls[call.layer] = call
        return attend_fully(call)

    with torch.no_grad(), fitted.routing("hard", rule=Rule(attend, hard_groups)):
        fitted.model.base_model(input_ids=ids, use_cache=False)
    reading = Reading(CONFIG.window, CONFIG.sink_tokens, CONFIG.chunk, share=0.2, page_size=4)
    for layer, call in calls.items():
        groups = call.routing.key_groups[:, None].reshape(1, 2, -1)
        tensors = [part.double().reshape(1, -1, *part.shape[-2:]) for part in (call.query, call.key, call.value)]
        for head in (0, 3):
            arguments = *tensors, groups, reading, call.geometry.scale, head
            best = minimize_scalar(divergence, bounds=(0, 2), args=arguments, method="bounded").x
            assert least(slopes[layer])[head].item() == pytest.approx(best, abs=0.01)


def test_the_zero_of_a_slope_is_found_and_stays_within_what_was_tried():
    slopes = torch.stack([TRIED - 0.733, TRIED + 1, TRIED - 5]).double()
    assert torch.allclose(least(slopes), torch.tensor([0.733, 0.0, 2.0], dtype=torch.float64), atol=1e-6)


def test_weights_of_several_blocks_are_of_their_sum(fitted):
    one, other, both = (slopes_of_spread(fitted, each) for each in (blocks(2)[:1], blocks(2)[1:], blocks(2)))
    for layer in both:
        assert torch.allclose(both[layer], one[layer] + other[layer])


def test_weights_are_stored_and_come_back(fitted, tmp_path):
    stored = torch.stack([fitted.router(layer).spread for layer in fitted.layers])
    assert stored.shape == (2, 4) and (stored > 0).any()
    fitted.save_pretrained(tmp_path)
    again = FocusModel.from_pretrained(model(), tmp_path)
    found = torch.stack([again.router(layer).spread for layer in again.layers])
    assert again.config.count_spread and torch.equal(found.half(), stored.half())

    router = again.router(0)
    before = router.spread_weights()
    router.keep_heads(1, 1)
    assert router.spread_weights() == before[2:]


def test_they_matter_and_a_share_of_one_is_the_untouched_model(fitted):
    ids = torch.from_numpy(blocks(1, seed=7))
    assert_a_share_of_one_is_the_untouched_model(fitted)
    with torch.no_grad():
        with fitted.routing("hard"):
            found = fitted(ids, use_cache=False).logits
        with fitted.routing("hard", count_spread=False):
            assert not torch.allclose(fitted(ids, use_cache=False).logits, found, atol=1e-3)


def test_padding_and_a_cache_change_nothing(fitted):
    assert_padding_and_a_cache_change_nothing(fitted)


def test_layers_with_a_window_of_their_own_are_left_out():
    torch.manual_seed(0)
    own = MistralForCausalLM(MistralConfig(**SMALL, sliding_window=24)).eval()
    focus = retrofit(own, CONFIG, seed=0)
    fit_spread(focus, blocks(1))
    assert (focus.router(0).spread == 0).all()


def test_what_cannot_be_used_is_refused(fitted, tmp_path):
    with pytest.raises(FocusError, match="count_spread needs router='narrow'"):
        FocusConfig(count_spread=True)
    plain = retrofit(model(), CONFIG.replace(count_spread=False))
    with pytest.raises(FocusError, match="have no weights of spread"), plain.routing("hard", count_spread=True):
        plain(torch.from_numpy(blocks(1)), use_cache=False)
    fitted.save_pretrained(tmp_path)
    config = tmp_path / "focus_config.json"
    changed = json.loads(config.read_text())
    changed["routing"]["count_spread"] = False
    config.write_text(json.dumps(changed))
    with pytest.raises(FocusError, match=r"do not fit their own configuration at '0\.spread'"):
        FocusModel.from_pretrained(model(), tmp_path)
