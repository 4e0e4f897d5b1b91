"""The hooks of one attention module: what routes the tokens that enter it, and what sees that they were routed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from focus_core.errors import FocusError
from focus_core.routing.balance import BALANCES
from focus_core.routing.cache import given_cache, past_length
from focus_core.routing.config import FocusConfig
from focus_core.routing.decoder.families import own_window, rotates
from focus_core.routing.decoder.interface import PENDING, Pending
from focus_core.routing.layer import LayerRouting
from focus_core.routing.narrow.cache.layer import narrow_layer
from focus_core.routing.routers import Router
from focus_core.routing.rules import RULES, Rule

Mode = Literal["hard", "soft", "off"]


@dataclass(frozen=True)
class Routing:
    """The mode and settings that a `FocusModel` attends with at the moment.

    Attributes:
        mode: "hard" (top-k groups, exact sparse attention), "soft" (the training gate) or "off" (the base model).
        config: settings in force.
        backend: attention backend of hard routing.
        rule: replaces the mode's own rule (training objectives).
    """

    mode: Mode
    config: FocusConfig
    backend: str = "auto"
    rule: Rule | None = None


Observer = Callable[[LayerRouting], None]
"""Called with the routing of every routed layer, before its attention is computed."""


@dataclass
class InForce:
    """What the hooks of all layers of a model follow at the moment; the model changes it.

    Attributes:
        routing: the routing in force.
        observer: who is told of every routed layer; None for nobody.
    """

    routing: Routing
    observer: Observer | None = None


class Before:
    """Pre-hook of one attention module: routes the hidden states that enter it.

    Args:
        layer: index of the layer.
        place: its index among the layers that have a router.
        module: the attention module.
        router: returns that of the layer, which may be exchanged.
        in_force: of the model.
    """

    def __init__(
        self, layer: int, place: int, module: nn.Module, router: Callable[[], Router], in_force: InForce
    ) -> None:
        self.layer = layer
        self.router = router
        self.in_force = in_force
        self.place = place
        self.signature = inspect.signature(module.forward)
        self.sliding_window = own_window(module)
        self.rotates = rotates(module)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Leave the routing of this call where the attention function finds it.

        Raises:
            FocusError: a mask, a cache or a rule that this routing does not take.
        """
        module.__dict__.pop(PENDING, None)  # left by a call that failed
        routing = self.in_force.routing
        if routing.mode == "off":
            return
        given = extra = kwargs
        if args:  # decoder layers of Transformers name everything, and binding takes its time in decoding
            given = self.signature.bind_partial(*args, **kwargs).arguments
            extra = given.get("kwargs", {})
        router, hidden_states = self.router(), given["hidden_states"]
        attention_mask = given.get("attention_mask", extra.get("attention_mask"))
        past = given_cache(given, extra)
        narrow, sliding_window = None, self.sliding_window
        if router.from_keys and (routing.mode, routing.rule) == ("hard", None) and sliding_window is None:
            narrow = narrow_layer(past, self.layer)
        seen = past_length(past, self.layer)
        if attention_mask is not None and attention_mask.ndim != 2:
            raise FocusError(
                f"Focus reads padding from a (batch, tokens) attention mask, not from one of shape "
                f"{tuple(attention_mask.shape)}: pass the tokenizer's attention_mask."
            )
        if seen and not BALANCES[routing.config.balance].causal:
            raise FocusError(
                f"Balance {routing.config.balance!r} needs the whole text at once and cannot continue from a cache: "
                "use balance='calibrated' for generation."
            )
        if seen and router.from_keys and narrow is None and routing.rule is not None:
            raise FocusError(
                "A rule of your own gets whole texts where groups are of keys, and cannot continue from a cache: "
                "pass use_cache=False."
            )
        num_queries = hidden_states.shape[1]
        valid = None
        if attention_mask is not None:
            if attention_mask.shape[1] < seen + num_queries:
                raise FocusError(
                    f"The attention mask has {attention_mask.shape[1]} columns for {seen + num_queries} tokens: pass "
                    "the mask of all tokens so far, those in the cache included."
                )
            valid = attention_mask[:, seen : seen + num_queries].to(hidden_states.device, torch.bool)
        layer_routing = LayerRouting(
            self.layer,
            router,
            routing.config,
            routing.config.top_k_of(self.place),
            hidden_states,
            None if valid is None else valid.repeat_interleave(router.num_heads, 0),
            sliding_window,
        )
        rule = routing.rule or RULES[routing.mode]
        observer, rotation = None, None
        if router.from_keys:
            observer = self.in_force.observer
            if self.rotates:
                rotation = given.get("position_embeddings", extra.get("position_embeddings"))
        elif self.in_force.observer is not None:
            self.in_force.observer(layer_routing)
        if narrow is not None:
            narrow.armed = True
        module.__dict__[PENDING] = Pending(
            layer_routing, rule, routing.backend, attention_mask, past, seen, observer, rotation, narrow
        )


def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
    """Hook of one attention module: refuses a module whose attention did not take the routing that `Before` left.

    Raises:
        FocusError: it did not.
    """
    if module.__dict__.pop(PENDING, None) is not None:
        raise FocusError(
            f"{type(module).__name__} does not send its attention through the Transformers attention interface, "
            "so Focus cannot route it: choose a model that does."
        )
