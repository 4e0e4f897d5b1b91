"""Attention shares of an analysis, cached between reruns: one more forward pass of the untouched model."""

from __future__ import annotations

import numpy as np
import streamlit as st

from focus_core.analysis.sparsity import mass_by_budget, mass_by_class, mass_of_trace
from workbench.engine import cached, service
from workbench.engine.plans import chosen_k
from workbench.engine.service import Analysis, Settings
from workbench.views.sparsity.tables import (
    MAX_QUERIES,
    Swept,
    key_memberships,
    query_memberships,
    swept_budgets,
    swept_k,
)


def attention_shares(analysis: Analysis, model: str, routers: str) -> tuple[Swept, np.ndarray, np.ndarray | None]:
    """Share of the untouched model's attention on each class of pairs, at the window and sinks of an analysis.

    Hidden states of the untouched model give the groups of every k at once; those of the routed model only at its k.

    Args:
        analysis: the routing.
        model: as in `service.Settings`.
        routers: as in `service.Settings`.

    Returns:
        The budgets: values of k, the plan among them if it is in force, or shares of the pairs; and (len, L, 4) shares
        of attention. With narrow groups also the pairs kept at each, mean over layers; else None.
    """
    config = analysis.trace.config
    if analysis.trace.parts is not None:
        settings = service.settings_of(analysis, model, routers)
        return _narrow_shares(cached.setting_key(analysis), settings, analysis)
    untouched, chosen = analysis.states == "untouched", chosen_k(config)
    swept = swept_k(config.num_groups, chosen) if untouched else (chosen,)
    settings = service.settings_of(analysis, model, routers)
    found = _attention_shares(cached.groups_key(analysis), config.window, config.sink_tokens, swept, settings, analysis)
    return swept, found, None


@st.cache_data(max_entries=16, show_spinner=False)
def _narrow_shares(key: str, _settings: Settings, _analysis: Analysis) -> tuple[Swept, np.ndarray, np.ndarray]:
    """Of the query head on show; what is read by the routed model is known at its own budget alone."""
    base, trace = service.load_base(_settings.model), _analysis.trace
    with base.lock:
        if _analysis.states != "untouched":
            mass = service.routed(base, _settings, lambda focus: mass_of_trace(focus, trace, max_queries=MAX_QUERIES))
            kept = cached.pair_table(_analysis)["kept"].to_numpy()
            return (chosen_k(trace.config),), mass, kept.mean(keepdims=True)
        budgets = swept_budgets(trace.config)
        found = service.routed(
            base,
            _settings,
            lambda focus: mass_by_budget(
                focus,
                trace.input_ids,
                list(budgets.values()),
                head=trace.head or 0,
                query_head=trace.query_head or 0,
                max_queries=MAX_QUERIES,
            ),
        )
    return tuple(budgets), found.mass, found.pairs.mean(1)


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
