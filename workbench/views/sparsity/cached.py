"""Attention shares of an analysis, cached between reruns: one more forward pass of the untouched model."""

from __future__ import annotations

import numpy as np
import streamlit as st

from focus_core.analysis.sparsity import mass_by_class
from workbench.engine import cached, service
from workbench.engine.plans import chosen_k
from workbench.engine.service import Analysis, Settings
from workbench.views.sparsity.tables import MAX_QUERIES, Swept, key_memberships, query_memberships, swept_k


def attention_shares(analysis: Analysis, model: str, routers: str) -> tuple[Swept, np.ndarray]:
    """Share of the untouched model's attention on each class of pairs, at the window and sinks of an analysis.

    Hidden states of the untouched model give the groups of every k at once; those of the routed model only at its k.

    Args:
        analysis: the routing.
        model: as in `service.Settings`.
        routers: as in `service.Settings`.

    Returns:
        The values of k, the plan among them if it is in force, and (len, L, 4) shares.
    """
    config = analysis.trace.config
    untouched, chosen = analysis.states == "untouched", chosen_k(config)
    swept = swept_k(config.num_groups, chosen) if untouched else (chosen,)
    settings = service.settings_of(analysis, model, routers)
    return swept, _attention_shares(
        cached.groups_key(analysis), config.window, config.sink_tokens, swept, settings, analysis
    )


@st.cache_data(max_entries=16, show_spinner=False)
def _attention_shares(
    key: str, window: int, sink_tokens: int, swept: Swept, _settings: Settings, _analysis: Analysis
) -> np.ndarray:
    base, trace = service.load_base(_settings.model), _analysis.trace
    with base.lock:
        return service.routed(
            base,
            _settings,
            lambda focus: mass_by_class(
                focus,
                trace.input_ids,
                key_memberships(trace, swept),
                query_memberships=query_memberships(trace, swept),
                head=trace.head,
                window=window,
                sink_tokens=sink_tokens,
                max_queries=MAX_QUERIES,
            ),
        )
