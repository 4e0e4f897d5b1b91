"""The tour: four steps over the pages, a bar at the head of each; it can be left and resumed, also after a restart."""

from __future__ import annotations

from dataclasses import dataclass, field

import streamlit as st

from focus_core.errors import FocusError
from focus_core.io.files import to_json, write_atomic
from focus_core.io.reading import read_json
from focus_core.io.schema import table
from focus_core.resources import pages_dir, runs_dir

RUNNING = "_tour"
_FILE = "tour.json"
_TO = "_tour_to"


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        page: file of the page, without suffix.
        title: a few words.
        text: what to do, and what to see.
        settings: settings that the step begins with.
    """

    page: str
    title: str
    text: str
    settings: dict[str, object] = field(default_factory=dict)


STEPS = (
    Step(
        "explore",
        "See the groups",
        "Every token has the colour and number of its group in one layer. Move the slider: each layer sorts anew.",
        {"source": "sample", "sample": "news", "view": "repeats"},
    ),
    Step(
        "explore",
        "Follow one word",
        "Select a row of the table of words that return. On the right is all that its last mention reads.",
        {"source": "sample", "sample": "story", "view": "repeats"},
    ),
    Step(
        "write",
        "Let it write",
        "Press Write. The untouched and the routed model go on with the same prompt, side by side.",
    ),
    Step(
        "quality",
        "See the cost",
        "Each point is a method at the share of distant pairs that it keeps. Lower is closer to the untouched model.",
        {"evidence": "kinds"},
    ),
)


def reached() -> int:
    """The step that was reached on this machine, from 1; 0 if the tour was never begun or has been finished."""
    try:
        step = read_json(runs_dir() / _FILE, table())["step"]
    except (OSError, FocusError, KeyError):
        return 0
    return step if isinstance(step, int) and 0 <= step <= len(STEPS) else 0


def go_to(step: int) -> None:
    """Begin, resume or continue the tour at a step, from 1; as a callback of a button. `follow` then opens its page."""
    st.session_state[RUNNING] = step
    for name, value in STEPS[step - 1].settings.items():
        st.session_state[name] = value
    st.session_state[_TO] = STEPS[step - 1].page
    _keep(step)


def leave() -> None:
    """Leave the tour; the step is kept for later."""
    st.session_state.pop(RUNNING, None)


def finish() -> None:
    """End the tour after its last step."""
    leave()
    _keep(0)


def follow() -> None:
    """Open the page of the step that was just chosen."""
    page = st.session_state.pop(_TO, None)
    if page is not None:
        st.switch_page(pages_dir() / f"{page}.py")


def bar() -> None:
    """The step of a running tour, with buttons to continue and to leave."""
    follow()
    number = st.session_state.get(RUNNING, 0)
    if not number:
        return
    step = STEPS[number - 1]
    with st.container(border=True, horizontal=True, vertical_alignment="center", key="tour_bar"):
        st.markdown(f"**{number} of {len(STEPS)}: {step.title}.** {step.text}", width="stretch")
        if number > 1:
            st.button("Back", key="tour_back", on_click=go_to, args=(number - 1,), help="The step before.")
        if number < len(STEPS):
            st.button(
                "Next", key="tour_next", type="primary", on_click=go_to, args=(number + 1,), help="The next step."
            )
        else:
            st.button("Finish", key="tour_finish", type="primary", on_click=finish, help="End the tour.")
        st.button("Leave", key="tour_leave", on_click=leave, help="Home resumes the tour here.")


def _keep(step: int) -> None:
    try:
        write_atomic(runs_dir() / _FILE, to_json({"step": step}))
    except OSError:  # a tour is no reason to stop a page
        st.toast("The step of the tour cannot be kept on this machine.")
