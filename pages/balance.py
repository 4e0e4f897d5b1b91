"""Balance: how evenly do groups fill?"""

from __future__ import annotations

import pandas as pd
import streamlit as st

from focus_core.analysis.group_balance import Balancing
from workbench.charts.group_sizes import layer_sizes, size_table
from workbench.charts.theme import is_dark
from workbench.engine import cached
from workbench.engine.service import Analysis
from workbench.shell import state
from workbench.shell.frame import open_page
from workbench.shell.sidebar import GROUPS
from workbench.views.balance.cached import future_table
from workbench.views.balance.charts import flip_lines, future_line, largest_lines, load_map, round_lines
from workbench.views.balance.tables import (
    balance_table,
    flip_table,
    future_sentence,
    has_potentials,
    layer_sentence,
    round_table,
    verdict,
)
from workbench.widgets.export import chart
from workbench.widgets.group_link import await_labels, group_column, group_urls, labels_here, labels_place
from workbench.widgets.guard import guarded
from workbench.widgets.layer import layer_slider
from workbench.widgets.page.empty import empty_state
from workbench.widgets.page.folded import folded

QUESTION = (
    "Groups save work only if none of them holds most of the text. Sinkhorn, or potentials that were fitted once, "
    "balance them. This page shows how well, "
    "which tokens change their group, and the balance of routing that does not depend on later tokens."
)
NARROW = (
    "**Best score**: the group with the best score, without balance. **Calibrated**: with potentials that were fitted "
    "once to make groups even over broad text, and then frozen. Narrow groups have no Sinkhorn rounds: nothing is "
    "balanced over your text, so no group depends on later tokens."
)
MORE = "Sinkhorn rounds, tokens that balancing moves, and groups that depend on later tokens"
MORE_NARROW = "Sizes of the groups of this layer, and tokens that the potentials move"
SHARE = st.column_config.NumberColumn(format="percent")
THREE = st.column_config.NumberColumn(format="%.3f")


def main() -> None:
    """Draw the page."""
    analysis = open_page("Balance: how evenly do groups fill?", QUESTION, parts=GROUPS)
    if analysis is None:
        _empty_state()
        return
    _balance(analysis)


@st.fragment
def _balance(analysis: Analysis) -> None:
    with guarded():
        waiting = labels_place()
        trace, dark = analysis.trace, is_dark()
        balancing = None
        if trace.parts is None:
            with st.spinner("Balancing every layer, round by round …", show_time=True):
                balancing = cached.balancing(analysis)
        table = balance_table(trace, balancing)
        st.markdown(f"#### {verdict(trace, table)}")
        row = layer_slider(
            trace,
            "The layer of the sentence below, and of the charts of rounds and of later tokens."
            if balancing is not None
            else "The layer of the sentence below, and of the bars.",
        )
        st.markdown(layer_sentence(trace, row))
        layer, names = trace.layers[row], labels_here(analysis, row)
        shares = {"largest group": SHARE, "smallest group": SHARE, "entropy": THREE, "effective groups": THREE}
        left, right = st.columns(2, gap="medium")
        with left:
            chart(
                load_map(trace, dark=dark),
                lambda: size_table(trace),
                analysis.origin,
                name="load",
                alt="Share of tokens in each group of every layer, as routed.",
                column_config={"first share": SHARE, "member share": SHARE, "group": group_column()},
                shown=lambda sizes: _linked(analysis, sizes, {layer: names}),
            )
        with right:
            chart(
                largest_lines(table, trace.config.num_groups, dark=dark),
                table,
                analysis.origin,
                name="largest-group",
                alt=f"Share of the largest group in each layer: {', '.join(table['routing'].unique())}.",
                column_config=shares,
            )
            if balancing is None:
                st.caption(NARROW)
            else:
                _routings_caption(analysis, has_potentials(trace, balancing))
        state.publish()
        more = folded(MORE_NARROW if balancing is None else MORE, "balance_more")
        if more is not None:
            with more:
                if balancing is None:
                    _narrow(analysis, row)
                else:
                    _rounds(analysis, balancing, row)
        await_labels(trace, waiting)


def _linked(analysis: Analysis, table: pd.DataFrame, names: dict[int, dict[int, str]]) -> pd.DataFrame:
    """A table of groups with links to their pages; `names` holds the labels of the layers that have them."""
    places = zip(table["layer"].tolist(), table["group"].tolist())
    head = analysis.trace.head
    return table.assign(
        group=[url for layer, group in places for url in group_urls([group], layer, head, names.get(layer, {}))]
    )


