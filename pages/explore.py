"""Explore: which group is each token in?"""

from __future__ import annotations

from functools import partial

import streamlit as st

from focus_core.analysis import Trace
from focus_core.analysis.display.cells import page_of, paginate
from focus_core.analysis.tokens import context, margin_of
from workbench.charts.group_sizes import all_sizes, layer_sizes, size_table
from workbench.charts.theme import is_dark
from workbench.engine.service import Analysis
from workbench.shell import state
from workbench.shell.frame import open_page
from workbench.shell.sidebar import Inputs
from workbench.tokens import previews
from workbench.tokens.reads import PairShares, class_names, pair_shares, partners, relations, repeated_words
from workbench.tokens.tables import ambiguous, groups_by_layer, token_table
from workbench.views.explore.cached import overlay
from workbench.views.explore.overlays import OVERLAYS, Overlay
from workbench.views.explore.pairs import pair_bar
from workbench.views.explore.token_map import token_map
from workbench.views.explore.verdicts import layer_verdict, repeats_sentence, token_sentence
from workbench.widgets.export import chart, downloads
from workbench.widgets.group_link import await_labels, group_column, group_link, group_urls, labels_here, labels_place
from workbench.widgets.guard import guarded
from workbench.widgets.layer import layer_slider
from workbench.widgets.page.empty import empty_state
from workbench.widgets.strip import strip_data, token_strip

VIEWS = {
    "repeats": "Words that return",
    "map": "Token × layer map",
    "sizes": "Group sizes",
    "ambiguous": "Close calls",
    "table": "Token table",
}
QUESTION = (
    "Focus assigns tokens to learned groups. A token reads the tokens in its window, the sink tokens, and of all "
    "others only those that share a group with it, or of which it reads a page. This page shows the groups of each "
    "token of your text."
)
PERCENT = st.column_config.NumberColumn(format="percent")
WEIGHT = st.column_config.NumberColumn(format="%.3f")


def main() -> None:
    """Draw the page."""
    analysis = open_page("Explore: which group is each token in?", QUESTION, _meanwhile, _select)
    if analysis is None:
        _empty_state()
        return
    _explore(analysis)


def _meanwhile(inputs: Inputs) -> bool:
    """The groups of a sample as they ship, until the model has routed it; False if none ship."""
    found = None if inputs.text is None else previews.find(inputs.settings, inputs.text)
    if found is None:
        return False
    data = previews.preview_strip(found, st.session_state.get("layer", -1), _selected())
    st.caption(f"Groups of layer {data['layer']} as they ship. The model is loading; details follow.")
    with st.container(height=640, border=True):
        token_strip(data, key="preview", on_pick=_select)
    return True


@st.fragment
def _explore(analysis: Analysis) -> None:
    with guarded():
        waiting = labels_place()
        trace = analysis.trace
        _keep_token_in_range(analysis)
        row = layer_slider(
            trace,
            "Every layer has its own router, so group 3 of one layer is unrelated to group 3 of another.",
        )
        shares = pair_shares(trace, row)
        st.markdown(f"#### {layer_verdict(trace, row, shares)}")
        names = labels_here(analysis, row)
        left, right = st.columns([4, 3], gap="medium")
        with left:
            _strip(analysis, row, names)
        with right:
            _token_detail(analysis, row, shares, names)
            group_link(trace, row, key="explore_group_page", names=names)
        st.divider()
        _views(analysis, row, names)
        state.publish()
        await_labels(trace, waiting)


def _keep_token_in_range(analysis: Analysis) -> None:
    if st.session_state.get("token", -1) >= len(analysis.trace.tokens):
        st.session_state["token"] = -1
        state.refuse("token", "no token")


def _selected() -> int | None:
    token = st.session_state.get("token", -1)
    return token if token >= 0 else None


def _select(token: int) -> None:
    st.session_state["token"] = token
    st.session_state["token_box"] = token


def _strip(analysis: Analysis, row: int, names: dict[int, str]) -> None:
    selected = _selected()
    pages = paginate(analysis.cells)
    values = _overlay(analysis, row)
    fade_unread = st.toggle(
        "Fade tokens that the selected one does not read",
        key="fade_unread",
        disabled=selected is None,
        help="In this layer. Click a token to select it.",
    )
    number = _page_number(analysis, pages, selected)
    first, last = pages[number]
    data = strip_data(
        analysis.trace,
        analysis.trace.token_bytes,
        analysis.cells[first:last],
        row,
        selected,
        fade_unread=fade_unread and selected is not None,
        names=names,
    )
    if values is not None:
        data = values.tint(data, dark=is_dark())
    with st.container(height=640 if last - first > 250 else "content", border=True, key="strip_frame"):
        token_strip(data, key="strip", on_pick=_select)
    if values is not None:
        st.caption(
            "Fill and number: the value. Hover or focus a token for it in words and for its group; click to select it."
        )
        downloads(values.table, analysis.origin, name="token-values", file=f"tokens-{values.kind}")
        return
    several = analysis.trace.config.key_top_k_of(row) > 1
    st.caption(
        f"Fill and number: the {'first ' if several else ''}group. {'Stripe: the second group. ' if several else ''}"
        "Hover or focus a token for its details; click it, or press Enter, to select it."
    )


