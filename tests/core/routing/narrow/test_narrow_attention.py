"""Attention over narrow groups: the chunked form against the definition, and the definition against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reading_budgets import budgets, directions
from torch.nn import functional as F

from focus_core.errors import FocusError
from focus_core.routing.narrow.attention import narrow_attention, narrow_pairs
from focus_core.routing.narrow.reading import Reading
from focus_core.routing.narrow.reference import narrow_reference
from focus_core.routing.narrow.summaries import RunningSums


def problem(length, kv_heads=2, repeats=2, num_groups=4, seed=0, batch=2, value_size=6):
    dtype = torch.float64
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(batch, kv_heads * repeats, length, 8, generator=generator, dtype=dtype) * 2
    key = torch.randn(batch, kv_heads, length, 8, generator=generator, dtype=dtype)
    value = torch.randn(batch, kv_heads, length, value_size, generator=generator, dtype=dtype)
    groups = torch.randint(0, num_groups, (batch, kv_heads, length), generator=generator)
    return (query, key, value, groups, num_groups), {"scale": 0.4}


def shares(heads):
    return st.lists(st.floats(0, 1, width=32), min_size=heads, max_size=heads).map(tuple)


@st.composite
def cases(draw):
    num_groups, kv_heads, repeats = draw(st.integers(1, 9)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    by_share, heads = draw(st.booleans()), kv_heads * repeats
    reading = Reading(
        window=draw(st.integers(0, 30)),
        sink_tokens=draw(st.integers(0, 9)),
        chunk=draw(st.integers(1, 24)),
        top_k=None if by_share else draw(st.integers(0, num_groups)),
        **(draw(budgets(heads)) if by_share else {}),
        spread=draw(st.none() | shares(heads)),
        directions=draw(directions(kv_heads, 8)),
        count_weight=draw(st.sampled_from([0.0, 0.5, 1.0])),
        page_size=draw(st.none() | st.integers(1, 20)),
        full_below=draw(st.sampled_from([0, 0, 1, 20, 37, 100])),
    )
    arguments = problem(draw(st.integers(1, 70)), kv_heads, repeats, num_groups, draw(st.integers(0, 99)))
    return *arguments, reading, draw(st.sampled_from([None, 3.0]))


@pytest.mark.parametrize("full_below", [1, 48, 50, 64, 70, 96, 200])
def test_early_queries_attend_to_everything_and_later_ones_are_unchanged(full_below):
    (query, key, value, groups, num_groups), options = problem(96, 3, 2, 6, seed=5)
    reading = {"window": 9, "sink_tokens": 2, "chunk": 16, "share": 0.2, "page_size": 4}
    found = narrow_attention(
        query, key, value, groups, num_groups, Reading(**reading, full_below=full_below), **options
    )
    routed = narrow_attention(query, key, value, groups, num_groups, Reading(**reading), **options)
    # Whole chunks of 16 queries.
    border = min(96, (full_below + 15) // 16 * 16)
    everything = full(query, key, value, options["scale"])
    assert torch.allclose(found.output[:, :, :border], everything[:, :, :border], atol=1e-5)
    assert torch.allclose(found.output[:, :, border:], routed.output[:, :, border:], atol=1e-5)
    assert not torch.allclose(routed.output, everything, atol=1e-2)


def full(query, key, value, scale):
    return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)


@settings(deadline=None)
@given(case=cases())
def test_chunks_equal_the_definition(case):
    tensors, options, reading, softcap = case
    expected = narrow_reference(*tensors, reading, **options, softcap=softcap)
    found = narrow_attention(*tensors, reading, **options, softcap=softcap)
    assert torch.allclose(found.output, expected.output, atol=1e-5)
    assert torch.allclose(found.logsumexp, expected.logsumexp, atol=1e-5)

    index = torch.arange(tensors[0].shape[2])
    distant = index[:, None] - index > reading.window
    counts = found.pairs
    assert torch.equal(counts.distant_kept, (expected.exact & distant).sum((-1, -2)))
    assert torch.equal(counts.kept, expected.exact.sum((-1, -2)))
    assert bool((counts.distant == distant.sum()).all())
    assert bool((counts.distant_sink == (distant & (index < reading.sink_tokens)).sum()).all())
    again = narrow_pairs(*tensors[:2], *tensors[3:], reading, **options, softcap=softcap)
    assert all(torch.equal(*each) for each in zip(counts, again))


@settings(deadline=None)
@given(case=cases())
def test_the_fused_kernel_equals_the_form_with_gradients(case):
    (query, key, _, groups, num_groups), options, reading, _ = case
    query, key = query.float(), key.float()
    value = torch.roll(key, 1, -1)
    fused = narrow_attention(query, key, value, groups, num_groups, reading, **options)
    plain = narrow_attention(query, key, value.requires_grad_(), groups, num_groups, reading, **options)
    assert plain.output.requires_grad and not fused.output.requires_grad
    assert torch.allclose(fused.output, plain.output, atol=1e-5)
    assert torch.allclose(fused.logsumexp, plain.logsumexp, atol=1e-5)


def test_float32_and_bfloat16_are_close_to_the_definition():
    tensors, options = problem(300, num_groups=16)
    reading = Reading(window=20, sink_tokens=4, chunk=16, share=0.2)
    expected = narrow_reference(*tensors, reading, **options)
    single = [part.float() if part.is_floating_point() else part for part in tensors[:4]]
    found = narrow_attention(*single, 16, reading, **options)
    assert found.output.dtype == found.logsumexp.dtype == torch.float32
    assert torch.allclose(found.output.double(), expected.output, atol=1e-5)
    half = [part.bfloat16() if part.is_floating_point() else part for part in tensors[:4]]
    rounded = [part.float() if part.is_floating_point() else part for part in half]
    found = narrow_attention(*half, 16, reading, **options)
    assert (found.output.dtype, found.logsumexp.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(found.output, narrow_attention(*rounded, 16, reading, **options).output.bfloat16())


@pytest.mark.parametrize("budget", [{"top_k": 5}, {"share": 1.0}])
def test_reading_every_group_is_full_attention(budget):
    tensors, options = problem(130, num_groups=5)
    found = narrow_attention(*tensors, Reading(window=9, sink_tokens=3, chunk=7, **budget), **options)
    assert torch.allclose(found.output, full(*tensors[:3], options["scale"]), atol=1e-12)
    assert torch.equal(found.pairs.kept, found.pairs.causal)


def test_later_tokens_have_no_influence():
    tensors, options = problem(90)
    reading = Reading(window=8, sink_tokens=2, chunk=16, share=0.3)
    before = narrow_attention(*tensors, reading, **options).output
    for cut in (33, 48, 50, 89):
        changed = problem(90, seed=7)[0]
        mixed = [torch.cat([a[:, :, :cut], b[:, :, cut:]], 2) for a, b in zip(tensors[:4], changed[:4])]
        after = narrow_attention(*mixed, 4, reading, **options).output
        assert torch.equal(before[:, :, :cut], after[:, :, :cut])
        assert not torch.allclose(before[:, :, cut:], after[:, :, cut:])


def test_one_query_by_hand():
    (query, key, value, groups, num_groups), options = problem(50, kv_heads=1, repeats=1, batch=1)
    reading = Reading(window=5, sink_tokens=2, chunk=8, top_k=1, count_weight=1.0)
    place = 45  # in the chunk that starts at 40; 40 - 5 = 35 extends back to 32
    q, k, v, group = query[0, 0, place] * options["scale"], key[0, 0], value[0, 0], groups[0, 0]
    members = {g: [j for j in range(2, 32) if group[j] == g] for g in range(num_groups)}
    mass = {g: math.log(len(rows)) + float(q @ k[rows].mean(0)) for g, rows in members.items()}
    best = max(mass, key=lambda g: mass[g])
    exact = sorted([0, 1, *range(32, place + 1), *members[best]])
    keys = [k[exact] @ q, *(torch.tensor([mass[g]]) for g in members if g != best)]
    values = [v[exact], *(v[members[g]].mean(0)[None] for g in members if g != best)]
    weights = torch.cat(keys).softmax(0)
    found = narrow_attention(query, key, value, groups, num_groups, reading, **options)
    assert torch.allclose(found.output[0, 0, place], weights @ torch.cat(values), atol=1e-6)
    assert torch.allclose(found.logsumexp[0, 0, place], torch.cat(keys).logsumexp(0), atol=1e-6)


def test_sums_are_those_of_the_keys_that_were_added():
    (_, key, value, groups, num_groups), _ = problem(40)
    sums = RunningSums.of_none(key, value, num_groups + 1)
    for first, last in ((3, 10), (10, 11), (11, 31)):
        sums = sums.add(groups[..., first:last], key[:, :, first:last], value[:, :, first:last])
    found = sums.summaries()
    for row in range(2):
        for head in range(2):
            for group in range(num_groups):
                rows = [j for j in range(3, 31) if groups[row, head, j] == group]
                assert found.counts[row, head, group] == len(rows)
                assert torch.allclose(found.keys[row, head, group], key[row, head, rows].mean(0))
                assert torch.allclose(found.values[row, head, group], value[row, head, rows].mean(0))
    assert not found.counts[..., num_groups].any() and not found.keys[..., num_groups, :].any()


@settings(deadline=None)
@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=8),
    share=st.floats(0, 1),
    top_k=st.integers(0, 8),
    seed=st.integers(0, 99),
    already=st.integers(0, 9),
)
def test_choice_is_the_longest_ranking_within_the_budget(counts, share, top_k, seed, already):
    sizes = torch.tensor(counts, dtype=torch.float64)
    scores = torch.randn(len(counts), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    ranked = sorted((g for g in range(len(counts)) if counts[g]), key=lambda g: -scores[g])
    by_share = Reading(window=0, sink_tokens=0, share=share).choose(scores, sizes, torch.tensor(already))
    expected, taken = set(), 0
    budget = np.float32(share) * np.float32(sum(counts) + already) - np.float32(already)  # rounded as it says
    for group in ranked:
        if taken + counts[group] / 2 > budget:
            break
        expected.add(group)
        taken += counts[group]
    assert set(by_share.nonzero().flatten().tolist()) == expected
    by_groups = Reading(window=0, sink_tokens=0, top_k=top_k).choose(scores, sizes, torch.tensor(already))
    assert set(by_groups.nonzero().flatten().tolist()) == set(ranked[:top_k])


@pytest.mark.parametrize("share", [0.05, 0.15, 0.5])
def test_queries_read_the_share_on_average(share):
    tensors, options = problem(1500, num_groups=32, batch=1)
    reading = Reading(window=0, sink_tokens=0, chunk=1, share=share)
    pairs = narrow_pairs(*tensors[:2], *tensors[3:], reading, **options)
    assert float(pairs.distant_kept.sum() / pairs.distant.sum()) == pytest.approx(share, rel=0.06)


@pytest.mark.parametrize("wrong", [{"chunk": 0}, {"top_k": None}, {"share": 1.5}, {"share": -0.1}])
def test_values_out_of_range(wrong):
    with pytest.raises(FocusError, match=r"\.$"):
        Reading(**{"window": 4, "sink_tokens": 1, "top_k": 2, **wrong})
