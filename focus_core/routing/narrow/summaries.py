"""Running sums of each group's keys and values, and the pseudo-keys that stand for groups that are not read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor
from torch.nn import functional as F

from focus_core.routing.narrow.directions import Directions, key_features, key_spread, num_features

if TYPE_CHECKING:
    from jaxtyping import Float, Int


class Summaries(NamedTuple):
    """One pseudo-key per group, for one key/value head: its size, mean key and mean value, and the spread of its keys.

    Attributes:
        counts: (..., K) float, keys of each group.
        keys: (..., K, D), means; 0 for empty groups.
        values: (..., K, Dv), means; 0 for empty groups.
        spread: (..., K, F), see `key_spread`.
    """

    counts: Float[Tensor, "... K"]
    keys: Float[Tensor, "... K D"]
    values: Float[Tensor, "... K Dv"]
    spread: Float[Tensor, "... K F"]


@dataclass
class RunningSums:
    """Sums over the keys added so far; memory K (D + Dv + F + 1) for each key/value head.

    Attributes:
        counts: (B, Hkv, K).
        keys: (B, Hkv, K, D).
        values: (B, Hkv, K, Dv).
        features: (B, Hkv, K, F), see `key_features`.
        directions: of these features; None for none.
    """

    counts: Float[Tensor, "B Hkv K"]
    keys: Float[Tensor, "B Hkv K D"]
    values: Float[Tensor, "B Hkv K Dv"]
    features: Float[Tensor, "B Hkv K F"]
    directions: Directions | None = None

    @classmethod
    def of_none(
        cls,
        key: Float[Tensor, "B Hkv T D"],
        value: Float[Tensor, "B Hkv T Dv"],
        num_groups: int,
        directions: Directions | None = None,
    ) -> RunningSums:
        """No keys yet; for keys and values of these widths, dtype and device."""
        shape, features = (*key.shape[:2], num_groups), num_features(directions)
        vectors = key.new_zeros(*shape, key.shape[-1]), key.new_zeros(*shape, value.shape[-1])
        return cls(key.new_zeros(shape), *vectors, key.new_zeros(*shape, features), directions)

    def add(
        self, groups: Int[Tensor, "B Hkv n"], key: Float[Tensor, "B Hkv n D"], value: Float[Tensor, "B Hkv n Dv"]
    ) -> RunningSums:
        """The sums with more keys; differentiable with respect to keys and values."""
        member = F.one_hot(groups, self.counts.shape[-1]).to(key.dtype)
        features = member.mT @ key_features(key, self.directions)
        vectors = self.keys + member.mT @ key, self.values + member.mT @ value, self.features + features
        return RunningSums(self.counts + member.sum(-2), *vectors, self.directions)

    def summaries(self) -> Summaries:
        """Means of the sums."""
        sizes = self.counts.clamp(min=1)[..., None]
        means = self.keys / sizes
        spread = key_spread(self.counts, self.features, means, self.directions)
        return Summaries(self.counts, means, self.values / sizes, spread)
