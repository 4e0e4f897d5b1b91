"""Cached, locked calls into the engine. Inputs in, CPU arrays out; nothing is stored on a model.

All sessions share one base model. An analysis attaches routers under the model's lock and detaches them at its end.
A bounded cache keeps results under everything they depend on, the text's SHA-256 included. So a session only gets
results of the text it sent.
"""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import streamlit as st

from focus_core import FocusConfig, FocusModel, analyze, load_model, retrofit
from focus_core.analysis import Trace
from focus_core.analysis.display.cells import Cell, build_cells
from focus_core.analysis.reading import untouched
from focus_core.analysis.tables import origin, text_hash
from focus_core.analysis.trace import RoutedLayer, key_memberships
from focus_core.errors import FocusError
from focus_core.io.reading import read_bytes
from focus_core.models import ModelInfo, default_model
from focus_core.progress import Progress
from focus_core.routing.routers import ROUTERS
from focus_core.routing.storage import saved_config, saved_heads
from focus_core.shipped import routers_folder, routers_made_for, shipped_routers
from focus_core.text import Encoding, encode
from workbench.engine import access
from workbench.engine.passes import SharedPass
from workbench.runs import jobs

UNTRAINED = "untrained"
STATES = {"untouched": "untouched model", "routed": "routed model"}
"""Whose hidden states are routed, by the name in links.

Hidden states of the untouched model do not depend on k, w or the sinks: hard routing with k = K is that model exactly.
So these settings change without a forward pass. Hidden states of the routed model depend on the chosen setting,
because every layer sees what earlier layers kept. There every change of k, w or the sinks runs the model again; and
always with narrow groups, whose queries choose by the text before them.
"""
MAX_TOKENS = 16_384
"""Longest text the workbench takes, if the model's own positions allow it."""

_USUAL_CHARACTERS_PER_TOKEN, _MAX_CHARACTERS_PER_TOKEN = 8, 40
_fetching = threading.Lock()
Result = TypeVar("Result")


@dataclass(frozen=True)
class Settings:
    """Settings of an analysis.

    Attributes:
        model: "default", a folder, a GGUF file or a hub id.
        routers: name of shipped routers, a folder, or "untrained".
        num_groups: K of untrained routers; saved ones bring their own.
        top_k: k.
        window: w.
        sink_tokens: tokens every later token reads.
        states: a key of `STATES`, the hidden states that are routed.
        layer_top_k: k of each routed layer, in place of `top_k`; None for one k everywhere.
        head: the analysed key/value head, of routers per head.
        read_share: share of the distant pairs that narrow routers read, in place of `top_k`; None for k.
    """

    model: str
    routers: str
    num_groups: int
    top_k: int
    window: int
    sink_tokens: int
    states: str = "untouched"
    layer_top_k: tuple[int, ...] | None = None
    head: int = 0
    read_share: float | None = None

    @property
    def changes(self) -> dict[str, Any]:
        """The fields of a `FocusConfig` that these settings change."""
        return {
            "top_k": self.top_k,
            "layer_top_k": self.layer_top_k,
            "read_share": self.read_share,
            "window": self.window,
            "sink_tokens": self.sink_tokens,
        }


@dataclass(frozen=True)
class Base:
    """A loaded model that all sessions share, and the lock that guards its forward passes."""

    model: Any
    tokenizer: Any
    info: ModelInfo
    lock: threading.Lock

    @property
    def max_tokens(self) -> int:
        """The longest text this model takes here."""
        positions = getattr(self.model.config, "max_position_embeddings", None) or MAX_TOKENS
        return min(MAX_TOKENS, positions)


@dataclass(frozen=True)
class Analysis:
    """A trace and all else that the pages need of a text.

    Attributes:
        trace: the routing.
        cells: the text cut into the characters that the token strip draws, see `focus_core.analysis.display.cells`.
        states: a key of `STATES`, whose hidden states were routed.
        text_name: what this session calls the text; the same text may have another name in another session.
        final_states: (T, d) float32 of the model whose states were routed, of which losses are made without its layers.
    """

    trace: Trace
    cells: list[Cell]
    states: str
    text_name: str = ""
    final_states: np.ndarray | None = None

    @property
    def origin(self) -> dict[str, Any]:
        """Model, routers, settings and text, for tables and reports that leave the app."""
        return origin(self.trace, STATES[self.states])


