"""Baselines that estimate softmax over all pairs: random features and weighted samples."""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import cache
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

    exp(q k) = E[phi(q) phi(k)] with ``phi(x) = exp(W x - |x|^2 / 2) / sqrt(m)``, m = 256. All pairs are approximated,
    local ones and sinks included, so there is no kept share. The logit cap of a model has no counterpart and is left
    out.
    """
    query, key = performer_features(case)
    weights = (query @ key.mT).masked_fill(~case.causal, 0.0)
    total = weights.sum(-1, keepdim=True).clamp(min=1e-300)
    output = (weights @ case.value.double()) / total
    return Result(AttentionOutput(output.to(case.value.dtype), total.log()[..., 0].float()), None)


def performer_features(case: Case) -> tuple[Tensor, Tensor]:
    """phi(q) (B, H, Tq, m) and phi(k) (B, H, T, m) of `performer`, float64, each up to a factor that cancels."""
    projection = orthogonal(FEATURES, case.query.shape[-1], case.generator()).to(case.query.device)

    def features(vectors: Tensor, dims: tuple[int, ...]) -> Tensor:
        exponent = vectors @ projection.double().T - vectors.square().sum(-1, keepdim=True) / 2
        return torch.exp(exponent - exponent.amax(dims, keepdim=True))

    query, key = (part.double() * math.sqrt(case.scale) for part in (case.query, case.key))
    return features(query, (-1,)), features(key, (-1, -2))


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


def fit_tables(
    query: Tensor,
    key: Tensor,
    *,
    share: float,
    window: int,
    sinks: int,
    seed: int,
    sliding_window: int | None = None,
    **_: Any,
) -> Tables:
    """The number of tables with which training text keeps `share` of its distant pairs."""
    center = key.float().mean((0, 2))
    if share >= 1:
        return Tables(None, center)
    repeats = query.shape[1] // key.shape[1]
    keys, pairs = key[:1].repeat_interleave(repeats, 1), (window, sinks, share)
    case = Case(query[:1], keys, key[:1], *pairs, 1.0, seed=seed, sliding_window=sliding_window)
    codes = _codes(case, Tables(MAX_TABLES, center))
    total = max(1, int(case.distant.sum()) * query.shape[1])

    @cache
    def kept(count: int) -> float:
        return float((((_collisions(codes, count) >= 2) | case.open) & case.distant).sum()) / total

    # Every table adds collisions, so the share only grows: the first number that reaches it, or the one before.
    enough = 1 + bisect_left(range(1, MAX_TABLES), share, key=kept)
    return Tables(min((max(1, enough - 1), enough), key=lambda count: abs(kept(count) - share)), center)


def magicpig_keys(case: Case) -> Tensor:
    """The keys that `magicpig` samples."""
    tables: Tables = case.fitted
    if tables.number is None:
        return case.causal
    return ((_collisions(_codes(case, tables), tables.number) >= 2) & case.distant) | case.open


def magicpig(case: Case) -> Result:
    """Keys sampled by hash collisions and weighted by their chance: MagicPIG, arXiv 2410.16179, section 4.

    Keys are centred, with 4 sign bits per table. A key is sampled if it collides in at least two of L tables. This has
    probability u = 1 - (1 - p^4)^L - L p^4 (1 - p^4)^(L - 1) with p = 1 - angle / pi; its logit becomes logit - log u.
    Local pairs and sinks are exact. L is fitted on training text; the paper has 8 to 10 bits, for smaller shares.
    """
    tables: Tables = case.fitted
    kept = magicpig_keys(case)
    if tables.number is None:
        return case.exactly(kept)
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


def _codes(case: Case, tables: Tables) -> tuple[Tensor, Tensor]:
    """The sign bits of queries and of keys in every table as one-hot rows, (B, H, Tq or T, tables, 16) float32."""
    generator, size, device = case.generator(), case.query.shape[-1], case.query.device
    planes = torch.stack([torch.randn(size, BITS, generator=generator) for _ in range(tables.number or 0)]).to(device)
    powers = 2 ** torch.arange(BITS, device=device)

    def one_hot(vectors: Tensor) -> Tensor:
        signs = torch.einsum("bhtd,ldn->bhtln", vectors, planes) > 0
        return F.one_hot((signs * powers).sum(-1), 2**BITS).float()

    return one_hot(case.query.float()), one_hot(_centred(case, tables))


def _collisions(codes: tuple[Tensor, Tensor], count: int) -> Tensor:
    """(B, H, Tq, T) float32: number of the first `count` tables in which query and key have the same sign bits.

    A product of one-hot rows counts in how many tables the codes are equal.
    """
    ours, theirs = (part[..., :count, :].flatten(-2) for part in codes)
    return ours @ theirs.mT
