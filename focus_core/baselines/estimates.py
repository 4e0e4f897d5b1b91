"""Baselines that estimate softmax over all pairs: random features and weighted samples."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from focus_core.attention import AttentionOutput
from focus_core.baselines.case import Case, Result, Setting
from focus_core.baselines.hashing import MAX_TABLES, collisions

FEATURES = 256
SUMMED = 256
"""Keys of a block that random features sum at once."""
MAGICPIG_GRID = ({"bits": 4}, {"bits": 3}, {"bits": 6}, {"bits": 8})
"""Sign bits of a table."""
HASHED = 2**22
"""Sign bits that are computed at once."""
FITTED_QUERIES = 256
"""Evenly spaced queries of the training texts on which the number of tables is chosen."""


def performer(case: Case) -> Result:
    """Positive orthogonal random features: Performer, arXiv 2009.14794, eq. 5 and lemma 1 (FAVOR+).

    exp(q k) = E[phi(q) phi(k)] with ``phi(x) = exp(W x - |x|^2 / 2) / sqrt(m)``, m = 256. All pairs are approximated,
    local ones and sinks included, so there is no kept share. The logit cap of a model has no counterpart and is left
    out.
    """
    query, key, start = _phi(case, case.query, (-1,)), case.once(_key_features), 0
    values = F.pad(case.value.double(), (0, 1), value=1.0)  # the last column sums the weights
    if case.sliding_window is None:  # keys of whole blocks before the first query are summed already
        start = case.start // SUMMED * SUMMED
    near = (query @ key[:, :, start : case.key.shape[2]].mT).mul_(case.causal[:, start:])
    sums = near @ values[:, :, start:]
    if start:
        sums += query @ case.once(_running_sums)[:, :, start // SUMMED - 1]
    total = sums[..., -1:].clamp(min=1e-300)
    output = sums[..., :-1] / total
    return Result(AttentionOutput(output.to(case.value.dtype), total.log()[..., 0].float()), None)


def performer_features(case: Case) -> tuple[Tensor, Tensor]:
    """phi(q) (B, H, Tq, m) and phi(k) (B, H, T, m) of `performer`, float64, each up to a factor that cancels."""
    return _phi(case, case.query, (-1,)), case.once(_key_features)


def _phi(case: Case, vectors: Tensor, dims: tuple[int, ...]) -> Tensor:
    projection = case.once(_projection)
    vectors = vectors.double() * math.sqrt(case.scale)
    exponent = vectors @ projection.T - vectors.square().sum(-1, keepdim=True) / 2
    return exponent.sub_(exponent.amax(dims, keepdim=True)).exp_()


def _projection(case: Case) -> Tensor:
    return orthogonal(FEATURES, case.key.shape[-1], case.generator()).to(case.key.device).double()


def _key_features(case: Case) -> Tensor:
    return _phi(case, case.key, (-1, -2))


def _running_sums(case: Case) -> Tensor:
    """(B, H, N, m, Dv + 1): features times values, summed over all keys up to the end of each whole block."""
    values, whole = F.pad(case.value.double(), (0, 1), value=1.0), case.key.shape[2] // SUMMED * SUMMED
    blocks = [part[:, :, :whole].unflatten(2, (-1, SUMMED)) for part in (case.once(_key_features), values)]
    return (blocks[0].mT @ blocks[1]).cumsum(2)


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
    """Hash tables of one layer.

    Attributes:
        number: of tables; None for all pairs.
        center: (Hkv, D), the mean key, which is subtracted first.
        bits: of a code.
    """

    number: int | None
    center: Tensor
    bits: int


def fit_tables(
    query: Tensor,
    key: Tensor,
    *,
    share: float,
    window: int,
    sinks: int,
    seed: int,
    sliding_window: int | None = None,
    setting: Setting | None = None,
    before: Tables | None = None,
    **_: Any,
) -> Tables:
    """The number of tables with which training text keeps `share` of its distant pairs. Later texts are not used."""
    if before is not None:
        return before
    center, bits = key.float().mean((0, 2)), int((setting or MAGICPIG_GRID[0])["bits"])
    tables = Tables(MAX_TABLES, center, bits)
    if share >= 1:
        return tables._replace(number=None)
    keys, pairs = key.repeat_interleave(query.shape[1] // key.shape[1], 1), (window, sinks, share)
    case = Case(query, keys, keys, *pairs, 1.0, seed=seed, sliding_window=sliding_window)
    count = min(query.shape[2], max(1, FITTED_QUERIES // len(query)))
    rows = torch.linspace(0, query.shape[2] - 1, count, device=query.device).long()
    asking, asked = query[:, :, rows], _centred(case, tables)
    allowed, copies = case.choosable[rows], query.shape[0] * query.shape[1]
    total = max(1, int(case.distant[rows].sum()) * copies)
    sinks_kept = int((case.distant[rows] & case.layout.sink).sum()) * copies
    hits = torch.zeros(*query.shape[:2], *allowed.shape, dtype=torch.uint8, device=query.device)
    share_before = 0.0
    for number, plane in enumerate(_planes(case, tables).split(1), 1):
        hits += collisions(_codes(asking, plane), _codes(asked, plane))
        kept = (sinks_kept + int(((hits >= 2) & allowed).count_nonzero())) / total
        if kept >= share:  # every table adds collisions: this number of tables, or the one before
            return tables._replace(number=max(1, number - 1) if share - share_before < kept - share else number)
        share_before = kept
    return tables


def magicpig_keys(case: Case) -> Tensor:
    """The keys that `magicpig` samples."""
    tables: Tables = case.fitted
    if tables.number is None:
        return case.causal
    ours = _codes(case.query, case.once(_own_planes))
    hits = collisions(ours, case.once(_key_codes)[..., : case.key.shape[2]])
    return ((hits >= 2) & case.choosable) | case.open


def magicpig(case: Case) -> Result:
    """Keys sampled by hash collisions and weighted by their chance: MagicPIG, arXiv 2410.16179, section 4.

    Keys are centred, with 4 sign bits per table unless the setting has others. A key is sampled if it collides in at
    least two of L tables. This has probability u = 1 - (1 - c)^L - L c (1 - c)^(L - 1) with c = p^4 and
    p = 1 - angle / pi; its logit becomes logit - log u.
    Local pairs and sinks are exact. L is fitted on training text; the paper has 8 to 10 bits, for smaller shares.
    """
    tables: Tables = case.fitted
    kept = magicpig_keys(case)
    if tables.number is None:
        return case.exactly(kept)
    more = tables.number - 1
    directions = case.once(_key_directions)[:, :, : case.key.shape[2]]
    cosine = case.products(F.normalize(case.query.float(), dim=-1), directions)
    near = cosine.clamp_(-1, 1).acos_().mul_(-1 / math.pi).add_(1).clamp_(min=1e-3)
    chance = near.log_().mul_(tables.bits).exp_()
    none = chance.neg().log1p_().mul_(more).exp_()  # (1 - c)^(L - 1)
    sampled = chance.mul_(more).add_(1).mul_(none).neg_().add_(1).clamp_(min=1e-6)
    return case.exactly(kept, case.logits().sub_(sampled.log_().mul_(~case.open)))


def _key_directions(case: Case) -> Tensor:
    """(B, H, T, D) float32 centred keys of unit length."""
    return F.normalize(_centred(case, case.fitted), dim=-1)


def _centred(case: Case, tables: Tables) -> Tensor:
    center = tables.center.to(case.key.device)
    return case.key.float() - center.repeat_interleave(case.key.shape[1] // center.shape[0], 0)[None, :, None]


def _key_codes(case: Case) -> Tensor:
    return _codes(_centred(case, case.fitted), case.once(_own_planes))


def _own_planes(case: Case) -> Tensor:
    return _planes(case, case.fitted)


def _planes(case: Case, tables: Tables) -> Tensor:
    """(tables, D, bits) normal numbers; more tables leave the first ones as they are."""
    generator, shape = case.generator(), (case.key.shape[-1], tables.bits)
    return torch.stack([torch.randn(shape, generator=generator) for _ in range(tables.number or 1)]).to(case.key.device)


def _codes(vectors: Tensor, planes: Tensor) -> Tensor:
    """(tables, B, H, T) uint8: the sign bits of vectors (B, H, T, D) in every table."""
    powers = 2.0 ** torch.arange(planes.shape[-1], device=planes.device)
    together = max(1, HASHED // (vectors[..., 0].numel() * len(powers)))
    signs = (torch.einsum("bhtd,ldn->lbhtn", vectors.float(), some) > 0 for some in planes.split(together))
    return torch.cat([(some.float() @ powers).to(torch.uint8) for some in signs])
