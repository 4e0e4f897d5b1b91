"""Checks of a caller's arguments; every refusal is one sentence."""

from __future__ import annotations

import torch
from torch import Tensor

from focus_core.attention.inputs import AttentionInputs
from focus_core.errors import FocusError


def checked_positions(membership: Tensor, positions: Tensor | None) -> Tensor:
    """Positions that fit the membership, counted 0..T-1 by default.

    Raises:
        FocusError: wrong shape or dtype, or positions of real tokens that do not increase.
    """
    if membership.ndim != 3 or membership.dtype != torch.bool:
        raise FocusError(
            f"membership is {_shape(membership)} {membership.dtype}: pass a bool tensor of shape (B, T, K)."
        )
    batch, total, _ = membership.shape
    if positions is None:
        return torch.arange(total, device=membership.device).expand(batch, total)
    if positions.shape != (batch, total) or positions.dtype != torch.int64:
        raise FocusError(
            f"positions is {_shape(positions)} {positions.dtype}: pass int64 of shape ({batch}, {total}), "
            "-1 for padding."
        )
    if positions.device != membership.device:
        raise FocusError(f"positions is on {positions.device}, membership on {membership.device}: use one device.")
    # The position of the last real token before each one; it must be smaller.
    before = positions.clamp(min=-1).cummax(dim=1).values[:, :-1]
    if total > 1 and bool(((positions[:, 1:] >= 0) & (positions[:, 1:] <= before)).any()):
        raise FocusError(
            "positions of real tokens do not increase along a row: number the tokens of each text in order, "
            "-1 for padding."
        )
    return positions


def checked_inputs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    membership: Tensor,
    positions: Tensor | None,
    *,
    query_membership: Tensor | None = None,
    window: int,
    sink_tokens: int,
    sliding_window: int | None,
    scale: float | None,
    softcap: float | None,
) -> AttentionInputs:
    """The arguments of `focus_attention` as one problem.

    Raises:
        FocusError: shapes, dtypes, devices or settings that do not fit together.
    """
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.ndim != 4 or not tensor.is_floating_point():
            raise FocusError(
                f"{name} is {_shape(tensor)} {tensor.dtype}: pass floating point of shape (batch, heads, tokens, size)."
            )
        if tensor.dtype != query.dtype or tensor.device != query.device:
            raise FocusError(
                f"{name} is {tensor.dtype} on {tensor.device} and query {query.dtype} on {query.device}: "
                "use one dtype and one device."
            )
    batch, heads, num_queries, head_dim = query.shape
    if key.shape[0] != batch or key.shape[3] != head_dim or value.shape[:3] != key.shape[:3]:
        raise FocusError(
            f"query {_shape(query)}, key {_shape(key)} and value {_shape(value)} do not fit: "
            "batch, key heads, key length and head size must agree."
        )
    if key.shape[1] < 1 or heads % key.shape[1]:
        raise FocusError(
            f"There are {heads} query heads and {key.shape[1]} key heads: the first must be a multiple of the second."
        )
    if num_queries > key.shape[2]:
        raise FocusError(
            f"There are {num_queries} queries and {key.shape[2]} keys: the queries must be the last of the tokens."
        )
    positions = checked_positions(membership, positions)
    if membership.shape[:2] != (batch, key.shape[2]) or membership.device != query.device:
        raise FocusError(
            f"membership is {_shape(membership)} on {membership.device}: give one row for each of the "
            f"{batch} x {key.shape[2]} keys, on {query.device}."
        )
    wanted = (batch, num_queries, membership.shape[2])
    if query_membership is not None and (
        query_membership.shape != wanted
        or query_membership.dtype != torch.bool
        or query_membership.device != query.device
    ):
        raise FocusError(
            f"query_membership is {_shape(query_membership)} {query_membership.dtype} on {query_membership.device}: "
            f"pass a bool tensor of shape {wanted} on {query.device}."
        )
    for name, number, least in (
        ("window", window, 0),
        ("sink_tokens", sink_tokens, 0),
        ("sliding_window", sliding_window, 1),
    ):
        if number is not None and number < least:
            raise FocusError(f"{name} is {number}: it must be at least {least}.")
    if softcap is not None and not softcap > 0:
        raise FocusError(f"softcap is {softcap}: it must be greater than 0, or None for no cap.")
    return AttentionInputs(
        query=side_by_side(query),
        key=side_by_side(key),
        value=side_by_side(value),
        membership=membership,
        query_membership=membership[:, key.shape[2] - num_queries :] if query_membership is None else query_membership,
        reads_own_groups=query_membership is None,
        positions=positions,
        window=window,
        sink_tokens=sink_tokens,
        sliding_window=sliding_window,
        scale=head_dim**-0.5 if scale is None else scale,
        softcap=softcap,
    )


def side_by_side(tensor: Tensor) -> Tensor:
    """The same numbers, those of a head side by side in memory: the kernels count on it."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))