def _overlay(analysis: Analysis, row: int) -> Overlay | None:
    """The values that tint the strip in place of groups, if some are chosen, with their meaning."""
    state.choose("tint", list(OVERLAYS))
    kind = st.segmented_control(
        "Colour tokens by",
        list(OVERLAYS),
        format_func=lambda name: OVERLAYS[name],
        key="tint",
        required=True,
        help="Their group in this layer; how hard they are to predict; how much harder routing makes them; or how much "
        "of their attention goes to tokens that they do not read in this layer.",
        persist_state="session",
    )
    with st.spinner("Running the text through the model …", show_time=True):
        values = overlay(kind or "groups", analysis, row, st.session_state["model"], st.session_state["routers"])
    if values is not None:
        st.markdown(values.sentences)
    return values


def _page_number(analysis: Analysis, pages: list[tuple[int, int]], selected: int | None) -> int:
    """The page of the strip: the selected token's after a selection, else the user's choice."""
    if len(pages) == 1:
        return 0
    jump = (len(pages), selected)
    if st.session_state.get("strip_jump") != jump:
        page = 0 if selected is None else page_of(analysis.cells, pages, selected)
        st.session_state["strip_jump"], st.session_state["strip_start"] = jump, page
    start = st.session_state["strip_start"]
    return st.pagination(len(pages), default=start + 1, key=f"page_{len(pages)}_{selected}") - 1


def _token_detail(analysis: Analysis, row: int, shares: PairShares, names: dict[int, str]) -> None:
    trace, dark, layer = analysis.trace, is_dark(), analysis.trace.layers[row]
    st.plotly_chart(
        pair_bar(shares, layer, dark=dark, names=class_names(trace)),
        theme=None,
        key="pairs",
        config={"displayModeBar": False},
    )
    state.hold("token_box", _selected())  # also after Back
    st.number_input(
        "Selected token",
        0,
        len(trace.tokens) - 1,
        key="token_box",
        placeholder="click a token, or type its index",
        on_change=_select_from_box,
        help="Index of the token in the text, from 0.",
    )
    selected = _selected()
    if selected is None:
        st.info(
            "**Select a token** to see the tokens it reads, near and far, and its groups in every layer.",
            icon=":material/touch_app:",
        )
        return
    st.text(context(trace, selected, 60))
    codes = relations(trace, row, selected)
    narrow = trace.parts is not None
    st.markdown(token_sentence(codes, selected, layer, chosen=trace.head is not None, narrow=narrow))
    far = partners(trace, row, selected)
    if len(far):
        links = group_urls(trace.groups[row, far["token"]].tolist(), layer, trace.head, names)
        st.dataframe(
            far.assign(group=links),
            hide_index=True,
            key="partners",
            column_config={
                "which": st.column_config.TextColumn(width=64),
                "in context": st.column_config.TextColumn(width=172),
                "distance": st.column_config.NumberColumn(width=64),
                "affinity": st.column_config.NumberColumn(format="%.3f", width=60),
                "group": group_column(help="The first group of the token that is read.", width=110),
                "shared groups": st.column_config.TextColumn("shared", width=55, help="Groups both are in."),
            },
            # The shared groups of narrow routers are the key's own, or none just beyond the window.
            column_order=[
                *("which", "in context", "distance", "group"),
                *(() if narrow else ("shared groups", "affinity", "token")),
            ],
        )
    with st.expander("Its groups in every layer"):
        st.dataframe(
            groups_by_layer(trace, selected),
            hide_index=True,
            column_config={"weight of the first": WEIGHT, "margin": WEIGHT},
        )


def _select_from_box() -> None:
    value = st.session_state.get("token_box")
    st.session_state["token"] = -1 if value is None else int(value)


