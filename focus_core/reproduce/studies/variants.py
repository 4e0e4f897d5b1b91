"""Remedies against collapse, as the published stability study names them: each is a few hooks on one training loop.

A variant changes settings of the published recipe, adds a term to the loss, changes a router's input, or moves its
centroids after a step. Weights, decay and intervals, which the paper does not give, are named constants here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from sklearn.cluster import KMeans
from torch import Tensor
from torch.nn import functional as F

from focus_core.routing.routers import Router

ENTROPY_WEIGHT, BALANCE_WEIGHT = 0.01, 0.1
"""Weights of the two losses, in nats of the language-model loss; ours, the paper gives none."""
DECAY = 0.9
"""Share of the old centroid in an exponential moving average."""


@dataclass(frozen=True)
class Variant:
    """One row of the study.

    Attributes:
        label: name in tables.
        settings: of `FocusConfig`, on top of the published recipe.
        penalty: maps one layer's assignment (B, T, K) to a term of the loss, mean over layers.
        prepare: called once with every router, before training.
        after_step: called after every step with (router, states (B, T, d), assignment (B, T, K), finished steps).
    """

    label: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    penalty: Callable[[Tensor], Tensor] | None = None
    prepare: Callable[[Router], Any] | None = None
    after_step: Callable[[Router, Tensor, Tensor, int], None] | None = None


def entropy_loss(assignment: Tensor) -> Tensor:
    """Mean entropy of a token's assignment in nats: 0 when every token has weight 1 in one group.

    Args:
        assignment: (B, T, K), rows sum to 1.
    """
    return -(assignment * assignment.clamp(min=1e-9).log()).sum(-1).mean()


def balance_loss(assignment: Tensor) -> Tensor:
    """Divergence of the groups' shares from uniform in nats: 0 when all are equal, log K when one holds every token.

    Args:
        assignment: (B, T, K), rows sum to 1.
    """
    share = assignment.mean((0, 1))
    return math.log(assignment.shape[-1]) + (share * share.clamp(min=1e-9).log()).sum()


def losses(balance_weight: float = BALANCE_WEIGHT) -> Callable[[Tensor], Tensor]:
    """Entropy and balance loss together, weighted."""
    return lambda assignment: ENTROPY_WEIGHT * entropy_loss(assignment) + balance_weight * balance_loss(assignment)


def stop_gradient(router: Router) -> Any:
    """Stop gradients from a router into its hidden states; returns the hook's handle."""
    return router.register_forward_pre_hook(lambda module, inputs: (inputs[0].detach(),))


def freeze_centroids(router: Router) -> None:
    """Freeze the centroids; the projection still learns."""
    router.centroids.requires_grad_(False)


@torch.no_grad()
def routes(router: Router, states: Tensor) -> Tensor:
    """(N, d_g) float32: hidden states (B, T, d) in the routing space, as in the router's scores."""
    flat = states.detach().float().reshape(-1, states.shape[-1])
    if router.cosine:
        return F.normalize(F.layer_norm(flat, flat.shape[-1:]) @ router.projection, dim=-1)
    return flat @ router.projection


@torch.no_grad()
def move_to_mean(router: Router, states: Tensor, assignment: Tensor, step: int) -> None:
    """Exponential moving average: each centroid moves towards the mean route of its tokens.

    A group without tokens in this batch does not move.
    """
    found = routes(router, states)
    members = F.one_hot(assignment.argmax(-1).reshape(-1), assignment.shape[-1]).to(found)
    counts = members.sum(0)
    means = (members.T @ found) / counts.clamp(min=1)[:, None]
    moved = DECAY * router.centroids + (1 - DECAY) * means
    router.centroids.copy_(torch.where(counts[:, None] > 0, moved, router.centroids))


def recluster(every: int) -> Callable[[Router, Tensor, Tensor, int], None]:
    """Replace centroids by the k-means centres of a batch's routes, at intervals of `every` steps."""

    @torch.no_grad()
    def after_step(router: Router, states: Tensor, assignment: Tensor, step: int) -> None:
        if step % every == 0:
            means = KMeans(len(router.centroids), random_state=0).fit(routes(router, states).cpu().numpy())
            router.centroids.copy_(torch.from_numpy(means.cluster_centers_).to(router.centroids))

    return after_step


def variants(recluster_every: int = 100) -> dict[str, Variant]:
    """Every row of the study by name.

    The remedies are added to softmax with both losses, as in the paper; Sinkhorn rows have neither. Sinkhorn with 10
    rounds at tau = 0.1 is the published recipe.

    Args:
        recluster_every: steps between re-clusterings.
    """
    plain = {"balance": "none"}
    both = losses()
    found = {
        "softmax": Variant("softmax", plain),
        "losses": Variant("softmax, entropy and balance losses", plain, both),
        "stop-gradient": Variant("both losses, stop-gradient inputs", plain, both, prepare=stop_gradient),
        "ema": Variant("both losses, EMA centroids", plain, both, prepare=freeze_centroids, after_step=move_to_mean),
        "recluster": Variant(
            f"both losses, re-clustered every {recluster_every}", plain, both, after_step=recluster(recluster_every)
        ),
        "balance-x5": Variant("both losses, balance weight x5", plain, losses(5 * BALANCE_WEIGHT)),
    }
    for rounds in (3, 5, 10, 20):
        found[f"sinkhorn-{rounds}"] = Variant(f"Sinkhorn, {rounds} rounds", {"sinkhorn_rounds": rounds})
    for tau in (0.05, 0.2, 0.5):
        found[f"tau-{tau}"] = Variant(f"Sinkhorn, 10 rounds, tau {tau}", {"temperature": tau})
    return found