def _rounds(analysis: Analysis, balancing: Balancing, row: int) -> None:
    """Rounds of Sinkhorn, tokens that balancing moves, and groups that depend on later tokens."""
    trace, dark, layer = analysis.trace, is_dark(), analysis.trace.layers[row]
    left, right = st.columns(2, gap="medium")
    with left:
        chart(
            round_lines(balancing.errors, row, layer, dark=dark),
            lambda: round_table(trace, balancing),
            analysis.origin,
            name="sinkhorn-rounds",
            alt=f"Marginal error after each of {trace.config.sinkhorn_rounds} Sinkhorn rounds.",
            column_config={"marginal error": st.column_config.NumberColumn(format="%.2e")},
        )
        st.caption(
            f"Computed from the scores at temperature {trace.config.temperature:g}. The error is that of soft "
            "assignments, which Sinkhorn balances; counts of first groups stay less even."
        )
    with right:
        flips = flip_table(trace, balancing)
        chart(
            flip_lines(flips, dark=dark),
            flips,
            analysis.origin,
            name="flips",
            alt="Share of tokens whose first group changes between raw, sequence-balanced and calibrated routing.",
            column_config={name: SHARE for name in flips.columns if name != "layer"},
        )
    future = future_table(analysis, row)
    st.markdown(future_sentence(trace, row, future))
    if len(future) > 1:
        chart(
            future_line(future, layer, dark=dark),
            future,
            analysis.origin,
            name="future",
            file=f"future-layer-{layer}",
            alt=f"Share of tokens of a prefix whose group in layer {layer} depends on the rest of the text.",
            column_config={"changed by later tokens": SHARE},
        )


def _narrow(analysis: Analysis, row: int) -> None:
    """The sizes of one layer's narrow groups, and the tokens that the potentials move."""
    trace, dark, layer = analysis.trace, is_dark(), analysis.trace.layers[row]
    left, right = st.columns(2, gap="medium")
    names = labels_here(analysis, row)
    with left:
        sizes = size_table(trace)
        chart(
            layer_sizes(trace, row, dark=dark, names=names),
            sizes.loc[sizes["layer"].eq(layer)],
            analysis.origin,
            name="layer-sizes",
            file=f"group-sizes-layer-{layer}",
            alt=f"Share of tokens in each group of layer {layer}, by size.",
            column_config={"first share": SHARE, "member share": SHARE, "group": group_column()},
            shown=lambda shown: _linked(analysis, shown, {layer: names}),
        )
    flips = flip_table(trace, None)
    with right:
        if len(flips.columns) > 1:
            chart(
                flip_lines(flips, dark=dark),
                flips,
                analysis.origin,
                name="flips",
                alt="Share of tokens that the potentials give another group than the one of their best score.",
                column_config={name: SHARE for name in flips.columns if name != "layer"},
            )


def _routings_caption(analysis: Analysis, has_own_potentials: bool) -> None:
    lines = [
        "**Raw scores**: the group of the highest score, without balance.",
        "**Sequence Sinkhorn**: balanced over the whole text, so a token's group depends on later tokens.",
    ]
    if analysis.trace.config.balance == "calibrated":
        lines.append(
            "**Calibrated**: Sinkhorn's column potentials, frozen from the training texts. Groups do not depend on "
            "later tokens, and a text unlike those may be less balanced."
            if has_own_potentials
            else "**Calibrated**: these routers have no potentials of their own, because they were never calibrated. "
            "So this is the routing of the raw scores."
        )
    if analysis.states == "routed":
        lines.append(
            "All three are computed from the scores of the routed model. Under sequence routing its deeper layers "
            "would have other hidden states."
        )
    st.caption("  \n".join(lines))


def _empty_state() -> None:
    empty_state(
        "You will see:\n"
        "1. **Group sizes**: the share of tokens in each group of every layer, beside the even split.\n"
        "2. **Sinkhorn rounds**: the error after each round.\n"
        "3. **Changes by balancing**: tokens that join another group than the one of their highest score.\n"
        "4. **Later tokens**: how often the rest of a text changes the group of a token before it."
    )


with guarded():
    main()
