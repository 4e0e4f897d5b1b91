"""The sidebar that every page shares: model, routers, settings and text."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from focus_core.shipped import DEFAULT, PUBLISHED, shipped_routers
from focus_core.text import read_text
from workbench.engine import access, service
from workbench.shell import reading, state, texts

FORMS = {"best": "Best", "published": "As published"}
"""The visible switch between the default routers and those of the paper's form."""
_FORM, _FORM_OF = "form", {"best": DEFAULT, "published": PUBLISHED}
PARTS = ("text", "routers", "reading", "analysis", "model")
"""Parts of the sidebar: the text; the routers; what is read by their groups; what is analysed; and the model alone."""
GROUPS = tuple(part for part in PARTS if part != "reading")
"""Parts of pages about groups alone. What is read is drawn there only where it acts: on states of the routed model."""
_SOURCES = {"sample": "Sample", "paste": "Paste", "upload": "File", "folder": "Folder"}


@dataclass(frozen=True)
class Inputs:
    """The choices of the sidebar.

    Attributes:
        settings: model, routers and routing settings.
        text: the text, None if there is none yet.
        text_name: its name on the pages.
        below_head: place for `query_head`, beside the choice of the key/value head.
        reading: whether the settings of what is read are drawn.
    """

    settings: service.Settings
    text: str | None
    text_name: str
    below_head: DeltaGenerator
    reading: bool = True


def draw(parts: Collection[str] = PARTS) -> Inputs:
    """Draw the sidebar and return the choices.

    Args:
        parts: what acts on the page, of `PARTS`; the rest is kept as it is and not drawn.

    Raises:
        FocusError: routers that are not there or an unreadable file.
    """
    text, text_name = None, ""
    with st.sidebar:
        if "text" in parts:
            text, text_name = _text()
            st.divider()
        analysed = "analysis" in parts
        drawn = "reading" in parts or (analysed and st.session_state["states"] == "routed")
        if "routers" in parts:
            settings, below_head = _settings(analysed, drawn)
        else:
            settings, below_head = _kept("model" in parts), st.container()
    return Inputs(settings, text, text_name, below_head, drawn)


def _kept(with_model: bool) -> service.Settings:
    """The settings of a page on which none of them acts but, if wanted, the model."""
    model = _model() if with_model else st.session_state["model"]
    return service.Settings(model, st.session_state["routers"] or service.routers_offered(model)[0], 8, 1, 0, 0)


def _text() -> tuple[str | None, str]:
    state.choose("source", list(_SOURCES))
    source = st.segmented_control(
        "Text",
        list(_SOURCES),
        format_func=lambda name: _SOURCES[name],
        key="source",
        required=True,
        width="stretch",
        help="A sample that comes with the workbench, a pasted text, an uploaded file, or a folder of texts. Your text "
        "stays on this machine and is never part of a link.",
        persist_state="session",
    )
    if source == "paste":
        return _pasted()
    if source == "upload":
        return _uploaded()
    if source == "folder":
        return _in_folder()
    samples = texts.samples()
    state.choose("sample", list(samples))
    name = st.selectbox(
        "Sample",
        list(samples),
        format_func=lambda name: samples[name].title,
        key="sample",
        help="Texts of our own. The long story has thousands of tokens; Many scripts shows how the tokenizer splits "
        "characters into bytes.",
        persist_state="session",
    )
    sample = samples[name]
    st.caption(sample.description)
    return sample.read(), sample.title


def _pasted() -> tuple[str | None, str]:
    with st.form("paste_form", border=False):
        st.text_area(
            "Your text",
            key="paste",
            height=220,
            placeholder="Paste or type a text, then press Show groups.",
            help=f"At most {service.MAX_TOKENS:,} tokens, and at most the model's positions. Ctrl+Enter also works.",
            persist_state="session",
        )
        asked = st.form_submit_button("Show groups", type="primary", width="stretch", help="Route this text.")
    if asked and not st.session_state.get("paste"):
        st.warning("There is no text yet. Type or paste one above.", icon=":material/edit_note:")
    return st.session_state.get("paste") or None, "pasted text"


def _uploaded() -> tuple[str | None, str]:
    file = st.file_uploader(
        "File",
        key="upload",
        max_upload_size=texts.MAX_UPLOAD_MB,
        help="A plain text file in UTF-8 (.txt, .md, source code and so on).",
    )
    if file is None:
        return None, "uploaded file"
    return texts.uploaded(file.getvalue(), file.name), file.name


