"""Oracles: none of their kind is better, they need what they say, and the tables can tell them apart."""

import pytest
import torch

from focus_core.baselines import BASELINES, LEARNED, METHODS, ORACLES, Case
from focus_core.errors import FocusError

WINDOW, SINKS, LENGTH, GROUPS = 8, 2, 96, 4


def case_of(share=0.3, **changes):
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 3, LENGTH, 8, generator=generator) for _ in range(3))
    groups = torch.nn.functional.one_hot(torch.randint(GROUPS, (2, 1, LENGTH), generator=generator), GROUPS).bool()
    return Case(query, key, value, WINDOW, SINKS, share, scale=1.0, groups=groups, **changes)


def full(case):
    return case.exactly(case.causal).attention


def mass(case, kept):
    """Attention that the kept pairs hold, mean over queries."""
    weights = case.logits().masked_fill(~case.causal, float("-inf")).softmax(-1)
    return float((weights * kept).sum(-1).mean())


@pytest.mark.parametrize("share", [0.15, 0.4])
@pytest.mark.parametrize("name", list(ORACLES))
def test_the_share_is_met_and_local_pairs_and_sinks_are_kept(name, share):
    case = case_of(share)
    kept = ORACLES[name].attend(case).kept.expand(2, 3, -1, -1)
    assert float((kept & case.distant).sum() / (6 * case.distant.sum())) == pytest.approx(share, abs=0.02)
    assert bool(kept[..., case.open].all()) and not bool(kept[..., ~case.causal].any())


@pytest.mark.parametrize("name", list(ORACLES))
def test_share_one_is_full_attention(name):
    case = case_of(1.0)
    result = ORACLES[name].attend(case).attention
    assert torch.allclose(result.output, full(case).output, atol=1e-5)
    assert torch.allclose(result.logsumexp, full(case).logsumexp, atol=1e-4)


def test_no_method_holds_more_attention_than_the_best_tokens():
    case = case_of(0.2)
    best = mass(case, ORACLES["topk"].keep(case))
    for name in ("quest", "moba", "lsh", "clusters", "streaming"):
        assert mass(case, BASELINES[name].keep(case)) < best
    assert mass(case, ORACLES["best-reading"].keep(case)) < best


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_the_rest_counts_as_often_as_it_has_keys(softcap):
    case = case_of(0.2, softcap=softcap)
    result = ORACLES["topk-mean"].attend(case)
    for head, i in ((0, 40), (2, 95)):
        query, key, value = case.query[1, head, i], case.key[1, head], case.value[1, head]
        kept = result.kept[1, head, i]
        rest = ~kept & (torch.arange(LENGTH) <= i)
        keys, values = (
            torch.cat([key[kept], key[rest].mean(0)[None]]),
            torch.cat([value[kept], value[rest].mean(0)[None]]),
        )
        logits = keys @ query if softcap is None else softcap * torch.tanh(keys @ query / softcap)
        logits[-1] += rest.sum().log()
        assert torch.allclose(result.attention.output[1, head, i], logits.softmax(0) @ values, atol=1e-5)
        assert float(result.attention.logsumexp[1, head, i]) == pytest.approx(float(logits.logsumexp(0)), abs=1e-5)


def test_the_best_reading_takes_whole_groups_by_their_mean_attention():
    case = case_of(0.6)
    kept = ORACLES["best-reading"].keep(case)[1, 2, 90]
    far = torch.arange(LENGTH) < 90 - WINDOW
    group = case.groups[1, 0].int().argmax(-1)
    weights = (case.key[1, 2, :91] @ case.query[1, 2, 90]).softmax(0)
    means = [float(weights[(far & (group == each))[:91]].mean()) for each in range(GROUPS)]
    order = sorted(range(GROUPS), key=lambda each: -means[each])
    far[:SINKS] = False
    read = [float((kept & far & (group == each)).sum() / (far & (group == each)).sum()) for each in order]
    assert read[0] == 1.0 and sum(0 < part < 1 for part in read) <= 1 and read == sorted(read, reverse=True)


def test_the_best_groups_are_those_of_similar_keys():
    case = case_of(0.25)
    kinds = torch.arange(LENGTH) % GROUPS
    centres = 5 * torch.eye(8)[:GROUPS]
    noise = 0.1 * torch.randn(2, 3, LENGTH, 8, generator=torch.Generator().manual_seed(3))
    planted = Case(
        centres[kinds] + noise, centres[kinds] + noise, case.value, WINDOW, 0, 0.25, scale=1.0, groups=case.groups
    )
    kept = ORACLES["best-groups"].keep(planted) & planted.distant
    same = kinds[:, None] == kinds
    late = (kept & same)[:, :, 60:].sum() / kept[:, :, 60:].sum()
    assert float(late) > 0.95  # early queries have too few such keys for their budget


def test_oracles_of_groups_need_groups():
    case = Case(*(torch.randn(1, 1, 40, 4) for _ in range(3)), 8, 2, 0.3, scale=1.0)
    for name in ("best-reading", "best-groups"):
        with pytest.raises(FocusError, match="a model with routers"):
            ORACLES[name].keep(case)


def test_the_registries_are_apart_and_found_together():
    names = [*BASELINES, *LEARNED, *ORACLES]
    assert len(set(names)) == len(names) and set(METHODS) == set(names)
    assert {name for name in names if METHODS[name].oracle} == set(ORACLES)
