"""Block gates distilled from pooled attention: SeerAttention, arXiv 2410.13276, with a score for every query."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from focus_core.baselines.case import Case
from focus_core.baselines.learned.lesson import Learner, Lesson, Sizes, divergence, learner_of
from focus_core.errors import FocusError


class BlockGates(Learner):
    """Scores of blocks of keys for every query of one layer.

    Keys of a block are pooled by mean, maximum and minimum and mapped to a vector, with a map for each key/value head
    (section 3.1). Every query is mapped, too, with a map for each query head. The score of a block is their product.
    The maps start so that it is the product of query and mean key; training only improves on MoBA's choice.

    The paper pools queries into blocks as well, for its kernel. A score for every query chooses better, and everyone
    here chooses for every query.

    Args:
        heads: query heads H.
        kv_heads: key/value heads.
        head_dim: D.
        scale: factor of the dot products.
        block: keys of a block.
    """

    rates = (1e-3, 3e-3, 1e-2)

    def __init__(self, *, heads: int, kv_heads: int, head_dim: int, scale: float, block: int) -> None:
        super().__init__()
        self.scale, self.block = scale, block
        eye = torch.eye(head_dim)
        self.query_map = nn.Parameter(eye.repeat(heads, 1, 1))
        self.key_map = nn.Parameter(torch.cat([eye, torch.zeros(2 * head_dim, head_dim)]).repeat(kv_heads, 1, 1))

    @classmethod
    def arguments(cls, lesson: Lesson, sizes: Sizes, seed: int) -> dict[str, Any]:
        """See `Learner.arguments`; nothing is drawn."""
        heads, kv_heads, head_dim = lesson.query.shape[1], lesson.key.shape[1], lesson.key.shape[3]
        shape = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
        return {**shape, "scale": lesson.scale, "block": sizes.block}

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """(B, H, n, D) and (B, Hkv, T, D) to scores (B, H, n, N) of the N blocks, float32; the last may be shorter."""
        return self.scores(query, self.describe(key))

    def scores(self, query: Tensor, blocks: Tensor) -> Tensor:
        """Scores (B, H, n, N) of described blocks (B, Hkv, N, D)."""
        repeats = query.shape[1] // blocks.shape[1]
        return (query.float() @ self.query_map * self.scale) @ blocks.repeat_interleave(repeats, 1).mT

    def describe(self, key: Tensor) -> Tensor:
        """(B, Hkv, T, D) keys to one vector for each block, (B, Hkv, N, D) float32."""
        return self.pool(key) @ self.key_map

    def pool(self, key: Tensor) -> Tensor:
        """(B, Hkv, N, 3D) float32: mean, maximum and minimum of the keys of each block."""
        missing = -key.shape[2] % self.block
        last = key.float()[:, :, -1:].expand(-1, -1, missing, -1)
        blocks = torch.cat([key.float(), last], 2).unflatten(2, (-1, self.block))
        return torch.cat([blocks.mean(3), blocks.amax(3), blocks.amin(3)], -1)

    def of_head(self, kv_head: int) -> BlockGates:
        """The gates of one key/value head and the query heads that read it; the parameters are copied."""
        heads, kv_heads = len(self.query_map), len(self.key_map)
        group = heads // kv_heads
        shape = {"head_dim": self.query_map.shape[1], "scale": self.scale, "block": self.block}
        one = BlockGates(heads=group, kv_heads=1, **shape).requires_grad_(False).to(self.query_map.device)
        one.query_map.copy_(self.query_map[kv_head * group : (kv_head + 1) * group])
        one.key_map.copy_(self.key_map[kv_head : kv_head + 1])
        return one

    def loss(self, lesson: Lesson) -> Tensor:
        """KL from the attention of every query, summed over the distant keys of a block."""
        missing = -lesson.key.shape[2] % self.block
        mass = F.pad(lesson.mass, (0, missing)).unflatten(-1, (-1, self.block)).sum(-1)
        allowed = F.pad(lesson.distant, (0, missing)).unflatten(-1, (-1, self.block)).any(-1)
        return divergence(self(lesson.query, lesson.key), mass, allowed)


def seer_keys(case: Case) -> Tensor:
    """The distant keys in the blocks with the highest gate scores.

    Raises:
        FocusError: the gates are not trained, or a block is longer than the window.
    """
    gates = learner_of(case, BlockGates)
    if gates.block > case.window + 1:
        raise FocusError(
            f"The gates have blocks of {gates.block} keys, more than the window of {case.window} holds: train "
            f"gates with blocks of at most {case.window + 1}."
        )
    count = -(-case.key.shape[2] // gates.block)
    return case.select_blocks(gates.scores(case.query, case.once(described)[:, :, :count]), gates.block)


def described(case: Case) -> Tensor:
    """The described blocks (B, Hkv, N, D) of the whole text."""
    gates = learner_of(case, BlockGates)
    repeats = case.key.shape[1] // gates.key_map.shape[0]
    return gates.describe(case.key[:, ::repeats])
