"""Groups that fit a model's own keys: k-means of what queries see of them, and potentials that make groups even."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from sklearn.cluster import MiniBatchKMeans
from torch import Tensor
from torch.nn import functional as F

from focus_core.progress import Progress
from focus_core.routing.config import FocusConfig
from focus_core.routing.layer import HeadVectors, LayerRouting
from focus_core.routing.model import FocusModel
from focus_core.routing.narrow.rotary import before_rotation
from focus_core.routing.rules import Rule, attend_fully, hard_groups

if TYPE_CHECKING:
    from jaxtyping import Float

ROUNDS = 100
"""Steps of `even_potentials`."""
QUERY_POWER = 0.25
"""Power of the second moment of queries that stretches keys. With 0 keys are compared, with 1/2 logits."""
LONGEST = 4.0
"""Root mean square length of centroids about the mean key, at most, so that potentials fit half precision."""
GOLDEN = 0.6180339887498949
"""The golden ratio less 1. Its multiples, less their whole parts, spread evenly over 0 to 1."""


def fit_groups(
    focus: FocusModel, blocks: np.ndarray, seed: int, progress: Progress, *, query_power: float = QUERY_POWER
) -> dict[str, Tensor]:
    """The routers' tensors with groups that fit the keys of these texts, in one pass.

    Args:
        focus: narrow routers.
        blocks: (N, T) int64 token ids.
        seed: of k-means.
        progress: told the share done.
        query_power: with score="dot", see `seen_centroids`.
    """
    config = focus.config

    def fit(routing: LayerRouting) -> None:
        progress("Fitting groups of keys", routing.layer / (1 + max(focus.layers)))
        assert routing.vectors is not None
        keys = routing.vectors.plain_key[:, :, config.sink_tokens :].transpose(0, 1).flatten(1, 2).float().cpu()
        router = routing.router
        if config.score == "cosine":
            keys = F.normalize(keys, dim=-1)
        if config.score == "dot" and query_power:
            moments = query_moments(routing.vectors, config.sink_tokens, config.window)
            found = [seen_centroids(*head, config, seed, query_power) for head in zip(keys, moments)]
        else:
            found = [(_k_means(head, config, seed), torch.zeros(config.num_groups)) for head in keys]
        router.centroids.copy_(torch.stack([centroids for centroids, _ in found]).half())
        offsets = torch.stack([offset for _, offset in found])[:, None]
        # Scores of all sampled keys of a head, as one text without its sinks.
        scores = router(keys[None].to(router.centroids.device)).cpu() + offsets
        router.potential.copy_(((even_potentials(scores) + offsets[:, 0]) / config.temperature).half())

    untouched = Rule(attend_fully, hard_groups)
    with torch.inference_mode(), focus.routing("hard", rule=untouched), focus.observe(fit):
        focus.model.base_model(input_ids=torch.from_numpy(blocks).to(focus.model.device), use_cache=False)
    return focus.routers.state_dict()


def query_moments(vectors: HeadVectors, sinks: int, window: int) -> Float[Tensor, "Hkv D D"]:
    """Second moments of the queries of each key/value head, as keys before rotary embedding meet them.

    The logit of a query i and a key j is u . x_j, x_j before rotary embedding and u the query turned back by the place
    j. Each query is taken for one j beyond its window; these places are spread evenly over all that it may read.

    Args:
        vectors: queries and keys of texts.
        sinks: tokens at the start that are left out.
        window: w. Texts that are not longer are taken without one.

    Returns:
        Means of u u^T, float64 on the CPU.
    """
    query, kv_heads = vectors.query, vectors.key.shape[1]
    length = query.shape[2]
    first = sinks + window + 1 if length > sinks + window + 1 else 0
    asking = query[:, :, first:]
    if vectors.position_embeddings is not None:
        numbers = torch.arange(first, length)
        reach = numbers - (window + sinks if first else 0)
        read = (sinks if first else 0) + (numbers * GOLDEN % 1 * reach).long()
        turned = tuple(part[:, read.to(part.device)] for part in vectors.position_embeddings)
        asking = before_rotation(asking, (turned[0], turned[1]))
    seen = asking.unflatten(1, (kv_heads, -1)).transpose(0, 1).flatten(1, 3).double().cpu()
    return seen.mT @ seen / seen.shape[1]


def seen_centroids(
    keys: Float[Tensor, "n D"],
    moment: Float[Tensor, "D D"],
    config: FocusConfig,
    seed: int,
    query_power: float = QUERY_POWER,
) -> tuple[Float[Tensor, "K D"], Float[Tensor, " K"]]:
    """Centroids of keys stretched along the directions that queries look in, and what their scores lack.

    Keys are compared as A x with A = W^p, W the second moment of queries. p = 1/4 is halfway between keys (A = I) and
    logits (A = W^(1/2)). Along few directions queries are long. Alone these would decide about groups, but the spread
    along them is counted anyway.

    Args:
        keys: before rotary embedding.
        moment: W.
        config: settings with the number of groups.
        seed: of k-means.
        query_power: p.

    Returns:
        Centroids m_c, and offsets o_c: the nearest of the k means, in this measure, has the largest
        ``x . m_c - |m_c|^2 / 2 + o_c``.
    """
    lengths, axes = torch.linalg.eigh(moment)
    stretch = (axes * lengths.clamp(min=1e-9 * float(lengths[-1])).pow(query_power)) @ axes.mT
    mean = keys.double().mean(0)
    means = _k_means(((keys.double() - mean) @ stretch).float(), config, seed).double()
    about = means @ stretch
    length, measured = (part.square().sum(-1) for part in (about, means))
    scale = min(float(measured.sum() / length.sum()), LONGEST / float(length.mean().sqrt()))
    # Rounded as stored, so that the offsets make up for it.
    centroids = (mean + scale * about).half().double()
    about = centroids - mean
    return centroids.float(), ((about.square().sum(-1) - scale * measured) / 2).float()


def _k_means(keys: Float[Tensor, "n D"], config: FocusConfig, seed: int) -> Float[Tensor, "K D"]:
    means = MiniBatchKMeans(config.num_groups, random_state=seed, batch_size=4096, n_init="auto", max_iter=30)
    return torch.from_numpy(means.fit(keys.numpy()).cluster_centers_)


def even_potentials(scores: Float[Tensor, "H n K"], rounds: int = ROUNDS) -> Float[Tensor, "H K"]:
    """What to add to scores so that the best group of every token makes even groups.

    The groups are the optimal assignment to K places of n / K tokens each, up to ties. Each round lowers the potential
    of a group that is too large by the log of its excess, and raises that of one too small. Steps shrink, until no
    group has more than 1.02 times its share, and the most even potentials so far are returned.

    Args:
        scores: (H, n, K), each head on its own.
        rounds: steps at most.
    """
    num_tokens, num_groups = scores.shape[1:]
    best_two = scores.topk(2, -1).values
    scale = (best_two[..., 0] - best_two[..., 1]).mean(-1, keepdim=True)
    potential = best = torch.zeros_like(scores[:, 0])
    least = torch.full_like(scale, float("inf"))
    for step in range(rounds):
        groups = (scores + potential[:, None]).argmax(-1)
        sizes = torch.zeros_like(potential).scatter_add_(1, groups, torch.ones_like(groups, dtype=potential.dtype))
        excess = sizes * num_groups / num_tokens
        worst = excess.amax(1, keepdim=True)
        best, least = torch.where(worst < least, potential, best), torch.minimum(worst, least)
        if bool((least < 1.02).all()):
            break
        potential = potential - scale * excess.clamp(min=0.1).log() / (1 + step / 10)
    return best - best.mean(1, keepdim=True)
