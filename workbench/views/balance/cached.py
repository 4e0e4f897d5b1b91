"""The dependence of groups on later tokens, cached between reruns."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from focus_core.analysis import Trace
from workbench.engine.cached import groups_key
from workbench.engine.service import Analysis
from workbench.views.balance import tables


def future_table(analysis: Analysis, row: int) -> pd.DataFrame:
    """`workbench.views.balance.tables.future_table` of one layer of an analysis."""
    return _future_table(groups_key(analysis), row, analysis.trace)


@st.cache_data(max_entries=256, show_spinner=False)
def _future_table(key: str, row: int, _trace: Trace) -> pd.DataFrame:
    return tables.future_table(_trace, row)
