"""Compare: do two routings agree?"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from focus_core.analysis import Trace
from focus_core.analysis.display.cells import paginate
from focus_core.analysis.trace import RoutedLayer
from workbench.charts.group_sizes import layer_sizes, size_table
from workbench.charts.theme import is_dark
from workbench.engine import cached, service
from workbench.engine.service import Analysis
from workbench.shell import state
from workbench.shell.frame import open_page
from workbench.tokens.reads import pair_shares
from workbench.views.compare import controls
from workbench.views.compare.tables import (
    DIFFERING_COLUMNS,
    FEW_TOKENS,
    SURE_COLUMNS,
    Side,
    by_margin,
    different_texts_verdict,
    differing,
    differing_table,
    matched,
    origin,
    overlap_table,
    same_text_verdict,
    same_tokens,
    side_table,
)
from workbench.views.explore.verdicts import layer_verdict
from workbench.views.layers.charts import overlap_map
from workbench.widgets.arriving import arriving_layer
from workbench.widgets.columns import fitted
from workbench.widgets.export import chart, downloads
from workbench.widgets.group_link import await_labels, called, group_column, group_urls, labels_here, labels_place
from workbench.widgets.guard import guarded
from workbench.widgets.layer import layer_slider
from workbench.widgets.page.empty import empty_state
from workbench.widgets.page.markup import plain
from workbench.widgets.routing import routing_progress
from workbench.widgets.strip import strip_data, token_strip

QUESTION = (
    "A has the settings of the sidebar. B differs in what you choose: text, routers, layer, k, window or sinks. Group "
    "numbers mean nothing across routers, so groups are matched first."
)
SHARE = st.column_config.NumberColumn(format="percent")
THREE = st.column_config.NumberColumn(format="%.3f")
LISTED = 200


def main() -> None:
    """Draw the page."""
    analysis = open_page("Compare: do two routings agree?", QUESTION)
    if analysis is None:
        _empty_state()
        return
    _compare(analysis)


def _second(a: Side, settings: service.Settings, text: str, layer: int) -> Analysis:
    """B; while it is routed A stands alone, beside the groups of B as they come.

    Args:
        a: A.
        settings: of B.
        text: of B.
        layer: number of B's layer.
    """
    alone, places = st.empty(), []

    def on_layer(part: RoutedLayer) -> None:
        tell(part)
        if not places:  # at the first layer, so that nothing flickers where B is known
            with alone.container():
                left, right = st.columns(2, gap="medium")
                with left:
                    _alone(a)
                right.markdown("**B.** Its groups get the numbers of A when all its layers are known.")
                places.append(right.empty())
        arriving_layer(settings, text, part, places[0], layer=layer, key="arriving_b", height=420)

    with routing_progress("Routing B") as tell:
        second = service.analysis(settings, text, on_layer)
    alone.empty()
    if second.trace.query_head is None or a.trace.query_head is None:
        return second
    return dataclasses.replace(second, trace=dataclasses.replace(second.trace, query_head=a.trace.query_head))


def _alone(a: Side) -> None:
    """A before B is known: its sentence and the beginning of its text."""
    st.markdown(f"**A.** {layer_verdict(a.trace, a.row, pair_shares(a.trace, a.row))}")
    first, last = paginate(a.analysis.cells, 400)[0]
    with st.container(height=420 if last - first > 120 else "content", border=True, key="strip_frame_alone"):
        token_strip(strip_data(a.trace, a.trace.token_bytes, a.analysis.cells[first:last], a.row), key="strip_alone")


@st.fragment
def _compare(analysis: Analysis) -> None:
    with guarded():
        waiting = labels_place()
        answer = st.container()  # the sentence stands above the controls it depends on
        try:
            settings, text, text_name, differs = controls.draw(analysis)
            if "text" in differs and text is None:
                st.info("**Paste or upload a text for B.**", icon=":material/edit_note:")
                return
            row = layer_slider(
                analysis.trace,
                "The layer of A. B has the same layer unless it differs in the layer.",
                label="Layer of A",
            )
            layer = controls.expected_layer(analysis.trace, row, differs="layer" in differs)
            second = _second(Side(analysis, row), settings, analysis.trace.text if text is None else text, layer)
            other = controls.layer(analysis.trace.layers[row], second.trace, differs="layer" in differs)
        finally:
            state.publish()
        a = Side(analysis, row)
        b = Side(dataclasses.replace(second, text_name=text_name or analysis.text_name), other)
        changes = controls.link_changes(settings, text)
        (_same_text if same_tokens(a, b) else _different_texts)(a, b, answer, changes)
        for side in (a, b):
            await_labels(side.trace, waiting)


def _same_text(a: Side, b: Side, answer: DeltaGenerator, changes: dict[str, str]) -> None:
    counts, columns, renumbered = matched(a, b)
    agreement = cached.agreement_within(a.analysis, a.row, b.analysis, b.row)
    answer.markdown(f"#### {same_text_verdict(counts, agreement)}")
    if len(a.trace.tokens) >= FEW_TOKENS:
        st.caption(
            f"AMI: adjusted mutual information of first groups. Interval: bootstrap over {agreement.num_blocks} "
            f"contiguous blocks of {agreement.block_tokens} tokens, 1,000 resamples, seed 0. It says nothing about "
            "other texts."
        )
    made_from = origin(a, b)
    names = _names(a), _names(b)
    left, right = st.columns(2, gap="medium")
    with left:
        table = side_table(a, b)
        st.table(table.map(plain), hide_index=True)  # wraps its words, which are long
        downloads(table, made_from, name="compared")
    with right:
        chart(
            overlap_map(counts, columns, "A", "B", dark=is_dark(), names=names),
            overlap_table(counts, columns),
            made_from,
            name="overlap",
            alt="Share of each group of A in each group of B, matched groups on the diagonal.",
            column_config={
                "share of A's group": SHARE,
                **{name: group_column(name) for name in ("group of A", "group of B")},
            },
            shown=lambda table: table.assign(
                **{
                    "group of A": _urls(a, table["group of A"].tolist(), names[0]),
                    "group of B": _urls(b, table["group of B"].tolist(), names[1], changes),
                }
            ),
        )
    # B's groups under A's numbers: labels of B's own groups, by the numbers that the strip shows.
    theirs = {place: names[1][group] for place, group in enumerate(columns.tolist()) if group in names[1]}
    _strips(a, b, renumbered, (names[0], theirs))
    _differing(a, renumbered, made_from, lambda groups: _urls(a, groups, names[0]), theirs)


def _names(side: Side) -> dict[int, str]:
    return labels_here(side.analysis, side.row)


def _urls(side: Side, groups: Iterable[int], names: dict[int, str], changes: dict[str, str] | None = None) -> list[str]:
    """Links to groups of a side, with the settings that are B's own."""
    return group_urls(groups, side.layer, side.trace.head, names, changes)


