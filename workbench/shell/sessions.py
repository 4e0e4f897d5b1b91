"""A session as a file and back: settings, text, choices of the report, and notes.

Notes are on disk. All else is in Streamlit's session state, which belongs to one browser session.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import streamlit as st

from focus_core.report.bundle import Session
from focus_core.report.model import SECTIONS
from workbench.engine.service import Analysis
from workbench.runs import notes as on_disk
from workbench.shell import state, texts

CHOICES = {
    "layers": "report_layers",
    "sections": "report_sections",
    "seed": "report_seed",
    "examples": "report_examples",
}
"""Choices of the Report page: name in session files and key in the session state."""

MAX_EXAMPLES = 20


def notes(routers_hash: str) -> dict[tuple[int, int], str]:
    """The user's notes on the groups of some routers, by layer and group."""
    places = ((place.split("/"), note) for place, note in on_disk.read(routers_hash).items())
    return {(int(place[0]), int(place[1])): note for place, note in places if len(place) == 2}


def take_note(routers_hash: str, layer: int, group: int, note: str) -> None:
    """Keep a note; an empty one is forgotten.

    Raises:
        FocusError: it cannot be written.
    """
    on_disk.keep(routers_hash, {f"{layer}/{group}": note})


def capture(analysis: Analysis) -> Session:
    """This session for a file.

    It names no folder above the user's: paths in the home folder start with "~", and of others the name alone is kept.
    Its text is in the file, so the folder that it came from is left out.
    """
    settings = {name: st.session_state.get(name) for name in state.SETTINGS if name not in ("folder", "file", "part")}
    routers_hash = analysis.trace.provenance.routers_hash
    return Session(
        settings={name: _portable(str(value)) for name, value in settings.items() if value not in (None, "", -1)},
        choices={name: st.session_state[key] for name, key in CHOICES.items() if key in st.session_state},
        notes=on_disk.of_every_head(routers_hash),
        text=analysis.trace.text,
        text_name=analysis.text_name,
        routers_hash=routers_hash,
    )


def apply(session: Session) -> None:
    """Replace this session by one from a file; call it from a callback, before any widget is drawn.

    Values are checked as those of a link are; unusable ones become defaults. Notes of the file replace those on the
    same groups; others stay.

    Raises:
        FocusError: the notes cannot be written.
    """
    st.session_state[state.ORIGIN] = "session file"
    st.session_state.pop(state.OWN, None)  # its values are chosen ones, even where they equal the last routers' own
    kept = () if session.text is not None else ("source", "sample")  # it brings no text: the one here stays
    for name, setting in state.SETTINGS.items():
        if name in kept:
            continue
        try:
            st.session_state[name] = setting.parse(session.settings[name])
        except (KeyError, ValueError):
            st.session_state[name] = setting.default
    if session.text is not None and not _is_sample(session.settings, session.text):
        st.session_state["source"], st.session_state["paste"] = "paste", session.text
    state.forget_followed()
    for name, value in _usable(session.choices).items():
        st.session_state[CHOICES[name]] = value
    for routers, own in session.notes.items():
        on_disk.keep(routers, own)
    for key in [key for key in st.session_state if str(key).startswith("note_")]:
        del st.session_state[key]  # the boxes show the new notes


def _portable(value: str) -> str:
    """A path in the home folder in the spelling that holds for any user, the name of another; the rest as it is."""
    try:
        path = Path(value).expanduser()
    except RuntimeError:  # a user that is not known here
        return value
    if not path.is_absolute():
        return value
    home = Path.home()
    return f"~/{path.relative_to(home).as_posix()}" if path.is_relative_to(home) else path.name


def _is_sample(settings: Mapping[str, str], text: str) -> bool:
    sample = texts.samples().get(settings.get("sample", ""))
    return settings.get("source") == "sample" and sample is not None and sample.read() == text


def _usable(choices: Mapping[str, Any]) -> dict[str, Any]:
    """The choices that this version knows; layers that a model does not have are left out by the page."""
    usable = dict(choices)
    usable["sections"] = [name for name in choices.get("sections", SECTIONS) if name in SECTIONS]
    usable["examples"] = min(choices.get("examples", 5), MAX_EXAMPLES)
    if usable.get("layers") is None:
        usable.pop("layers", None)
    return usable
