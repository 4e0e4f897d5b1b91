"""Balance statistics against scipy, the plain Sinkhorn and naive loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import entropy

from focus_core.analysis.group_balance import (
    balancing,
    effective_groups,
    flip_rate,
    future_flips,
    group_counts,
    normalised_entropy,
    prefix_lengths,
)
from focus_core.routing.sinkhorn import marginal_error, potential_softmax, sinkhorn


def random_scores(layers: int, tokens: int, num_groups: int, seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((layers, tokens, num_groups)) * 0.4).astype(np.float32)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.integers(1, 40), st.integers(2, 6), st.integers(0, 99))
def test_loads_are_counted_and_entropies_are_scipys(layers, tokens, num_groups, seed):
    groups = np.random.default_rng(seed).integers(0, num_groups, (layers, tokens))
    counts = group_counts(groups, num_groups)
    for layer in range(layers):
        assert counts[layer].tolist() == [(groups[layer] == group).sum() for group in range(num_groups)]
        assert normalised_entropy(counts)[layer] == pytest.approx(entropy(counts[layer], base=num_groups))
        assert effective_groups(counts)[layer] == pytest.approx(np.exp(entropy(counts[layer])))


def test_the_extremes_of_balance():
    even, collapsed = np.array([5, 5, 5, 5]), np.array([20, 0, 0, 0])
    assert normalised_entropy(even) == pytest.approx(1) and effective_groups(even) == pytest.approx(4)
    assert normalised_entropy(collapsed) == pytest.approx(0) and effective_groups(collapsed) == pytest.approx(1)


@pytest.mark.parametrize("temperature", [0.05, 0.1, 0.5])
def test_every_round_is_that_of_sinkhorn_run_so_far(temperature):
    scores = random_scores(3, 50, 5, 0)
    result = balancing(scores, temperature=temperature, rounds=6)
    logits = torch.tensor(scores)
    assert result.errors.shape == (3, 7)
    before = potential_softmax(logits, torch.zeros(5), temperature)
    assert np.allclose(result.errors[:, 0], marginal_error(before), atol=1e-5)
    for rounds in range(1, 7):
        after = sinkhorn(logits, temperature=temperature, rounds=rounds)
        assert np.allclose(result.errors[:, rounds], marginal_error(after), atol=1e-4)
    assert (result.sequence == sinkhorn(logits, temperature=temperature, rounds=6).argmax(-1).numpy()).all()
    assert (result.raw == scores.argmax(-1)).all()


def test_flips_are_counted():
    assert flip_rate(np.array([[0, 1, 2, 3]]), np.array([[0, 1, 3, 2]])).tolist() == [0.5]


def test_future_flips_follow_the_definition():
    scores = random_scores(1, 60, 4, 3)[0]
    lengths = np.array([1, 20, 45, 60])
    whole = sinkhorn(torch.tensor(scores)[None], temperature=0.1, rounds=8)[0].argmax(-1)
    expected = []
    for length in lengths:
        alone = sinkhorn(torch.tensor(scores[:length])[None], temperature=0.1, rounds=8)[0].argmax(-1)
        expected.append(sum(int(a != b) for a, b in zip(alone, whole)) / length)
    found = future_flips(scores, lengths, temperature=0.1, rounds=8)
    assert found.tolist() == pytest.approx(expected)
    assert found[-1] == 0 and found[:-1].max() > 0


@given(st.integers(1, 20000), st.integers(1, 12))
@settings(max_examples=50, deadline=None)
def test_prefixes_increase_up_to_the_whole_text(tokens, count):
    lengths = prefix_lengths(tokens, count)
    assert (np.diff(lengths) > 0).all() and lengths[0] >= 1
    assert lengths[-1] <= tokens and (count == 1 or lengths[-1] == tokens)
