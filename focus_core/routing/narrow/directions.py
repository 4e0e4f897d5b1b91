"""Directions in which the spread of a page's keys is told apart, and what queries and keys have along them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float


DIRECTIONS = 5
"""Directions that `focus fit` finds, and that the default routers have."""
COUNTED = 8.0
"""Variance of logits above which directions count no more of it: 16 keys have no more in the log of a mean of exp."""


@dataclass(frozen=True, eq=False)
class Directions:
    """Directions of the key/value heads of a layer; compared by identity, since settings are keys of caches.

    Attributes:
        vectors: (Hkv, D, r) float32, orthonormal columns.
    """

    vectors: Float[Tensor, "Hkv D r"]

    @classmethod
    def spanning(cls, vectors: Float[Tensor, "Hkv D r"]) -> Directions:
        """Orthonormal ones that span the same, for vectors that are so up to rounding."""
        return cls(torch.linalg.qr(vectors.float()).Q.contiguous())

    def __deepcopy__(self, memo: Any) -> Directions:
        """Itself: it never changes, and a copied cache has the settings of the first."""
        return self

    @cached_property
    def rows(self) -> np.ndarray:
        """(Hkv, r, D) float32, for compiled code on a CPU."""
        return self.vectors.mT.contiguous().numpy()

    def of_row(self, row: int) -> Directions:
        """Those of one row, where the key/value heads of all texts are rows."""
        head = row % len(self.vectors)
        return Directions(self.vectors[head : head + 1])


def num_features(directions: Directions | None) -> int:
    """F = r (r + 1) / 2 + 1; 1 without directions."""
    count = 0 if directions is None else directions.vectors.shape[-1]
    return count * (count + 1) // 2 + 1


def key_features(key: Float[Tensor, "*B Hkv n D"], directions: Directions | None) -> Float[Tensor, "*B Hkv n F"]:
    """Products of what keys have along each two of the directions, and the squared length of their rest.

    It is ``(k . u_a) (k . u_b)`` for a <= b, row by row of the matrix, then ``|k|^2 - sum over a of (k . u_a)^2``.

    Args:
        key: keys, or means of keys.
        directions: None for the squared length alone.
    """
    square = key.square().sum(-1, keepdim=True)
    if directions is None:
        return square
    along = key @ directions.vectors.to(key)
    first, second = torch.triu_indices(along.shape[-1], along.shape[-1], device=key.device)
    products = along[..., first] * along[..., second]
    return torch.cat([products, square - along.square().sum(-1, keepdim=True)], -1)


def query_features(
    query: Float[Tensor, "*B Hkv G n D"], directions: Directions | None, scale: float
) -> Float[Tensor, "*B Hkv G n F"]:
    """What `key_spread` is multiplied with for the variance of the logits of a page's keys.

    Args:
        query: the G query heads of each key/value head.
        directions: None for one spread alike in all directions.
        scale: factor of the dot products.
    """
    heads = None if directions is None else Directions(directions.vectors[:, None])
    found = scale**2 * key_features(query, heads)
    if directions is None:
        return found
    count = directions.vectors.shape[-1]
    first, second = torch.triu_indices(count, count, device=query.device)
    # Each product of two different directions stands for two of the matrix.
    twice = torch.cat([1.0 + (first != second), torch.ones(1, device=query.device)]).to(found)
    return found * twice


def key_spread(
    counts: Float[Tensor, "*B Hkv K"],
    sums: Float[Tensor, "*B Hkv K F"],
    means: Float[Tensor, "*B Hkv K D"],
    directions: Directions | None = None,
) -> Float[Tensor, "*B Hkv K F"]:
    """How far the keys of each group are spread about their mean; 0 for empty groups.

    Their covariances along the directions, as `key_features` has products, and the variance of their rest, the average
    over the other D - r components.

    Args:
        counts: keys of each group.
        sums: of their features.
        means: mean keys.
        directions: None for the variance alone.
    """
    found = sums / counts.clamp(min=1)[..., None] - key_features(means, directions)
    rest = found[..., -1:].clamp(min=0) / _others(means, directions)
    return torch.cat([found[..., :-1], rest], -1)


def feature_sums(
    counts: Float[Tensor, "*B Hkv K"],
    spread: Float[Tensor, "*B Hkv K F"],
    means: Float[Tensor, "*B Hkv K D"],
    directions: Directions | None = None,
) -> Float[Tensor, "*B Hkv K F"]:
    """The sums of features that `key_spread` made the spread of."""
    about = torch.cat([spread[..., :-1], spread[..., -1:] * _others(means, directions)], -1)
    return counts[..., None] * (about + key_features(means, directions))


def _others(vectors: Tensor, directions: Directions | None) -> int:
    """Components beside the directions, at least 1."""
    return max(1, vectors.shape[-1] - (0 if directions is None else directions.vectors.shape[-1]))
