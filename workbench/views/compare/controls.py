"""The controls of B on the Compare page: A's settings, but for those that the user lets differ."""

from __future__ import annotations

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from focus_core.analysis import Trace
from focus_core.routing.config import FocusConfig
from workbench.engine import service
from workbench.engine.service import Analysis, Settings
from workbench.shell import handover, state, texts
from workbench.shell.reading import share_of_pairs
from workbench.widgets.layer import layer_slider

PARTS = {
    "text": "Text",
    "routers": "Routers",
    "layer": "Layer",
    "k": "k or budget",
    "window": "Window",
    "sinks": "Sink tokens",
}
"""The settings that may differ, by their name in links."""
_SOURCES = {"sample": "Sample", "paste": "Paste", "upload": "File"}


def draw(first: Analysis) -> tuple[Settings, str | None, str | None, set[str]]:
    """Draw B's controls.

    Args:
        first: A.

    Returns:
        B's settings; its text and the text's name, None where the text is A's or still missing; what differs.

    Raises:
        FocusError: routers that are not there or an unreadable file.
    """
    differs = _differs()
    config = first.trace.config
    text, text_name = _text() if "text" in differs else (None, None)
    model, routers = st.session_state["model"], st.session_state["routers"]
    columns = iter(st.columns(max(1, len(differs - {"text", "layer"}))))
    if "routers" in differs:
        routers = _routers(next(columns), routers)
    own = service.router_config(routers, config.num_groups)
    top_k, window, sinks = min(config.top_k, own.num_groups), config.window, config.sink_tokens
    plan = own.layer_top_k if config.layer_top_k is not None else None
    # k has no meaning for a share of the pairs, nor a share for k: B then starts from its routers' own.
    share = own.read_share if config.read_share is None or own.read_share is None else config.read_share
    if "k" in differs and share is not None:
        share = share_of_pairs(next(columns), "b_share", share, "Budget of distant pairs of B")
    elif "k" in differs:
        top_k, plan = _k(next(columns), own, config)
    elif config.read_share is not None:
        top_k, plan = own.top_k, own.layer_top_k
    if "window" in differs:
        state.clamp("b_window", 0, 100_000, window)
        window = _number(
            next(columns), "Window of B", "b_window", 0, 100_000, "Tokens at most this far back are always read."
        )
    if "sinks" in differs:
        state.clamp("b_sinks", 0, 1_000, sinks)
        sinks = _number(
            next(columns),
            "Sink tokens of B",
            "b_sinks",
            0,
            1_000,
            "First tokens of the text, which every later token reads.",
        )
    head = min(first.trace.head or 0, service.num_heads(routers) - 1)
    settings = Settings(model, routers, own.num_groups, top_k, window, sinks, first.states, plan, head, share)
    return settings, text, text_name, differs


def link_changes(settings: Settings, text: str | None) -> dict[str, str]:
    """The settings with which links to groups of B differ from those to groups of A; empty ones are left out of them.

    Args:
        settings: of B.
        text: of B, None where it is A's.
    """
    changes = {
        "routers": settings.routers,
        "groups": str(settings.num_groups),
        "k": str(settings.top_k),
        "k_from": "one" if settings.layer_top_k is None else "plan",
        "share": "" if settings.read_share is None else f"{100 * settings.read_share:g}",
        "window": str(settings.window),
        "sinks": str(settings.sink_tokens),
    }
    if text is None:
        return changes
    changes[handover.PARAMETER] = ""  # never A's text
    if st.session_state["b_source"] == "sample":
        return changes | {"source": "sample", "sample": st.session_state["b_sample"]}
    return changes | {"source": "paste"} | handover.of_text(text)


def expected_layer(first: Trace, row: int, *, differs: bool) -> int:
    """Number of B's layer while B is not known yet: the chosen one, or what `layer` begins with.

    Args:
        first: the routing of A.
        row: row of A's layer.
        differs: whether the user may choose it.
    """
    chosen = st.session_state.get("b_layer", -1) if differs else first.layers[row]
    return first.layers[min(row + 1, len(first.layers) - 1)] if chosen == -1 else chosen


