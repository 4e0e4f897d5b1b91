"""Running sums of each group's keys and values, and the pseudo-keys that stand for groups that are not read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from jaxtyping import Float, Int


class Summaries(NamedTuple):
    """One pseudo-key per group, for one key/value head: its size, mean key and mean value, and the spread of its keys.

    Attributes:
        counts: (..., K) float, keys of each group.
        keys: (..., K, D), means; 0 for empty groups.
        values: (..., K, Dv), means; 0 for empty groups.
        spread: (..., K), see `key_spread`.
    """

    counts: Float[Tensor, "... K"]
    keys: Float[Tensor, "... K D"]
    values: Float[Tensor, "... K Dv"]
    spread: Float[Tensor, "... K"]


def key_spread(
    counts: Float[Tensor, "... K"], squares: Float[Tensor, "... K"], means: Float[Tensor, "... K D"]
) -> Float[Tensor, "... K"]:
    """Variance of each group's keys about their mean, the average over the D components; 0 for empty groups.

    Args:
        counts: keys of each group.
        squares: sums of their squared lengths.
        means: mean keys.
    """
    return (squares / counts.clamp(min=1) - means.square().sum(-1)).clamp(min=0) / means.shape[-1]


@dataclass
class RunningSums:
    """Sums over the keys added so far; memory K (D + Dv + 2) for each key/value head.

    Attributes:
        counts: (B, Hkv, K).
        keys: (B, Hkv, K, D).
        values: (B, Hkv, K, Dv).
        squares: (B, Hkv, K), of the lengths of keys.
    """

    counts: Float[Tensor, "B Hkv K"]
    keys: Float[Tensor, "B Hkv K D"]
    values: Float[Tensor, "B Hkv K Dv"]
    squares: Float[Tensor, "B Hkv K"]

    @classmethod
    def of_none(
        cls, key: Float[Tensor, "B Hkv T D"], value: Float[Tensor, "B Hkv T Dv"], num_groups: int
    ) -> RunningSums:
        """No keys yet; for keys and values of these widths, dtype and device."""
        shape = *key.shape[:2], num_groups
        vectors = key.new_zeros(*shape, key.shape[-1]), key.new_zeros(*shape, value.shape[-1])
        return cls(key.new_zeros(shape), *vectors, key.new_zeros(shape))

    def add(
        self, groups: Int[Tensor, "B Hkv n"], key: Float[Tensor, "B Hkv n D"], value: Float[Tensor, "B Hkv n Dv"]
    ) -> RunningSums:
        """The sums with more keys; differentiable with respect to keys and values."""
        member = F.one_hot(groups, self.counts.shape[-1]).to(key.dtype)
        squares = (member * key.square().sum(-1, keepdim=True)).sum(-2)
        vectors = self.keys + member.mT @ key, self.values + member.mT @ value
        return RunningSums(self.counts + member.sum(-2), *vectors, self.squares + squares)

    def summaries(self) -> Summaries:
        """Means of the sums."""
        sizes = self.counts.clamp(min=1)[..., None]
        means = self.keys / sizes
        return Summaries(self.counts, means, self.values / sizes, key_spread(self.counts, self.squares, means))
