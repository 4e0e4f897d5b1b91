"""Agreement measures against scikit-learn and naive loops."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from focus_core.analysis.statistics.agreement import (
    adjusted,
    agreement,
    ami,
    contingency,
    expected_information,
    grouped_contingency,
    membership_sets,
    mutual_information,
    sharing_lift,
)

labels = st.integers(2, 60).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(0, 5), min_size=n, max_size=n), st.lists(st.integers(0, 3), min_size=n, max_size=n)
    )
)


@given(labels)
@settings(max_examples=80, deadline=None)
def test_every_measure_agrees_with_scikit_learn(pair):
    tags, groups = map(np.asarray, pair)
    found = agreement(contingency(tags, groups, 7, 5))
    assert found.ami == pytest.approx(metrics.adjusted_mutual_info_score(tags, groups), abs=1e-9)
    assert found.ari == pytest.approx(metrics.adjusted_rand_score(tags, groups), abs=1e-12)
    expected = metrics.homogeneity_completeness_v_measure(tags, groups)
    assert (found.homogeneity, found.completeness, found.v_measure) == pytest.approx(expected, abs=1e-9)
    matrix = metrics.cluster.contingency_matrix(tags, groups)
    assert found.many_to_one == pytest.approx(matrix.max(0).sum() / len(tags))
    assert found.many_to_one >= found.one_to_one >= matrix.max() / len(tags)


@given(labels, st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_block_tables_add_up_and_batches_equal_single_tables(pair, num_blocks):
    tags, groups = map(np.asarray, pair)
    blocks = np.arange(len(tags)) % num_blocks
    tables = grouped_contingency(tags, groups, blocks, 6, 4, num_blocks)
    assert (tables.sum(0) == contingency(tags, groups, 6, 4)).all()
    batch = contingency(tags, np.stack([groups, groups[::-1]]), 6, 4)
    assert (batch[1] == contingency(tags, groups[::-1], 6, 4)).all()
    expected = np.asarray([expected_information(table) for table in batch])
    scores = adjusted(mutual_information(batch), expected, batch)
    assert scores == pytest.approx([ami(table) for table in batch])


def test_one_to_one_is_the_best_pairing():
    # Greedy pairing would take the 5 and then only the 0.
    assert agreement(np.asarray([[5, 4], [4, 0]])).one_to_one == pytest.approx(8 / 13)


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_the_lift_of_sharing_pairs_equals_a_loop_over_pairs(top_k):
    rng = np.random.default_rng(top_k)
    n, num_groups = 40, 5
    tags = rng.integers(0, 3, n)
    membership = np.zeros((n, num_groups), dtype=bool)
    np.put_along_axis(membership, rng.random((n, num_groups)).argsort(1)[:, :top_k], True, 1)
    codes, overlap = membership_sets(membership)
    found = sharing_lift(contingency(tags, codes, 3, len(overlap)), overlap)
    shares = {pair: bool((membership[pair[0]] & membership[pair[1]]).any()) for pair in combinations(range(n), 2)}
    same = [shared for (i, j), shared in shares.items() if tags[i] == tags[j]]
    assert found == pytest.approx(np.mean(same) / np.mean(list(shares.values())))
