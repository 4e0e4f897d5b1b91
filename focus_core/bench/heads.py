"""Heads for timing baselines: those of a model with a text as input, or normal tensors.

The unit is one key/value head with the query heads that read it, as a model with grouped queries has them.

On normal tensors neighbouring queries select different keys, so content-based baselines need heads of a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from focus_core.attention import AttentionOutput
from focus_core.baselines.learned import BlockGates, Learner
from focus_core.errors import FocusError
from focus_core.routing.model import FocusModel
from focus_core.routing.rules import AttentionCall, Rule


class Head(NamedTuple):
    """A key/value head with its G query heads, and those of other text for fitting baselines.

    Attributes:
        query: (1, G, T, D), position-encoded.
        key: (1, 1, T, D), position-encoded.
        value: (1, 1, T, Dv).
        fitted: query (1, G, T', D) and key (1, 1, T', D) of other text.
        scale: factor of the dot products.
        hidden: (1, T, d) hidden states that enter the attention block; None of normal tensors.
        kv_heads: key/value heads of the layer.
        learners: of this layer by name of the learned baseline, cut to this key/value head.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    fitted: tuple[Tensor, Tensor]
    scale: float
    hidden: Tensor | None = None
    kv_heads: int = 1
    learners: Mapping[str, Learner] = MappingProxyType({})


def random_heads(
    tokens: int, fitted_tokens: int, head_dim: int, device: str, seed: int, query_heads: int = 1
) -> list[Head]:
    """One key/value head of normal tensors.

    Args:
        tokens: T.
        fitted_tokens: T'.
        head_dim: D.
        device: "cpu" or "cuda".
        seed: of the values, which are drawn on the CPU.
        query_heads: G.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(heads: int, length: int) -> Tensor:
        return torch.randn(1, heads, length, head_dim, generator=generator).to(device)

    query, key, value = (normal(heads, tokens) for heads in (query_heads, 1, 1))
    fitted = normal(query_heads, fitted_tokens), normal(1, fitted_tokens)
    return [Head(query, key, value, fitted, head_dim**-0.5)]


class _Seen(Exception):
    """Ends the forward pass at the last layer that is needed."""


class Projected(NamedTuple):
    """One key/value head of a model that reads a text; attributes as of `Head`."""

    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    hidden: Tensor
    kv_heads: int


@torch.inference_mode()
def model_heads(focus: FocusModel, input_ids: Tensor, heads: Sequence[tuple[int, int]]) -> list[Projected]:
    """Queries, keys and values of some key/value heads of the untouched model in prefill of a text.

    Layers above the last needed one are not run. Logit caps and the model's own windows are left out.

    Args:
        focus: the model; its routers are not used.
        input_ids: (T,) int64.
        heads: layer and query head of each; the query heads that share its key/value head come with it.

    Raises:
        FocusError: the model has no such layer or head.
    """
    check_heads(focus, heads)
    found: dict[tuple[int, int], Projected] = {}
    last = max(layer for layer, _ in heads)

    def follow(call: AttentionCall) -> AttentionOutput:
        query, key, value, geometry = call.query, call.key, call.value, call.geometry
        for layer, head in heads:
            if layer == call.layer:
                group = query.shape[1] // key.shape[1]
                number = head // group
                ours, theirs = slice(number * group, (number + 1) * group), slice(number, number + 1)
                found[layer, head] = Projected(
                    query[:, ours].float().contiguous(),
                    key[:, theirs].float().contiguous(),
                    value[:, theirs].float().contiguous(),
                    geometry.scale,
                    call.routing.hidden_states,
                    key.shape[1],
                )
        if call.layer == last:
            raise _Seen
        output = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=geometry.scale, enable_gqa=query.shape[1] != key.shape[1]
        )
        return AttentionOutput(output, output.new_zeros(output.shape[:3], dtype=torch.float32))

    with suppress(_Seen), focus.routing("soft", balance="calibrated", rule=Rule(follow)):
        focus.model.base_model(input_ids=input_ids[None].to(focus.model.device), use_cache=False)
    return [found[each] for each in heads]


def check_heads(focus: FocusModel, heads: Sequence[tuple[int, int]]) -> None:
    """Check that the model has these layers and query heads.

    Raises:
        FocusError: it lacks one of them.
    """
    count = _query_heads(focus)
    for layer, head in heads:
        if layer not in focus.layers or not 0 <= head < count:
            known = ", ".join(map(str, focus.layers))
            raise FocusError(f"There is no head {layer}/{head}: layers are {known}, heads 0 to {count - 1}.")


def spread_heads(focus: FocusModel) -> tuple[tuple[int, int], ...]:
    """Layer and head at a quarter, half and three quarters of both: a fixed sample."""
    layers, count = focus.layers, _query_heads(focus)
    return tuple(dict.fromkeys((layers[len(layers) * part // 4], count * part // 4) for part in (1, 2, 3)))


def _query_heads(focus: FocusModel) -> int:
    return focus.model.config.get_text_config().num_attention_heads


def heads_reading(
    focus: FocusModel,
    input_ids: Tensor,
    heads: Sequence[tuple[int, int]],
    tokens: int,
    fitted_tokens: int,
    learned: Mapping[str, Mapping[int, Learner]] | None = None,
) -> list[Head]:
    """Heads of a model with the first tokens of a text as input, and the tokens after these to fit baselines on.

    Args:
        focus: the model.
        input_ids: (T',) int64, repeated if it is too short.
        heads: layer and query head of each.
        tokens: T, tokens of the text.
        fitted_tokens: number of tokens after these, used as a text of their own.
        learned: learners of every layer by name of the baseline.
    """
    enough = input_ids.repeat(-(-(tokens + fitted_tokens) // len(input_ids)))
    read = model_heads(focus, enough[:tokens], heads)
    other = model_heads(focus, enough[tokens : tokens + fitted_tokens], heads)
    found = []
    for (layer, head), own, fitted in zip(heads, read, other):
        unit = head // own.query.shape[1]
        learners = {name: _cut(layers[layer], unit) for name, layers in (learned or {}).items()}
        tensors = own.query, own.key, own.value, (fitted.query, fitted.key)
        found.append(Head(*tensors, own.scale, own.hidden, own.kv_heads, learners))
    return found


def _cut(learner: Learner, kv_head: int) -> Learner:
    """What a learner of a layer has for one key/value head; an indexer scores for all of them."""
    return learner.of_head(kv_head) if isinstance(learner, BlockGates) else learner
