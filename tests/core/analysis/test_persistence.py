"""Agreement, matching and churn of layers against scikit-learn and naive loops."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_mutual_info_score

from focus_core.analysis.persistence import chance_band, churn, layer_agreement
from focus_core.analysis.statistics.agreement import contingency
from focus_core.analysis.statistics.matching import match_groups, matched_share


def random_groups(layers: int, tokens: int, num_groups: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, num_groups, (layers, tokens))


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 5), st.integers(1, 60), st.integers(2, 6), st.integers(0, 99))
def test_layer_agreement_is_scikit_learns(layers, tokens, num_groups, seed):
    groups = random_groups(layers, tokens, num_groups, seed)
    expected = [[adjusted_mutual_info_score(a, b) for b in groups] for a in groups]
    np.fill_diagonal(matrix := np.array(expected), 1.0)
    assert np.allclose(layer_agreement(groups, num_groups), matrix, atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 999))
def test_matching_holds_as_many_tokens_as_the_best_of_all_pairings(rows, columns, seed):
    table = np.random.default_rng(seed).integers(0, 9, (rows, columns))
    partner = match_groups(table)
    assert len(set(partner.tolist())) == columns
    held = sum(table[row, column] for column, row in enumerate(partner) if row < rows)
    wide = table if columns >= rows else table.T
    best = max(
        sum(wide[i, choice[i]] for i in range(len(wide))) for choice in permutations(range(wide.shape[1]), len(wide))
    )
    assert held == best
    assert matched_share(table) == pytest.approx(best / max(1, table.sum()))


def test_renumbered_groups_are_the_same_groups():
    groups = random_groups(1, 300, 6, 1)
    numbers = np.random.default_rng(2).permutation(6)
    table = contingency(groups[0], numbers[groups[0]], 6, 6)
    assert (match_groups(table)[numbers] == np.arange(6)).all()
    assert matched_share(table) == 1
    both = np.stack([groups[0], numbers[groups[0]]])
    assert layer_agreement(both, 6)[0, 1] == pytest.approx(1)
    assert not churn(both, 6).changed.any()


def test_churn_counts_the_tokens_that_move():
    here = np.repeat([0, 1, 2], 20)
    after = np.repeat([2, 0, 1], 20)  # the same groups, renumbered ...
    after[[0, 25, 26]] = [0, 1, 1]  # ... but for three tokens
    result = churn(np.stack([here, after, after]), 3, repeats=200)
    assert np.flatnonzero(result.changed[0]).tolist() == [0, 25, 26]
    assert not result.changed[1].any()
    assert result.of_steps.tolist() == [3 / 60, 0]
    assert result.of_tokens[[0, 1]].tolist() == [0.5, 0]
    # Three equal groups: two thirds would change, less what the matching finds by luck.
    assert ((result.by_chance > 0.5) & (result.by_chance < 2 / 3)).all()


def test_independent_groups_lie_in_the_chance_band_and_real_ones_above():
    first, second = random_groups(2, 2000, 8, 5)
    low, high = chance_band(first, second, 8)
    assert low < adjusted_mutual_info_score(first, second) < high
    assert -0.01 < low < 0 < high < 0.01
    mixed = np.where(np.arange(2000) < 1000, first, second)
    assert adjusted_mutual_info_score(first, mixed) > high
    assert chance_band(first, second, 8) == (low, high)


def test_one_layer_has_no_steps():
    result = churn(random_groups(1, 10, 3, 0), 3)
    assert result.of_steps.shape == (0,)
    assert result.of_tokens.tolist() == [0.0] * 10