def _in_folder() -> tuple[str | None, str]:
    folder = st.text_input(
        "Folder of texts",
        key="folder",
        placeholder="path of a folder, then Enter",
        help="A folder on the machine that runs the workbench. Its .txt and .md files are listed, with those of its "
        "subfolders. Links hold the path, never a text.",
        persist_state="session",
    )
    if not folder:
        return None, "folder"
    with st.spinner("Looking for texts …", show_time=True):
        files = texts.in_folder(folder)
    state.choose("file", list(files))
    name = st.selectbox(
        "File", list(files), key="file", help="The text that the pages analyse.", persist_state="session"
    )
    parts = texts.parts(read_text(files[name]))
    number = 1
    if len(parts) > 1:
        state.clamp("part", 1, len(parts), 1)
        number = st.number_input(
            f"Part, of {len(parts):,}",
            1,
            len(parts),
            key="part",
            help=f"Long files are shown in parts of about {texts.PART_CHARACTERS:,} characters.",
            persist_state="session",
        )
    st.caption(
        f"{len(files):,} texts here; the pages analyse one at a time. For statistics over all, start a report on the "
        "folder at the end of the page Report."
    )
    return parts[int(number) - 1], name if len(parts) == 1 else f"{name}, part {number} of {len(parts):,}"


def _model() -> str:
    model = st.selectbox(
        "Model",
        list(dict.fromkeys(["default", st.session_state["model"]])),
        format_func=lambda name: service.default_model.NAME if name == "default" else name,
        key="model",
        accept_new_options=True,
        help="Type the path of a model folder or GGUF file, or a hub id such as gpt2.",
        persist_state="session",
    )
    access.check_model(model)
    return model


def _settings(analysed: bool, drawn: bool) -> tuple[service.Settings, DeltaGenerator]:
    model = _model()
    routers = _routers(model)
    own = service.router_config(routers, _untrained_groups() if routers == service.UNTRAINED else 8)
    state.follow({"k": own.top_k, "window": own.window, "sinks": own.sink_tokens})
    share, top_k, plan = None, own.top_k, None
    if own.read_share is None:
        top_k, plan = reading.groups_per_token(own)
    elif drawn:
        share = reading.share_of_pairs(st, "share", own.read_share)
    else:
        share = reading.fitting_share("share", own.read_share) / 100
    head = _head(routers) if analysed else 0
    below_head = st.container()
    window, sinks = reading.local(own, drawn)
    states = _states() if analysed else "routed"
    if not drawn:
        st.caption("Groups of the untouched model do not depend on what is read, so its settings are not here.")
    chosen = service.Settings(model, routers, own.num_groups, top_k, window, sinks, states, plan, head, share)
    return chosen, below_head


def _states() -> str:
    """Whose hidden states are routed."""
    state.choose("states", list(service.STATES))
    return st.radio(
        "Hidden states of the",
        list(service.STATES),
        format_func=lambda name: service.STATES[name],
        key="states",
        help="The hidden states that the routers read. Untouched model: full attention, so a change of k, w or sinks "
        "shows at once (narrow groups run the model again). Routed model: every layer sees only what earlier layers "
        "kept, so every change runs the model again.",
        persist_state="session",
    )


def _head(routers: str) -> int:
    """The analysed key/value head, of routers per head."""
    heads = service.num_heads(routers)
    if heads == 1:
        return 0
    state.clamp("head", 0, heads - 1, 0)
    chosen = st.segmented_control(
        "Key/value head",
        range(heads),
        key="head",
        required=True,
        width="stretch",
        help="These routers have groups for every key/value head. As a key a token is in one group of the head; as a "
        "query it chooses what it reads. The pages analyse one head at a time.",
        persist_state="session",
    )
    return chosen or 0


def _routers(model: str) -> str:
    options = service.routers_offered(model)
    current = st.session_state["routers"]
    if not current or (current not in options and current in shipped_routers()):  # of a model chosen before
        st.session_state["routers"] = current = options[0]
    if model == "default":
        state.hold(_FORM, {name: form for form, name in _FORM_OF.items()}.get(current))
        st.segmented_control(
            "Form",
            list(_FORM_OF),
            format_func=lambda form: FORMS[form],
            key=_FORM,
            width="stretch",
            on_change=_take_form,
            help="Best: narrow groups of keys, cut into pages that each query chooses. As published: one router for "
            "each layer, and a token reads the groups it is in. Nothing is chosen where other routers are.",
        )
    return st.selectbox(
        "Routers",
        list(dict.fromkeys([*options, current])),
        format_func=lambda name: "untrained (seed 0)" if name == service.UNTRAINED else name,
        key="routers",
        accept_new_options=True,
        help="The learned part: they assign tokens to groups. Choose shipped routers, a run of the Train page or "
        "untrained routers for comparison, or type the path of a folder that focus fit or focus train wrote.",
        persist_state="session",
    )


def _take_form() -> None:
    chosen = st.session_state.get(_FORM)
    if chosen in _FORM_OF:
        st.session_state["routers"] = _FORM_OF[chosen]


def _untrained_groups() -> int:
    state.clamp("groups", 2, 64, 8)
    return int(
        st.number_input(
            "Groups, K",
            2,
            64,
            key="groups",
            help="Number of groups of the untrained routers. Saved routers have their own K.",
            persist_state="session",
        )
    )
