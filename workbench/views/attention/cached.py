"""The attention of one token, cached between reruns."""

from __future__ import annotations

import dataclasses

import numpy as np
import streamlit as st

from focus_core.analysis.interventions.attention import TokenAttention, token_attention
from focus_core.routing.model import FocusModel
from workbench.engine import service
from workbench.engine.cached import setting_key
from workbench.engine.service import Analysis, Settings


def attention_of(analysis: Analysis, layer: int, head: int, token: int, model: str, routers: str) -> TokenAttention:
    """What a token reads in one layer, in the hidden states that the page routes.

    Args:
        analysis: of the text.
        layer: number of the layer.
        head: key/value head.
        token: place of the query.
        model: as in `service.Settings`.
        routers: likewise.
    """
    # The budget of routing is in force in this layer, whatever the layers below do.
    settings = dataclasses.replace(service.settings_of(analysis, model, routers), states="routed")
    below = analysis.states == "routed"
    return _attention(setting_key(analysis), layer, head, token, below, settings, analysis)


@st.cache_resource(max_entries=64, show_spinner=False)
def _attention(
    key: str, layer: int, head: int, token: int, below: bool, _settings: Settings, _analysis: Analysis
) -> TokenAttention:
    base, ids = service.load_base(_settings.model), np.array(_analysis.trace.input_ids)

    def found(focus: FocusModel) -> TokenAttention:
        return token_attention(focus, ids, layer, head, token, routed=below)

    with base.lock:
        return service.routed(base, _settings, found)
