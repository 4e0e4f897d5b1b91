"""The one attention function and the one mask function that Focus registers with Transformers.

Transformers calls the function registered under a model's attention implementation with the module and its query,
key and value (https://huggingface.co/docs/transformers/attention_interface). What the router decided reaches it
through an attribute that the module's pre-hook sets for that call only; see `focus_core.routing.model`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from focus_core.attention import AttentionOutput, focus_attention
from focus_core.errors import FocusError
from focus_core.routing.cache import append_routing
from focus_core.routing.config import FocusConfig
from focus_core.routing.gate import gated_attention
from focus_core.routing.head_router import heads_in_batch
from focus_core.routing.router import top_k_membership

NAME = "focus"
PENDING = "_focus_call"

# Keywords that Transformers passes along and that do not change what attention computes.
_HARMLESS = {
    "position_ids",
    "position_embeddings",
    "past_key_values",
    "use_cache",
    "cache_position",
    "output_hidden_states",
    "output_router_logits",
    "num_items_in_batch",
    "logits_to_keep",
    "return_dict",
    "labels",
}


@dataclass(frozen=True)
class AttentionCall:
    """What one attention layer's router decided, on its way from the pre-hook to the attention function.

    Attributes:
        layer: index of the decoder layer.
        config: settings in force.
        rule: how routing becomes attention.
        backend: backend of hard routing.
        routing: (B, Tq, H * K) what the rule made of the assignment of the new tokens; H is 1, or the key/value heads
            if each has a router.
        reading: (B * H, Tq, K) the same of what the new tokens read, None if that is the groups they are in.
        num_heads: H.
        attention_mask: (B, S) bool, True for real tokens, over all tokens so far; None if all are real.
        past: the cache, or None.
        past_length: tokens before the new ones.
    """

    layer: int
    config: FocusConfig
    rule: Rule
    backend: str
    routing: Tensor
    reading: Tensor | None
    num_heads: int
    attention_mask: Tensor | None
    past: Any
    past_length: int

    def positions(self, num_keys: int) -> Tensor:
        """(B, T) int64 position of each key in its text, -1 for padding."""
        batch, num_queries = self.routing.shape[:2]
        return token_positions(self.attention_mask, batch, self.past_length + num_queries, self.routing.device)[
            :, -num_keys:
        ]


def token_positions(attention_mask: Tensor | None, batch: int, num_tokens: int, device: torch.device) -> Tensor:
    """(B, S) int64: index of each token among the real tokens of its text, -1 for padding."""
    if attention_mask is None:
        return torch.arange(num_tokens, device=device).expand(batch, -1)
    real = attention_mask[:, :num_tokens].to(device=device, dtype=torch.int64)
    return (real.cumsum(1) - 1).masked_fill(real == 0, -1)


@dataclass(frozen=True)
class Geometry:
    """The model's own attention settings for one call."""

    scale: float
    softcap: float | None
    sliding_window: int | None
    dropout: float


@dataclass(frozen=True)
class Rule:
    """How routing becomes attention.

    Attributes:
        encode: (assignment (N, T, K), groups to take) to the tensor kept per token.
        attend: (call, query, key, value, routing of all keys, reading of the queries or None, positions, geometry) to
            the result. With a router per head, the heads are in the batch (N = B * H) and each has one key/value head.
    """

    encode: Callable[[Tensor, int], Tensor]
    attend: Callable[[AttentionCall, Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor, Geometry], AttentionOutput]


def _attend_hard(
    call: AttentionCall,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    membership: Tensor,
    reading: Tensor | None,
    positions: Tensor,
    geometry: Geometry,
) -> AttentionOutput:
    if geometry.dropout > 0:
        raise FocusError("Hard routing has no attention dropout: call model.eval(), or train with soft routing.")
    return focus_attention(
        query,
        key,
        value,
        membership,
        query_membership=reading,
        window=call.config.window,
        sink_tokens=call.config.sink_tokens,
        positions=positions,
        sliding_window=geometry.sliding_window,
        scale=geometry.scale,
        softcap=geometry.softcap,
        backend=call.backend,
    )


