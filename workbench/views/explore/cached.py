"""The values that can tint the strip, cached between reruns: at most one more pass of the model."""

from __future__ import annotations

import dataclasses

import numpy as np
import streamlit as st

from focus_core.analysis.token_values import (
    BothLosses,
    losses_from_states,
    routed_losses,
    unread_attention,
    untouched_losses,
)
from focus_core.errors import FocusError
from workbench.engine import service
from workbench.engine.cached import setting_key
from workbench.engine.service import Analysis, Settings
from workbench.views.explore.overlays import Overlay, change_overlay, loss_overlay, unread_overlay


def overlay(kind: str, analysis: Analysis, row: int, model: str, routers: str) -> Overlay | None:
    """The chosen overlay of an analysis; None for groups.

    Args:
        kind: a key of `OVERLAYS`.
        analysis: of the text.
        row: row of the traced layers.
        model: as in `service.Settings`.
        routers: likewise.

    Raises:
        FocusError: the text has a single token, so none is predicted.
    """
    if kind == "groups":
        return None
    trace, settings = analysis.trace, service.settings_of(analysis, model, routers)
    if kind == "unread":
        key, layer = setting_key(analysis), trace.layers[row]
        return unread_overlay(trace, row, _unread(key, layer, settings, analysis))
    if len(trace.tokens) < 2:
        raise FocusError("The text has a single token, and none is predicted: give a longer text to see losses.")
    # The loss is that of the whole model, whichever states and head the page shows.
    whole = dataclasses.replace(settings, states="routed", head=0)
    provenance, text = trace.provenance, analysis.origin["text_sha256"]
    untouched = _untouched(model, provenance.model_revision, text, whole, analysis)
    if kind == "loss":
        return loss_overlay(trace, untouched)
    return change_overlay(trace, BothLosses(untouched, _routed(whole, provenance.routers_hash, text, analysis)))


@st.cache_data(max_entries=16, show_spinner=False)
def _untouched(model: str, revision: str, text_sha256: str, _settings: Settings, _analysis: Analysis) -> np.ndarray:
    """(T,) losses of the untouched model: of the analysis' own final states where they are that model's."""
    base, ids = service.load_base(model), np.array(_analysis.trace.input_ids)
    with base.lock:
        if _analysis.states == "untouched" and _analysis.final_states is not None:
            return losses_from_states(base.model, ids, _analysis.final_states)
        return service.routed(base, _settings, lambda focus: untouched_losses(focus, ids))


@st.cache_data(max_entries=16, show_spinner=False)
def _routed(settings: Settings, routers_hash: str, text_sha256: str, _analysis: Analysis) -> np.ndarray:
    """(T,) losses of the routed model: of the analysis' own final states where they are that model's."""
    base, ids = service.load_base(settings.model), np.array(_analysis.trace.input_ids)
    with base.lock:
        if _analysis.states == "routed" and _analysis.final_states is not None:
            return losses_from_states(base.model, ids, _analysis.final_states)
        return service.routed(base, settings, lambda focus: routed_losses(focus, ids))


@st.cache_data(max_entries=64, show_spinner=False)
def _unread(key: str, layer: int, _settings: Settings, _analysis: Analysis) -> np.ndarray:
    """(T,) of one layer; the layers after it are not run."""
    base, routed, trace = service.load_base(_settings.model), _analysis.states == "routed", _analysis.trace
    with base.lock:
        found = service.routed(
            base, _settings, lambda focus: unread_attention(focus, trace, routed=routed, layers=[layer])
        )
    return found[0]
