"""Statistics of an analysis, cached between reruns under everything they depend on."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import streamlit as st

from focus_core.analysis import Trace, group_balance, persistence, sparsity
from focus_core.analysis.statistics import matching
from focus_core.routing.config import FocusConfig
from workbench.engine.service import Analysis

_ENTRIES = 32


def setting_key(analysis: Analysis) -> str:
    """Identifies an analysis: model, routers, text, hidden states, and every setting."""
    return json.dumps([analysis.origin, analysis.trace.config.to_json()])


def groups_key(analysis: Analysis) -> str:
    """Identifies the groups of an analysis: `setting_key` without budget, w and sinks where these change no group."""
    if analysis.states != "untouched":
        return setting_key(analysis)
    free = ("top_k", "layer_top_k", "read_share", "window", "sink_tokens", "query_head")
    settings = json.loads(analysis.trace.config.to_json())
    return json.dumps(
        [{name: value for name, value in part.items() if name not in free} for part in (analysis.origin, settings)]
    )


def layer_agreement(analysis: Analysis) -> np.ndarray:
    """`focus_core.analysis.persistence.layer_agreement` of an analysis."""
    return _layer_agreement(groups_key(analysis), analysis.trace.groups, analysis.trace.config.num_groups)


def churn(analysis: Analysis) -> persistence.Churn:
    """`focus_core.analysis.persistence.churn` of an analysis."""
    return _churn(groups_key(analysis), analysis.trace.groups, analysis.trace.config.num_groups)


def chance_band(analysis: Analysis, row: int, other: int) -> tuple[float, float]:
    """`focus_core.analysis.persistence.chance_band` of two rows of layers."""
    return _chance_band(groups_key(analysis), row, other, analysis.trace)


def agreement_within(first: Analysis, row: int, second: Analysis, other: int) -> matching.WithinText:
    """`matching.agreement_within` of a layer's row in each of two analyses of the same tokens."""
    return _agreement_within(groups_key(first), row, groups_key(second), other, first.trace, second.trace)


def balancing(analysis: Analysis) -> group_balance.Balancing:
    """`focus_core.analysis.group_balance.balancing` of an analysis, at its routers' temperature and rounds."""
    return _balancing(groups_key(analysis), analysis.trace.scores, analysis.trace.config)


def pair_table(analysis: Analysis) -> pd.DataFrame:
    """`focus_core.analysis.sparsity.pair_table` of an analysis at its setting."""
    return _pair_table(setting_key(analysis), analysis.trace)


@st.cache_data(max_entries=_ENTRIES, show_spinner=False)
def _layer_agreement(key: str, _groups: np.ndarray, _num_groups: int) -> np.ndarray:
    return persistence.layer_agreement(_groups, _num_groups)


@st.cache_data(max_entries=_ENTRIES, show_spinner=False)
def _churn(key: str, _groups: np.ndarray, _num_groups: int) -> persistence.Churn:
    return persistence.churn(_groups, _num_groups)


@st.cache_data(max_entries=4 * _ENTRIES, show_spinner=False)
def _chance_band(key: str, row: int, other: int, _trace: Trace) -> tuple[float, float]:
    return persistence.chance_band(_trace.groups[row], _trace.groups[other], _trace.config.num_groups)


@st.cache_data(max_entries=4 * _ENTRIES, show_spinner=False)
def _agreement_within(
    key: str, row: int, second_key: str, other: int, _first: Trace, _second: Trace
) -> matching.WithinText:
    sizes = _first.config.num_groups, _second.config.num_groups
    return matching.agreement_within(_first.groups[row], _second.groups[other], *sizes)


@st.cache_data(max_entries=_ENTRIES, show_spinner=False)
def _balancing(key: str, _scores: np.ndarray, _config: FocusConfig) -> group_balance.Balancing:
    return group_balance.balancing(_scores, temperature=_config.temperature, rounds=_config.sinkhorn_rounds)


@st.cache_data(max_entries=4 * _ENTRIES, show_spinner=False)
def _pair_table(key: str, _trace: Trace) -> pd.DataFrame:
    return sparsity.pair_table(_trace)
