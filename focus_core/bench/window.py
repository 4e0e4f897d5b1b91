"""A window with sinks as a rule for whole models, as wide as a share of the pairs demands."""

from __future__ import annotations

import torch

from focus_core.attention import AttentionOutput, focus_attention, kept_pairs
from focus_core.routing.config import FocusConfig
from focus_core.routing.layer import KeyQuery, LayerRouting
from focus_core.routing.rules import AttentionCall, Rule


def window_rule(window: int, sinks: int) -> Rule:
    """A window with sinks through the backend of routed calls, in every layer; no router is asked."""

    def nobody(routing: LayerRouting) -> KeyQuery:
        batch, tokens = routing.hidden_states.shape[:2]
        rows, groups = batch * routing.router.num_heads, routing.config.num_groups
        empty = torch.zeros(rows, tokens, groups, dtype=torch.bool, device=routing.hidden_states.device)
        return KeyQuery(empty, empty)

    def attend(call: AttentionCall) -> AttentionOutput:
        # One text of several heads, as routers per layer have it.
        heads = call.routing.router.num_heads
        query, key, value = (
            part.unflatten(0, (-1, heads)).flatten(1, 2) for part in (call.query, call.key, call.value)
        )
        output = focus_attention(
            query,
            key,
            value,
            call.groups.keys[::heads, :, :1],
            window=window,
            sink_tokens=sinks,
            positions=call.positions[::heads],
            sliding_window=call.geometry.sliding_window,
            scale=call.geometry.scale,
            softcap=call.geometry.softcap,
        )
        return AttentionOutput(*(part.unflatten(1, (heads, -1)).flatten(0, 1) for part in output))

    return Rule(attend, nobody)


def window_of_share(share: float, tokens: int, window: int, sinks: int) -> int:
    """The smallest window, at least `window`, with which it and sinks keep a share of the pairs beyond `window`.

    Args:
        share: 0 to 1.
        tokens: T.
        window: w, beyond which pairs are distant.
        sinks: first tokens that every query keeps.
    """
    apart = torch.arange(window + 1, max(window + 1, tokens))
    pairs = tokens - apart
    kept = pairs.clamp(max=sinks).sum() + (pairs - pairs.clamp(max=sinks)).cumsum(0)
    enough = int((kept < share * pairs.sum()).sum())
    return window if share * float(pairs.sum()) <= float(pairs.clamp(max=sinks).sum()) else window + 1 + enough


def window_kept(tokens: int, width: int, config: FocusConfig) -> tuple[float, float]:
    """Share of causal pairs and of distant pairs in a window with sinks."""
    nobody = torch.zeros(1, tokens, 1, dtype=torch.bool)
    ours, near = (
        kept_pairs(nobody, window=window, sink_tokens=config.sink_tokens) for window in (width, config.window)
    )
    distant = max(1, int(near.distant))
    return float(ours.kept_share), (int(ours.kept) - int(near.local)) / distant
