"""Sparsity: which pairs are computed?"""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import streamlit as st

from focus_core.analysis.sparsity import CLASSES, pooled_pattern
from workbench.charts.theme import is_dark
from workbench.engine import cached
from workbench.engine.plans import chosen_k
from workbench.engine.service import Analysis
from workbench.shell import state
from workbench.shell.frame import open_page
from workbench.tokens.reads import class_names
from workbench.views.sparsity.cached import attention_shares
from workbench.views.sparsity.charts import frontier, mask_image, share_bars
from workbench.views.sparsity.tables import (
    MAX_QUERIES,
    Swept,
    attention_sentence,
    attention_table,
    by_head,
    key_memberships,
    layer_sentence,
    mask_table,
    verdict,
)
from workbench.widgets.export import chart
from workbench.widgets.guard import guarded
from workbench.widgets.layer import layer_slider
from workbench.widgets.page.empty import empty_state

VIEWS = {"mask": "Pattern", "layers": "Pairs by layer", "mass": "Attention kept"}
QUESTION = (
    "A pair of tokens is computed if it is local (at most w apart), if the earlier token is a sink, or if both share a "
    "group (narrow groups: if the later one reads the earlier one's page). All other pairs are dropped (narrow groups: "
    "summarised). This page shows the pairs that are left, and how much attention they hold."
)
SHARE = st.column_config.NumberColumn(format="percent")
SHARES = {
    name: SHARE
    for name in (*CLASSES, "read", "in summaries", "kept", "exposure", "random kept", "mass kept", "pairs kept")
}
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
    mask, names = pooled_pattern(trace, row), class_names(trace)
    chart(
        mask_image(mask, layer, num_tokens, dark=is_dark(), names=names),
        lambda: mask_table(mask, num_tokens).rename(columns=names),
        analysis.origin,
        name="pattern",
        file=f"pattern-layer-{layer}",
        alt=f"Pairs of layer {layer}: {', '.join(names.values())}; {mask.factor} tokens a tile.",
        column_config=SHARES,
    )
    head = by_head(trace)
    one = f"The map is of what is read{head}; other heads read other pairs. " if head else ""
    st.caption(
        f"{one}Pooling factor {mask.factor}: a tile stands for {mask.factor} × {mask.factor} pairs, and its colour "
        "mixes theirs. Above the diagonal are later tokens, which a causal model never reads."
    )


def _pairs(analysis: Analysis, row: int, pairs: pd.DataFrame) -> None:
    config, names = analysis.trace.config, class_names(analysis.trace)
    number = "each layer's own k of" if config.layer_top_k is not None else f"{config.top_k}"
    line = "random kept" if config.read_share is None else None
    chart(
        share_bars(pairs, row, dark=is_dark(), what="causal pairs", line=line, names=names),
        pairs.rename(columns=names),
        analysis.origin,
        name="pairs-by-layer",
        alt=f"Share of causal pairs in each layer: {', '.join(names.values())}.",
        column_config={**SHARES, "bound": BOUND},
    )
    if config.read_share is not None:
        met = (
            "The budget is met over all heads and layers together, on the texts that thresholds were fitted to. One "
            "layer may keep a tenth of its pairs, another most of them."
            if config.by_error
            else "The budget is a share of the pairs, so each layer keeps about as many, whatever it chooses."
        )
        st.caption(
            f"{met} No exact execution is faster than the bound 1 / kept, in which summaries are not counted. Measured "
            "times are on the Speed page."
        )
        return
    chance = "1 - C(K-k, k) / C(K, k)" if analysis.trace.reads_own_groups else "k / K"
    st.caption(
        f"Dashed: the share that {number} random groups of {config.num_groups} would keep. A distant pair is kept "
        f"with probability {chance}. No exact execution is faster than the bound 1 / kept. Measured "
        "times are on the Speed page."
    )


def _attention(analysis: Analysis, row: int, pairs: pd.DataFrame) -> None:
    trace, dark = analysis.trace, is_dark()
    with st.spinner("Measuring the untouched model's attention …", show_time=True):
        chosen = st.session_state["model"], st.session_state["routers"]
        swept, shares, pairs_kept = attention_shares(analysis, *chosen)
        points = _frontier(analysis, swept, pairs_kept)
    table, names = attention_table(trace, swept, shares), class_names(trace)
    titles = names | ({"k": "budget"} if trace.config.read_share is not None else {})
    points["mass kept"] = 1 - shares[..., -1].mean(1)
    st.markdown(attention_sentence(trace, row, swept, shares, pairs))
    left, right = st.columns(2, gap="medium")
    with left:
        chart(
            share_bars(
                table.loc[table["k"].eq(chosen_k(trace.config))], row, dark=dark, what="attention mass", names=names
            ),
            table.rename(columns=titles),
            analysis.origin,
            name="attention-mass",
            alt=f"Share of the untouched model's attention by layer on pairs that are {', '.join(names.values())}.",
            column_config=SHARES,
        )
    with right:
        chart(
            frontier(points, chosen_k(trace.config), dark=dark),
            points.rename(columns=titles),
            analysis.origin,
            name="mass-against-pairs",
            alt="Attention mass kept against pairs kept for each budget, mean over layers.",
            column_config=SHARES,
        )
    every = len(trace.tokens) <= MAX_QUERIES
    st.caption(
        "Softmax weights of the untouched model with full attention, "
        + ("mean over heads and over " if trace.query_head is None else "of the query head on show, mean over ")
        + ("all queries." if every else f"{MAX_QUERIES} queries evenly spaced over the text.")
        + " Most attention is on local pairs and sinks, which every routing keeps."
    )


def _frontier(analysis: Analysis, swept: Swept, pairs_kept: np.ndarray | None) -> pd.DataFrame:
    """Pairs kept at each budget, mean over layers; counted here where they are not known yet."""
    trace = analysis.trace
    if pairs_kept is not None:
        return pd.DataFrame({"k": np.array(swept), "pairs kept": pairs_kept})
    kept = []
    for k, membership in zip(swept, key_memberships(trace, swept)):
        config = trace.config if isinstance(k, str) else trace.config.replace(top_k=k)
        at = dataclasses.replace(trace, membership=membership, config=config)
        kept.append(cached.pair_table(dataclasses.replace(analysis, trace=at))["kept"].to_numpy().mean())
    return pd.DataFrame({"k": np.array(swept), "pairs kept": kept})


def _empty_state() -> None:
    empty_state(
        "You will see:\n"
        "1. **The pattern** of one layer: pairs that are local, sinks, in a shared group, or never computed.\n"
        "2. **Every layer**: the kept share, its bound on the speed-up, and the share that random groups would keep.\n"
        "3. **Attention kept**: the share of the untouched model's attention on the kept pairs."
    )


with guarded():
    main()
