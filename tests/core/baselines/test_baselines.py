"""Each baseline against its definition in naive loops; causality, share and the limit of full attention for all."""

import dataclasses
import math

import pytest
import torch
from torch.nn import functional as F

from focus_core.baselines import BASELINES, Case, estimates
from focus_core.baselines.layout import per_query_budget

NAMES = list(BASELINES)
TUNABLE = [name for name in NAMES if BASELINES[name].tunable]
LENGTH, WINDOW, SINKS = 160, 8, 2


def case_of(name, share=0.4, length=LENGTH, seed=0, setting=None):
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(2, 4, length, 8, generator=generator) for _ in range(3))
    setting = setting or {}
    case = Case(query, key, value, WINDOW, SINKS, share, scale=8**-0.5, seed=3, setting=setting)
    fit = BASELINES[name].fit
    if fit is None:
        return case
    fitted = fit(query, key[:, :2], share=share, window=WINDOW, sinks=SINKS, seed=0, setting=setting)
    return dataclasses.replace(case, fitted=fitted)


def run(name, case):
    return BASELINES[name].attend(case)


def distant_share(case, kept):
    kept = kept.expand(*case.query.shape[:3], -1)
    return float((kept & case.distant).sum() / (case.distant.sum() * kept.shape[0] * kept.shape[1]))


@pytest.mark.parametrize("name", NAMES)
def test_later_tokens_change_nothing_earlier(name):
    case, cut = case_of(name), 100
    other = torch.Generator().manual_seed(9)
    changed = {
        part: torch.cat([old[:, :, :cut], torch.randn(old[:, :, cut:].shape, generator=other)], 2)
        for part, old in (("query", case.query), ("key", case.key), ("value", case.value))
    }
    before, after = run(name, case), run(name, dataclasses.replace(case, **changed))
    assert torch.allclose(before.attention.output[:, :, :cut], after.attention.output[:, :, :cut], atol=1e-5)
    if before.kept is not None:
        first, second = (kept.expand(2, 4, LENGTH, LENGTH)[:, :, :cut] for kept in (before.kept, after.kept))
        assert torch.equal(first, second)
        assert not bool((first & ~case.causal[:cut]).any())


@pytest.mark.parametrize("share", [0.13, 0.46])
@pytest.mark.parametrize("name", TUNABLE)
def test_share_is_close_and_local_pairs_and_sinks_are_kept(name, share):
    case = case_of(name, share)
    kept = run(name, case).kept.expand(2, 4, LENGTH, LENGTH)
    assert distant_share(case, kept) == pytest.approx(share, abs=0.08 if name == "magicpig" else 0.02)
    needed = case.causal & (case.distance <= WINDOW) if name == "sliding" else case.open
    assert bool(kept[..., needed].all())


@pytest.mark.parametrize("name", TUNABLE)
def test_share_one_is_full_attention(name):
    case = case_of(name, 1.0)
    result = run(name, case)
    full = F.scaled_dot_product_attention(case.query, case.key, case.value, is_causal=True)
    assert torch.equal(result.kept.expand(2, 4, -1, -1), case.causal.expand(2, 4, -1, -1))
    assert torch.allclose(result.attention.output, full, atol=1e-5)


def naive_output(case, kept, extra=None):
    output = torch.zeros_like(case.value)
    for b, h, i in torch.cartesian_prod(torch.arange(2), torch.arange(4), torch.arange(case.query.shape[2])):
        keys = kept[b, h, i].nonzero()[:, 0]
        logits = case.key[b, h, keys] @ case.query[b, h, i] * case.scale
        if extra is not None:
            logits = logits + extra[b, h, i, keys]
        output[b, h, i] = logits.softmax(0) @ case.value[b, h, keys]
    return output


@pytest.mark.parametrize("name", [name for name in TUNABLE if name not in ("sparq", "magicpig", "clusters")])
def test_output_is_softmax_over_the_kept_keys(name):
    case = case_of(name, 0.3, length=40)
    result = run(name, case)
    assert torch.allclose(result.attention.output, naive_output(case, result.kept.expand(2, 4, 40, 40)), atol=1e-5)


def test_fixed_patterns_are_those_of_the_papers():
    index = range(LENGTH)
    case = dataclasses.replace(case_of("strided"), sinks=0)
    naive = torch.tensor([[i >= j and (i - j <= WINDOW or (i - j) % 4 == 0) for j in index] for i in index])
    share = float((naive & case.distant).sum() / case.distant.sum())
    assert torch.equal(run("strided", dataclasses.replace(case, share=share)).kept, naive)
    for name in ("sliding", "streaming"):
        kept = run(name, case_of(name)).kept
        width = max(i - j for i in index for j in range(SINKS, i + 1) if kept[i, j])
        for i in index:
            for j in range(i + 1):
                assert bool(kept[i, j]) == (i - j <= width or (name == "streaming" and j < SINKS))
    random = run("bigbird", case_of("bigbird", 0.3)).kept
    rows = random[:, 128:144, SINKS:112]  # a block of queries, blocks of keys far from all of them
    whole = rows[..., 14:].unflatten(-1, (-1, 16)).float().mean((1, 3))
    assert float(((whole == 0) | (whole == 1)).float().mean()) > 0.8  # all but the block where the budget ends
    assert not torch.equal(rows[0], rows[1])


