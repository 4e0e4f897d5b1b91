"""Executing the baselines: only some queries at a time, and exactly, against dense softmax and direct sums."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from focus_core.baselines import BASELINES, LEARNED, Baseline, Case, estimates
from focus_core.baselines.choosing import fast_choice, reference_choice, repeated
from focus_core.baselines.estimates import performer_features
from focus_core.baselines.execution import (
    attend_features,
    attend_key_blocks,
    attend_tiles,
    attend_window,
    chosen_from,
    kept_by,
    key_blocks,
    tiles,
)
from focus_core.baselines.learned import BlockGates, Indexer
from focus_core.baselines.patterns import window_and_sinks
from focus_core.errors import FocusError


def dense(query, key, value, kept, scale):
    """Heads (G, T, D) over one key and value, (T, D) and (T, Dv), by a mask (G or 1, T, T)."""
    return (query @ key.T * scale).masked_fill(~kept, float("-inf")).softmax(-1) @ value


def some_pairs(group, length, density, generator):
    kept = (torch.rand(group, length, length, generator=generator) < density).tril_()
    return kept | torch.eye(length, dtype=torch.bool)


@pytest.mark.parametrize("way", ["tiles", "tiles, each head apart", "key blocks"])
@settings(max_examples=40, deadline=None)
@given(
    group=st.integers(1, 3),
    length=st.integers(1, 70),
    size=st.integers(1, 80),
    density=st.floats(0, 1),
    seed=st.integers(0, 2**16),
)
def test_every_way_is_softmax_over_the_kept_pairs_of_every_head(way, group, length, size, density, seed):
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(group, length, 8, generator=generator)
    key, value = (torch.randn(length, n, generator=generator) for n in (8, 5))
    kept = some_pairs(group, length, density, generator)
    parts = tiles(chosen_from(kept), group, length, size, folded=way != "tiles, each head apart")
    rows = torch.arange(group * length)
    assert torch.equal(kept_by(parts, rows, length), kept.flatten(0, 1))
    attend = attend_tiles
    if way == "key blocks":
        parts, attend = key_blocks(parts, length, size), attend_key_blocks
    output = attend(query.flatten(0, 1), key, value, parts, 0.4)
    assert torch.allclose(output.unflatten(0, (group, -1)), dense(query, key, value, kept, 0.4), atol=1e-5)


def test_what_nobody_keeps_is_not_in_the_parts():
    index = torch.arange(64)
    distance = index[:, None] - index
    window = ((distance >= 0) & (distance < 4))[None]
    parts = tiles(chosen_from(window), 2, 64, 8)
    assert max(len(part.keys) for part in parts[1:]) == 8 + 3
    assert {len(part.rows) for part in parts} == {2 * 8}  # both heads of a tile in one product
    assert max(len(part.rows) for part in key_blocks(parts, 64, 8)) == 2 * (8 + 3)
    apart = tiles(chosen_from(window), 2, 64, 8, folded=False)
    assert len(apart) == 2 * len(parts) and {len(part.rows) for part in apart} == {8}


def grouped(name, length, window, share, sinks=3, setting=None):
    """A case of one key/value head and three query heads, and the same with repeated keys and values."""
    generator = torch.Generator().manual_seed(length)
    query = torch.randn(1, 3, length, 8, generator=generator)
    key, value = (torch.randn(1, 1, length, 8, generator=generator) for _ in range(2))
    setting = setting or {}
    case = Case(query, key, value, window, sinks, share, scale=8**-0.5, seed=5, setting=setting)
    method = BASELINES[name]
    if method.fit is not None:
        fitted = method.fit(query, key, share=share, window=window, sinks=sinks, seed=0, setting=setting or None)
        case = dataclasses.replace(case, fitted=fitted)
    return case, repeated(case)


@pytest.mark.parametrize("name", [name for name, each in BASELINES.items() if each.keep is not None])
@pytest.mark.parametrize(
    "length, window, share, sinks", [(150, 5, 0.3, 3), (200, 20, 0.15, 0), (333, 16, 0.2, 4), (60, 80, 0.3, 2)]
)
def test_what_is_chosen_by_tile_is_what_the_definition_keeps(name, length, window, share, sinks):
    case, whole = grouped(name, length, window, share, sinks)
    keep = BASELINES[name].keep
    expected = keep(whole).expand(1, 3, length, length)[0].flatten(0, 1)
    choose = fast_choice(name, case) or reference_choice(case, keep)
    assert (fast_choice(name, case) is None) == BASELINES[name].fixed
    rows = torch.arange(3 * length)
    for size, folded in ((16, True), (128, True), (128, False)):
        kept = kept_by(tiles(choose, 3, length, size, folded=folded), rows, length)
        assert torch.equal(kept, expected)


@pytest.mark.parametrize(
    "name, setting", [(name, setting) for name, each in BASELINES.items() for setting in each.grid[1:]]
)
def test_tuned_settings_are_chosen_by_tile_as_well(name, setting):
    case, whole = grouped(name, 150, 12, 0.25, setting=setting)
    expected = BASELINES[name].keep(whole).expand(1, 3, 150, 150)[0].flatten(0, 1)
    choose = fast_choice(name, case) or reference_choice(case, BASELINES[name].keep)
    kept = kept_by(tiles(choose, 3, 150, 16), torch.arange(450), 150)
    assert torch.equal(kept, expected)


@pytest.mark.parametrize("name", list(LEARNED))
@pytest.mark.parametrize("length, window, share, sinks", [(150, 5, 0.3, 3), (200, 20, 0.15, 0), (60, 80, 0.3, 2)])
def test_what_a_learned_baseline_chooses_by_tile_is_what_it_keeps(name, length, window, share, sinks):
    """The definition for all heads of the layer, whose gates and index are random; the second of its two units."""
    generator = torch.Generator().manual_seed(length)
    query, key = (torch.randn(1, heads, length, 8, generator=generator) for heads in (6, 2))
    hidden = torch.randn(1, length, 12, generator=generator)
    gates = BlockGates(heads=6, kv_heads=2, head_dim=8, scale=8**-0.5, block=4)
    torch.nn.init.normal_(gates.query_map, generator=generator)
    torch.nn.init.normal_(gates.key_map, generator=generator)
    learner = {"seer": gates, "indexer": Indexer(hidden=12, heads=2, size=8, seed=3)}[name].requires_grad_(False)
    options = {"scale": 8**-0.5, "hidden": hidden}
    repeated_key = key.repeat_interleave(3, 1)
    layer = Case(query, repeated_key, repeated_key, window, sinks, share, fitted=learner, **options)
    expected = LEARNED[name].keep(layer).expand(1, 6, length, length)[0, 3:].flatten(0, 1)
    own = gates.of_head(1) if name == "seer" else learner
    unit = Case(query[:, 3:], key[:, 1:], key[:, 1:], window, sinks, share, fitted=own, **options)
    for size, folded in ((16, True), (128, False)):
        kept = kept_by(tiles(fast_choice(name, unit), 3, length, size, folded=folded), torch.arange(3 * length), length)
        assert torch.equal(kept, expected)


@pytest.mark.parametrize("name, block", [("quest", 16), ("moba", 16)])
def test_blocks_are_taken_whole_but_for_the_last(name, block):
    """A reference of its own: scores of blocks by loops."""
    case, _ = grouped(name, 333, 20, 0.2, sinks=0)
    query, key = case.query[0].double(), case.key[0, 0].double()
    blocks = [key[start : start + block] for start in range(0, 333, block)]
    low, high = (torch.stack([way(each, 0).values for each in blocks]) for way in (torch.min, torch.max))
    mean = torch.stack([each.mean(0) for each in blocks])
    choose = fast_choice(name, case)
    kept = kept_by(tiles(choose, 3, 333, 16), torch.arange(3 * 333), 333).unflatten(0, (3, 333))
    for head, i in ((0, 100), (1, 200), (2, 332)):
        ours = query[head, i]
        scores = torch.maximum(ours * low, ours * high).sum(1) if name == "quest" else mean @ ours
        past = -(-(i - 20) // block)  # blocks with a distant key
        order = scores[:past].argsort(descending=True).tolist()
        counts = [int(kept[head, i, n * block : min((n + 1) * block, i - 20)].sum()) for n in order]
        sizes = [min((n + 1) * block, i - 20) - n * block for n in order]
        whole = [count == size for count, size in zip(counts, sizes)]
        first = whole.index(False)
        assert first > 0 and not any(counts[first + 1 :])


@given(length=st.integers(1, 60), window=st.integers(0, 70), sinks=st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_windows_run_through_the_projects_own_backend(length, window, sinks):
    generator = torch.Generator().manual_seed(length)
    query, key, value = (torch.randn(1, heads, length, 8, generator=generator) for heads in (6, 2, 2))
    index = torch.arange(length)
    distance = index[:, None] - index
    kept = (distance >= 0) & ((distance <= window) | (index < sinks))
    output = attend_window(query, key, value, window, sinks, 0.4)
    for head in range(2):
        expected = dense(query[0, 3 * head : 3 * head + 3], key[0, head], value[0, head], kept, 0.4)
        assert torch.allclose(output[0, 3 * head : 3 * head + 3], expected, atol=1e-5)


@given(length=st.integers(1, 40), size=st.integers(1, 50))
@settings(max_examples=30, deadline=None)
def test_running_sums_are_the_direct_sums(length, size):
    generator = torch.Generator().manual_seed(length)
    query = torch.rand(2, length, 6, generator=generator, dtype=torch.float64)
    key = torch.rand(length, 6, generator=generator, dtype=torch.float64)
    value = torch.randn(length, 3, generator=generator)
    weights = (query @ key.T).tril()
    expected = weights @ value.double() / weights.sum(-1, keepdim=True)
    assert torch.allclose(attend_features(query, key, value, size).double(), expected, atol=1e-6)


def test_the_executed_performer_is_the_performer():
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, heads, 300, 8, generator=generator) for heads in (2, 1, 1))
    case = Case(query, key, value, 8, 2, 0.0, scale=8**-0.5)
    features = performer_features(case)
    expected = BASELINES["performer"].attend(repeated(case)).attention.output[0]
    assert torch.allclose(attend_features(features[0][0], features[1][0, 0], value[0, 0]), expected, atol=1e-5)


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
