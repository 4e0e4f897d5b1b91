"""Rules, which turn routing into attention: hard, soft, and the untouched model's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from focus_core.attention import AttentionOutput, focus_attention
from focus_core.errors import FocusError
from focus_core.routing.config import FocusConfig
from focus_core.routing.layer import KeyQuery, LayerRouting
from focus_core.routing.narrow.rule import attend_narrow
from focus_core.routing.soft import gated_attention


@dataclass(frozen=True)
class Geometry:
    """The model's own attention settings for one call.

    Attributes:
        scale: factor of the dot products.
        softcap: logits become softcap * tanh(logits / softcap); None without.
        sliding_window: the model's own window, in tokens; None without.
        dropout: probability of dropping an attention weight.
    """

    scale: float
    softcap: float | None
    sliding_window: int | None
    dropout: float

    @property
    def plain(self) -> bool:
        """Whether attention is causal softmax and nothing else."""
        return self.softcap is None and self.sliding_window is None and self.dropout == 0


@dataclass(frozen=True)
class AttentionCall:
    """One attention call of a routed layer; the argument of every rule.

    With a router per key/value head the heads are in the batch (N = B * H), each with one key/value head.

    Attributes:
        query: (N, Hq, Tq, D), the last Tq of T tokens.
        key: (N, Hkv, T, D).
        value: (N, Hkv, T, Dv).
        routing: of the new tokens.
        groups: the encoded routing: of all T tokens as keys, from the cache where there is one, and of the Tq queries;
            of the new tokens alone where routers group keys, and none of those where `RULES` name the rule.
        positions: (N, T) int64, index of each token among the real tokens of its text, -1 for padding.
        geometry: the model's own settings.
        config: settings in force.
        backend: of hard routing.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    routing: LayerRouting
    groups: KeyQuery
    positions: Tensor
    geometry: Geometry
    config: FocusConfig
    backend: str = "auto"

    @property
    def layer(self) -> int:
        """Index of the decoder layer."""
        return self.routing.layer

    def together(self) -> tuple[Tensor, Tensor, Tensor]:
        """Query (B, H, Tq, D), key and value (B, Hkv, T, D) with all heads of a text together, whatever the router."""
        batch = len(self.routing.hidden_states)
        query, key, value = (
            each.unflatten(0, (batch, -1)).flatten(1, 2) for each in (self.query, self.key, self.value)
        )
        return query, key, value


@dataclass(frozen=True)
class Rule:
    """One way to turn routing into attention.

    Attributes:
        attend: computes the call.
        encode: gives the weights or groups of the new tokens to store beside their keys; soft weights by default.
    """

    attend: Callable[[AttentionCall], AttentionOutput]
    encode: Callable[[LayerRouting], KeyQuery] = lambda routing: routing.weights


def attend_hard(call: AttentionCall) -> AttentionOutput:
    """Exact attention over the pairs that hard groups keep.

    Raises:
        FocusError: the model is in training mode with attention dropout.
    """
    if call.geometry.dropout > 0:
        raise FocusError("Hard routing has no attention dropout: call model.eval(), or train with soft routing.")
    if call.routing.router.from_keys:
        # A layer with a window of its own has few distant keys.
        return attend_narrow(call) if call.geometry.sliding_window is None else attend_fully(call)
    return focus_attention(
        call.query,
        call.key,
        call.value,
        call.groups.keys,
        query_membership=None if call.routing.router.reads_own_groups else call.groups.queries,
        window=call.config.window,
        sink_tokens=call.config.sink_tokens,
        positions=call.positions,
        sliding_window=call.geometry.sliding_window,
        scale=call.geometry.scale,
        softcap=call.geometry.softcap,
        backend=call.backend,
    )


def attend_soft(call: AttentionCall) -> AttentionOutput:
    """Attention through the gate of the settings in force."""
    return gated_attention(
        call.query,
        call.key,
        call.value,
        *call.groups,
        call.positions,
        call.config,
        scale=call.geometry.scale,
        softcap=call.geometry.softcap,
        sliding_window=call.geometry.sliding_window,
        dropout=call.geometry.dropout,
    )


def attend_fully(call: AttentionCall) -> AttentionOutput:
    """The untouched model's attention, whatever the groups."""
    return focus_attention(
        call.query,
        call.key,
        call.value,
        torch.ones(*call.positions.shape, 1, dtype=torch.bool, device=call.query.device),
        window=call.key.shape[2],
        positions=call.positions,
        sliding_window=call.geometry.sliding_window,
        scale=call.geometry.scale,
        softcap=call.geometry.softcap,
    )


def soft_weights(routing: LayerRouting) -> KeyQuery:
    """The weights of the new tokens, for the gate.

    Raises:
        FocusError: routers that have no gate.
    """
    if not routing.router.trained_by_gate:
        raise FocusError("Narrow groups have no soft gate: use hard routing, and fit them with fit_narrow.")
    return routing.weights


def _groups_to_store(routing: LayerRouting) -> KeyQuery:
    """`hard_groups`, and none where groups are of keys: attention takes those that it needs from the routing."""
    if routing.router.from_keys:
        nothing = torch.zeros(0, dtype=torch.bool, device=routing.hidden_states.device)
        return KeyQuery(nothing, nothing)
    return hard_groups(routing)


def hard_groups(routing: LayerRouting) -> KeyQuery:
    """The groups of the new tokens; those that queries read are not known before attention where groups are of keys."""
    if routing.router.from_keys:
        keys = routing.key_membership()
        return KeyQuery(keys, keys)
    return routing.membership()


UNTOUCHED = Rule(attend_fully, hard_groups)
"""The untouched model's attention, for observers of its groups."""

RULES: dict[str, Rule] = {
    "hard": Rule(attend_hard, _groups_to_store),
    "soft": Rule(attend_soft, soft_weights),
}
"""Rules by routing mode."""
