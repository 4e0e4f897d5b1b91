"""Baselines that estimate softmax instead of leaving pairs out: random features and weighted samples."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from focus_core.attention import AttentionOutput
from focus_core.attention.reference import masked_softmax
from focus_core.baselines.case import Case, Result

FEATURES = 256
BITS = 4
MAX_TABLES = 96


def performer(case: Case) -> Result:
    """Positive orthogonal random features: Performer, arXiv 2009.14794, eq. 5 and lemma 1 (FAVOR+).

    exp(q k) = E[phi(q) phi(k)] with phi(x) = exp(W x - |x|^2 / 2) / sqrt(m), m = 256. All pairs are approximated, local
    ones and sinks included, so there is no kept share. The logit cap of a model has no counterpart and is left out.
    """
    projection = orthogonal(FEATURES, case.query.shape[-1], case.generator()).to(case.query.device)
    query, key = (part.double() * math.sqrt(case.scale) for part in (case.query, case.key))

    def features(vectors: Tensor, dims: tuple[int, ...]) -> Tensor:
        exponent = vectors @ projection.double().T - vectors.square().sum(-1, keepdim=True) / 2
        return torch.exp(exponent - exponent.amax(dims, keepdim=True))  # a factor that cancels in the ratio below

    weights = (features(query, (-1,)) @ features(key, (-1, -2)).mT).masked_fill(~case.causal, 0.0)
    total = weights.sum(-1, keepdim=True).clamp(min=1e-300)
    output = (weights @ case.value.double()) / total
    return Result(AttentionOutput(output.to(case.value.dtype), total.log()[..., 0].float()), None)


def orthogonal(rows: int, size: int, generator: torch.Generator) -> Tensor:
    """(rows, size) float32 Gaussian rows, orthogonal in blocks of `size`, with the lengths of independent ones."""
    blocks = []
    for _ in range(-(-rows // size)):
        turn, triangle = torch.linalg.qr(torch.randn(size, size, generator=generator))
        # LAPACK fixes signs by the first components; undoing that leaves uniformly distributed directions.
        blocks.append((turn * triangle.diagonal().sign()).T)
    lengths = torch.randn(rows, size, generator=generator).norm(dim=1)
    return torch.cat(blocks)[:rows] * lengths[:, None]


class Tables(NamedTuple):
    """Hash tables of one layer: how many, and the mean key (Hkv, D) that is subtracted first; None for all pairs."""

    number: int | None
    center: Tensor


def fit_tables(query: Tensor, key: Tensor, *, share: float, window: int, sinks: int, seed: int, **_: Any) -> Tables:
    """The number of tables with which training text keeps `share` of its distant pairs."""
    center = key.float().mean((0, 2))
    if share >= 1:
        return Tables(None, center)
    repeats = query.shape[1] // key.shape[1]
    case = Case(query[:1], key[:1].repeat_interleave(repeats, 1), key[:1], window, sinks, share, 1.0, seed=seed)
    tables = Tables(MAX_TABLES, center)
    total = max(1, int(case.distant.sum()) * query.shape[1])
    hits = torch.zeros(1, query.shape[1], *case.distant.shape, dtype=torch.int16)
    best, error = 1, float("inf")
    for count, collide in enumerate(_collisions(case, tables), 1):
        hits += collide
        kept = float((((hits >= 2) | case.open) & case.distant).sum()) / total
        if abs(kept - share) < error:
            best, error = count, abs(kept - share)
        if kept >= share:
            break
    return Tables(best, center)


def magicpig(case: Case) -> Result:
    """Keys sampled by hash collisions and weighted by their chance: MagicPIG, arXiv 2410.16179, section 4.

    Keys are centred; 4 sign bits a table; a key is sampled if it collides in at least two of L tables, which has chance
    u = 1 - (1 - p^4)^L - L p^4 (1 - p^4)^(L - 1), p = 1 - angle / pi; its logit becomes logit - log u. Local pairs and
    sinks are exact. L is fitted on training text (the paper has 8 to 10 bits for shares of a few per cent).
    """
    tables: Tables = case.fitted
    if tables.number is None:
        return case.exactly(case.causal)
    hits = sum((collide.to(torch.int16) for collide in _collisions(case, tables)), torch.zeros((), dtype=torch.int16))
    kept = ((hits >= 2) & case.distant) | case.open
    angle = (
        (F.normalize(case.query.float(), dim=-1) @ F.normalize(_centred(case, tables), dim=-1).mT).clamp(-1, 1).acos()
    )
    chance = (1 - angle / math.pi).clamp(min=1e-3) ** BITS
    once = tables.number * chance * (1 - chance) ** (tables.number - 1)
    sampled = (1 - (1 - chance) ** tables.number - once).clamp(min=1e-6)
    logits = torch.where(case.open, case.logits(), case.logits() - sampled.log())
    attention = masked_softmax(logits, kept, case.value.float())
    return Result(AttentionOutput(attention.output.to(case.value.dtype), attention.logsumexp), kept)


def _centred(case: Case, tables: Tables) -> Tensor:
    center = tables.center.to(case.key.device)
    return case.key.float() - center.repeat_interleave(case.key.shape[1] // center.shape[0], 0)[None, :, None]


def _collisions(case: Case, tables: Tables) -> Iterator[Tensor]:
    """Yields (B, H, T, T) bool for each table: query and key have the same sign bits."""
    generator, size = case.generator(), case.query.shape[-1]
    powers = 2 ** torch.arange(BITS, device=case.query.device)
    for _ in range(tables.number or 0):
        planes = torch.randn(size, BITS, generator=generator).to(case.query.device)
        ours, theirs = (((part @ planes > 0) * powers).sum(-1) for part in (case.query.float(), _centred(case, tables)))
        yield ours[..., None] == theirs[..., None, :]
