"""Attention: what does one token read?"""

from __future__ import annotations

import pandas as pd
import streamlit as st

from focus_core.analysis import Trace
from focus_core.analysis.display.cells import page_of, paginate
from focus_core.analysis.tokens import context
from workbench.charts.theme import is_dark
from workbench.engine import service
from workbench.engine.labels import labels
from workbench.engine.service import Analysis
from workbench.shell import state
from workbench.shell.frame import open_page
from workbench.views.attention.cached import attention_of
from workbench.views.attention.charts import weights_chart
from workbench.views.attention.tables import (
    DRAWN,
    KEY_COLUMNS,
    head_table,
    key_table,
    pooled_sentence,
    start_token,
    verdict,
)
from workbench.widgets.columns import fitted
from workbench.widgets.export import chart, downloads
from workbench.widgets.group_link import await_labels, group_column, group_link, group_urls, labels_place
from workbench.widgets.guard import guarded
from workbench.widgets.layer import layer_slider
from workbench.widgets.strip import strip_data, token_strip

QUESTION = (
    "Attention gives every earlier token a weight. Routing reads some of them exactly, knows others through a summary "
    "of their page, and drops the rest. This page shows the weights of one token with and without routing, from the "
    "same queries and keys."
)
PERCENT = st.column_config.NumberColumn(format="percent")


def main() -> None:
    """Draw the page."""
    analysis = open_page("Attention: what does one token read?", QUESTION, on_pick=_select)
    if analysis is None:
        _empty_state()
        return
    _attention(analysis)


@st.fragment
def _attention(analysis: Analysis) -> None:
    with guarded():
        waiting = labels_place()
        trace = analysis.trace
        row = layer_slider(trace, "The layer whose attention is shown.")
        last = len(trace.tokens) - 1
        if not 0 <= st.session_state.get("token", -1) <= last:
            st.session_state["token"] = start_token(trace)
        token = st.session_state["token"]
        head, query_head = _heads(trace)
        with st.spinner("Running the text up to this token …", show_time=True):
            found = attention_of(
                analysis,
                trace.layers[row],
                head,
                token,
                st.session_state["model"],
                st.session_state["routers"],
            )
        query_head = min(query_head, len(found.change) - 1)
        st.markdown(f"#### {verdict(trace, found, query_head, token)}")
        st.text(context(trace, token, 70))
        table = key_table(trace, found, query_head)
        names = labels(analysis, row, st.session_state["model"], head)
        columns = {"full": PERCENT, "routed": PERCENT, "group": group_column(width=130)}

        def linked(table: pd.DataFrame) -> pd.DataFrame:
            of = head if trace.head is not None else None
            return table.assign(group=group_urls(table["group"], trace.layers[row], of, names))

        beyond = slice(trace.config.sink_tokens, None)  # sinks often hold so much that nothing else could be seen
        most = float(max(each[query_head, beyond].max(initial=0.0) for each in (found.full, found.weights))) or 1.0
        titles = {"full": "Full attention", "routed": "Really read"}
        origin = analysis.origin | {"layer": trace.layers[row], "token": token, "head": head, "query_head": query_head}
        for column, (name, title) in zip(st.columns(2, gap="medium"), titles.items()):
            with column:
                chart(
                    weights_chart(table.head(DRAWN), name, title=title, most=most, dark=is_dark(), names=names),
                    table.loc[:, ["token", "text", "distance", "group", "how", name]],
                    origin,
                    name=f"attention-{name}",
                    alt=f"Weights of token {token} on the tokens before it: {title.lower()}.",
                    column_config=columns,
                    shown=linked,
                )
        if pooled := pooled_sentence(table):
            st.caption(pooled)
        _strip(analysis, row, token, names)
        st.markdown("**The tokens with the most weight**")
        st.dataframe(
            linked(table.head(40)),
            hide_index=True,
            key="attention_keys",
            height=320,
            column_config=fitted(KEY_COLUMNS, columns),
        )
        downloads(table, origin, name="attention", file=f"attention-layer-{trace.layers[row]}-token-{token}")
        st.markdown("**All query heads of this key/value head**")
        shares = {name: PERCENT for name in ("weight read", "in summaries", "dropped", "output changed")}
        st.dataframe(head_table(found), hide_index=True, key="attention_heads", column_config=shares)
        st.caption(
            "Shares are of full attention from the same queries and keys. Output changed: the length of the difference "
            "between both outputs of the head, as a share of the full output's length."
        )
        group_link(trace, row, key="attention_group_page", names=names)
        state.publish()
        await_labels(trace, waiting)


def _heads(trace: Trace) -> tuple[int, int]:
    """Key/value head and query head: those of the sidebar where it has them, else chosen here."""
    if trace.query_head is not None:
        return trace.head or 0, trace.query_head
    config = service.load_base(st.session_state["model"]).model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    left, right, _ = st.columns([1, 1, 3], gap="medium")
    head = trace.head
    if head is None:
        head = left.selectbox("Key/value head", range(heads), key="attention_head", help="Of this layer.")
    sharing = range(config.num_attention_heads // heads)
    query_head = right.selectbox("Query head", sharing, key="attention_query_head", help="Of the key/value head.")
    return int(head), int(query_head)


def _strip(analysis: Analysis, row: int, token: int, names: dict[int, str]) -> None:
    """The text around the token; a click chooses another one."""
    pages = paginate(analysis.cells)
    first, last = pages[page_of(analysis.cells, pages, token)]
    data = strip_data(
        analysis.trace,
        analysis.trace.token_bytes,
        analysis.cells[first:last],
        row,
        token,
        fade_unread=True,
        names=names,
    )
    with st.container(height=300, border=True, key="attention_strip_frame"):
        token_strip(data, key="attention_strip", on_pick=_select)
    left, right = st.columns([1, 4], gap="medium", vertical_alignment="center")
    left.number_input(
        "Token",
        0,
        len(analysis.trace.tokens) - 1,
        value=token,
        key=f"attention_token_{token}",
        on_change=_select_from_box,
        args=(f"attention_token_{token}",),
        help="Place of the token in the text, from 0.",
    )
    right.caption("Click a token to see what it reads. What the token does not read is faded.")


def _select(token: int) -> None:
    st.session_state["token"] = token


def _select_from_box(key: str) -> None:
    st.session_state["token"] = int(st.session_state[key])


def _empty_state() -> None:
    st.info("**Paste or upload a text in the sidebar**, or choose a sample.", icon=":material/edit_note:")
    st.markdown(
        "You will see, for any token, layer and head:\n"
        "1. **The weights** of full attention, beside those that routing leaves.\n"
        "2. **What is dropped** or known through summaries, and by how much the output changes.\n"
        "3. **Every token read**, with its weight and its group."
    )


with guarded():
    main()
