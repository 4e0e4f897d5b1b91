"""A lesson: some queries of a text in one layer, and the attention of the frozen model that a learner should know."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from focus_core.attention.reference import attention_logits
from focus_core.baselines.case import Case
from focus_core.errors import FocusError


@dataclass(frozen=True)
class Sizes:
    """Sizes of the learners.

    Attributes:
        block: keys of a block of the block gates.
        index_heads: heads of the indexer.
        index_size: width of each, a multiple of 4.
    """

    block: int = 16
    index_heads: int = 4
    index_size: int = 32

    @classmethod
    def within(cls, window: int) -> Sizes:
        """The usual sizes, with blocks no longer than a window allows."""
        return cls(block=min(cls.block, window + 1))


@dataclass(frozen=True)
class Lesson:
    """Queries of whole texts in one layer, with the model's attention to their distant keys.

    Attributes:
        query: (B, H, n, D), position-encoded.
        key: (B, Hkv, T, D), position-encoded.
        hidden: (B, T, d) hidden states that enter the attention block.
        rows: (n,) int64, places of the queries in the text.
        distant: (n, T) bool: pairs beyond the window, sinks excluded.
        mass: (B, H, n, T) float32 attention weights of these pairs, 0 elsewhere.
        scale: factor of the dot products.
    """

    query: Tensor
    key: Tensor
    hidden: Tensor
    rows: Tensor
    distant: Tensor
    mass: Tensor
    scale: float


def lesson(
    query: Tensor,
    key: Tensor,
    hidden: Tensor,
    rows: Tensor,
    *,
    window: int,
    sinks: int,
    scale: float,
    softcap: float | None = None,
    sliding_window: int | None = None,
) -> Lesson:
    """The lesson of some rows of a layer.

    Args:
        query: (B, H, T, D), all of them.
        key: (B, Hkv, T, D).
        hidden: (B, T, d).
        rows: (n,) int64, the queries to learn from.
        window: pairs at most this far apart are kept anyway.
        sinks: first keys that are kept anyway.
        scale: factor of the dot products.
        softcap: cap of the logits, None without.
        sliding_window: the model's own window, in tokens; None without.
    """
    index = torch.arange(key.shape[2], device=key.device)
    distance = rows[:, None] - index
    causal = distance >= 0 if sliding_window is None else (distance >= 0) & (distance < sliding_window)
    distant = causal & (distance > window) & (index >= sinks)
    chosen = query[:, :, rows]
    keys = key.float().repeat_interleave(query.shape[1] // key.shape[1], 1)
    logits = attention_logits(chosen.float(), keys, scale, softcap)
    mass = logits.masked_fill_(~causal, float("-inf")).softmax(-1) * distant
    return Lesson(chosen, key, hidden, rows, distant, mass, scale)


def divergence(scores: Tensor, mass: Tensor, allowed: Tensor) -> Tensor:
    """KL from attention to the softmax of scores, in nats: the mean over queries, weighted by their distant attention.

    The weights make a query count as much as what it could lose.

    Args:
        scores: (..., n, m).
        mass: of the same shape, attention that is not normalised; 0 where not allowed.
        allowed: bool, broadcastable: entries that may be chosen.
    """
    logs = scores.masked_fill(~allowed, -1e9).log_softmax(-1)
    total = mass.sum(-1, keepdim=True)
    wanted = (mass.clamp(min=1e-30) / total.clamp(min=1e-30)).log()
    return (mass * (wanted - logs)).sum() / total.sum().clamp(min=1e-9)


class Learner(nn.Module, ABC):
    """A learned selection of one layer.

    Attributes:
        rates: learning rates that bracket its best one.
    """

    rates: ClassVar[tuple[float, ...]]

    @classmethod
    @abstractmethod
    def arguments(cls, lesson: Lesson, sizes: Sizes, seed: int) -> dict[str, Any]:
        """Arguments of the constructor for the layer of a lesson, plain values."""

    @abstractmethod
    def loss(self, lesson: Lesson) -> Tensor:
        """What training lowers: `divergence` from the attention of the lesson."""


Kind = TypeVar("Kind", bound=Learner)


def learner_of(case: Case, kind: type[Kind]) -> Kind:
    """The trained learner of the case.

    Raises:
        FocusError: it has none.
    """
    if not isinstance(case.fitted, kind):
        raise FocusError("This baseline is learned: train it first, see `focus_core.baselines.learned.train`.")
    return case.fitted
