"""Clusters of the text's own keys, with estimates by their means for the pairs that are left out.

Squeezed Attention (arXiv 2411.09688) and RetroInfer (arXiv 2505.02922), made causal for whole texts.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from focus_core.attention import AttentionOutput
from focus_core.baselines.case import Case, Result

SEGMENT = 128
CLUSTERS_GRID = ({"keys": 16}, {"keys": 4}, {"keys": 8}, {"keys": 32})
"""Keys per cluster, on average."""
ROUNDS = 10


class Clusters(NamedTuple):
    """Clusters of the keys of every head.

    Attributes:
        labels: (B, H, T) int64, the cluster of each key.
        keys: (B, H, C, D) float32, mean key of each cluster; zeros where it is empty.
        values: (B, H, C, Dv) float32, mean value.
        segment: tokens of a segment.
        per_segment: clusters of a segment.
    """

    labels: Tensor
    keys: Tensor
    values: Tensor
    segment: int
    per_segment: int

    def before(self, stop: int) -> Clusters:
        """The labels of the first `stop` keys, and the clusters of their segments."""
        number = -(-stop // self.segment) * self.per_segment
        keys, values = self.keys[:, :, :number], self.values[:, :, :number]
        return Clusters(self.labels[..., :stop], keys, values, self.segment, self.per_segment)

    def best(self, case: Case, scores: Tensor) -> tuple[Tensor, Tensor]:
        """`Case.select_groups` for scores (B, H, Tq, C) of clusters."""
        return case.select_groups(scores, self.labels)


def clusters_keys(case: Case) -> Tensor:
    """The keys that `clusters` attends to exactly."""
    found = case.once(segment_clusters).before(case.key.shape[2])
    return found.best(case, case.attention_logits(found.keys))[0]


def clusters(case: Case) -> Result:
    """Exact attention to the best clusters, estimates for the rest: RetroInfer, arXiv 2505.02922, section 4.2.

    Keys are clustered inside each segment of the text (section 4.2, segmented clustering), about 16 to a cluster. A
    query ranks clusters by its product with their mean key, and attends exactly to the keys of the best ones. Of each
    other cluster, n unread keys count as n times its mean key, with its mean value: a logit of log n + q mean(k).

    A segment is no longer than the window. So every distant key lies in a finished segment, and its cluster knows
    nothing after the query. Sinks are in no cluster. Kept pairs are the exact ones.
    """
    found = case.once(segment_clusters).before(case.key.shape[2])
    centroids = case.attention_logits(found.keys)
    kept, unread = found.best(case, centroids)
    return joined(case, case.exactly(kept), centroids.add_(unread.log_()), found.values)


def joined(case: Case, exact: Result, estimates: Tensor, values: Tensor) -> Result:
    """Attention to kept pairs together with that to estimates.

    Args:
        case: of the result.
        exact: of the kept pairs.
        estimates: (B, H, Tq, n) float32 logits, -inf where there is nothing to estimate.
        values: (B, H, n, Dv) float32, their values; heads share them as their keys.
    """
    rest = estimates.logsumexp(-1, keepdim=True)
    logsumexp = torch.logaddexp(exact.attention.logsumexp[..., None], rest)
    output = (exact.attention.logsumexp[..., None] - logsumexp).exp_() * exact.attention.output.float()
    output += case.mixed(estimates.sub_(logsumexp).exp_(), values)
    return Result(AttentionOutput(output.to(case.value.dtype), logsumexp[..., 0]), exact.kept)


def segment_clusters(case: Case) -> Clusters:
    """Clusters of keys in each segment of `SEGMENT` tokens, or of the window if that is shorter; sinks in none."""
    size = min(SEGMENT, case.window + 1)
    return cluster_keys(case, size, max(1, round(size / (case.setting or CLUSTERS_GRID[0])["keys"])))


def cluster_keys(case: Case, segment: int, count: int) -> Clusters:
    """Clusters by k-means (squared distance of keys, from evenly spaced keys on) in each segment of the text.

    Args:
        case: its keys and values; sinks are in no mean.
        segment: tokens of a segment, from the first token of the text on.
        count: clusters in each segment.
    """
    batch, heads, length, _ = case.key.shape
    missing = -length % segment
    counted = F.pad(torch.arange(length, device=case.key.device) >= case.sinks, (0, missing))

    def parts(tensor: Tensor) -> Tensor:  # (B, H, T, n) to (B, H, S, segment, n)
        return F.pad(tensor.float(), (0, 0, 0, missing)).unflatten(2, (-1, segment))

    keys, counted = parts(case.key), counted.unflatten(0, (-1, segment))[..., None].float()
    first = torch.linspace(0, segment - 1, count + 2, device=keys.device)[1:-1].round().long()
    means = keys[..., first, :]
    labels = _nearest(keys, means)
    for _ in range(ROUNDS):
        means = _means(keys, labels, counted, count, means)
        labels = _nearest(keys, means)
    means = _means(keys, labels, counted, count, means)
    values = parts(case.value)
    value_means = _means(values, labels, counted, count, torch.zeros_like(values[..., :count, :]))
    offsets = torch.arange(keys.shape[2], device=keys.device)[:, None] * count
    labels = (labels + offsets).flatten(2)[..., :length]
    means, value_means = (part.reshape(batch, heads, -1, part.shape[-1]) for part in (means, value_means))
    return Clusters(labels, means, value_means, segment, count)


def _nearest(points: Tensor, means: Tensor) -> Tensor:
    return (means.square().sum(-1)[..., None, :] - 2 * points @ means.mT).argmin(-1)


def _means(points: Tensor, labels: Tensor, counted: Tensor, count: int, empty: Tensor) -> Tensor:
    """Mean point of each cluster; that of `empty` where there is none."""
    members = F.one_hot(labels, count).float() * counted
    sizes = members.sum(-2)[..., None]
    return torch.where(sizes > 0, members.mT @ points / sizes.clamp(min=1), empty)