def _views(analysis: Analysis, row: int, names: dict[int, str]) -> None:
    trace, dark, layer = analysis.trace, is_dark(), analysis.trace.layers[row]
    state.choose("view", list(VIEWS))
    view = st.segmented_control(
        "View",
        list(VIEWS),
        format_func=lambda name: VIEWS[name],
        key="view",
        required=True,
        help="Repeated words far apart, all layers at once, group sizes, tokens with close weights, or all tokens.",
        persist_state="session",
    )
    if view == "repeats":
        table = repeated_words(trace, row)
        st.markdown(repeats_sentence(trace, row, table))
        if len(table):
            st.dataframe(
                table,
                hide_index=True,
                key="repeats",
                height=320,
                column_config={
                    "affinity": WEIGHT,
                    "name": st.column_config.CheckboxColumn(help="Never written in lower case: mostly names."),
                    "kept": st.column_config.CheckboxColumn(
                        "last reads first",
                        help="The last mention shares a group with the first in this layer."
                        if trace.parts is None
                        else "The last mention reads the page of the first in this layer and query head.",
                    ),
                },
                on_select=partial(_select_row, "repeats", table["last"].tolist()),
                selection_mode="single-row",
            )
            downloads(table, analysis.origin, name="returning-words", file=f"returning-words-layer-{layer}")
    elif view == "map":
        figure = token_map(trace, dark=dark, layer=row, token=_selected(), names=names)
        chart(
            figure,
            lambda: token_table(trace, trace.token_bytes),
            analysis.origin,
            name="token-layer-map",
            alt=f"First group of each of {len(trace.tokens)} tokens in each of {len(trace.layers)} layers.",
        )
    elif view == "sizes":
        table = size_table(trace)
        shares = {"first share": PERCENT, "member share": PERCENT}
        left, right = st.columns(2)
        with left:
            chart(
                layer_sizes(trace, row, dark=dark, names=names),
                table.loc[table["layer"].eq(trace.layers[row])],
                analysis.origin,
                name="layer-sizes",
                file=f"group-sizes-layer-{layer}",
                alt=f"Share of tokens in each group of layer {trace.layers[row]}.",
                column_config=shares | {"group": group_column()},
                shown=lambda sizes: sizes.assign(group=group_urls(sizes["group"], layer, trace.head, names)),
            )
        with right:
            chart(
                all_sizes(trace, dark=dark, layer=row),
                table,
                analysis.origin,
                name="group-sizes",
                alt="Share of tokens in each group of every layer.",
                column_config=shares,
            )
    elif view == "ambiguous":
        table = ambiguous(trace, row)
        if not len(table):
            every = "no" if trace.config.key_top_k_of(row) == 0 else "every"
            st.markdown(f"Every token joins {every} group at this k, so no call is close.")
            return
        st.markdown(
            f"The {len(table)} closest calls in layer {trace.layers[row]}. Margin: {_margin(trace)}. Select a row to "
            "see the token."
        )
        st.dataframe(
            table,
            hide_index=True,
            key="close_calls",
            height=320,
            column_config={"margin": st.column_config.NumberColumn(format="%.4f")},
            on_select=partial(_select_row, "close_calls", table["token"].tolist()),
            selection_mode="single-row",
        )
        downloads(table, analysis.origin, name="close-calls", file=f"close-calls-layer-{layer}")
    else:
        _token_table(analysis, row)


def _margin(trace: Trace) -> str:
    if margin_of(trace) == "score":
        return "the score of the token's group minus that of the next one"
    return "the weight of the last group joined minus that of the first group not joined"


def _token_table(analysis: Analysis, row: int) -> None:
    trace = analysis.trace
    layer = trace.layers[row]
    shown = token_table(trace, trace.token_bytes, [row])
    st.markdown(f"Every token and its groups in layer {layer}. The download has all {len(trace.layers)} layers.")
    st.dataframe(
        shown,
        hide_index=True,
        height=360,
        column_order=[
            *("token", "spelling", "text", "id", "bytes", "start", "end"),
            *(name for name in (f"layer_{layer}_{each}" for each in ("groups", "weight", "margin")) if name in shown),
        ],
    )
    downloads(lambda: token_table(trace, trace.token_bytes), analysis.origin, name="tokens")


def _select_row(table: str, tokens: list[int]) -> None:
    """Select the token of the row that was just selected in a table."""
    rows = st.session_state[table]["selection"]["rows"]
    if rows and rows[0] < len(tokens):
        _select(tokens[rows[0]])


def _empty_state() -> None:
    empty_state(
        "You will see:\n"
        "1. **The text**, every token coloured and numbered by its group in one layer.\n"
        "2. **One token**: click it to see the earlier tokens it reads, near and far.\n"
        "3. **Words that return**: does the last mention of a name read the first?\n"
        "4. **All layers at once**, group sizes beside the even split, and tokens with close weights.",
        caption="A link holds the settings but never a text. A link to somebody's pasted text opens here.",
    )


with guarded():
    main()
