"""`flex`: FlexAttention with a block mask built from summaries of blocks. Unverified on CUDA.

Tokens are sorted by their set of groups, so that blocks are nearly pure. A block is summarised by the groups that occur
in it, the groups that all its tokens share, and its range of positions. Two summaries tell whether some or all pairs of
two blocks are kept: T^2 / 128^2 comparisons, never T^2.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from focus_core.attention.inputs import AttentionInputs, AttentionOutput

BLOCK = 128
MOST_GROUPS = 62
FAR_POSITION = 1 << 40


class BlockLayout(NamedTuple):
    """Sorted tokens and the blocks they form.

    Attributes:
        queries: (B, Tq) int64 index of the query at each place.
        keys: (B, T) int64 index of the key at each place.
        some: (B, Tq blocks, T blocks) bool, a pair may be kept.
        every: (B, Tq blocks, T blocks) bool, all pairs are kept; a part of ``some``.
    """

    queries: Tensor
    keys: Tensor
    some: Tensor
    every: Tensor


class _Summary(NamedTuple):
    """Summary of each block (B, blocks): groups of some and of every token, first and last position."""

    some: Tensor
    every: Tensor
    first: Tensor
    last: Tensor
    pure: Tensor


def flex_obstacle(inputs: AttentionInputs) -> str | None:
    """The reason why `flex` does not support these inputs; None if it does."""
    if inputs.query.device.type != "cuda":
        return "needs tensors on a CUDA device"
    if inputs.membership.shape[2] > MOST_GROUPS:
        return f"takes at most {MOST_GROUPS} groups"
    return None


def flex(inputs: AttentionInputs) -> AttentionOutput:
    """Exact attention through compiled FlexAttention, no gradients."""
    return run_flex(inputs, torch.compile(_flex_attention(), dynamic=True))


def _flex_attention() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention


def run_flex(inputs: AttentionInputs, flex_attention: Any) -> AttentionOutput:
    """The backend with FlexAttention as an argument: compiled for speed, or plain for tests (T^2 memory)."""
    from torch.nn.attention.flex_attention import AuxRequest, BlockMask

    layout = block_layout(inputs)
    key_bits = _bits(inputs.membership).gather(1, layout.keys)
    query_bits = _bits(inputs.query_membership).gather(1, layout.queries)
    key_positions = inputs.positions.gather(1, layout.keys)
    query_positions = inputs.query_positions.gather(1, layout.queries)
    window, sink_tokens, softcap = inputs.window, inputs.sink_tokens, inputs.softcap
    sliding = FAR_POSITION if inputs.sliding_window is None else inputs.sliding_window

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        query_position, key_position = query_positions[b, q], key_positions[b, k]
        distance = query_position - key_position
        kept = (distance <= window) | (key_position < sink_tokens) | ((query_bits[b, q] & key_bits[b, k]) != 0)
        return kept & (distance >= 0) & (distance < sliding) & (query_position >= 0) & (key_position >= 0)

    def score_mod(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return score if softcap is None else softcap * torch.tanh(score / softcap)

    some = layout.some & ~layout.every
    mask = BlockMask.from_kv_blocks(
        *_ordered(some),
        *_ordered(layout.every),
        BLOCK_SIZE=BLOCK,
        mask_mod=mask_mod,
        seq_lengths=(inputs.num_queries, inputs.num_keys),
    )
    output, aux = flex_attention(
        _taken(inputs.query, layout.queries),
        _taken(inputs.key, layout.keys),
        _taken(inputs.value, layout.keys),
        score_mod=None if softcap is None else score_mod,
        block_mask=mask,
        scale=inputs.scale,
        enable_gqa=inputs.heads_per_key > 1,
        return_aux=AuxRequest(lse=True),
    )
    back = layout.queries.argsort(dim=1)
    padding = (inputs.query_positions < 0)[:, None]
    output = _taken(output, back).masked_fill(padding[..., None], 0.0)
    logsumexp = aux.lse.gather(2, back[:, None].expand(-1, output.shape[1], -1)).float()
    return AttentionOutput(output, logsumexp.masked_fill(padding, float("-inf")))


def block_layout(inputs: AttentionInputs) -> BlockLayout:
    """Sort tokens by their groups, padding last, and compare summaries of blocks.

    Args:
        inputs: the problem; at most `MOST_GROUPS` groups.

    Returns:
        Orders and block masks, on the device of the inputs.
    """
    last = torch.iinfo(torch.int64).max
    keys = _bits(inputs.membership).masked_fill(inputs.positions < 0, last).argsort(dim=1, stable=True)
    ranks = _bits(inputs.query_membership).masked_fill(inputs.query_positions < 0, last)
    queries = ranks.argsort(dim=1, stable=True)
    query = _summary(inputs.query_membership, inputs.query_positions, queries)
    key = _summary(inputs.membership, inputs.positions, keys)

    nearest = query.first[:, :, None] - key.last[:, None]
    farthest = query.last[:, :, None] - key.first[:, None]
    sliding = FAR_POSITION if inputs.sliding_window is None else inputs.sliding_window
    shares = query.some.float() @ key.some.float().mT > 0
    all_share = query.every.float() @ key.every.float().mT > 0
    # With no real token, first is above last and farthest is negative.
    some = shares | (nearest <= inputs.window) | (key.first < inputs.sink_tokens)[:, None]
    some = some & (farthest >= 0) & (nearest < sliding)
    every = all_share | (farthest <= inputs.window) | (key.last < inputs.sink_tokens)[:, None]
    every = every & (nearest >= 0) & (farthest < sliding) & query.pure[:, :, None] & key.pure[:, None]
    return BlockLayout(queries, keys, some, every & some)


def _summary(membership: Tensor, positions: Tensor, order: Tensor) -> _Summary:
    """Summaries of the blocks of ``order``, all padding left out."""
    spare = -order.shape[1] % BLOCK
    places = pad(positions.gather(1, order), (0, spare), value=-1).unflatten(1, (-1, BLOCK))
    groups = membership.gather(1, order[..., None].expand(-1, -1, membership.shape[2]))
    groups = pad(groups, (0, 0, 0, spare)).unflatten(1, (-1, BLOCK))
    real = places >= 0
    return _Summary(
        (groups & real[..., None]).any(2),
        (groups | ~real[..., None]).all(2),
        places.masked_fill(~real, FAR_POSITION).amin(2),
        places.amax(2),
        real.all(2),
    )


def _bits(membership: Tensor) -> Tensor:
    """(B, T) int64 with bit g set for group g."""
    return (membership.long() << torch.arange(membership.shape[2], device=membership.device)).sum(2)


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers and indices of the blocks to visit, (B, 1, ...) int32 for `BlockMask.from_kv_blocks`."""
    indices = blocks.to(torch.int8).argsort(dim=2, descending=True, stable=True)
    return blocks.sum(2)[:, None].to(torch.int32), indices[:, None].to(torch.int32)


def _taken(tensor: Tensor, order: Tensor) -> Tensor:
    """Tokens of (B, H, T, D) in another order (B, T)."""
    return tensor.gather(2, order[:, None, :, None].expand(-1, tensor.shape[1], -1, tensor.shape[3]))
