"""Settings in the URL: restored from a link and by Back and Forward, published after every change. Never the text.

The URL holds every setting, defaults included, and a version number. So a link means the same after a default has
changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from workbench.shell import handover
from workbench.widgets.page.markup import plain

VERSION = "1"
_VERSION_KEY = "v"
_RESTORED = "_restored_from_url"
ORIGIN = "_origin_of_settings"
"""Key of where settings came from that the user has not seen yet: "link" or "session file", see `asking`."""
_PUBLISHED, _READ, _PAGE = "_published", "_read_from_url", "_page_of_the_last_run"
_FROM_LINK = "_asked_for_by_link"
OWN = "_values_of_the_routers"
"""Key of the values that `follow` saw last."""
_MAX_LENGTH = 300


@dataclass(frozen=True)
class Setting:
    """One setting that links carry.

    Attributes:
        default: value of a new session.
        parse: from the URL's text to a value; raises ValueError for anything else.
    """

    default: Any
    parse: Callable[[str], Any]


def _whole_number(text: str) -> int:
    value = int(text)
    if not 0 <= value < 1_000_000:
        raise ValueError(text)
    return value


def _percent(text: str) -> float:
    value = float(text)
    if not 0 < value <= 100:
        raise ValueError(text)
    return value


def _words(text: str) -> str:
    if not text or len(text) > _MAX_LENGTH or not text.isprintable():
        raise ValueError(text)
    return text


SETTINGS: dict[str, Setting] = {
    "model": Setting("default", _words),
    "routers": Setting("", _words),
    "groups": Setting(8, _whole_number),
    "k": Setting(-1, _whole_number),
    "share": Setting(-1, _percent),
    "head": Setting(0, _whole_number),
    "query_head": Setting(0, _whole_number),
    "k_from": Setting("", _words),
    "window": Setting(-1, _whole_number),
    "sinks": Setting(-1, _whole_number),
    "states": Setting("untouched", _words),
    "source": Setting("sample", _words),
    "sample": Setting("", _words),
    "folder": Setting("", _words),
    "file": Setting("", _words),
    "part": Setting(1, _whole_number),
    "layer": Setting(-1, _whole_number),
    "other": Setting(-1, _whole_number),
    "group": Setting(-1, _whole_number),
    "find_by": Setting("tag", _words),
    "find": Setting("", _words),
    "find_tag": Setting("PROPN", _words),
    "find_entity": Setting("PERSON", _words),
    "write_as": Setting("continue", _words),
    "computed": Setting("", _words),
    "differs": Setting("", _words),
    "b_source": Setting("sample", _words),
    "b_sample": Setting("", _words),
    "b_routers": Setting("", _words),
    "b_layer": Setting(-1, _whole_number),
    "b_k": Setting(-1, _whole_number),
    "b_share": Setting(-1, _percent),
    "b_window": Setting(-1, _whole_number),
    "b_sinks": Setting(-1, _whole_number),
    "token": Setting(-1, _whole_number),
    "tint": Setting("", _words),
    "view": Setting("", _words),
    "tags": Setting("upos", _words),
    "subword": Setting("last", _words),
    "run": Setting("", _words),
    "speed": Setting("", _words),
    "speed_dtype": Setting("", _words),
    "axis": Setting("", _words),
    "frontier_axis": Setting("", _words),
    "kinds_length": Setting(-1, _whole_number),
    "evidence": Setting("", _words),
    "record": Setting("", _words),
}
"""Every setting in the URL, by its name there, which is also its key in the session state.

