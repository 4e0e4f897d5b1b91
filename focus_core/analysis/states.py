"""Reference groupings of the same hidden states without training: balanced k-means and untrained routers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.nn import functional as F

from focus_core.progress import Progress, silent
from focus_core.routing.balance import assign
from focus_core.routing.config import FocusConfig
from focus_core.routing.layer import LayerRouting
from focus_core.routing.model import FocusModel, Observer
from focus_core.routing.sinkhorn import sinkhorn

UNTRAINED_SEEDS = (1, 2, 3)
"""Seeds of the untrained routers; 0 is the one that the workbench offers for choice."""

_MOVES = (12, 12, 12, 12, 60)  # Sinkhorn rounds of each; only the last assignment has to be well balanced
_LARGEST = 6e4  # within float16


class StateGroups(NamedTuple):
    """Groupings of n tokens in L layers.

    Attributes:
        kmeans: (L, n) int64 balanced k-means of the hidden states.
        untrained: (S, L, n) int64 first groups of untrained routers of S seeds, balanced over these tokens.
    """

    kmeans: np.ndarray
    untrained: np.ndarray


def state_groups(
    focus: FocusModel,
    documents: Sequence[tuple[np.ndarray, np.ndarray]],
    *,
    seed: int = 0,
    progress: Progress = silent,
) -> StateGroups:
    """Run documents through the model and group the states that enter each layer's attention.

    The states are those of the routing in force, the ones the routers themselves read.

    Args:
        focus: model with routers.
        documents: (input_ids (T,), tokens (m,)) of each document; only the chosen tokens are grouped, all together.
        seed: of k-means.
        progress: told the share done.

    Returns:
        n is the number of chosen tokens of all documents, in order.
    """
    found: list[dict[int, Tensor]] = []
    for index, (input_ids, tokens) in enumerate(documents):
        progress("Reading hidden states", 0.6 * index / len(documents))
        row = torch.from_numpy(input_ids)[None].to(focus.model.device)
        found.append({})
        with torch.inference_mode(), focus.observe(keep_states(found[-1], tokens)):
            focus.model.base_model(input_ids=row, use_cache=False)
    return group_states(
        found, focus.current.config, seed=seed, progress=lambda text, share: progress(text, 0.6 + 0.4 * share)
    )


def keep_states(kept: dict[int, Tensor], tokens: np.ndarray | None = None) -> Observer:
    """An observer that keeps the states that enter each layer's attention.

    Args:
        kept: gets (m, d) float16 of each layer: half the memory, and k-means needs no more.
        tokens: (m,) places in the text; None for all.
    """

    def keep(routing: LayerRouting) -> None:
        states = routing.hidden_states[0]
        rows = states if tokens is None else states[torch.from_numpy(tokens).to(states.device)]
        kept[routing.layer] = rows.float().clamp(-_LARGEST, _LARGEST).to("cpu", torch.float16)

    return keep


def group_states(
    documents: Sequence[Mapping[int, Tensor]], config: FocusConfig, *, seed: int = 0, progress: Progress = silent
) -> StateGroups:
    """Group states of documents, in each layer those of all documents together.

    Args:
        documents: of each document what `keep_states` keeps.
        config: of the routers.
        seed: of k-means.
        progress: told the share done.
    """
    kmeans, untrained = [], []
    for index, layer in enumerate(layers := sorted(documents[0])):
        progress("Grouping hidden states", index / len(layers))
        states = torch.cat([each[layer] for each in documents]).float()
        points = F.layer_norm(states, states.shape[-1:]).numpy()
        kmeans.append(balanced_kmeans(points, config.num_groups, seed=seed))
        untrained.append([_untrained(states, config, layer, number) for number in UNTRAINED_SEEDS])
    return StateGroups(np.stack(kmeans), np.asarray(untrained).transpose(1, 0, 2))


def balanced_kmeans(states: np.ndarray, num_groups: int, *, seed: int = 0) -> np.ndarray:
    """k-means with groups of about equal size.

    Starts from scikit-learn's k-means, then alternates balanced assignment (optimal transport of squared distances
    with a little entropy, by Sinkhorn) and means.

    Args:
        states: (n, d) float32; up to K of them are groups of their own.
        num_groups: K.
        seed: of the start.

    Returns:
        (n,) int64.
    """
    if len(states) <= num_groups:
        return np.arange(len(states))
    points = torch.from_numpy(states - states.mean(0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the first layer has only as many states as tokens differ
        # One thread: these are small operations, on which threads lose; and sums then have one order on any machine.
        with threadpool_limits(1):
            start = KMeans(num_groups, n_init="auto", max_iter=20, random_state=seed).fit(points.numpy())
    centres = torch.from_numpy(np.asarray(start.cluster_centers_, dtype=np.float32))
    groups = torch.zeros(len(points), dtype=torch.long)
    for rounds in _MOVES:
        distances = torch.cdist(points, centres) ** 2
        scale = float((distances.mean(1) - distances.amin(1)).mean()) or 1.0
        groups = sinkhorn(-distances[None], temperature=0.05 * scale, rounds=rounds)[0].argmax(-1)
        counts = torch.bincount(groups, minlength=num_groups)
        sums = torch.zeros_like(centres).index_add_(0, groups, points)
        centres = torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], centres)
    return groups.numpy()


def _untrained(states: Tensor, config: FocusConfig, layer: int, seed: int) -> np.ndarray:
    """(n,) first groups of a router as `retrofit` initialises them, balanced over all the tokens at once."""
    own = {
        name: getattr(config, name) for name in ("num_groups", "route_dim", "score", "temperature", "sinkhorn_rounds")
    }
    layer_wide = FocusConfig(top_k=1, balance="sequence", **own)  # no setting that only other routers have
    router = layer_wide.new_router(states.shape[-1], 1, torch.Generator().manual_seed(1000 * seed + layer))
    with torch.inference_mode():
        scores = router(states[None])
        return assign(router, scores, layer_wide)[0].argmax(-1).numpy()