def routers_offered(model: str) -> list[str]:
    """The routers to choose from for a model: those shipped for it by its name, finished runs, and untrained ones.

    All that are shipped stand in place of the first where none were made for a model of this name: a folder may have
    any name.
    """
    made = routers_made_for(default_model.NAME if model == "default" else model)
    return [*(made or shipped_routers()), *jobs.finished_routers(), UNTRAINED]


def router_folder(routers: str) -> Path:
    """The folder of saved routers, shipped or the user's own.

    Raises:
        FocusError: there is none, or it may not be opened.
    """
    if routers.startswith(jobs.RUN):
        found = jobs.finished_routers().get(routers)
        if found is None:
            raise FocusError(
                f"There is no finished run {routers[len(jobs.RUN) :]!r} on this machine: choose other routers."
            )
        return found
    if access.roots() is not None and routers not in shipped_routers():
        return routers_folder(access.allowed_folder(routers))
    return routers_folder(routers)


def router_config(settings_routers: str, num_groups: int) -> FocusConfig:
    """The configuration that routers bring along, or that of untrained ones.

    Raises:
        FocusError: no such routers, or a damaged configuration.
    """
    if settings_routers == UNTRAINED:
        return FocusConfig(num_groups=num_groups, top_k=min(2, num_groups))
    return saved_config(router_folder(settings_routers))


def num_heads(routers: str) -> int:
    """Key/value heads that have routers of their own; 1 where all heads of a layer share one.

    Raises:
        FocusError: no such routers, or a damaged file.
    """
    if routers == UNTRAINED or not ROUTERS[router_config(routers, 8).router].per_head:
        return 1
    return saved_heads(router_folder(routers))


def narrow(routers: str) -> bool:
    """Whether queries of these routers choose narrow groups by the text before them.

    Raises:
        FocusError: no such routers, or a damaged configuration.
    """
    return ROUTERS[router_config(routers, 8).router].from_keys


def needs_fetch(model: str) -> bool:
    """Whether the model has to be downloaded before it can be loaded."""
    return model in ("default", default_model.NAME) and not default_model.is_cached()


def fetch(progress: Progress) -> None:
    """Download the default model; other sessions that ask meanwhile wait for this download."""
    with _fetching:
        default_model.fetch_default_model(progress)


@st.cache_resource(max_entries=2, show_spinner=False)
def load_base(model: str) -> Base:
    """Load a model, once for all sessions.

    Raises:
        FocusError: it cannot be loaded.
    """
    loaded = load_model(None if model == "default" else model, progress=lambda message, fraction: None)
    return Base(loaded.model, loaded.tokenizer, loaded.info, threading.Lock())


@st.cache_resource(show_spinner=False)
def warm_up() -> None:
    """Load the default model behind the pages, once, unless it has to be fetched first."""
    if not needs_fetch("default"):
        threading.Thread(target=load_base, args=("default",), daemon=True).start()


def encoding(model: str, text: str) -> Encoding:
    """The tokens of a text with the tokenizer's own opening, computed once for all pages, routers and sessions.

    Args:
        model: as in `Settings`.
        text: the text.

    Raises:
        FocusError: empty, or longer than this model takes here.
    """
    limit = load_base(model).max_tokens
    if len(text) > limit * _MAX_CHARACTERS_PER_TOKEN:
        raise FocusError(
            f"The text has {len(text):,} characters, far more than the {limit:,} tokens that fit: shorten or split it."
        )
    return _encoding(model, text_hash(text), text)


def beginning(model: str, text: str) -> str | None:
    """The beginning of a text that is too long, with as many tokens as fit; None if the text fits or has no tokens."""
    base = load_base(model)
    for per_token in (_USUAL_CHARACTERS_PER_TOKEN, _MAX_CHARACTERS_PER_TOKEN):  # never the whole of a huge text
        part = text[: base.max_tokens * per_token]
        try:
            tokens = encode(base.tokenizer, part, opening=True)
        except FocusError:
            return None
        if len(tokens.input_ids) > base.max_tokens:
            return text[: int(tokens.offsets[base.max_tokens - 1, 1])]
        if len(part) == len(text):
            return None
    return part


