"""Attach routers to a Transformers decoder and detach them again, without a change to its code or weights.

`retrofit` freezes the base and returns a `FocusModel`. A forward pre-hook on every attention module sees the hidden
states and lets that layer's router assign groups. The registered attention function (`routing.decoder.interface`)
reads the result from the module in the same call. Nothing else of the model changes: any family that uses the
Transformers attention interface works, and `detach` restores it bit for bit.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from focus_core.errors import FocusError
from focus_core.models.heads import head_dim_of
from focus_core.routing.cache import cache_renamed
from focus_core.routing.config import FocusConfig
from focus_core.routing.decoder.families import own_window
from focus_core.routing.decoder.hooks import Before, InForce, Mode, Observer, Routing, after
from focus_core.routing.decoder.interface import NAME
from focus_core.routing.decoder.modules import attention_modules, decoder_layers
from focus_core.routing.decoder.parallel import own_heads
from focus_core.routing.routers import ROUTERS, Router
from focus_core.routing.rules import RULES, Rule
from focus_core.routing.storage import OtherModelError, read_routers, write_routers
from focus_core.shipped import FORMS, routers_folder, routers_of_form

logger = logging.getLogger(__name__)

OTHER_WEIGHTS = (
    "were made for other weights of this architecture, such as rounded ones: measure them with focus eval, or make "
    "your own with focus fit."
)
"""What is said of routers whose `FocusModel.base_matches` is False."""


class FocusModel(nn.Module):
    """A frozen decoder with one router per attention layer. Made by `retrofit`.

    Calls and `generate` go to the base model under the routing in force: hard routing with the configured settings,
    unless inside `routing(...)`. The mode belongs to this object, so concurrent callers need a lock.

    Attributes:
        model: the base model.
        config: settings that the routers were made with.
        routers: one `Router` per layer, keyed by layer index as a string.
        trained: False for routers that were only initialised.
        name: "untrained", or the folder the routers came from.
        base_matches: False if the routers were trained on other weights of the same architecture.
        sliding_windows: the base model's own window in each routed layer, None where it has none.
        attention_modules: the base model's attention in each routed layer, by layer index.
        decoder_layers: the base model's decoder layers that hold them, by layer index.
    """

    def __init__(self, model: PreTrainedModel, config: FocusConfig, seed: int) -> None:
        super().__init__()
        modules = attention_modules(model)
        chosen = tuple(modules) if config.layers is None else config.layers
        missing = sorted(set(chosen) - set(modules))
        if missing:
            raise FocusError(
                f"Layer {missing[0]} cannot get a router: {type(model).__name__} has attention layers "
                f"{min(modules)} to {max(modules)}."
            )
        _check_layers(config, len(chosen))
        generator = torch.Generator().manual_seed(seed)
        self.model = model
        self.config = config
        self.trained = False
        self.name = "untrained"
        self.base_matches = True
        text = model.config.get_text_config()
        num_kv_heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        self._own_heads = own_heads(model, config, num_kv_heads)
        width = text.hidden_size
        if ROUTERS[config.router].from_keys:
            width = head_dim_of(model)
        self.routers = nn.ModuleDict(
            {str(i): config.new_router(width, num_kv_heads, generator, text.num_attention_heads) for i in chosen}
        )
        for i in chosen:
            device = next(modules[i].parameters()).device
            if device.type != "cpu":
                self.routers[str(i)].to(device)
        self._base_flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
        self._base_implementation = model.config._attn_implementation or "eager"
        self._handles: list[Any] = []
        self._in_force = InForce(Routing("hard", config))
        self.sliding_windows = tuple(own_window(modules[i]) for i in chosen)
        self.attention_modules = {i: modules[i] for i in chosen}
        self.decoder_layers = decoder_layers(model, self.attention_modules)
        self._attach(self.attention_modules)

    def _attach(self, modules: dict[int, nn.Module]) -> None:
        for parameter, _ in self._base_flags:
            parameter.requires_grad_(False)
        for place, (layer, module) in enumerate(modules.items()):
            before = Before(layer, place, module, partial(self.router, layer), self._in_force)
            self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            self._handles.append(module.register_forward_hook(after))
        self.model.set_attn_implementation(NAME)

    def detach(self) -> PreTrainedModel:
        """Detach the routers and return the untouched base model, bit for bit. This object is then unusable."""
        if not self._handles:  # detached before; the model may have other routers now
            return self.model
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.model.set_attn_implementation(self._base_implementation)
        for parameter, requires_grad in self._base_flags:
            parameter.requires_grad_(requires_grad)
        return self.model

    def _require_attached(self) -> None:
        if not self._handles:
            raise FocusError("These routers are detached: attach them again with FocusModel.from_pretrained.")

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The base model's forward under the routing in force; a cache may go by its older name or its newer one."""
        self._require_attached()
        return self.model(*args, **cache_renamed(self.model, kwargs))

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """The base model's `generate` under the routing in force; `balance` must not be "sequence"."""
        self._require_attached()
        generate: Any = self.model.generate
        return generate(*args, **cache_renamed(self.model, kwargs))

    def _keep_own_heads(self) -> FocusModel:
        """Drop the routers of heads that other processes hold; the last step of attaching."""
        if self._own_heads is not None:
            for layer in self.layers:
                self.router(layer).keep_heads(*self._own_heads)
        return self

    @property
    def layers(self) -> tuple[int, ...]:
        """Indices of the layers that have a router."""
        return tuple(int(name) for name in self.routers)

    def router(self, layer: int) -> Router:
        """The router of one layer."""
        router = self.routers[str(layer)]
        assert isinstance(router, Router)
        return router

    def trainable_parameters(self) -> Iterator[nn.Parameter]:
        """The routers' parameters, the only ones that centroid-only training changes."""
        return self.routers.parameters()

    @property
    def current(self) -> Routing:
        """The routing in force."""
        return self._in_force.routing

    @contextmanager
    def routing(
        self, mode: Mode, *, backend: str = "auto", rule: Rule | None = None, **changes: Any
    ) -> Iterator[FocusModel]:
        """Attend in another mode or with other settings inside a `with` block.

        Args:
            mode: "hard", "soft" or "off".
            backend: attention backend of hard routing, see `focus_core.attention.BACKENDS`. Narrow groups have those of
                `focus_core.routing.narrow.attention.NARROW_BACKENDS` for whole texts; tokens that follow a cache, and
                layers with a window of their own, take the way of "auto" whatever it is.
            rule: replaces the mode's own rule (training objectives).
            changes: settings of `FocusConfig` to change: top_k (for all layers), layer_top_k, window, sink_tokens.

        Raises:
            FocusError: unknown mode, settings that need other routers, or routers that are detached.
        """
        self._require_attached()
        if mode not in (*RULES, "off"):
            raise FocusError(f"Routing mode is {mode!r}: choose one of {', '.join(RULES)}, off.")
        fixed = {"router", "num_groups", "route_dim", "score", "layers"} & set(changes)
        if changes.get("shares_at", self.config.shares_at) != self.config.shares_at:
            fixed.add("shares_at")
        if fixed:
            raise FocusError(f"{sorted(fixed)[0]} belongs to the routers: retrofit the model with the new value.")
        previous = self._in_force.routing
        config = self.config.replace(**changes)
        _check_layers(config, len(self.routers))
        self._enter(Routing(mode, config, backend, rule))
        try:
            yield self
        finally:
            if self._handles:
                self._enter(previous)

    def attend(self, **changes: Any) -> None:
        """Attend by hard routing with other settings from now on; `changes` are those of `routing`."""
        with self.routing("hard", **changes):
            chosen = self._in_force.routing
        self._enter(chosen)

    def resettle(self, **changes: Any) -> None:
        """Change settings as if the routers had been made with them; `changes` are those of `routing`."""
        self.attend(**changes)
        self.config = self.config.replace(**changes)

    def _enter(self, routing: Routing) -> None:
        self._in_force.routing = routing
        self.model.set_attn_implementation(self._base_implementation if routing.mode == "off" else NAME)

    @contextmanager
    def observe(self, observer: Observer | None) -> Iterator[None]:
        """Call `observer` with the `LayerRouting` of every routed layer inside a `with` block."""
        previous, self._in_force.observer = self._in_force.observer, observer
        try:
            yield
        finally:
            self._in_force.observer = previous

    def save_pretrained(self, path: str | Path, *, write: bool = True) -> None:
        """Write the routers alone: `routers.safetensors` and `focus_config.json`; see `focus_core.routing.storage`.

        Args:
            path: the folder.
            write: False in all processes but one of a sharded model; they call this only to give their shards.

        Raises:
            FocusError: this process holds the routers of some heads alone, or a value is not finite.
        """
        if self._own_heads is not None:
            raise FocusError("This process has the routers of its own heads alone: save those of a whole model.")
        write_routers(Path(path), self.model, self.config, self.routers, trained=self.trained, write=write)

    @classmethod
    def from_pretrained(cls, model: PreTrainedModel, path: str | Path) -> FocusModel:
        """Attach saved routers: a folder that `save_pretrained` wrote, or the name of routers that are shipped.

        Raises:
            FocusError: no such folder or name, damaged files, or routers of another model or shape.
        """
        attention_modules(model)
        saved = read_routers(routers_folder(path), model)
        focus = cls(model, saved.config, seed=0)
        try:
            saved.fill(focus.routers)
        except BaseException:
            focus.detach()
            raise
        focus.trained = saved.trained
        focus.name = saved.folder.resolve().name
        focus.base_matches = saved.base_matches
        return focus._keep_own_heads()


