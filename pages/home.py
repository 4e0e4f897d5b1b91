"""Home: the purpose, the results that hold, and a place to begin."""

from __future__ import annotations

import streamlit as st

from focus_core.resources import pages_dir
from workbench.engine import service
from workbench.shell.frame import open_plain_page
from workbench.views.home import figure, results
from workbench.views.home.results import Result
from workbench.widgets import tour
from workbench.widgets.guard import guarded

SENTENCE = (
    "Focus lets a language model read a chosen part of a long text in place of all of it. This workbench shows what it "
    "reads, what that costs, and what it saves."
)


def main() -> None:
    """Draw the page."""
    service.warm_up()
    open_plain_page("Focus: attention that reads what matters")
    st.markdown(f"#### {SENTENCE}")
    left, right = st.columns([5, 3], gap="large")
    with left:
        _figure()
    with right:
        _begin()
    st.subheader("Results that hold", anchor=False)
    found = results.holding()
    for place, result in zip(st.columns(max(1, len(found)), gap="medium"), found):
        with place.container(border=True, height="stretch"):
            _result(result)
    st.subheader("Claims that do not hold", anchor=False)
    for result in results.failing():
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            st.markdown(f"**{result.claim}** {result.detail}", width="content")
            _link(result)
    st.caption(
        "Every figure on this page is read from a record in data/results when the page is drawn. The groups are those "
        "of SmolLM2-135M-Instruct with the routers that ship."
    )


def _figure() -> None:
    example = figure.load()
    if example is None:
        st.info("The example belongs to other routers than those that ship: see Explore for live ones.")
        return
    figure.draw(example)
    st.caption(
        f"Measured: layer {example['layer']}, {example['reader']}, untouched hidden states. The example was chosen "
        "because a name returns in it. Explore shows every token."
    )


def _begin() -> None:
    with st.container(border=True, key="begin"):
        st.markdown("##### Tour: four steps, two minutes")
        for number, step in enumerate(tour.STEPS, start=1):
            st.markdown(f"{number}. {step.title}")
        at = tour.reached()
        with st.container(horizontal=True):
            if at:
                st.button(
                    f"Resume at step {at}",
                    type="primary",
                    icon=":material/play_arrow:",
                    on_click=tour.go_to,
                    args=(at,),
                    help="Continue where you left.",
                )
            st.button(
                "Start again" if at else "Start the tour",
                type="secondary" if at else "primary",
                icon=None if at else ":material/play_arrow:",
                on_click=tour.go_to,
                args=(1,),
                help="A bar at the head of each page says what to do. You can leave at any time.",
            )
    st.page_link(pages_dir() / "explore.py", label="Try your own text on Explore", icon=":material/edit_note:")
    st.page_link(pages_dir() / "write.py", label="See it write, beside the untouched model", icon=":material/edit:")


def _result(result: Result) -> None:
    st.markdown(f"### {result.figure}\n**{result.claim}** {result.detail}")
    _link(result)


def _link(result: Result) -> None:
    st.page_link(
        pages_dir() / f"{result.page}.py",
        label="Evidence",
        icon=":material/query_stats:",
        help=f"data/results/{result.record}.json, on the page {result.page.capitalize()}.",
        query_params={"v": "1", **result.query},
    )


with guarded():
    main()
