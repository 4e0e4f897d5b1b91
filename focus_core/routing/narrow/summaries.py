"""Running sums of each group's keys and values, and the pseudo-keys that stand for groups that are not read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from jaxtyping import Float, Int


class Summaries(NamedTuple):
    """One pseudo-key per group, for one key/value head: its size, its mean key and its mean value.

    Attributes:
        counts: (..., K) float, keys of each group.
        keys: (..., K, D), means; 0 for empty groups.
        values: (..., K, Dv), means; 0 for empty groups.
    """

    counts: Float[Tensor, "... K"]
    keys: Float[Tensor, "... K D"]
    values: Float[Tensor, "... K Dv"]


@dataclass
class RunningSums:
    """Sums over the keys added so far; memory K (D + Dv + 1) for each key/value head.

    Attributes:
        counts: (B, Hkv, K).
        keys: (B, Hkv, K, D).
        values: (B, Hkv, K, Dv).
    """

    counts: Float[Tensor, "B Hkv K"]
    keys: Float[Tensor, "B Hkv K D"]
    values: Float[Tensor, "B Hkv K Dv"]

    @classmethod
    def of_none(
        cls, key: Float[Tensor, "B Hkv T D"], value: Float[Tensor, "B Hkv T Dv"], num_groups: int
    ) -> RunningSums:
        """No keys yet; for keys and values of these widths, dtype and device."""
        shape = *key.shape[:2], num_groups
        return cls(key.new_zeros(shape), key.new_zeros(*shape, key.shape[-1]), key.new_zeros(*shape, value.shape[-1]))

    def add(
        self, groups: Int[Tensor, "B Hkv n"], key: Float[Tensor, "B Hkv n D"], value: Float[Tensor, "B Hkv n Dv"]
    ) -> RunningSums:
        """The sums with more keys; differentiable with respect to keys and values."""
        member = F.one_hot(groups, self.counts.shape[-1]).to(key.dtype)
        return RunningSums(self.counts + member.sum(-2), self.keys + member.mT @ key, self.values + member.mT @ value)

    def summaries(self) -> Summaries:
        """Means of the sums."""
        sizes = self.counts.clamp(min=1)[..., None]
        return Summaries(self.counts, self.keys / sizes, self.values / sizes)