def retrofit(model: PreTrainedModel, config: FocusConfig | str | Path | None = None, *, seed: int = 0) -> FocusModel:
    """Freeze a decoder and attach a router to each attention layer: an untrained one, or one that was saved.

    Args:
        model: any causal language model of Transformers that uses the attention interface.
        config: settings of untrained routers, the defaults of `FocusConfig` when None. Or saved routers: "best" for
            those that are shipped for the model, the default ones first; "published" for those of the published form;
            a shipped name; or a folder.
        seed: of the initial values of untrained routers.

    Returns:
        The model with routers, in hard routing.

    Raises:
        FocusError: a model that cannot be retrofitted, or already is; no routers are shipped for it; or there are no
            such routers, or those of another model.
    """
    if config is None or isinstance(config, FocusConfig):
        return FocusModel(model, config or FocusConfig(), seed)._keep_own_heads()
    if str(config) not in FORMS:
        return FocusModel.from_pretrained(model, config)
    found = retrofit_shipped(model, routers_of_form(str(config)))
    if found is None:
        raise FocusError(
            f"No routers of the form {str(config)!r} are shipped for this {type(model).__name__}: run focus fit to "
            "make some, or focus train for those of the published form."
        )
    return found


def retrofit_shipped(model: PreTrainedModel, names: Sequence[str]) -> FocusModel | None:
    """A decoder with the first of these shipped routers that fit it; None where none do.

    Says so where they were made for other weights of the same architecture.

    Raises:
        FocusError: a model that cannot be retrofitted, or already is; or routers that are damaged.
    """
    attention_modules(model)
    for name in names:
        try:
            focus = FocusModel.from_pretrained(model, name)
        except OtherModelError:
            continue
        if not focus.base_matches:
            logger.warning(f"The routers {name} {OTHER_WEIGHTS}")
        return focus
    return None


def _check_layers(config: FocusConfig, routed: int) -> None:
    if config.layer_top_k is not None and len(config.layer_top_k) != routed:
        raise FocusError(
            f"layer_top_k has {len(config.layer_top_k)} entries for {routed} routed layers: give one each."
        )
