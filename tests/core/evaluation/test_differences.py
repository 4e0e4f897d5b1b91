"""Intervals of paired differences: coverage, what blocks share, too few blocks, corrections."""

import math

import numpy as np
import pytest
from scipy import stats

from focus_core import FocusError
from focus_core.evaluation import perplexity_difference
from focus_core.evaluation.compare import holm, mean_difference

DRAWS = {
    "normal": lambda rng, shape: rng.normal(0, 1, shape),
    "moderately skewed": lambda rng, shape: (rng.gamma(16, 1, shape) - 16) / 4,  # skewness 0.5
}


def test_paired_intervals_cancel_what_blocks_share():
    rng = np.random.default_rng(0)
    hardness = rng.normal(3, 0.5, 40)
    gap = perplexity_difference(hardness + 0.05 + rng.normal(0, 0.005, 40), hardness)
    assert 0 < gap.low < gap.difference < gap.high
    assert gap.difference == pytest.approx(math.exp(hardness.mean() + 0.05) - math.exp(hardness.mean()), rel=0.1)
    alone = np.exp([rng.choice(hardness, 40).mean() for _ in range(500)])
    assert gap.high - gap.low < 0.3 * (np.quantile(alone, 0.975) - np.quantile(alone, 0.025))
    assert gap.established and gap.mark == ""
    assert perplexity_difference([3.0], [2.0]).low is None
    with pytest.raises(FocusError, match="same blocks"):
        perplexity_difference([3.0], [2.0, 1.0])


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("blocks", [16, 24, 64])
def test_intervals_hold_the_truth_in_95_of_100_cases(kind, blocks):
    """94 to 96%, give or take 0.6 points, two standard errors of 5,000 draws."""
    rng = np.random.default_rng(blocks)
    draws = DRAWS[kind](rng, (5000, blocks))
    found = [mean_difference(0.3 + 2 * draw) for draw in draws]
    coverage = float(np.mean([gap.low <= 0.3 <= gap.high for gap in found]))
    assert 0.94 - 0.006 <= coverage <= 0.96 + 0.006


@pytest.mark.parametrize("blocks", [16, 24, 64])
def test_intervals_of_perplexity_hold_the_truth_in_95_of_100_cases(blocks):
    """The same for perplexities of blocks that differ more than the settings do."""
    rng, held = np.random.default_rng(blocks), 0
    for _ in range(5000):
        hardness = rng.normal(3, 0.3, blocks)
        gap = perplexity_difference(hardness + rng.normal(0.05, 0.02, blocks), hardness)
        held += gap.low <= math.exp(3.05) - math.exp(3) <= gap.high
    assert 0.94 - 0.006 <= held / 5000 <= 0.96 + 0.006


def test_the_interval_is_that_of_a_paired_t_test():
    rng = np.random.default_rng(0)
    differences = rng.normal(0.4, 1, 20)
    gap, known = mean_difference(differences), stats.ttest_1samp(differences, 0)
    interval = known.confidence_interval(0.95)
    assert (gap.low, gap.high, gap.p_value) == pytest.approx((interval.low, interval.high, known.pvalue))
    assert gap.established == (known.pvalue < 0.05)
    first, second = rng.normal(3, 0.01, (2, 20))
    assert perplexity_difference(first, second).p_value == pytest.approx(stats.ttest_rel(first, second).pvalue, rel=0.1)


def test_a_bootstrap_can_be_asked_for():
    differences = np.random.default_rng(0).exponential(1, 40)
    found = mean_difference(differences, method="bca")
    expected = stats.bootstrap((differences,), np.mean, n_resamples=4000, rng=np.random.default_rng(0))
    assert (found.low, found.high) == tuple(expected.confidence_interval)
    with pytest.raises(FocusError, match="t or bca"):
        mean_difference(differences, method="percentile")


def test_fewer_than_16_blocks_establish_nothing():
    for blocks, enough in ((15, False), (16, True)):
        differences = np.linspace(0.9, 1.1, blocks)
        gap = mean_difference(differences)
        assert gap.low > 0 and gap.established is enough
        assert gap.mark == ("" if enough else "fewer than 16 blocks: not established")


def test_equal_settings_do_not_differ():
    gap = perplexity_difference(np.linspace(3, 4, 20), np.linspace(3, 4, 20))
    assert (gap.difference, gap.low, gap.high, gap.p_value, gap.established) == (0, 0, 0, 1, False)


def test_holm_multiplies_by_what_is_left():
    assert holm([0.01, None, 0.04, 0.03]) == [pytest.approx(0.03), None, pytest.approx(0.06), pytest.approx(0.06)]
    assert holm([None]) == [None]
