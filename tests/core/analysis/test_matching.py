"""Agreement of two routings of one text, and renumbered traces."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import adjusted_mutual_info_score

from focus_core import FocusConfig, analyze, retrofit
from focus_core.analysis.statistics.matching import agreement_within, match_groups, overlap, renumbered


def test_agreement_is_scikit_learns_and_the_interval_holds_it():
    rng = np.random.default_rng(0)
    first = rng.integers(0, 6, 1000)
    second = np.where(rng.random(1000) < 0.6, (first + 1) % 6, rng.integers(0, 4, 1000))
    found = agreement_within(first, second, 6, 6)
    assert found.ami == pytest.approx(adjusted_mutual_info_score(first, second))
    assert found.interval.low < found.ami < found.interval.high
    assert (found.num_blocks, found.block_tokens) == (50, 20)
    assert agreement_within(first, second, 6, 6) == found


def test_the_interval_is_about_as_wide_as_the_spread_over_texts():
    rng = np.random.default_rng(1)
    scores, widths = [], []
    for _ in range(40):
        first = rng.integers(0, 4, 800)
        second = np.where(rng.random(800) < 0.5, first, rng.integers(0, 4, 800))
        found = agreement_within(first, second, 4, 4, repeats=200)
        scores.append(found.ami)
        widths.append(found.interval.high - found.interval.low)
    assert np.mean(widths) == pytest.approx(2 * 1.96 * np.std(scores), rel=0.35)


def test_short_texts_have_one_block():
    found = agreement_within(np.array([0, 1, 1]), np.array([1, 0, 0]), 2, 2)
    assert found.ami == pytest.approx(1) and found.num_blocks == 1


def test_a_renumbered_layer_holds_the_same_routing(tiny_llama):
    def trace(num_groups: int, seed: int):
        focus = retrofit(tiny_llama.model, FocusConfig(num_groups=num_groups, top_k=2), seed=seed)
        try:
            return analyze(focus, tiny_llama.tokenizer, "some text to route twice with other groups")
        finally:
            focus.detach()

    first, second = trace(4, 0), trace(6, 1)
    table = overlap(first, 1, second, 2)
    assert table.shape == (4, 6) and table.sum() == len(first.tokens)
    numbers = match_groups(table)
    assert sorted(numbers.tolist()) == list(range(6))
    moved = renumbered(second, 2, numbers)
    assert moved.layers == (2,) and moved.config.num_groups == 6
    assert (moved.groups[0] == numbers[second.groups[2]]).all()
    assert (moved.membership[0][:, numbers] == second.membership[2]).all()
    assert np.allclose(moved.assignment.sum(-1), 1, atol=1e-5)
    fewer = renumbered(first, 0, match_groups(overlap(second, 2, first, 0)))
    assert fewer.membership.sum() == first.membership[0].sum()
