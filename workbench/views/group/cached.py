"""Centroids and reading of an analysis, cached between reruns."""

from __future__ import annotations

import numpy as np
import streamlit as st

from workbench.engine import service
from workbench.engine.cached import groups_key, setting_key
from workbench.engine.service import Analysis, Settings
from workbench.views.group.tables import reading_counts


def centroids(analysis: Analysis, model: str, routers: str) -> dict[int, np.ndarray]:
    """(K, D) centroids of each layer, of the head on show.

    Args:
        analysis: of the text.
        model: as in `service.Settings`.
        routers: likewise.
    """
    settings = service.settings_of(analysis, model, routers)
    return _centroids(groups_key(analysis), settings, analysis.trace.head or 0)


def reading(analysis: Analysis, row: int) -> tuple[np.ndarray, np.ndarray]:
    """`reading_counts` of one layer."""
    return _reading(setting_key(analysis), analysis.trace.query_head or 0, row, analysis)


@st.cache_resource(max_entries=8, show_spinner=False)
def _centroids(key: str, _settings: Settings, _head: int) -> dict[int, np.ndarray]:
    base = service.load_base(_settings.model)
    with base.lock:
        return service.routed(
            base,
            _settings,
            lambda focus: {
                layer: (own[_head] if own.ndim == 3 else own).float().cpu().numpy()
                for layer in focus.layers
                for own in (focus.router(layer).centroids.detach(),)
            },
        )


@st.cache_resource(max_entries=32, show_spinner=False)
def _reading(key: str, query_head: int, row: int, _analysis: Analysis) -> tuple[np.ndarray, np.ndarray]:
    return reading_counts(_analysis.trace, row)
