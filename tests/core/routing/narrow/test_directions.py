"""Directions of spread: against NumPy's covariances, planted ones found again, stored and refused."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reading_budgets import some_directions
from tiny_narrow import assert_a_share_of_one_is_the_untouched_model, blocks, model

from focus_core import FocusConfig, FocusError, FocusModel, retrofit
from focus_core.routing.cache import given_cache
from focus_core.routing.narrow.directions import (
    COUNTED,
    Directions,
    feature_sums,
    key_features,
    key_spread,
    num_features,
    query_features,
)
from focus_core.routing.narrow.fitting.directions import leading_directions
from focus_core.routing.narrow.fitting.fit import fit_narrow
from focus_core.routing.narrow.reading import Reading
from focus_core.routing.narrow.summaries import RunningSums

CONFIG = FocusConfig(
    router="narrow", num_groups=6, top_k=1, window=5, sink_tokens=2, chunk=16, read_share=0.2, page_size=4,
    by_error=True, count_spread=True, spread_directions=3, score="dot",
)  # fmt: skip


@pytest.fixture(scope="module")
def fitted():
    return fit_narrow(model(), blocks(6), CONFIG)


@given(count=st.integers(0, 6), seed=st.integers(0, 99))
def test_variances_are_those_of_logits_with_the_rest_alike_in_all_directions(count, seed):
    width, scale = 6, 0.3
    generator = torch.Generator().manual_seed(seed)
    key = torch.randn(2, 3, 40, width, generator=generator, dtype=torch.float64) + 2
    query = torch.randn(2, 6, 5, width, generator=generator, dtype=torch.float64)
    groups = torch.randint(0, 4, (2, 3, 40), generator=generator)
    directions = some_directions(3, width, count, seed) if count else None
    summaries = RunningSums.of_none(key, key, 5, directions).add(groups, key, key).summaries()
    reading = Reading(window=0, sink_tokens=0, chunk=1, share=0.0, directions=directions)
    found = reading.variances(query.unflatten(1, (3, 2)), summaries.spread, scale)
    assert summaries.spread.shape[-1] == num_features(directions)
    for text, head, group in np.ndindex(2, 3, 4):
        members = key[text, head, groups[text, head] == group].numpy()
        if not len(members):
            continue
        # What is told apart as it is, the rest with its variance spread over the other components.
        along = np.zeros((width, 0)) if directions is None else directions.vectors[head].double().numpy()
        inside = along @ along.T
        outside, covariance = np.eye(width) - inside, np.cov(members.T, bias=True)
        rest = np.trace(outside @ covariance @ outside) / max(1, width - count)
        told = inside @ covariance @ inside + rest * outside
        for member in range(2):
            asking = scale * query[text, 2 * head + member].numpy()
            expected = np.einsum("nd,de,ne->n", asking, told, asking)
            assert found[text, head, member, :, group].numpy() == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert (found[..., 4] == 0).all()


def test_all_directions_tell_the_exact_variance():
    generator = torch.Generator().manual_seed(0)
    key, query = (torch.randn(1, 1, 30, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    directions = some_directions(1, 4, 4)
    summaries = RunningSums.of_none(key, key, 1, directions).add(torch.zeros(1, 1, 30).long(), key, key).summaries()
    reading = Reading(window=0, sink_tokens=0, chunk=1, share=0.0, spread=(0.5,), directions=directions)
    found = reading.variances(query[:, :, None], summaries.spread, 3.0)
    expected = (3.0 * query @ key.mT).var(-1, correction=0)
    assert torch.allclose(found[0, 0, 0, :, 0], expected[0, 0], rtol=1e-5)
    # A summary counts no more than some of it.
    assert torch.allclose(reading.beyond_mean(found)[0, 0, 0, :, 0], expected[0, 0].clamp(max=COUNTED) / 2, rtol=1e-5)


@given(count=st.integers(0, 3), seed=st.integers(0, 99))
def test_sums_come_back_from_the_spread(count, seed):
    generator = torch.Generator().manual_seed(seed)
    key, directions = torch.randn(2, 20, 5, generator=generator).double(), None
    if count:
        directions = some_directions(2, 5, count, seed)
    counts, features = torch.full((2, 1), 20.0).double(), key_features(key, directions).sum(1, keepdim=True)
    means = key.mean(1, keepdim=True)
    spread = key_spread(counts, features, means, directions)
    assert torch.allclose(feature_sums(counts, spread, means, directions), features)
    assert torch.equal(query_features(key[:, None], None, 2.0), 4 * key[:, None].square().sum(-1, keepdim=True))


def test_directions_that_were_planted_are_found():
    generator = torch.Generator().manual_seed(1)
    basis = torch.linalg.qr(torch.randn(2, 8, 8, generator=generator, dtype=torch.float64)).Q
    # Queries are long along the first three, keys are spread along the second three.
    long = torch.tensor([9.0, 8, 7, 1, 1, 1, 1, 1], dtype=torch.float64)
    wide = torch.tensor([1.0, 5, 4, 6, 1, 1, 1, 1], dtype=torch.float64)
    queries, keys = (basis @ torch.diag_embed(each) @ basis.mT for each in (long, wide))
    found = leading_directions(queries, keys, 2).double()
    expected = basis[..., 1:3]
    assert torch.allclose(found @ found.mT, expected @ expected.mT, atol=1e-5)


def test_they_are_fitted_stored_and_come_back(fitted, tmp_path):
    for layer in fitted.layers:
        vectors = fitted.router(layer).directions
        assert vectors.shape == (2, 8, 3)
        assert torch.allclose(vectors.mT @ vectors, torch.eye(3).expand(2, 3, 3), atol=1e-5)
        assert not torch.equal(vectors[0], torch.eye(8, 3))
    fitted.save_pretrained(tmp_path)
    again = FocusModel.from_pretrained(model(), tmp_path)
    router = again.router(0)
    stored = fitted.router(0).directions
    assert again.config.spread_directions == 3 and torch.equal(router.directions.half(), stored.half())
    # One object as long as nothing changes, of orthonormal vectors however they were rounded.
    own = router.directions_of_spread(3)
    assert own is router.directions_of_spread(3) and copy.deepcopy(own) is own
    assert torch.allclose(own.vectors.mT @ own.vectors, torch.eye(3).expand(2, 3, 3), atol=1e-6)
    router.keep_heads(1, 1)
    assert torch.allclose(router.directions_of_spread(3).vectors, own.vectors[1:], atol=1e-6)


def test_they_matter_and_a_share_of_one_is_the_untouched_model(fitted):
    ids = torch.from_numpy(blocks(1, seed=7))
    assert_a_share_of_one_is_the_untouched_model(fitted)
    with torch.no_grad():
        with fitted.routing("hard"):
            found = fitted(ids, use_cache=False).logits
        with fitted.routing("hard", spread_directions=0):
            assert not torch.allclose(fitted(ids, use_cache=False).logits, found, atol=1e-4)


def test_padding_changes_nothing_where_positions_stay(fitted):
    # Directions are of encoded keys, so positions must be those of the text alone, as `generate` gives them.
    ids, mask = torch.from_numpy(blocks(2, 90, seed=3)), torch.ones(2, 90, dtype=torch.long)
    mask[0, :17] = 0
    with torch.no_grad():
        expected = fitted(ids[:1, 17:], use_cache=False).logits
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        found = fitted(ids, attention_mask=mask, position_ids=positions, use_cache=False).logits[:1, 17:]
    assert torch.allclose(found, expected, atol=2e-4)


def test_a_cache_and_a_copy_of_it_change_nothing(fitted):
    ids = torch.from_numpy(blocks(1, 90, seed=3))
    with torch.no_grad():
        expected = fitted(ids, use_cache=False).logits[:, 80:]
        first = fitted(ids[:, :80], use_cache=True)
        caches = given_cache(first), copy.deepcopy(given_cache(first))
        for cache in caches:
            steps = [
                fitted(ids[:, place : place + 1], past_key_values=cache, use_cache=True).logits
                for place in range(80, 90)
            ]
            assert torch.allclose(torch.cat(steps, 1), expected, atol=2e-4)


def test_what_cannot_be_used_is_refused(fitted):
    with pytest.raises(FocusError, match="spread_directions needs router='narrow'"):
        FocusConfig(spread_directions=2)
    with pytest.raises(FocusError, match="spread_directions is 9: keys of this model have 8 components"):
        retrofit(model(), CONFIG.replace(spread_directions=9))
    ids = torch.from_numpy(blocks(1, 60))
    with pytest.raises(FocusError, match="have no 2 directions"), fitted.routing("hard", spread_directions=2):
        fitted(ids, use_cache=False)
    with torch.no_grad():
        cache = given_cache(fitted(ids, use_cache=True))
        with pytest.raises(FocusError, match="changed while a cache"), fitted.routing("hard", spread_directions=0):
            fitted(ids[:, :1], past_key_values=cache, use_cache=True)


def test_one_row_has_the_directions_of_its_head():
    directions = some_directions(3, 5, 2)
    assert torch.equal(directions.of_row(4).vectors, directions.vectors[1:2])
    reading = Reading(window=0, sink_tokens=0, share=0.1, spread=(0.1,) * 6, directions=directions)
    own = reading.of_row(5, 2)
    assert own.directions is not None and torch.equal(own.directions.vectors, directions.vectors[2:])
    assert isinstance(own.directions, Directions) and own.spread == (0.1, 0.1)
