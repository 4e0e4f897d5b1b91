"""The one attention function and the one mask function that Focus registers with Transformers.

Transformers calls the function registered under a model's attention implementation with the module and its query, key
and value (https://huggingface.co/docs/transformers/attention_interface). The routing reaches it through an attribute
that the module's pre-hook sets for that call only; see `focus_core.routing.model`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface

from focus_core.attention import AttentionOutput, focus_attention
from focus_core.errors import FocusError
from focus_core.routing.cache import append_routing
from focus_core.routing.decoder.families import own_window
from focus_core.routing.layer import HeadVectors, KeyQuery, LayerRouting, heads_in_batch, heads_in_groups
from focus_core.routing.narrow.cache.layer import PAGE_SIZE, Layout, NarrowLayer
from focus_core.routing.narrow.grouping import groups_of_keys
from focus_core.routing.rules import RULES, AttentionCall, Geometry, Rule

NAME = "focus"
PENDING = "_focus_pending"

# Keywords that Transformers passes along and that do not change the result of attention.
_HARMLESS = {
    "position_ids",
    "position_embeddings",
    "past_key_values",
    "cache",
    "use_cache",
    "cache_position",
    "output_hidden_states",
    "output_router_logits",
    "num_items_in_batch",
    "logits_to_keep",
    "return_dict",
    "labels",
    "tokenizer",  # the server of Transformers gives it to generate, for stop strings
}


@dataclass(frozen=True)
class Pending:
    """The routing that a layer's pre-hook leaves for the attention function of the same call.

    Attributes:
        routing: of the new tokens.
        rule: turns it into attention.
        backend: of hard routing.
        attention_mask: (B, S) bool, True for real tokens, over all tokens so far; None if all are real.
        past: the cache, or None.
        past_length: tokens before the new ones.
        observer: called with the routing once its keys are known, for routers that group keys; else None.
        position_embeddings: with which the layer rotates its keys, None without.
        narrow: the layer of the cache that holds keys by narrow groups, or None.
    """

    routing: LayerRouting
    rule: Rule
    backend: str
    attention_mask: Tensor | None
    past: Any
    past_length: int
    observer: Callable[[LayerRouting], None] | None = None
    position_embeddings: tuple[Tensor, Tensor] | None = None
    narrow: NarrowLayer | None = None


def token_positions(attention_mask: Tensor | None, batch: int, num_tokens: int, device: torch.device) -> Tensor:
    """(B, S) int64: index of each token among the real tokens of its text, -1 for padding."""
    if attention_mask is None:
        return torch.arange(num_tokens, device=device).expand(batch, -1)
    real = attention_mask[:, :num_tokens].to(device=device, dtype=torch.int64)
    return (real.cumsum(1) - 1).masked_fill(real == 0, -1)


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
    pending: Pending | None = module.__dict__.pop(PENDING, None)
    for name, setting in kwargs.items():
        if name == "is_causal" and setting in (None, True):
            continue
        if name not in _HARMLESS and setting is not None and setting is not False:
            raise FocusError(
                f"{type(module).__name__} passes '{name}' to attention, which Focus does not implement: "
                "detach the routers, or leave that option out."
            )
    _refuse_packing(kwargs.get("position_ids"), attention_mask)
    if sliding_window is None:  # some models leave it to their mask
        sliding_window = own_window(module) if pending is None else pending.routing.sliding_window
    # Under autocast rotary embeddings leave query and key in another dtype than value.
    key, value = key.to(query.dtype), value.to(query.dtype)
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    if pending is not None:
        geometry = Geometry(scale, softcap, sliding_window, dropout)
        short = _short(pending, query, key, value, geometry) if s_aux is None else None
        if short is not None:
            return short.transpose(1, 2).contiguous(), None
        output, logsumexp = _routed(module, pending, query, key, value, geometry)
    else:
        # A layer without a router in a model that has some: every pair is local.
        num_tokens = key.shape[2] if attention_mask is None else attention_mask.shape[1]
        positions = token_positions(attention_mask, query.shape[0], num_tokens, query.device)[:, -key.shape[2] :]
        output, logsumexp = focus_attention(
            query,
            key,
            value,
            torch.zeros(*positions.shape, 1, dtype=torch.bool, device=query.device),
            window=key.shape[2],
            positions=positions,
            sliding_window=sliding_window,
            scale=scale,
            softcap=softcap,
        )
    if s_aux is not None:
        # A learned sink logit per head (GPT-OSS) joins the softmax denominator and has no value.
        output = output * torch.sigmoid(logsumexp - s_aux.float()[None, :, None])[..., None].to(output.dtype)
    return output.transpose(1, 2).contiguous(), None


def _short(pending: Pending, query: Tensor, key: Tensor, value: Tensor, geometry: Geometry) -> Tensor | None:
    """Full attention to a text of fewer tokens than `full_below`, by the call that the untouched model makes.

    Returns:
        (B, Hq, T, Dv). None for other texts, and where more than this one call is needed: `_routed` takes those.
    """
    routing, narrow, new = pending.routing, pending.narrow, query.shape[2]
    short = routing.router.from_keys and pending.past_length + new < routing.config.full_below
    watched = pending.observer is not None or pending.rule is not RULES["hard"] or pending.backend != "auto"
    if not short or watched or pending.attention_mask is not None or not geometry.plain:
        return None
    if pending.past_length:
        if narrow is None or new > 1:
            return None
        stored = narrow.append_near(key, value, pending.position_embeddings, _layout(routing))
        if stored is None:
            return None
        key, value = stored
    elif narrow is not None:
        narrow.fill(key, value, None, pending.position_embeddings, None, _layout(routing), routing.reading())
    return F.scaled_dot_product_attention(query, key, value, is_causal=new > 1, scale=geometry.scale, enable_gqa=True)


def _routed(
    module: nn.Module, pending: Pending, query: Tensor, key: Tensor, value: Tensor, geometry: Geometry
) -> AttentionOutput:
    """Attention under the call's rule; heads with a router each become rows of the batch."""
    routing = pending.routing
    heads, num_keys = routing.router.num_heads, key.shape[2]
    if heads not in (1, key.shape[1]):
        raise FocusError(
            f"{type(module).__name__} has {key.shape[1]} key/value heads and its router {heads}: "
            "use router='layer' for this model."
        )
    num_tokens = pending.past_length + query.shape[2]
    continues = pending.narrow is not None and pending.past_length > 0
    if routing.router.from_keys and (pending.observer is not None or not continues):
        new_key = key[:, :, -query.shape[2] :]
        vectors = HeadVectors(query, new_key, geometry.scale, geometry.softcap, pending.position_embeddings)
        routing = replace(routing, vectors=vectors)
        if pending.observer is not None:
            pending.observer(routing)
    unknown = routing.router.from_keys and pending.past_length and not continues
    if unknown and geometry.sliding_window is None and pending.rule is RULES["hard"]:
        raise FocusError(
            f"Layer {routing.layer} cannot continue from this cache, which holds no narrow groups: pass a DynamicCache."
        )
    if continues:
        return _continued(pending, query, key, value, geometry)
    new = pending.rule.encode(routing)
    positions = token_positions(pending.attention_mask, len(query), num_tokens, query.device)[:, -num_keys:]
    if routing.router.from_keys:
        kept = new.keys
        if pending.narrow is not None:
            reading = routing.reading()
            groups = None if reading.attends_all(num_tokens) else routing.key_groups.unflatten(0, (-1, heads))
            real = None if pending.attention_mask is None else positions >= 0
            pending.narrow.fill(key, value, groups, pending.position_embeddings, real, _layout(routing), reading)
    else:
        kept = heads_in_groups(new.keys, heads)
        kept = heads_in_batch(append_routing(pending.past, routing.layer, kept, num_keys), heads)
    call = AttentionCall(
        query.unflatten(1, (heads, -1)).flatten(0, 1),
        key.unflatten(1, (heads, -1)).flatten(0, 1),
        value.unflatten(1, (heads, -1)).flatten(0, 1),
        routing,
        KeyQuery(kept, new.queries),
        positions.repeat_interleave(heads, 0),
        geometry,
        routing.config,
        pending.backend,
    )
    result = pending.rule.attend(call)
    return AttentionOutput(*(part.unflatten(0, (-1, heads)).flatten(1, 2) for part in result))


def _continued(pending: Pending, query: Tensor, key: Tensor, value: Tensor, geometry: Geometry) -> AttentionOutput:
    """Attention of the tokens that follow those in a cache of narrow groups."""
    routing, narrow = pending.routing, pending.narrow
    assert narrow is not None
    if geometry.dropout > 0:
        raise FocusError("Hard routing has no attention dropout: call model.eval().")

    def groups(keys: Tensor, rotation: tuple[Tensor, Tensor] | None) -> Tensor:
        return groups_of_keys(routing.router, keys, rotation, routing.config)

    mask = pending.attention_mask
    return narrow.attend(
        query,
        key,
        value,
        pending.position_embeddings,
        groups,
        None if mask is None else mask.to(query.device, torch.bool),
        _layout(routing),
        routing.reading(),
        scale=geometry.scale,
        softcap=geometry.softcap,
    )


def _layout(routing: LayerRouting) -> Layout:
    config = routing.config
    sizes = config.num_groups, config.page_size or PAGE_SIZE, config.sink_tokens, config.cache_bits
    return Layout(*sizes, routing.directions)


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
