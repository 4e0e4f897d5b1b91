"""Compiled loops over rows against sorting and float64: choices, softmax over kept pairs, counts."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from focus_core.attention.cpu import rows as compiled_rows
from focus_core.baselines import Case
from focus_core.baselines.compiled.softmax import kept_share, kept_softmax
from focus_core.baselines.compiled.tally import Tally
from focus_core.baselines.compiled.threshold import largest, largest_blocks, largest_groups

DRAWN = settings(max_examples=40, deadline=None)
INF = float("inf")


def by_sorting(row, count, first, end):
    """Of equal scores the last."""
    order = sorted(range(first, max(first, end)), key=lambda j: (-row[j], -j))
    return set(order[: max(0, count)])


def scores_of(seed, rows, width, values):
    """Of `values` different scores, with some infinite ones where there are few."""
    generator = np.random.default_rng(seed)
    if values is None:
        return generator.standard_normal((rows, width)).astype(np.float32)
    scores = generator.integers(0, values, (rows, width)).astype(np.float32)
    return np.where(scores == 7, -np.inf, scores) if values < 20 else scores


@DRAWN
@given(seed=st.integers(0, 99), width=st.integers(1, 400), values=st.sampled_from([1, 2, 9, 30, 1000, None]))
def test_the_largest_are_those_of_a_sort_and_of_equal_ones_the_last(seed, width, values):
    scores, generator = scores_of(seed, 6, width, values), np.random.default_rng(seed)
    count, first, end = (
        generator.integers(0, width + 2, 6),
        generator.integers(0, width, 6),
        generator.integers(0, width + 1, 6),
    )
    limits = [torch.from_numpy(each) for each in (count, first, end)]
    found, everywhere = largest(torch.from_numpy(scores), *limits), largest(torch.from_numpy(scores), limits[0])
    for row in range(6):
        assert set(np.flatnonzero(found[row])) == by_sorting(scores[row], count[row], first[row], end[row])
        assert set(np.flatnonzero(everywhere[row])) == by_sorting(scores[row], count[row], 0, width)


@pytest.mark.parametrize(
    "scores",
    [
        torch.zeros(1, 3000),
        torch.randn(1, 3000, generator=torch.Generator().manual_seed(0)).relu(),
        torch.cat([torch.full((1, 2999), 1.0), torch.full((1, 1), 1e30)], 1),
        torch.logspace(-38, 38, 3000)[None],
        1 + torch.arange(3000)[None] * 2**-23,
    ],
    ids=["equal", "half of them 0", "an outlier", "all sizes", "neighbouring numbers"],
)
@pytest.mark.parametrize("count", [1, 500, 2000, 2999])
def test_the_largest_of_hard_rows(scores, count):
    found = largest(scores, torch.tensor([count]))[0]
    assert set(np.flatnonzero(found)) == by_sorting(scores[0].tolist(), count, 0, 3000)


@DRAWN
@given(seed=st.integers(0, 99), size=st.integers(1, 9), keys=st.integers(1, 90))
def test_the_largest_blocks_are_filled_one_after_another(seed, size, keys):
    generator = np.random.default_rng(seed)
    scores = generator.standard_normal((5, -(-keys // size))).astype(np.float32)
    count, first, end = (
        generator.integers(0, keys + 2, 5),
        generator.integers(0, keys, 5),
        generator.integers(0, keys + 1, 5),
    )
    limits = [torch.from_numpy(each) for each in (count, first, end)]
    found = largest_blocks(torch.from_numpy(scores), size, *limits, keys)
    for row in range(5):
        wanted, left = set(), int(count[row])
        for block in np.argsort(-scores[row]):
            own = [j for j in range(block * size, (block + 1) * size) if first[row] <= j < end[row]]
            taken = own[max(0, len(own) - left) :]
            wanted, left = wanted | set(taken), left - len(taken)
        assert set(np.flatnonzero(found[row])) == wanted


@DRAWN
@given(
    seed=st.integers(0, 99), groups=st.integers(1, 30), keys=st.integers(1, 200), values=st.sampled_from([1, 5, None])
)
def test_the_largest_groups_are_those_of_their_keys_scores(seed, groups, keys, values):
    generator = np.random.default_rng(seed)
    scores, labels = scores_of(seed, 8, groups, values), generator.integers(0, groups, (2, keys))
    count, first, end = (np.sort(generator.integers(0, keys + 2, (2, 4)), 1).flatten() for _ in range(3))
    chosen, unread = largest_groups(torch.from_numpy(scores), *map(torch.from_numpy, (labels, count, first, end)))
    for row in range(8):
        label = labels[row // 4]
        wanted = by_sorting(scores[row][label], count[row], first[row], min(end[row], keys))
        assert set(np.flatnonzero(chosen[row])) == wanted
        rest = set(range(first[row], min(end[row], keys))) - wanted
        assert np.array_equal(unread[row], np.bincount(label[sorted(rest)], minlength=groups))


def test_threads_share_the_rows(monkeypatch):
    scores = torch.randn(37, 4000, generator=torch.Generator().manual_seed(0))
    count = torch.arange(37) * 90
    threads = torch.get_num_threads()
    expected = largest(scores[:1].repeat(3, 1), count[5:8])
    try:
        torch.set_num_threads(3)
        monkeypatch.setattr(compiled_rows, "SHARED", 1)
        found = largest(scores, count)
        assert torch.equal(found.sum(1), count)
        assert torch.equal(largest(scores[:1].repeat(3, 1), count[5:8]), expected)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("shape", [(2, 3, 5, 70), (1, 1, 5, 70), (5, 70)], ids=["heads", "one head", "no head"])
@pytest.mark.parametrize("scale", [1, 30])
def test_softmax_over_kept_pairs_is_that_of_float64(shape, scale):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 5, 70, generator=generator) * scale
    kept = torch.rand(shape, generator=generator) < 0.3
    kept[..., 1] = True
    exact = logits.double().masked_fill(~kept, -INF)
    weights = logits.clone()
    logsumexp = kept_softmax(weights, kept)
    assert torch.allclose(weights.double(), exact.softmax(-1), atol=1e-6, rtol=3e-6)
    assert torch.allclose(logsumexp.double(), exact.logsumexp(-1), atol=1e-5)
    assert not bool(weights[~kept.expand(weights.shape)].any())
    causal = torch.rand(5, 70, generator=generator) < 0.6
    inside = kept & causal
    share = (logits.double().masked_fill(~causal, -INF).softmax(-1) * inside).sum(-1)
    assert torch.allclose(kept_share(logits, inside, causal).double(), share, atol=1e-6)


def test_softmax_where_the_largest_logit_is_not_kept():
    logits = torch.tensor([[[[500.0, 1.0, 2.0, -400.0]]]])
    kept = torch.tensor([[False, True, True, False]])
    weights = logits.clone()
    logsumexp = kept_softmax(weights, kept)
    assert torch.allclose(weights[0, 0, 0, 1:3], torch.tensor([1.0, 2.0]).softmax(0))
    assert float(logsumexp) == pytest.approx(float(torch.tensor([1.0, 2.0]).logsumexp(0)))
    held = kept_share(logits, torch.tensor([[False, True, False, False]]), kept)
    assert float(held) == pytest.approx(float(torch.tensor([1.0, 2.0]).softmax(0)[0]))


@pytest.mark.parametrize("far", [-300.0, 300.0])
def test_softmax_where_one_logit_is_far_from_the_others(far):
    logits = torch.randn(1, 1, 3, 3000, generator=torch.Generator().manual_seed(0))
    logits[..., 1501] = far
    kept = torch.rand(3, 3000, generator=torch.Generator().manual_seed(1)) < 0.5
    kept[:, 1501] = True
    exact, weights = logits.double().masked_fill(~kept, -INF), logits.clone()
    assert torch.allclose(kept_softmax(weights, kept).double(), exact.logsumexp(-1), atol=1e-5)
    assert torch.allclose(weights.double(), exact.softmax(-1), atol=1e-6)


@DRAWN
@given(
    length=st.integers(2, 60),
    window=st.integers(0, 20),
    own=st.sampled_from([None, 3, 12, 40]),
    heads=st.sampled_from([None, 1, 3]),
    start=st.integers(0, 30),
)
def test_the_tally_counts_the_pairs_of_masks(length, window, own, heads, start):
    generator, start = torch.Generator().manual_seed(length), min(start, length - 1)
    query, key, value = (torch.randn(1, 3, length, 4, generator=generator) for _ in range(3))
    part = Case(query, key, value, window, 2, 0.2, 0.5, sliding_window=own).part(start, length)
    shape = (length - start, length) if heads is None else (1, heads, length - start, length)
    kept = (torch.rand(shape, generator=generator) < 0.5) & part.causal
    tally, copies = Tally(), heads or 1
    tally.add(part, kept)
    assert tally.kept == pytest.approx(int((kept & part.distant).sum()) / copies)
    assert tally.computed == pytest.approx(int(kept.sum()) / copies)
    assert tally.distant == int(part.distant.sum()) and tally.causal == int(part.causal.sum())


@pytest.mark.parametrize("name", ["logits", "products", "mixed"])
def test_heads_that_share_their_keys_have_the_same_products(name):
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, heads, 20, 8, generator=generator) for heads in (6, 2, 2))
    key, value = (each.repeat_interleave(3, 1) for each in (key, value))
    found = []
    for shared in (1, 3):
        case = Case(query, key, value, 4, 1, 0.3, 0.5, shared=shared)
        given = {"logits": (), "products": (query * 2, value), "mixed": (query @ key.mT, value)}[name]
        found.append(getattr(case, name)(*given))
    assert torch.allclose(*found, atol=1e-5)
