"""Patterns that select keys by their content: clusters, hashes, blocks, query components."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.cluster import MiniBatchKMeans
from torch import Tensor
from torch.nn import functional as F

from focus_core.attention import AttentionOutput
from focus_core.baselines.case import Case, Result, Setting
from focus_core.baselines.compiled.softmax import kept_share
from focus_core.baselines.compiled.threshold import largest
from focus_core.baselines.hashing import collisions

PAGE_GRID = ({"page": 16}, {"page": 4}, {"page": 8}, {"page": 32})
"""Keys of a block."""
KMEANS_GRID = ({"clusters": 1}, {"clusters": 2}, {"clusters": 4}, {"clusters": 8})
"""Clusters, in multiples of 1 / share."""
LSH_GRID = (
    {"rounds": 8, "buckets": 1},
    {"rounds": 32, "buckets": 1},
    {"rounds": 8, "buckets": 4},
    {"rounds": 32, "buckets": 4},
)
"""Rounds of hashing, and buckets of each in multiples of 1 / share."""
SPARQ_GRID = ({"components": 0.25}, {"components": 0.125}, {"components": 0.5}, {"components": 0.75})
"""Share of the components of a query that choose its keys."""
FEWEST = 1e-2
"""Clusters and buckets are no more than for this share."""
MINIBATCH = 1024


class Clusters(NamedTuple):
    """Clusters of one layer.

    Attributes:
        centroids: (Hkv, C, D).
        models: k-means of each key/value head, to go on with more text.
    """

    centroids: Tensor
    models: list[MiniBatchKMeans]


def fit_kmeans(
    query: Tensor,
    key: Tensor,
    *,
    share: float,
    seed: int,
    setting: Setting | None = None,
    before: Clusters | None = None,
    **_: Any,
) -> Clusters:
    """Clusters of normalised queries and keys of training text, about 1 / share unless the setting has more.

    Mini-batches of all tokens in random order, after those of earlier texts.
    """
    kv_heads, wanted = key.shape[1], (setting or KMEANS_GRID[0])["clusters"] / max(share, FEWEST)
    models = before.models if before else []
    for head in range(kv_heads):
        pool = [key[:, head], *query.unflatten(1, (kv_heads, -1))[:, head].unbind(1)]
        points = F.normalize(torch.cat([part.reshape(-1, part.shape[-1]) for part in pool]).float(), dim=-1)
        order = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))
        batches = points.cpu()[order].split(MINIBATCH)
        if before is None:
            count = min(max(2, round(wanted)), len(batches[0]))
            models.append(MiniBatchKMeans(count, random_state=seed, n_init=1))  # pyright: ignore[reportArgumentType]  (its stub knows "auto" alone)
        for batch in batches:
            models[head].partial_fit(batch.numpy())
    centroids = np.stack([np.asarray(model.cluster_centers_, dtype=np.float32) for model in models])
    return Clusters(torch.from_numpy(centroids), models)


def kmeans_routing(case: Case) -> Tensor:
    """Keys of the query's nearest clusters: Routing Transformer, arXiv 2003.05997, section 4.1 (eq. 8 to 10).

    Queries and keys are projected to the unit ball and compared with centroids fitted beforehand. (A frozen model has
    no shared queries and keys, and no running average of centroids.) Every key belongs to its nearest centroid. The
    paper fills each cluster with its top w tokens, which looks into the future. Here a query takes the keys of its
    nearest cluster, then of the next, up to its budget.
    """
    nearness = F.normalize(case.query.float(), dim=-1) @ _centroids(case).mT
    return case.select_groups(nearness, case.once(_clusters)[..., : case.key.shape[2]])[0]


def _centroids(case: Case) -> Tensor:
    """(H, C, D) of unit length."""
    centroids = F.normalize(case.fitted.centroids.to(case.query.device).float(), dim=-1)
    return centroids.repeat_interleave(case.key.shape[1] // centroids.shape[0], 0)


def _clusters(case: Case) -> Tensor:
    """(B, H, T) int64: the nearest centroid of every key."""
    return (F.normalize(case.key.float(), dim=-1) @ _centroids(case).mT).argmax(-1)


def lsh(case: Case) -> Tensor:
    """Keys that share a bucket with the query in the most rounds: Reformer, arXiv 2001.04451, section 2.

    h(x) = argmax([xR; -xR]) in each round. Queries and keys are normalised and hashed with the same rotations (Reformer
    shares them); 8 rounds of about 1 / share buckets unless the setting has others. The published set is all keys that
    collide in any round. The budget cuts it by the number of collisions; where too few keys collide, others fill the
    budget.
    """
    count = collisions(_hash(case.query, _rotations(case)), case.once(_key_hashes)[..., : case.key.shape[2]])
    return case.select(count.float().add_(case.recency))


def _rotations(case: Case) -> Tensor:
    """(rounds, D, n/2) normal numbers."""
    setting = case.setting or LSH_GRID[0]
    half = max(1, round(0.5 * setting["buckets"] / max(case.share, FEWEST)))
    return torch.randn(int(setting["rounds"]), case.key.shape[-1], half, generator=case.generator()).to(case.key.device)


def _key_hashes(case: Case) -> Tensor:
    return _hash(case.key, _rotations(case))


def _hash(vectors: Tensor, rotation: Tensor) -> Tensor:
    """(B, H, T, D) and (R, D, n/2) to (R, B, H, T) int16 bucket numbers in 0..n-1."""
    turned = torch.einsum("bhtd,rdn->rbhtn", F.normalize(vectors.float(), dim=-1), rotation)
    return torch.cat([turned, -turned], -1).argmax(-1).to(torch.int16)


def quest(case: Case) -> Tensor:
    """Blocks with the highest upper bound: Quest, arXiv 2406.10774, section 3.2, sum_d max(q_d min_d, q_d max_d)."""
    low, high = case.once(_bounds)
    positive, negative = case.query.float().clamp(min=0), case.query.float().clamp(max=0)
    count = _block_count(case)
    bounds = torch.cat([high[:, :, :count], low[:, :, :count]], -1)
    return case.select_blocks(case.products(torch.cat([positive, negative], -1), bounds), _block_size(case))


def moba(case: Case) -> Tensor:
    """Blocks with the highest product of query and mean key: MoBA, arXiv 2502.13189, eq. 5 and 6."""
    means = case.once(_means)[:, :, : _block_count(case)]
    return case.select_blocks(case.products(case.query, means), _block_size(case))


def _bounds(case: Case) -> tuple[Tensor, Tensor]:
    """The smallest and the largest component of the keys of each block, (B, H, N, D)."""
    return _blocks(case, 1e30).amin(3), _blocks(case, -1e30).amax(3)


def _means(case: Case) -> Tensor:
    return _blocks(case, float("nan")).nanmean(3)


def _block_size(case: Case) -> int:
    # A block that holds a distant key must lie wholly in the past of the query.
    return min(int((case.setting or PAGE_GRID[0])["page"]), case.window + 1)


def _block_count(case: Case) -> int:
    return -(-case.key.shape[2] // _block_size(case))


def _blocks(case: Case, fill: float) -> Tensor:
    """(B, H, N, block, D) float32 keys in blocks, the last one padded."""
    size = _block_size(case)
    missing = -case.key.shape[2] % size
    return F.pad(case.key.float(), (0, 0, 0, missing), value=fill).unflatten(2, (-1, size))


def sparq_keys(case: Case) -> Tensor:
    """The keys that `sparq` attends to."""
    return case.select(_sparq_scores(case))


def sparq(case: Case) -> Result:
    """Keys by the query's largest components, with the mean value for the rest: SparQ, arXiv 2312.04985, algorithm 1.

    s = ``softmax(q_r k_r / sqrt(D |q_r|_1 / |q|_1))`` over the r = D/4 largest ``|q|``; the kept keys hold alpha of it;
    output alpha * attention + (1 - alpha) * mean value of the past. Components are chosen for each query head.
    """
    scores = _sparq_scores(case)
    kept = case.select(scores)
    alpha = kept_share(scores, kept, case.causal)[..., None]
    result = case.exactly(kept)
    mean = case.once(_past_mean)[:, :, case.start : case.start + case.query.shape[2]]
    output = alpha * result.attention.output.float() + (1 - alpha) * mean
    return Result(AttentionOutput(output.to(case.value.dtype), result.attention.logsumexp), kept)


def _past_mean(case: Case) -> Tensor:
    """(B, H, T, Dv) float32: mean value of the tokens that each may see, itself included."""
    length, seen = case.value.shape[2], case.layout.farthest + 1
    total = case.value.float().cumsum(2)
    if seen < length:
        total = torch.cat([total[:, :, :seen], total[:, :, seen:] - total[:, :, :-seen]], 2)
    return total / torch.arange(1, length + 1, device=total.device).clamp(max=seen)[:, None]


def _sparq_scores(case: Case) -> Tensor:
    """(B, H, Tq, S) float32 q_r k_r / sqrt(D |q_r|_1 / |q|_1)."""
    query, part = case.query.float(), (case.setting or SPARQ_GRID[0])["components"]
    sizes = query.abs()
    count = torch.full((sizes[..., 0].numel(),), max(1, int(part * query.shape[-1])), device=sizes.device)
    largest_ones = largest(sizes.flatten(0, -2), count).view(query.shape)
    covered = ((sizes * largest_ones).sum(-1) / sizes.sum(-1).clamp(min=1e-9)).clamp(min=1e-9).sqrt()
    return case.products(query * largest_ones * (case.scale / covered[..., None]), case.key)
