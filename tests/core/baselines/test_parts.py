"""A text evaluated in parts: the same pairs and outputs as at once, for all baselines and any sizes."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from focus_core.baselines import BASELINES, Case, attend_in_parts
from focus_core.baselines import case as cases
from focus_core.baselines.hashing import collisions

DRAWN = settings(max_examples=15, deadline=None)


def drawn_case(name, length, window, sinks, share, own, seed):
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(1, 4, length, 8, generator=generator) for _ in range(3))
    pairs = {"window": window, "sinks": sinks, "share": share, "sliding_window": own}
    fit = BASELINES[name].fit
    fitted = fit(query, key[:, :2], seed=0, **pairs) if fit else None
    return Case(query, key, value, scale=8**-0.5, seed=3, fitted=fitted, **pairs)


@pytest.mark.parametrize("name", BASELINES)
@DRAWN
@given(
    length=st.integers(5, 90),
    window=st.integers(0, 20),
    sinks=st.integers(0, 5),
    share=st.sampled_from([0.0, 0.07, 0.2, 0.5, 1.0]),
    own=st.sampled_from([None, 3, 12, 40]),
    rows=st.integers(1, 40),
)
def test_parts_are_the_whole(name, length, window, sinks, share, own, rows):
    case = drawn_case(name, length, window, sinks, share, own, seed=length)
    whole = BASELINES[name].attend(dataclasses.replace(case))
    for start in range(0, length, rows):
        stop = min(length, start + rows)
        part = case.part(start, stop)
        assert part.key.shape[2] == stop  # later keys are not there
        found = BASELINES[name].attend(part)
        mine = slice(start, stop)
        assert torch.allclose(found.attention.output, whole.attention.output[:, :, mine], atol=1e-5)
        assert torch.allclose(found.attention.logsumexp, whole.attention.logsumexp[:, :, mine], atol=1e-4)
        if whole.kept is not None:
            assert torch.equal(found.kept, whole.kept[..., mine, :stop])
            assert not bool(whole.kept[..., mine, stop:].any())


def test_random_features_sum_earlier_blocks_of_keys():
    case = drawn_case("performer", 700, 8, 2, 0.2, None, seed=1)
    whole = BASELINES["performer"].attend(dataclasses.replace(case)).attention
    for start, stop in ((0, 300), (300, 600), (600, 700)):
        found = BASELINES["performer"].attend(case.part(start, stop)).attention
        assert torch.allclose(found.output, whole.output[:, :, start:stop], atol=1e-6)
        assert torch.allclose(found.logsumexp, whole.logsumexp[:, :, start:stop], atol=1e-5)


@pytest.mark.parametrize("pairs", [1, 3_000, 10**6])
def test_parts_hold_every_query_once_and_few_pairs(monkeypatch, pairs):
    monkeypatch.setattr(cases, "PART_PAIRS", pairs)
    case = drawn_case("streaming", 1100, 8, 2, 0.2, None, seed=1)
    parts = [part for part, _ in attend_in_parts(BASELINES["streaming"], case)]
    assert torch.equal(torch.cat([part.query for part in parts], 2), case.query)
    for part in parts:
        assert torch.equal(part.query, case.query[:, :, part.start : part.start + part.query.shape[2]])
        assert part.query.shape[2] <= max(16, pairs // (4 * part.start + 1))


def test_a_statistic_is_computed_once_for_all_parts():
    case, seen = drawn_case("quest", 300, 8, 2, 0.2, None, seed=1), []

    def statistic(text):
        seen.append(text.key.shape[2])
        return text.key.sum()

    for start in range(0, 300, 50):
        case.part(start, start + 50).once(statistic)
    assert seen == [300]


def test_collisions_are_the_tables_with_equal_codes():
    generator = torch.Generator().manual_seed(0)
    ours, theirs = (torch.randint(0, 4, (7, 1, 3, n), generator=generator, dtype=torch.uint8) for n in (5, 9))
    found = collisions(ours, theirs)
    for h, i, j in torch.cartesian_prod(torch.arange(3), torch.arange(5), torch.arange(9)):
        assert int(found[0, h, i, j]) == sum(int(ours[t, 0, h, i] == theirs[t, 0, h, j]) for t in range(7))