An empty word or -1 means "not chosen yet": the page of the setting chooses a value, and nothing is published.
"""


def restore() -> None:
    """Fill the session state from the URL: at the start of a session, and when the browser went back or forward.

    Anything unreadable falls back to the default, with a message. A page calls this before it draws a widget.
    """
    started, (new_page, pressed) = _RESTORED in st.session_state, _arrival()
    if started and not ((new_page or pressed) and _went_elsewhere()):
        if new_page:  # written anew, or a page that draws a widget first resets it to its minimum
            for name in (*SETTINGS, "paste"):
                if name in st.session_state:
                    st.session_state[name] = st.session_state[name]
        return
    st.session_state[_RESTORED], st.session_state[_READ] = True, st.query_params.to_dict()
    if _PUBLISHED in st.session_state:  # else `publish` writes anew what Back has brought, and Forward is lost
        st.session_state[_PUBLISHED] = st.query_params.to_dict()
    st.session_state[ORIGIN] = "link"
    readable = st.query_params.get(_VERSION_KEY, VERSION) == VERSION
    partial = started and "model" not in st.query_params  # a link inside the app: what it does not name stays
    if not readable:
        st.toast("This link is of another version of the workbench: default settings are used.")
    asked: dict[str, str] = {}
    for name, setting in SETTINGS.items():
        value = st.session_state[name] if partial else setting.default
        if readable and name in st.query_params:
            try:
                value = setting.parse(st.query_params[name])
                asked[name] = st.query_params[name]
            except ValueError:
                st.toast(f"The link's value of '{name}' cannot be read: the default is used.", duration="long")
        st.session_state[name] = value
    st.session_state[_FROM_LINK] = asked
    if not started:
        handover.take(st.query_params.to_dict())


def _arrival() -> tuple[bool, bool]:
    """Whether this run is the first of its page, and whether Back or Forward asked for it.

    Only Streamlit's context tells. Its field for Back and Forward has no public name; a version without it counts as
    if they had been pressed.
    """
    context = get_script_run_ctx()
    page = None if context is None else context.page_script_hash
    before, st.session_state[_PAGE] = st.session_state.get(_PAGE), page
    return page != before, getattr(context, "is_history_navigation", True)


def _went_elsewhere() -> bool:
    """Whether the browser shows another URL than the published one, and no setting has changed since.

    Of a run that Back, Forward or a link asked for. In any other the URL may lag behind, and means nothing. A new page
    begins without settings in its URL.
    """
    published, here = st.session_state.get(_PUBLISHED), st.query_params.to_dict()
    if _VERSION_KEY not in here:
        return False
    if published is None:  # nothing was drawn yet, as on Home or while a question is open
        return here != st.session_state.get(_READ)
    return here != published and chosen() == published


def is_link() -> bool:
    """Whether the URL holds settings."""
    return any(name in SETTINGS for name in st.query_params)


def publish() -> None:
    """Write the settings of this session into the URL.

    Also where the URL of this run has them but the last ones were others, which the browser may show by now.
    """
    link = chosen()
    if not st.query_params.to_dict() == link == st.session_state.get(_PUBLISHED, link):
        st.query_params.from_dict(link)
    st.session_state[_PUBLISHED] = link


def chosen() -> dict[str, str]:
    """The settings of this session as a link has them."""
    link = {_VERSION_KEY: VERSION}
    for name in SETTINGS:
        value = st.session_state.get(name)
        if value not in (None, "", -1):
            link[name] = f"{value:g}" if isinstance(value, float) else str(value)
    return link


def refuse(name: str, taken: object) -> None:
    """Say that the value of a setting in the link cannot be used here; once, and nothing if no link asked for it.

    Args:
        name: of the setting.
        taken: the value that is used, as the page calls it.
    """
    given = st.session_state.get(_FROM_LINK, {}).pop(name, None)
    if given is not None:
        message = f"The link asks for {name.replace('_', ' ')} {given}, which is not here. Shown instead: {taken}."
        st.toast(plain(message), duration="long", icon=":material/link_off:")


def clamp(name: str, low: int, high: int, default: int) -> None:
    """Bring a number in the session state into a range before its widget is drawn.

    Args:
        name: key of the setting.
        low: smallest value.
        high: largest value.
        default: taken while the value is missing, not chosen or out of range.
    """
    value = st.session_state.get(name)
    if not isinstance(value, int) or not low <= value <= high:
        st.session_state[name] = default
        refuse(name, default)


def follow(own: Mapping[str, Any]) -> None:
    """Give settings that still have the value of the last routers that of the routers now chosen.

    Args:
        own: value of the chosen routers for each setting.
    """
    before = st.session_state.get(OWN, {})
    for name, value in own.items():
        if name in before and before[name] != value and st.session_state.get(name) == before[name]:
            st.session_state[name] = value
    st.session_state[OWN] = dict(own)


def forget_followed() -> None:
    """Keep all settings as they are when the routers change next, as those of a session file must be."""
    st.session_state.pop(OWN, None)


def choose(name: str, options: Sequence[Any]) -> None:
    """Bring a choice in the session state into the options, the first one by default."""
    if st.session_state.get(name) not in options:
        st.session_state[name] = options[0]
        refuse(name, options[0])


def hold(key: str, value: Any) -> None:
    """Give a widget a value before it is drawn; one that has it is left alone.

    Streamlit tells the browser of every value that is written. Where that comes after the user's next click, it undoes
    the click in the browser, and nowhere else.

    Args:
        key: of the widget.
        value: that it shall have.
    """
    if key not in st.session_state or st.session_state[key] != value:
        st.session_state[key] = value
