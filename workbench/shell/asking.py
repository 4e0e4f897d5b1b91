"""Links and session files come from others: what they would open on this machine is asked about first."""

from __future__ import annotations

import streamlit as st

from focus_core.models import default_model
from focus_core.shipped import shipped_routers
from workbench.engine import service
from workbench.runs import jobs
from workbench.shell import state
from workbench.widgets.page.markup import plain

NAMING = {"model": "model", "routers": "routers", "b_routers": "routers of B", "folder": "folder of texts"}
"""Settings that name something to open, and their words in the question."""

_MOST_KNOWN = 1_000


def ask_first() -> None:
    """Stop the page with a question if a link or session file names a model, routers or a folder of its own.

    Not asked about: names that come with the project, finished runs, and names that this app has opened before.
    """
    names = {name: str(st.session_state.get(name) or "") for name in NAMING}
    origin = st.session_state.get(state.ORIGIN)
    unknown = {name: value for name, value in names.items() if (name, value) not in _known() and not _own(name, value)}
    if origin is None or not unknown:
        st.session_state.pop(state.ORIGIN, None)
        _remember(unknown)
        return
    lines = [f"- {NAMING[name]}: **{plain(value)}**" for name, value in unknown.items()]
    st.warning(
        f"This {origin} opens on the machine of the workbench:\n\n"
        + "\n".join(lines)
        + "\n\nOpen them if you trust who made it. A model that is not on this machine is downloaded from the hub.",
        icon=":material/help:",
    )
    st.button("Open them", key="open_named", on_click=_remember, args=(unknown,), type="primary")
    st.button("Leave them out", key="leave_named", on_click=_leave_out, args=(tuple(unknown),))
    st.stop()


def _own(name: str, value: str) -> bool:
    """Whether a name is the project's or the user's own, or none."""
    if name == "model":
        return value in ("", "default", default_model.NAME)
    if name == "folder":
        return not value
    return value in ("", service.UNTRAINED, *shipped_routers()) or value.startswith(jobs.RUN)


@st.cache_resource(show_spinner=False)
def _known() -> dict[tuple[str, str], None]:
    """The names that users of this app have typed or agreed to, the oldest first."""
    return {}


def _remember(names: dict[str, str]) -> None:
    known = _known()
    known.update(dict.fromkeys(names.items()))
    while len(known) > _MOST_KNOWN:
        known.pop(next(iter(known)))


def _leave_out(names: tuple[str, ...]) -> None:
    for name in names:
        st.session_state[name] = state.SETTINGS[name].default