def score_of(name, case):
    """The score of a pair, straight from the paper."""
    query, key, setting = case.query, case.key, case.setting or BASELINES[name].grid[0]
    if name == "kmeans":
        unit = F.normalize(case.fitted.centroids, dim=-1)

        def kmeans(b, h, i, j):
            cluster = max(range(len(unit[h // 2])), key=lambda c: float(key[b, h, j] @ unit[h // 2, c]))
            return float(F.normalize(query[b, h, i], dim=0) @ unit[h // 2, cluster])

        return kmeans
    if name == "lsh":
        buckets = 2 * max(1, round(0.5 * setting["buckets"] / case.share))
        rotation = torch.randn(setting["rounds"], 8, buckets // 2, generator=case.generator())

        def lsh(b, h, i, j):
            turned = [[torch.cat([x @ r, -(x @ r)]).argmax() for r in rotation] for x in (query[b, h, i], key[b, h, j])]
            return sum(int(ours == theirs) for ours, theirs in zip(*turned))

        return lsh
    if name in ("quest", "moba"):
        size = min(setting["page"], WINDOW + 1)

        def block(b, h, i, j):
            keys = key[b, h, j // size * size : j // size * size + size]
            if name == "moba":
                return float(query[b, h, i] @ keys.mean(0))
            return float(torch.maximum(query[b, h, i] * keys.amin(0), query[b, h, i] * keys.amax(0)).sum())

        return block

    def sparq(b, h, i, j):
        top = query[b, h, i].abs().topk(max(1, int(setting["components"] * 8))).indices
        return float(query[b, h, i, top] @ key[b, h, j, top])

    return sparq


SCORED = ["kmeans", "lsh", "quest", "moba", "sparq"]


@pytest.mark.parametrize(("name", "setting"), [(name, each) for name in SCORED for each in BASELINES[name].grid])
def test_the_keys_kept_are_those_with_the_best_scores(name, setting):
    case = case_of(name, 0.2, setting=setting)
    kept = run(name, case).kept
    b, h = 1, 2
    score = score_of(name, case)
    budget = per_query_budget(case.distant.sum(-1), case.share)
    for i in (40, 99, 155):
        far = [j for j in range(SINKS, i - WINDOW)]
        scores = {j: score(b, h, i, j) for j in far}
        chosen = [j for j in far if kept[b, h, i, j]]
        left = [j for j in far if not kept[b, h, i, j]]
        assert len(chosen) == min(budget - SINKS, len(far))
        if left:
            assert min(scores[j] for j in chosen) >= max(scores[j] for j in left) - 1e-4


def test_sparq_adds_the_mean_value_for_the_mass_it_left_out():
    case = case_of("sparq", 0.2)
    result = run("sparq", case)
    b, h, i = 1, 3, 120
    query, past = case.query[b, h, i], slice(0, i + 1)
    top = query.abs().topk(2).indices
    covered = query[top].abs().sum() / query.abs().sum()
    approximate = (case.key[b, h, past][:, top] @ query[top] / torch.sqrt(8 * covered)).softmax(0)
    kept = result.kept[b, h, i, past]
    alpha = approximate[kept].sum()
    exact = (case.key[b, h, past][kept] @ query * case.scale).softmax(0) @ case.value[b, h, past][kept]
    expected = alpha * exact + (1 - alpha) * case.value[b, h, past].mean(0)
    assert torch.allclose(result.attention.output[b, h, i], expected, atol=1e-5)


@pytest.mark.parametrize("setting", BASELINES["magicpig"].grid)
def test_magicpig_samples_two_collisions_and_divides_by_their_chance(setting):
    case = case_of("magicpig", 0.3, length=40, setting=setting)
    assert case.fitted.bits == setting["bits"]
    tables = case.fitted
    generator = case.generator()
    planes = [torch.randn(8, tables.bits, generator=generator) for _ in range(tables.number)]
    center = tables.center.repeat_interleave(2, 0)[None, :, None]
    key = case.key - center
    hits = sum(((case.query @ p > 0)[..., :, None, :] == (key @ p > 0)[..., None, :, :]).all(-1).int() for p in planes)
    result = run("magicpig", case)
    assert torch.equal(result.kept, case.open | (case.distant & (hits >= 2)))
    cosine = F.cosine_similarity(case.query[..., :, None, :], key[..., None, :, :], dim=-1)
    p = (1 - cosine.clamp(-1, 1).acos() / math.pi) ** tables.bits
    n = tables.number
    chance = 1 - (1 - p) ** n - n * p * (1 - p) ** (n - 1)
    extra = torch.where(case.open, 0.0, -chance.log())
    assert torch.allclose(result.attention.output, naive_output(case, result.kept, extra), atol=1e-4)


def test_performer_tends_to_full_attention_with_more_features(monkeypatch):
    case = case_of("performer")
    case = dataclasses.replace(case, query=case.query / 2, key=case.key / 2)
    full = F.scaled_dot_product_attention(case.query, case.key, case.value, is_causal=True)
    errors = []
    for features in (64, 4096):
        monkeypatch.setattr(estimates, "FEATURES", features)
        fresh = dataclasses.replace(case)  # nothing computed with other features
        errors.append(float((run("performer", fresh).attention.output - full).abs().mean()))
    assert errors[1] < errors[0] / 3
    assert errors[1] < 0.01


def test_orthogonal_features_are_orthogonal():
    rows = estimates.orthogonal(16, 8, torch.Generator().manual_seed(0))
    for block in (rows[:8], rows[8:]):
        unit = F.normalize(block, dim=-1)
        assert torch.allclose(unit @ unit.T, torch.eye(8), atol=1e-5)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_budget_is_the_nearest_one(share):
    distant = torch.arange(-8, 60).clamp(min=0)
    kept = [float(distant.clamp(max=b).sum()) for b in range(60)]
    wanted = share * float(distant.sum())
    assert abs(kept[per_query_budget(distant, share)] - wanted) == min(abs(k - wanted) for k in kept)
