"""Clusters of a text's own keys: their estimate against dense softmax over pseudo-keys, and what they know."""

import dataclasses

import pytest
import torch

from focus_core.baselines import BASELINES, Case
from focus_core.baselines.clusters import cluster_keys, segment_clusters

WINDOW, SINKS, LENGTH = 15, 2, 96


def case_of(share=0.3, **changes):
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 3, LENGTH, 8, generator=generator) for _ in range(3))
    return Case(query, key, value, WINDOW, SINKS, share, scale=0.4, setting={"keys": 4}, **changes)


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("share", [0.1, 0.4])
def test_the_estimate_is_softmax_over_read_keys_and_counted_means(share, softcap):
    case = case_of(share, softcap=softcap)
    result = BASELINES["clusters"].attend(case)
    labels = segment_clusters(case).labels

    def capped(logits):
        return logits if softcap is None else softcap * torch.tanh(logits / softcap)

    for head, i in ((0, 20), (1, 60), (2, 95)):
        query, kept = case.query[0, head, i], result.kept[0, head, i]
        keys, values = list(case.key[0, head, kept]), list(case.value[0, head, kept])
        extra = [0.0] * len(keys)
        for cluster in labels[0, head, SINKS : i - WINDOW].unique():
            members = (labels[0, head] == cluster) & (torch.arange(LENGTH) >= SINKS)
            unread = int((members & ~kept)[: i + 1].sum())
            if unread:
                keys.append(case.key[0, head, members].mean(0))
                values.append(case.value[0, head, members].mean(0))
                extra.append(float(torch.tensor(unread).log()))
        logits = capped(torch.stack(keys) @ query * case.scale) + torch.tensor(extra)
        expected = logits.softmax(0) @ torch.stack(values)
        assert torch.allclose(result.attention.output[0, head, i], expected, atol=1e-5)
        assert float(result.attention.logsumexp[0, head, i]) == pytest.approx(float(logits.logsumexp(0)), abs=1e-5)


def test_planted_clusters_are_found_and_estimated_without_loss():
    generator = torch.Generator().manual_seed(1)
    centres, kinds = 4 * torch.randn(6, 8, generator=generator), torch.arange(LENGTH) // 8 % 6
    case = case_of(0.05)
    planted = dataclasses.replace(case, key=centres[kinds].expand(1, 3, -1, -1).contiguous(), sinks=0)
    found = cluster_keys(planted, LENGTH, 6)
    assert all(len(set(kinds[found.labels[0, 0] == label].tolist())) == 1 for label in found.labels[0, 0].unique())
    # Keys that are equal in a cluster are estimated exactly, up to their values.
    values = torch.randn(6, 8, generator=generator)[kinds].expand(1, 3, -1, -1)
    planted = dataclasses.replace(planted, value=values)
    full = planted.exactly(planted.causal).attention
    estimate = BASELINES["clusters"].attend(planted).attention
    assert float((estimate.output - full.output).abs().mean()) < 0.1 * float(full.output.abs().mean())


def test_a_query_ranks_clusters_by_its_product_with_their_mean_key():
    case = case_of(0.2)
    kept, found = BASELINES["clusters"].keep(case)[0, 2, 90], segment_clusters(case)
    scores = (found.keys[0, 2] @ case.query[0, 2, 90])[found.labels[0, 2]]
    far = torch.arange(LENGTH) < 90 - WINDOW
    far[:SINKS] = False
    assert float(scores[far & kept].min()) >= float(scores[far & ~kept].max()) - 1e-5


def test_clusters_of_a_segment_know_nothing_after_it():
    case = case_of()
    other = case.key.clone()
    other[:, :, 64:] = torch.randn(1, 3, 32, 8, generator=torch.Generator().manual_seed(7))
    before, after = segment_clusters(case), segment_clusters(dataclasses.replace(case, key=other))
    assert torch.equal(before.labels[..., :64], after.labels[..., :64])
    assert not torch.equal(before.labels[..., 64:], after.labels[..., 64:])
