"""Layers: do groups persist?"""

from __future__ import annotations

import numpy as np
import pandas as pd
import streamlit as st

from focus_core.analysis import Trace
from focus_core.analysis.persistence import Churn
from workbench.charts.theme import is_dark
from workbench.engine import cached
from workbench.engine.service import Analysis
from workbench.shell import state
from workbench.shell.frame import open_page
from workbench.shell.sidebar import GROUPS
from workbench.views.layers.charts import agreement_map, churn_line, flow_map
from workbench.views.layers.tables import (
    FEW_TOKENS,
    agreement_table,
    churn_order,
    flow_sentence,
    flow_table,
    step_table,
    token_churn,
    verdict,
)
from workbench.widgets.export import chart, downloads
from workbench.widgets.group_link import await_labels, group_column, group_urls, labels_here, labels_place
from workbench.widgets.guard import guarded
from workbench.widgets.layer import layer_slider
from workbench.widgets.page.empty import empty_state

QUESTION = (
    "Every layer has its own router, and its group numbers mean nothing in other layers. This page shows whether "
    "tokens that share a group in one layer share one in others."
)
SHARE = st.column_config.NumberColumn(format="percent")
THREE = st.column_config.NumberColumn(format="%.3f")
LISTED = 25


def main() -> None:
    """Draw the page."""
    analysis = open_page("Layers: do groups persist?", QUESTION, parts=GROUPS)
    if analysis is None:
        _empty_state()
        return
    _layers(analysis)


@st.fragment
def _layers(analysis: Analysis) -> None:
    with guarded():
        waiting = labels_place()
        trace = analysis.trace
        with st.spinner("Comparing every layer with every other …", show_time=True):
            agreement, churn = cached.layer_agreement(analysis), cached.churn(analysis)
        st.markdown(f"#### {verdict(trace, churn, agreement)}")
        if len(trace.layers) > 1 and len(trace.tokens) >= FEW_TOKENS:
            row, other = _two_layers(trace)
            band = cached.chance_band(analysis, row, other)
            st.markdown(flow_sentence(trace, row, other, band, float(agreement[row, other])))
            _maps(analysis, agreement, row, other)
            st.divider()
            steps = step_table(trace, churn, agreement)
            chart(
                churn_line(steps, dark=is_dark()),
                steps,
                analysis.origin,
                name="churn-by-layer",
                alt="Share of tokens that change their matched group at each step between layers, beside chance.",
                column_config={"tokens that change": SHARE, "by chance": SHARE, "AMI": THREE},
            )
            _tokens(analysis, churn, row)
        state.publish()
        await_labels(trace, waiting)


def _two_layers(trace: Trace) -> tuple[int, int]:
    left, right = st.columns(2, gap="medium")
    with left:
        first = layer_slider(trace, "The layer whose groups are followed: rows of the flow chart.")
    with right:
        second = layer_slider(
            trace,
            "The layer in which their tokens are looked up: columns of the flow chart.",
            label="Compared with layer",
            key="other",
            default=min(first + 1, len(trace.layers) - 1),
        )
    return first, second


def _maps(analysis: Analysis, agreement: np.ndarray, row: int, other: int) -> None:
    trace, dark = analysis.trace, is_dark()
    names = labels_here(analysis, row), labels_here(analysis, other)
    left, right = st.columns(2, gap="medium")
    with left:
        chart(
            agreement_map(trace, agreement, row, other, dark=dark),
            lambda: agreement_table(trace, agreement),
            analysis.origin,
            name="layer-agreement",
            alt=f"Adjusted mutual information of the groups of {len(trace.layers)} layers, each with each.",
            column_config={"AMI": THREE},
        )
        st.caption(
            "AMI: adjusted mutual information. 0 is the mean of independent groups of the same sizes; 1 means the same "
            "groups, whatever their numbers."
        )
    with right:
        chart(
            flow_map(trace, row, other, dark=dark, names=names),
            lambda: flow_table(trace, row, other),
            analysis.origin,
            name="flow",
            file=f"flow-{trace.layers[row]}-{trace.layers[other]}",
            alt=f"Share of each group of layer {trace.layers[row]} in each group of layer {trace.layers[other]}.",
            column_config={
                "share of group": SHARE,
                "group": group_column(),
                "other group": group_column("other group"),
            },
            shown=lambda table: table.assign(
                **{
                    name: group_urls(table[name], trace.layers[place], trace.head, own)
                    for name, place, own in zip(("group", "other group"), (row, other), names)
                }
            ),
        )
        st.caption(
            "Each row adds up to 100%. Matched groups lie on the diagonal: the pairing that holds the most tokens "
            "(Hungarian method)."
        )


def _tokens(analysis: Analysis, churn: Churn, row: int) -> None:
    trace, order = analysis.trace, churn_order(churn)
    steps = len(churn.changed)
    st.markdown(
        f"**Churn of a token**: the share of the {steps} steps between neighbouring layers at which it leaves its "
        "matched group."
    )
    layer, names = trace.layers[row], labels_here(analysis, row)
    group = f"group in layer {layer}"
    columns = {  # as wide as a window of 1,200 pixels
        "token": st.column_config.NumberColumn(width=56),
        "in context": st.column_config.TextColumn(width=400),
        "churn": st.column_config.NumberColumn(format="percent", width=64, help=f"Of {steps} steps."),
        group: group_column("group", width=170),
    }

    def shown(tokens: np.ndarray) -> pd.DataFrame:
        table = token_churn(trace, churn, row, tokens)
        return table.assign(**{group: group_urls(table[group], layer, trace.head, names)})

    ends = {"Most stable": ("stable", order[:LISTED]), "Least stable": ("unstable", order[::-1][:LISTED])}
    for title, (key, tokens) in ends.items():
        st.markdown(title)
        st.dataframe(
            shown(tokens),
            hide_index=True,
            height=320,
            key=key,
            column_order=list(columns),
            column_config=columns,
        )
    downloads(lambda: token_churn(trace, churn, row, order), analysis.origin, name="token-churn")


def _empty_state() -> None:
    empty_state(
        "You will see:\n"
        "1. **Agreement of layers**: every layer against every other, beside chance.\n"
        "2. **Flow**: the groups of one layer in another, groups matched.\n"
        "3. **Churn**: how often tokens leave their matched group, and the tokens that do so most and least."
    )


with guarded():
    main()