def layer(first_layer: int, second: Trace, *, differs: bool) -> int:
    """Row of B's layer: A's where it does not differ, or the nearest one B has.

    Args:
        first_layer: A's layer.
        second: the routing of B.
        differs: whether the user may choose it.
    """
    layers = second.layers
    if not differs:
        return min(range(len(layers)), key=lambda row: abs(layers[row] - first_layer))
    after = min(layers.index(first_layer) + 1 if first_layer in layers else 0, len(layers) - 1)
    return layer_slider(second, "The layer of B that is compared.", label="Layer of B", key="b_layer", default=after)


def _differs() -> set[str]:
    if "differs_box" not in st.session_state:
        chosen = st.session_state["differs"] or "routers"
        st.session_state["differs_box"] = [name for name in chosen.split(",") if name in PARTS]
    picked = st.pills(
        "B differs from A in",
        list(PARTS),
        selection_mode="multi",
        format_func=lambda name: PARTS[name],
        key="differs_box",
        help="B has the settings of the sidebar, as A has, except for these.",
    )
    st.session_state["differs"] = ",".join(picked) or "nothing"
    return set(picked)


def _text() -> tuple[str | None, str]:
    state.choose("b_source", list(_SOURCES))
    left, right = st.columns([1, 2])
    source = left.segmented_control(
        "Text of B",
        list(_SOURCES),
        format_func=lambda name: _SOURCES[name],
        key="b_source",
        required=True,
        help="Another sample, a pasted text, or a file. It stays on this machine and is never part of a link.",
        persist_state="session",
    )
    with right:
        if source == "paste":
            with st.form("b_paste_form", border=False):
                st.text_area(
                    "Pasted text of B",
                    key="b_paste",
                    height=120,
                    help="Ctrl+Enter also works.",
                    persist_state="session",
                )
                st.form_submit_button("Compare", type="primary", help="Route this text.")
            return st.session_state.get("b_paste") or None, "pasted text"
        if source == "upload":
            file = st.file_uploader(
                "File of B", key="b_upload", max_upload_size=texts.MAX_UPLOAD_MB, help="A plain text file in UTF-8."
            )
            return (None, "file") if file is None else (texts.uploaded(file.getvalue(), file.name), file.name)
        samples = texts.samples()
        if st.session_state.get("b_sample") not in samples:
            others = [name for name in samples if name != st.session_state.get("sample")]
            st.session_state["b_sample"] = others[0]
        name = st.selectbox(
            "Sample of B",
            list(samples),
            format_func=lambda name: samples[name].title,
            key="b_sample",
            help="A text that comes with the workbench.",
            persist_state="session",
        )
        return samples[name].read(), samples[name].title


def _routers(place: DeltaGenerator, ours: str) -> str:
    options = service.routers_offered(st.session_state["model"])
    if not st.session_state.get("b_routers"):
        others = [name for name in reversed(options) if name != ours]
        st.session_state["b_routers"] = others[0] if others else options[0]
    return place.selectbox(
        "Routers of B",
        list(dict.fromkeys([*options, st.session_state["b_routers"]])),
        format_func=lambda name: "untrained (seed 0)" if name == service.UNTRAINED else name,
        key="b_routers",
        accept_new_options=True,
        help="Shipped routers, a run of the Train page, untrained routers, or a folder that focus train wrote.",
        persist_state="session",
    )


def _k(place: DeltaGenerator, own: FocusConfig, ours: FocusConfig) -> tuple[int, tuple[int, ...] | None]:
    """B's k, or its routers' plan if they have one; 0 stands for the plan in links."""
    hint = f"Groups per token, of {own.num_groups}."
    if own.layer_top_k is None:
        state.clamp("b_k", 1, own.num_groups, max(1, min(ours.top_k, own.num_groups) - 1))
        return _number(place, "k of B", "b_k", 1, own.num_groups, hint), None
    state.clamp("b_k", 0, own.num_groups, own.top_k if ours.layer_top_k is not None else 0)
    chosen = place.selectbox(
        "k of B",
        range(own.num_groups + 1),
        format_func=lambda k: str(k) if k else "as planned",
        key="b_k",
        help=f"{hint} As planned: every layer has the k that was saved with the routers.",
        persist_state="session",
    )
    return (chosen, None) if chosen else (own.top_k, own.layer_top_k)


def _number(place: DeltaGenerator, label: str, key: str, low: int, high: int, hint: str) -> int:
    return int(place.number_input(label, low, high, key=key, help=hint, persist_state="session"))