def _attend_soft(
    call: AttentionCall,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    assignment: Tensor,
    reading: Tensor | None,
    positions: Tensor,
    geometry: Geometry,
) -> AttentionOutput:
    return gated_attention(
        query,
        key,
        value,
        assignment,
        positions,
        call.config,
        reading=reading,
        scale=geometry.scale,
        softcap=geometry.softcap,
        sliding_window=geometry.sliding_window,
        dropout=geometry.dropout,
    )


RULES: dict[str, Rule] = {
    "hard": Rule(top_k_membership, _attend_hard),
    "soft": Rule(lambda assignment, top_k: assignment, _attend_soft),
}


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    for name, setting in kwargs.items():
        if name == "is_causal" and setting in (None, True):
            continue
        if name not in _HARMLESS and setting is not None and setting is not False:
            raise FocusError(
                f"{type(module).__name__} passes '{name}' to attention, which Focus does not implement: "
                "detach the routers, or leave that option out."
            )
    _refuse_packing(kwargs.get("position_ids"), attention_mask)
    call: AttentionCall | None = module.__dict__.pop(PENDING, None)
    # Under autocast rotary embeddings leave query and key in another dtype than value.
    key, value = key.to(query.dtype), value.to(query.dtype)
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    geometry = Geometry(scale, softcap, sliding_window, dropout)
    if call is None:
        # A layer without a router in a model that has some: every pair is local.
        num_tokens = key.shape[2] if attention_mask is None else attention_mask.shape[1]
        positions = token_positions(attention_mask, query.shape[0], num_tokens, query.device)
        positions = positions[:, -key.shape[2] :]
        nothing = torch.zeros(*positions.shape, 1, dtype=torch.bool, device=query.device)
        output, logsumexp = focus_attention(
            query,
            key,
            value,
            nothing,
            window=key.shape[2],
            positions=positions,
            sliding_window=sliding_window,
            scale=scale,
            softcap=softcap,
        )
    else:
        routing = append_routing(call.past, call.layer, call.routing, key.shape[2])
        output, logsumexp = _routed(module, call, query, key, value, routing, geometry)
    if s_aux is not None:
        # A learned sink logit per head (GPT-OSS) joins the softmax denominator and has no value.
        output = output * torch.sigmoid(logsumexp - s_aux.float()[None, :, None])[..., None].to(output.dtype)
    return output.transpose(1, 2).contiguous(), None


def _routed(
    module: nn.Module,
    call: AttentionCall,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    routing: Tensor,
    geometry: Geometry,
) -> AttentionOutput:
    """Attention under the call's rule; heads with a router each are texts of their own while it lasts."""
    positions, num_heads = call.positions(key.shape[2]), call.num_heads
    if num_heads == 1:
        return call.rule.attend(call, query, key, value, routing, call.reading, positions, geometry)
    if key.shape[1] != num_heads:
        raise FocusError(
            f"{type(module).__name__} has {key.shape[1]} key/value heads and its router {num_heads}: "
            "use router='layer' for this model."
        )
    result = call.rule.attend(
        call,
        query.unflatten(1, (num_heads, -1)).flatten(0, 1),
        key.flatten(0, 1)[:, None],
        value.flatten(0, 1)[:, None],
        heads_in_batch(routing, num_heads),
        call.reading,
        positions.repeat_interleave(num_heads, 0),
        geometry,
    )
    return AttentionOutput(*(part.unflatten(0, (-1, num_heads)).flatten(1, 2) for part in result))


def _refuse_packing(position_ids: Tensor | None, attention_mask: Tensor | None) -> None:
    if position_ids is None or attention_mask is not None or position_ids.shape[-1] < 2:
        return
    if position_ids.ndim == 2 and not bool((position_ids[:, 1:] >= position_ids[:, :-1]).all()):
        raise FocusError("Packed texts in one row are not supported: put each text in its own row and pad.")


def _mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    *args: Any,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    config: Any = None,
    **kwargs: Any,
) -> Tensor | None:
    """The padding mask (B, S) over all tokens so far, or None if nothing is padded: no (T, T) mask is built."""
    if use_vmap or getattr(config, "attention_chunk_size", None) is not None:
        raise FocusError(
            f"{type(config).__name__} asks for an attention pattern beyond causal and sliding windows, "
            "which Focus does not implement: choose another model."
        )
    if attention_mask is None or bool(attention_mask.all()):
        return None
    return attention_mask


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _mask)
