"""Executing the baselines: only some queries at a time, and exactly, against dense softmax and direct sums."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from focus_core.baselines import BASELINES, Baseline, Case, estimates
from focus_core.baselines.estimates import performer_features
from focus_core.baselines.execution import (
    attend_features,
    attend_key_blocks,
    attend_tiles,
    attend_window,
    key_blocks,
    tiles,
)
from focus_core.baselines.patterns import window_and_sinks
from focus_core.errors import FocusError

WAYS = {"tiles": (tiles, attend_tiles), "key blocks": (key_blocks, attend_key_blocks)}


def dense(query, key, value, kept, scale):
    return (query @ key.T * scale).masked_fill(~kept, float("-inf")).softmax(-1) @ value


@pytest.mark.parametrize("way", list(WAYS))
@settings(max_examples=40, deadline=None)
@given(
    length=st.integers(1, 70),
    size=st.integers(1, 80),
    density=st.floats(0, 1),
    seed=st.integers(0, 2**16),
)
def test_every_way_is_softmax_over_the_kept_pairs(way, length, size, density, seed):
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(length, n, generator=generator, dtype=torch.float32) for n in (8, 8, 5))
    kept = (torch.rand(length, length, generator=generator) < density).tril_() | torch.eye(length, dtype=torch.bool)
    plan, attend = WAYS[way]
    output = attend(query, key, value, plan(kept, size), 0.4)
    assert torch.allclose(output, dense(query, key, value, kept, 0.4), atol=1e-5)


def test_what_nobody_keeps_is_not_in_the_parts():
    index = torch.arange(64)
    distance = index[:, None] - index
    window = (distance >= 0) & (distance < 4)
    assert max(len(part.keys) for part in tiles(window, 8)[1:]) == 8 + 3
    assert max(len(part.queries) for part in key_blocks(window, 8)) == 8 + 3


@given(length=st.integers(1, 60), window=st.integers(0, 70), sinks=st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_windows_run_through_the_projects_own_backend(length, window, sinks):
    generator = torch.Generator().manual_seed(length)
    query, key, value = (torch.randn(1, 2, length, 8, generator=generator) for _ in range(3))
    index = torch.arange(length)
    distance = index[:, None] - index
    kept = (distance >= 0) & ((distance <= window) | (index < sinks))
    output = attend_window(query, key, value, window, sinks, 0.4)
    assert torch.allclose(output, dense(query[0, 0], key[0, 0], value[0, 0], kept, 0.4), atol=1e-5)


@given(length=st.integers(1, 40), size=st.integers(1, 50))
@settings(max_examples=30, deadline=None)
def test_running_sums_are_the_direct_sums(length, size):
    generator = torch.Generator().manual_seed(length)
    query, key = (torch.rand(length, 6, generator=generator, dtype=torch.float64) for _ in range(2))
    value = torch.randn(length, 3, generator=generator)
    weights = (query @ key.T).tril()
    expected = weights @ value.double() / weights.sum(-1, keepdim=True)
    assert torch.allclose(attend_features(query, key, value, size).double(), expected, atol=1e-6)


def test_the_executed_performer_is_the_performer():
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 1, 300, 8, generator=generator) for _ in range(3))
    case = Case(query, key, value, 8, 2, 0.0, scale=8**-0.5)
    features = (part[0, 0] for part in performer_features(case))
    expected = BASELINES["performer"].attend(case).attention.output[0, 0]
    assert torch.allclose(attend_features(*features, value[0, 0]), expected, atol=1e-5)


@pytest.mark.parametrize("more", [{}, {"keep": window_and_sinks, "features": performer_features}])
def test_a_baseline_that_nothing_can_execute_is_refused(more):
    with pytest.raises(FocusError, match="'mine' needs the pairs it keeps, or its features"):
        Baseline("mine", "nowhere", estimates.performer, **more)


@pytest.mark.parametrize("name", [name for name, each in BASELINES.items() if each.keep is not None])
@pytest.mark.parametrize("window", [5, 20])
def test_some_queries_keep_what_they_keep_among_all(name, window):
    generator = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(1, 2, 150, 8, generator=generator) for _ in range(3))
    case = Case(query, key, value, window, 3, 0.3, scale=8**-0.5, seed=5)
    method = BASELINES[name]
    if method.fit is not None:
        fitted = method.fit(query, key[:, :1], share=0.3, window=window, sinks=3, seed=0)
        case = dataclasses.replace(case, fitted=fitted)
    every, whole = method.keep(case).expand(1, 2, 150, 150), method.attend(case)
    assert torch.equal(every, whole.kept.expand(1, 2, 150, 150))
    for start, end in ((0, 1), (0, 40), (37, 101), (149, 150)):
        some = dataclasses.replace(case, query=query[:, :, start:end], start=start)
        assert torch.equal(method.keep(some).expand(1, 2, end - start, 150), every[:, :, start:end])
        output = method.attend(some).attention.output
        assert torch.allclose(output, whole.attention.output[:, :, start:end], atol=1e-5)
