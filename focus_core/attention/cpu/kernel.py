"""PyTorch's CPU flash kernel as the `cpu` backend calls it, with the measured costs of its tiles.

The kernel uses key tiles of 512 and query tiles of 256 rows from 768 rows up, of 64 from 192 and of 32 below. Small
tiles cost 1.25 to 1.5 times as much per pair. Its own causal mode computes whole key tiles, so short causal passes run
at half speed. Query heads that share a key/value head are therefore folded into the rows: keys are not copied, and rows
reach the large tile. Causality enters as a bias on the diagonal.
"""

from __future__ import annotations

import torch
from torch import Tensor

from focus_core.attention.inputs import AttentionOutput

FAR = -1e30
"""Bias of a pair that is not kept: weight 0 beside any other, and finite, so that no row becomes NaN."""

LARGE_TILE_ROWS = 768
SMALL_TILE_ROWS = 192


def cpu_flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    *,
    bias: Tensor | None = None,
    causal: bool = False,
) -> AttentionOutput:
    """One call of the kernel.

    Args:
        query: (B, H, R, D) float32 or bfloat16.
        key: (B, H, N, D); heads may be expanded, strides are honoured, the last one is 1.
        value: (B, H, N, D), the same head size.
        scale: factor of the dot products.
        bias: (B or 1, H or 1, R, N) in the query's dtype, added to the logits.
        causal: row r sees keys 0..r.

    Returns:
        Output (B, H, R, D) and log-sum-exp (B, H, R) float32.
    """
    return AttentionOutput(
        *torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, is_causal=causal, attn_mask=bias, scale=scale
        )
    )


def folded(query: Tensor, key: Tensor, value: Tensor, scale: float, *, bias: Tensor | None = None) -> AttentionOutput:
    """`cpu_flash` without a head dimension: query (B, R, D), key and value (B, N, D), bias (R, N)."""
    bias = None if bias is None else bias[None, None]
    output, logsumexp = cpu_flash(query[:, None], key[:, None], value[:, None], scale, bias=bias)
    return AttentionOutput(output[:, 0], logsumexp[:, 0])


def block_tokens(total: int, group: int, batch: int) -> tuple[int, int]:
    """Cheapest blocking of a causal pass, by a model of the measured costs.

    A block of queries sees the keys of its span (up to `BLOCKS_PER_SPAN` blocks) under a bias. The whole span sees the
    keys before it without a bias, in large tiles.

    Args:
        total: tokens of the pass.
        group: query heads folded per token.
        batch: independent passes in one call.

    Returns:
        Tokens per block and per span; a span of ``total`` means no split.
    """
    threads = torch.get_num_threads()
    best = (total, total)
    best_cost = float("inf")
    for rows in (SMALL_TILE_ROWS, 2 * SMALL_TILE_ROWS, LARGE_TILE_ROWS, 1024):
        tile, price = (256, 1.06) if rows >= LARGE_TILE_ROWS else (64, 1.3)
        block = min(total, -(-rows // group // 16) * 16 if rows != 1024 else max(16, rows // group // 16 * 16))
        tasks = batch * -(-block * group // tile)
        idle = -(-tasks // threads) * threads / tasks
        for span in (total, block * BLOCKS_PER_SPAN):
            if span > total:
                continue
            spans = -(-total // span)
            before = (total - span) / 2
            merge = MERGE_PAIRS if spans > 1 else 0
            pairs = before + merge + (span + block) / 2 * price * idle
            cost = batch * group * total * pairs + (-(-total // block) + spans) * CALL_PAIRS
            if cost < best_cost:
                best, best_cost = (block, span), cost
    return best


BLOCKS_PER_SPAN = 4

CALL_PAIRS = 50_000
"""Cost of one more kernel call, in pairs at the large tile's rate (about 80 us)."""

MERGE_PAIRS = 50
"""Cost of merging one more part into a row, in pairs."""
