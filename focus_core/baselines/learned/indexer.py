"""A token indexer: the lightning indexer of DeepSeek sparse attention, arXiv 2512.02556, on a frozen model.

arXiv 2606.07703 trains one for a frozen model, as here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from focus_core.baselines.case import Case
from focus_core.baselines.learned.lesson import Learner, Lesson, Sizes, divergence, learner_of
from focus_core.errors import FocusError

THETA = 10_000.0


class Indexer(Learner):
    """Scores of all earlier tokens for every token of one layer: sum_h w_h relu(q_h k), eq. 1 of the paper.

    Queries q_h and weights w_h of a few small heads, and one key k for all of them, are linear in the hidden state. As
    published, k passes a layer norm, and half of every vector carries rotary positions.

    Args:
        hidden: width d of the model.
        heads: index heads.
        size: width of an index head, a multiple of 4.
        seed: of the initial values.
    """

    rates = (3e-3, 1e-2, 3e-2)

    def __init__(self, *, hidden: int, heads: int, size: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def weights(columns: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(hidden, columns, generator=generator) * hidden**-0.5)

        self.heads, self.size = heads, size
        self.query_map, self.key_map, self.weight_map = weights(heads * size), weights(size), weights(heads)
        self.key_norm = nn.LayerNorm(size)

    @classmethod
    def arguments(cls, lesson: Lesson, sizes: Sizes, seed: int) -> dict[str, Any]:
        """See `Learner.arguments`."""
        return {"hidden": lesson.hidden.shape[2], "heads": sizes.index_heads, "size": sizes.index_size, "seed": seed}

    def forward(self, hidden: Tensor, rows: Tensor) -> Tensor:
        """(B, T, d) and the places (n,) of queries to scores (B, n, T), float32."""
        return self.scores(hidden[:, rows], rows, self.keys(hidden))

    def keys(self, hidden: Tensor) -> Tensor:
        """(B, T, d) to the index keys (B, T, size)."""
        key = self.key_norm(F.rms_norm(hidden.float(), hidden.shape[-1:]) @ self.key_map)
        return _rotated(key, torch.arange(hidden.shape[1], device=hidden.device))

    def scores(self, hidden: Tensor, rows: Tensor, keys: Tensor) -> Tensor:
        """Scores (B, n, T) of index keys for the tokens with hidden states (B, n, d) at places (n,)."""
        hidden = F.rms_norm(hidden.float(), hidden.shape[-1:])
        query = _rotated((hidden @ self.query_map).unflatten(-1, (self.heads, self.size)).transpose(1, 2), rows)
        weights = (hidden @ self.weight_map).mT[..., None] * (self.heads * self.size) ** -0.5
        return (query @ keys[:, None].mT).relu_().mul(weights).sum(1)

    def loss(self, lesson: Lesson) -> Tensor:
        """KL from the attention of every query, summed over the heads of the layer."""
        return divergence(self(lesson.hidden, lesson.rows), lesson.mass.sum(1), lesson.distant)


def _rotated(vectors: Tensor, positions: Tensor) -> Tensor:
    """(..., n, size) with rotary positions (n,) in the first half of every vector."""
    turned, still = vectors.chunk(2, -1)
    first, second = turned.chunk(2, -1)
    rates = THETA ** -(torch.arange(first.shape[-1], device=vectors.device) / first.shape[-1])
    angles = positions[:, None] * rates
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, first * sin + second * cos, still], -1)


def indexer_keys(case: Case) -> Tensor:
    """The distant keys with the highest index scores, the same for all heads of the layer, (B, 1, Tq, T).

    Raises:
        FocusError: the indexer is not trained, or the case has no hidden states.
    """
    keys = case.once(index_keys)[:, : case.key.shape[2]]
    assert case.hidden is not None
    rows = torch.arange(case.start, case.start + case.query.shape[2], device=keys.device)
    return case.select(learner_of(case, Indexer).scores(case.hidden[:, rows], rows, keys)[:, None])


def index_keys(case: Case) -> Tensor:
    """The index keys (B, T, size) of the whole text; errors as of `indexer_keys`."""
    indexer = learner_of(case, Indexer)
    if case.hidden is None:
        raise FocusError("The indexer reads hidden states: give the case those of its texts.")
    return indexer.keys(case.hidden)