def analysis(settings: Settings, text: str, on_layer: Callable[[RoutedLayer], None] | None = None) -> Analysis:
    """Route a text, or return the cached result.

    Args:
        settings: of the analysis.
        text: the text.
        on_layer: called in this thread with the groups of each layer as soon as they are known; not for a cached
            result.

    Raises:
        FocusError: bad text, model, routers or settings, in one sentence.
    """
    run = settings
    if settings.states == "untouched" and not narrow(settings.routers):
        run = dataclasses.replace(settings, top_k=settings.num_groups, layer_top_k=None, window=0, sink_tokens=0)
    made = _made(run, _fingerprint(settings.routers), text_hash(text))
    base, tokens = load_base(settings.model), encoding(settings.model, text)
    found = made.result(lambda tell: _analysis(run, base, text, tokens, tell), on_layer)
    return found if run is settings else _at_setting(found, settings)


def settings_of(found: Analysis, model: str, routers: str) -> Settings:
    """The settings that led to an analysis, for another pass of the model.

    Args:
        found: the analysis.
        model: as in `Settings`.
        routers: as in `Settings`.
    """
    config = found.trace.config
    return Settings(
        model,
        routers,
        config.num_groups,
        config.top_k,
        config.window,
        config.sink_tokens,
        found.states,
        config.layer_top_k,
        found.trace.head or 0,
        config.read_share,
    )


def _at_setting(found: Analysis, settings: Settings) -> Analysis:
    """The analysis with the memberships of another k, w and number of sinks, from the same assignments."""
    trace = found.trace
    config = trace.config.replace(**settings.changes)
    membership = key_memberships(trace.assignment, config)
    return dataclasses.replace(found, trace=dataclasses.replace(trace, config=config, membership=membership))


@st.cache_resource(max_entries=32, show_spinner=False)
def _encoding(model: str, text_sha256: str, _text: str) -> Encoding:
    base = load_base(model)
    found = encode(base.tokenizer, _text, max_tokens=base.max_tokens, opening=True)
    for array in (found.input_ids, found.offsets):
        array.setflags(write=False)
    return found


@st.cache_resource(max_entries=16, show_spinner=False)
def _made(settings: Settings, routers_hash: str, text_sha256: str) -> SharedPass[RoutedLayer, Analysis]:
    return SharedPass()


def _analysis(
    settings: Settings, base: Base, text: str, tokens: Encoding, tell: Callable[[RoutedLayer], None]
) -> Analysis:
    states: list[np.ndarray] = []

    def work(focus: FocusModel) -> Trace:
        known = {"head": settings.head, "encoding": tokens}
        return analyze(focus, base.tokenizer, text, on_layer=tell, on_states=states.append, **known)

    with base.lock:
        trace = routed(base, settings, work)
    # The model's usual name, not the folder of the cache it was loaded from.
    provenance = dataclasses.replace(trace.provenance, model=base.info.name)
    trace = dataclasses.replace(trace, provenance=provenance)
    for array in (trace.scores, trace.assignment, trace.membership, *states):
        array.setflags(write=False)
    return Analysis(trace, build_cells(text, np.asarray(trace.offsets)), settings.states, final_states=states[0])


def routed(base: Base, settings: Settings, work: Callable[[FocusModel], Result]) -> Result:
    """Attach routers, do the work, detach them. The caller holds the model's lock."""
    config = router_config(settings.routers, settings.num_groups)
    if settings.routers == UNTRAINED:
        focus = retrofit(base.model, config, seed=0)
    else:
        focus = FocusModel.from_pretrained(base.model, router_folder(settings.routers))
    changes = settings.changes
    if settings.states == "untouched" and ROUTERS[config.router].from_keys:
        changes |= untouched(config)
    try:
        with focus.routing("hard", **changes):
            return work(focus)
    finally:
        focus.detach()


def _fingerprint(routers: str) -> str:
    if routers == UNTRAINED:
        return UNTRAINED
    files = sorted(path for path in router_folder(routers).iterdir() if path.suffix in (".json", ".safetensors"))
    return hashlib.sha256(b"".join(path.name.encode() + read_bytes(path) for path in files)).hexdigest()
