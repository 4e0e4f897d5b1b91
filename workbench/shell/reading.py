"""What queries read by their groups, in the sidebar: budget, query head, window and sinks."""

from __future__ import annotations

from types import ModuleType

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from focus_core.analysis import Trace
from focus_core.routing.config import FocusConfig
from focus_core.routing.routers import ROUTERS
from workbench.engine.plans import plan_in_words, shares
from workbench.shell import state

_K_FROM = {"plan": "As planned", "one": "One k for all"}


def local(own: FocusConfig, drawn: bool) -> tuple[int, int]:
    """Window and sink tokens; as they are where they do not act."""
    state.clamp("window", 0, 100_000, own.window)
    state.clamp("sinks", 0, 1_000, own.sink_tokens)
    if not drawn:
        return st.session_state["window"], st.session_state["sinks"]
    left, right = st.columns(2)
    window = left.number_input(
        "Window, w",
        0,
        100_000,
        key="window",
        step=16,
        help="Tokens at most this far back are always read, whatever their groups.",
        persist_state="session",
    )
    sinks = right.number_input(
        "Sink tokens",
        0,
        1_000,
        key="sinks",
        help="First tokens of the text, which every later token reads. 0 is the published method.",
        persist_state="session",
    )
    return int(window), int(sinks)


def share_of_pairs(
    place: DeltaGenerator | ModuleType, key: str, own: float, label: str = "Budget of distant pairs"
) -> float:
    """The share of the distant pairs that narrow routers are to read; links hold it in percent.

    Args:
        place: where to draw.
        key: setting in links.
        own: the routers' own share.
        label: of the slider.
    """
    fitting_share(key, own)
    percent = place.select_slider(
        label,
        _percents(own),
        key=key,
        format_func=lambda percent: f"{percent:g}%",
        help="The budget of narrow groups: the share of the keys beyond their windows that queries attend to exactly. "
        "It holds on the mean: one text gets more, another less. "
        f"Summaries stand for the others. There is no k. Default of these routers: {100 * own:g}%.",
        persist_state="session",
    )
    return float(percent) / 100


def _percents(own: float) -> list[float]:
    return [round(100 * share, 6) for share in shares(own)]


def fitting_share(key: str, own: float) -> float:
    """The chosen share in percent; that of the routers where it is none of their options."""
    if st.session_state.get(key) not in _percents(own):
        st.session_state[key] = round(100 * own, 6)
    return float(st.session_state[key])


def query_head(trace: Trace, place: DeltaGenerator, *, drawn: bool = True) -> int:
    """The query head whose reading the pages show, where every query head chooses for itself.

    Args:
        trace: the routing.
        place: where to draw, `Inputs.below_head`.
        drawn: False where it does not act; the choice is then kept as it is.
    """
    count = next((len(parts.packed) for parts in trace.parts or () if parts is not None), 1)
    if count == 1:
        return 0
    state.clamp("query_head", 0, count - 1, 0)
    if not drawn:
        return int(st.session_state["query_head"])
    with place:
        chosen = st.segmented_control(
            "Query head of it",
            range(count),
            key="query_head",
            required=True,
            width="stretch",
            help=f"The {count} query heads of key/value head {trace.head} share its groups, and each chooses what it "
            "reads. Groups are those of the key/value head; what is read is that of one query head.",
            persist_state="session",
        )
    return chosen or 0


def groups_per_token(own: FocusConfig) -> tuple[int, tuple[int, ...] | None]:
    """k, and the routers' plan if they have one and the user chose it."""
    if own.layer_top_k is not None:
        state.choose("k_from", list(_K_FROM))
        chosen = st.segmented_control(
            "k of the layers",
            list(_K_FROM),
            format_func=lambda name: _K_FROM[name],
            key="k_from",
            required=True,
            width="stretch",
            help="These routers have a plan, made by focus plan: a k for each layer. Use it, or one k for all layers.",
            persist_state="session",
        )
        if chosen == "plan":
            st.caption(f"{plan_in_words(own)}.")
            return own.top_k, own.layer_top_k
    state.clamp("k", 1, own.num_groups, own.top_k)
    label, joins = "Groups per token, k", "joins. A token reads a distant one if they share a group"
    if not ROUTERS[own.router].reads_own_groups:
        label, joins = "Groups a token reads, k", "reads. As a key it is in one of them"
    top_k = st.slider(
        label,
        1,
        own.num_groups,
        key="k",
        help=f"How many of the {own.num_groups} groups each token {joins}. Default of these routers: k = {own.top_k}.",
        persist_state="session",
    )
    return top_k, None
