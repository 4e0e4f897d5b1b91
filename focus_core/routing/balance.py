"""From scores to balanced soft assignments. A new balance is a function and a line in `BALANCES`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from focus_core.routing.sinkhorn import potential_logits, potential_softmax, sinkhorn

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from focus_core.routing.config import FocusConfig
    from focus_core.routing.routers import Router

Assign = Callable[[Tensor, Tensor, float, int, Tensor | None], Tensor]
"""Maps scores (N, T, K), potentials (N, K), temperature, rounds and valid (N, T) or None to weights (N, T, K)."""


@dataclass(frozen=True)
class Balance:
    """One way to balance groups.

    Attributes:
        assign: makes the assignment; rows sum to 1, float32.
        causal: whether a token's groups depend on no other token, so that decoding can continue from a cache.
        logits: what `assign` takes the softmax of, from scores, potentials and temperature, where it is one.
    """

    assign: Assign
    causal: bool = True
    logits: Callable[[Tensor, Tensor, float], Tensor] | None = None


def calibrated(
    scores: Float[Tensor, "N T K"],
    potential: Float[Tensor, "N K"],
    temperature: float,
    rounds: int,
    valid: Bool[Tensor, "N T"] | None,
) -> Float[Tensor, "N T K"]:
    """softmax(S / tau + v) with the router's frozen potentials v: causal, since it depends on no other token."""
    return potential_softmax(scores, potential, temperature)


def sequence(
    scores: Float[Tensor, "N T K"],
    potential: Float[Tensor, "N K"],
    temperature: float,
    rounds: int,
    valid: Bool[Tensor, "N T"] | None,
) -> Float[Tensor, "N T K"]:
    """Sinkhorn over the whole text, as published: a token's groups depend on later tokens."""
    return sinkhorn(scores, temperature=temperature, rounds=rounds, valid=valid)


def none(
    scores: Float[Tensor, "N T K"],
    potential: Float[Tensor, "N K"],
    temperature: float,
    rounds: int,
    valid: Bool[Tensor, "N T"] | None,
) -> Float[Tensor, "N T K"]:
    """softmax(S / tau)."""
    return potential_softmax(scores, potential.new_zeros(potential.shape), temperature)


BALANCES: dict[str, Balance] = {
    "calibrated": Balance(calibrated, logits=potential_logits),
    "sequence": Balance(sequence, causal=False),
    "none": Balance(none),
}
"""Balances by their name in `FocusConfig.balance`."""


def sees_future(name: object) -> bool:
    """Whether the balance that a record names lets later tokens decide; False for a name that is not in `BALANCES`."""
    return name in BALANCES and not BALANCES[str(name)].causal


def assign(
    router: Router, scores: Float[Tensor, "N T K"], config: FocusConfig, valid: Bool[Tensor, "N T"] | None = None
) -> Float[Tensor, "N T K"]:
    """Soft assignment of tokens to groups, balanced in each head as `config.balance` says; rows sum to 1."""
    potential = _potentials(router, len(scores))
    return BALANCES[config.balance].assign(scores, potential, config.temperature, config.sinkhorn_rounds, valid)


def groups_of(
    router: Router, scores: Float[Tensor, "N T K"], config: FocusConfig, valid: Bool[Tensor, "N T"] | None = None
) -> Int[Tensor, "N T"]:
    """The group of the largest weight of each token, see `assign`."""
    logits = BALANCES[config.balance].logits
    if logits is None:
        return assign(router, scores, config, valid).argmax(-1)
    # A softmax would cost more than all else here.
    return logits(scores, _potentials(router, len(scores)), config.temperature).argmax(-1)


def _potentials(router: Router, rows: int) -> Float[Tensor, "N K"]:
    """The potentials of a router's heads, text after text."""
    return router.potential.reshape(router.num_heads, -1).repeat(rows // router.num_heads, 1)
