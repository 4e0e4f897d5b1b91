"""Fixed patterns, independent of the tokens: windows, strides and random blocks. Each returns the pairs it keeps."""

from __future__ import annotations

import torch
from torch import Tensor

from focus_core.baselines.case import Case
from focus_core.baselines.layout import solve_share

RANDOM_BLOCK = 16


def sliding_window(case: Case) -> Tensor:
    """A wider window alone: Longformer, arXiv 2004.05150, section 3.1, without its global tokens.

    No sinks, as published: the only baseline that does not get them.
    """
    return solve_share(_wider, case.layout, case.share, float(case.layout.length), sinks=False)


def window_and_sinks(case: Case) -> Tensor:
    """A wider window and the first tokens: StreamingLLM, arXiv 2309.17453, section 3.2."""
    return solve_share(_wider, case.layout, case.share, float(case.layout.length))


def strided(case: Case) -> Tensor:
    """Every l-th distance: Sparse Transformer, arXiv 1904.10509, section 4.3, {j : (i - j) mod l = 0}.

    A density f in place of 1/l keeps distance d if floor(f d) > floor(f (d - 1)): the published pattern for f = 1/l,
    evenly spaced distances for the shares in between.
    """
    return solve_share(_strides, case.layout, case.share, 1.0)


def _wider(distance: Tensor, window: int, more: float) -> Tensor:
    return distance <= window + more


def _strides(distance: Tensor, window: int, density: float) -> Tensor:
    far = distance.double()
    return torch.floor(density * far) > torch.floor(density * (far - 1))


def random_blocks(case: Case) -> Tensor:
    """Each block of queries keeps random earlier blocks: BigBird, arXiv 2007.14062, section 2.

    Blocks of 16, drawn for each head and layer; the budget sets the number of blocks per query block.
    """
    scores = case.once(_draw)[:, case.layout.places // RANDOM_BLOCK]
    return case.select_blocks(scores[..., : -(-case.key.shape[2] // RANDOM_BLOCK)], RANDOM_BLOCK)


def _draw(case: Case) -> Tensor:
    """(H, N, N): a random score of each block of keys for each block of queries."""
    heads, count = case.key.shape[1], -(-case.layout.length // RANDOM_BLOCK)
    return torch.rand(heads, count, count, generator=case.generator()).to(case.key.device)
