"""Sparsity: which pairs are computed?"""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import streamlit as st

from focus_core.analysis.sparsity import CLASSES, pooled_mask
from workbench.charts.theme import is_dark
from workbench.engine import cached
from workbench.engine.plans import chosen_k
from workbench.engine.service import Analysis
from workbench.shell import state
from workbench.shell.frame import open_page
from workbench.views.sparsity.cached import attention_shares
from workbench.views.sparsity.charts import frontier, mask_image, share_bars
from workbench.views.sparsity.tables import (
    MAX_QUERIES,
    Swept,
    attention_sentence,
    attention_table,
    key_memberships,
    layer_sentence,
    mask_table,
    verdict,
)
from workbench.widgets.export import chart
from workbench.widgets.guard import guarded
from workbench.widgets.layer import layer_slider

VIEWS = {"mask": "Pattern", "layers": "Pairs by layer", "mass": "Attention kept"}
QUESTION = (
    "A pair of tokens is computed if it is local (at most w apart), if the earlier token is a sink, or if both share a "
    "group. All other pairs are dropped. This page shows the pairs that are left, and how much attention they hold."
)
SHARE = st.column_config.NumberColumn(format="percent")
SHARES = {name: SHARE for name in (*CLASSES, "kept", "exposure", "random kept", "mass kept", "pairs kept")}
BOUND = st.column_config.NumberColumn(format="%.2f×", help="1 / kept: the largest speed-up that attention can have.")


def main() -> None:
    """Draw the page."""
    analysis = open_page("Sparsity: which pairs are computed?", QUESTION)
    if analysis is None:
        _empty_state()
        return
    _sparsity(analysis)


@st.fragment
def _sparsity(analysis: Analysis) -> None:
    with guarded():
        trace = analysis.trace
        with st.spinner("Counting pairs in every layer …", show_time=True):
            pairs = cached.pair_table(analysis)
        st.markdown(f"#### {verdict(trace, pairs)}")
        row = layer_slider(trace, "The layer whose pattern is drawn; it is framed in the other charts.")
        st.markdown(layer_sentence(trace, row, pairs))
        state.choose("computed", list(VIEWS))
        view = st.segmented_control(
            "View",
            list(VIEWS),
            format_func=lambda name: VIEWS[name],
            key="computed",
            required=True,
            help="The pattern of one layer, the shares of all layers, or the untouched model's attention on the kept "
            "pairs. The last one runs the model again.",
            persist_state="session",
        )
        if view == "mask":
            _mask(analysis, row)
        elif view == "layers":
            _pairs(analysis, row, pairs)
        else:
            _attention(analysis, row, pairs)
        state.publish()


def _mask(analysis: Analysis, row: int) -> None:
    trace = analysis.trace
    layer, num_tokens = trace.layers[row], len(trace.tokens)
    mask = pooled_mask(
        trace.membership[row],
        query_membership=trace.query_membership[row],
        window=trace.config.window,
        sink_tokens=trace.config.sink_tokens,
        sliding_window=trace.sliding_window(row),
    )
    chart(
        mask_image(mask, layer, num_tokens, dark=is_dark()),
        lambda: mask_table(mask, num_tokens),
        analysis.origin,
        name="pattern",
        file=f"pattern-layer-{layer}",
        alt=f"Pairs of layer {layer}: local, sinks, in a shared group, or dropped; {mask.factor} tokens a tile.",
        column_config=SHARES,
    )
    st.caption(
        f"Pooling factor {mask.factor}: a tile stands for {mask.factor} × {mask.factor} pairs, and its colour mixes "
        "theirs. Above the diagonal are later tokens, which a causal model never reads."
    )


def _pairs(analysis: Analysis, row: int, pairs: pd.DataFrame) -> None:
    config = analysis.trace.config
    number = "each layer's own k of" if config.layer_top_k is not None else f"{config.top_k}"
    chart(
        share_bars(pairs, row, dark=is_dark(), what="causal pairs", line="random kept"),
        pairs,
        analysis.origin,
        name="pairs-by-layer",
        alt="Share of causal pairs that are local, sinks, in a shared group, or dropped, in each layer.",
        column_config={**SHARES, "bound": BOUND},
    )
    st.caption(
        f"Dashed: the share that {number} random groups of {config.num_groups} would keep. A distant pair shares one "
        "with probability 1 - C(K-k, k) / C(K, k). No exact execution is faster than the bound 1 / kept. Measured "
        "times are on the Speed page."
    )


def _attention(analysis: Analysis, row: int, pairs: pd.DataFrame) -> None:
    trace, dark = analysis.trace, is_dark()
    with st.spinner("Measuring the untouched model's attention …", show_time=True):
        swept, shares = attention_shares(analysis, st.session_state["model"], st.session_state["routers"])
        points = _frontier(analysis, swept)
    table = attention_table(trace, swept, shares)
    points["mass kept"] = 1 - shares[..., -1].mean(1)
    st.markdown(attention_sentence(trace, row, swept, shares, pairs))
    left, right = st.columns(2, gap="medium")
    with left:
        chart(
            share_bars(table.loc[table["k"].eq(chosen_k(trace.config))], row, dark=dark, what="attention mass"),
            table,
            analysis.origin,
            name="attention-mass",
            alt="Share of the untouched model's attention on local, sink, same-group and dropped pairs by layer.",
            column_config=SHARES,
        )
    with right:
        chart(
            frontier(points, chosen_k(trace.config), dark=dark),
            points,
            analysis.origin,
            name="mass-against-pairs",
            alt="Attention mass kept against pairs kept for each k, mean over layers.",
            column_config=SHARES,
        )
    every = len(trace.tokens) <= MAX_QUERIES
    st.caption(
        "Softmax weights of the untouched model with full attention, mean over heads and over "
        + ("all queries." if every else f"{MAX_QUERIES} queries evenly spaced over the text.")
        + " Most attention is on local pairs and sinks, which every routing keeps."
    )


def _frontier(analysis: Analysis, swept: Swept) -> pd.DataFrame:
    """Pairs kept at each k, mean over layers."""
    trace = analysis.trace
    kept = []
    for k, membership in zip(swept, key_memberships(trace, swept)):
        config = trace.config if isinstance(k, str) else trace.config.replace(top_k=k)
        at = dataclasses.replace(trace, membership=membership, config=config)
        kept.append(cached.pair_table(dataclasses.replace(analysis, trace=at))["kept"].to_numpy().mean())
    return pd.DataFrame({"k": np.array(swept), "pairs kept": kept})


def _empty_state() -> None:
    st.info("**Paste or upload a text in the sidebar**, or choose a sample.", icon=":material/edit_note:")
    st.markdown(
        "You will see:\n"
        "1. **The pattern** of one layer: pairs that are local, sinks, in a shared group, or never computed.\n"
        "2. **Every layer**: the kept share, its bound on the speed-up, and the share that random groups would keep.\n"
        "3. **Attention kept**: the share of the untouched model's attention on the kept pairs."
    )


with guarded():
    main()