def _strips(a: Side, b: Side, renumbered: Trace, names: tuple[dict[int, str], dict[int, str]]) -> None:
    st.divider()
    st.markdown(
        "**The same tokens twice.** A group of B has the number and colour of its matched group of A. "
        f"Groups from {a.trace.config.num_groups} on have no match."
    )
    pages = paginate(a.analysis.cells, 400)
    number = st.pagination(len(pages), key=f"compare_page_{len(pages)}") - 1 if len(pages) > 1 else 0
    first, last = pages[number]
    cells, raw = a.analysis.cells[first:last], a.trace.token_bytes
    left, right = st.columns(2, gap="medium")
    sides = (left, "A", a.trace, a.row, names[0]), (right, "B", renumbered, 0, names[1])
    for place, name, trace, row, own in sides:
        with place:
            st.markdown(f"**{name}**, layer {trace.layers[row]}")
            with st.container(height=420 if last - first > 120 else "content", border=True, key=f"strip_frame_{name}"):
                data = strip_data(trace, raw, cells, row, names=own)
                token_strip(data, key=f"strip_{name}", on_pick=lambda token: None)


def _differing(
    a: Side,
    renumbered: Trace,
    made_from: dict[str, Any],
    links: Callable[[Iterable[int]], list[str]],
    theirs: dict[int, str],
) -> None:
    moved = differing(a, renumbered)
    if not len(moved):
        st.markdown("No token is in another group.")
        return
    order = "affinity: the dot product of the two soft assignments. Near 0, both are sure and disagree."
    if by_margin(a, renumbered):
        order = "their margin in A, the clearest first: how far their group is above the next one."
    st.markdown(f"**{len(moved):,} tokens differ**, sorted by {order}")
    shown = differing_table(a, renumbered, moved[:LISTED])
    in_b = [called(group, theirs) for group in shown["group in B"].tolist()]
    sure = {name: size for name, size in SURE_COLUMNS.items() if name in shown}
    columns = {
        **dict.fromkeys(sure, THREE),
        "group in A": group_column("group in A"),
        "group in B": st.column_config.TextColumn(help="A's number of it, and the label of B's own group."),
    }
    st.dataframe(
        shown.assign(**{"group in A": links(shown["group in A"].tolist()), "group in B": in_b}),
        hide_index=True,
        height=320,
        key="differing",
        column_config=fitted(DIFFERING_COLUMNS | sure, columns),
    )
    downloads(lambda: differing_table(a, renumbered, moved), made_from, name="differing-tokens")


def _different_texts(a: Side, b: Side, answer: DeltaGenerator, changes: dict[str, str]) -> None:
    answer.markdown(f"#### {different_texts_verdict(a, b)}")
    st.info(
        "The texts differ, so tokens are not compared one by one. Agreement of groups is defined on the same tokens "
        "only.",
        icon=":material/info:",
    )
    made_from = origin(a, b)
    left, right = st.columns(2, gap="medium")
    for place, name, side, own in ((left, "A", a, {}), (right, "B", b, changes)):
        trace, names = side.trace, _names(side)

        def linked(table: pd.DataFrame, side: Side = side, names: Any = names, own: Any = own) -> pd.DataFrame:
            return table.assign(group=_urls(side, table["group"].tolist(), names, own))

        with place:
            st.markdown(f"**{name}.** {layer_verdict(trace, side.row, pair_shares(trace, side.row))}")
            sizes = size_table(trace)
            chart(
                layer_sizes(trace, side.row, dark=is_dark(), names=names),
                sizes.loc[sizes["layer"].eq(side.layer)],
                side.analysis.origin,
                name=f"sizes-{name}",
                alt=f"Share of tokens in each group of layer {side.layer} of {name}.",
                column_config={"first share": SHARE, "member share": SHARE, "group": group_column()},
                shown=linked,
            )
    table = side_table(a, b)
    st.table(table.map(plain), hide_index=True)
    downloads(table, made_from, name="compared")


def _empty_state() -> None:
    empty_state(
        "Then choose how B differs:\n"
        "1. **Same text, other routers, layer or k**: matched groups, their agreement with an interval, both texts "
        "coloured, and the tokens that differ most.\n"
        "2. **Another text**: group sizes and kept share of both, side by side.",
        first="**Paste or upload a text in the sidebar**, or choose a sample: that is A.",
    )


with guarded():
    main()
