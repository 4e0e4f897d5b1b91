"""The sidebar that every page shares: model, routers, settings and text."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from types import ModuleType

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from focus_core.analysis import Trace
from focus_core.routing.config import FocusConfig
from focus_core.routing.routers import ROUTERS
from focus_core.shipped import DEFAULT, PUBLISHED, shipped_routers
from focus_core.text import read_text
from workbench.engine import access, service
from workbench.engine.plans import plan_in_words, shares
from workbench.runs import jobs
from workbench.shell import state, texts

_K_FROM = {"plan": "As planned", "one": "One k for all"}
FORMS = {"best": "Best", "published": "As published"}
"""The visible switch between the default routers and those of the paper's form."""
_FORM, _FORM_OF = "form", {"best": DEFAULT, "published": PUBLISHED}
PARTS = ("text", "routers", "analysis", "model")
"""Parts of the sidebar: the text; the routers and their budget; what of them is analysed; and the model alone."""
_SOURCES = {"sample": "Sample", "paste": "Paste", "upload": "File", "folder": "Folder"}


@dataclass(frozen=True)
class Inputs:
    """The choices of the sidebar.

    Attributes:
        settings: model, routers and routing settings.
        text: the text, None if there is none yet.
        text_name: its name on the pages.
        below_head: place for `query_head`, beside the choice of the key/value head.
    """

    settings: service.Settings
    text: str | None
    text_name: str
    below_head: DeltaGenerator


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
        if "routers" in parts:
            settings, below_head = _settings("analysis" in parts)
        else:
            settings, below_head = _kept("model" in parts), st.container()
    return Inputs(settings, text, text_name, below_head)


def _kept(with_model: bool) -> service.Settings:
    """The settings of a page on which none of them acts but, if wanted, the model."""
    model = _model() if with_model else st.session_state["model"]
    return service.Settings(model, st.session_state["routers"] or shipped_routers()[0], 8, 1, 0, 0)


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
        f"{len(files):,} texts here; the pages analyse one at a time. For statistics over all, run `focus align` or "
        "`focus report` on the folder."
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


def _settings(analysed: bool) -> tuple[service.Settings, DeltaGenerator]:
    model = _model()
    routers = _routers()
    own = service.router_config(routers, _untrained_groups() if routers == service.UNTRAINED else 8)
    state.follow({"k": own.top_k, "window": own.window, "sinks": own.sink_tokens})
    share = None if own.read_share is None else share_of_pairs(st, "share", own.read_share)
    top_k, plan = _groups_per_token(own) if share is None else (own.top_k, None)
    head = _head(routers) if analysed else 0
    below_head = st.container()
    left, right = st.columns(2)
    state.clamp("window", 0, 100_000, own.window)
    window = left.number_input(
        "Window, w",
        0,
        100_000,
        key="window",
        step=16,
        help="Tokens at most this far back are always read, whatever their groups.",
        persist_state="session",
    )
    state.clamp("sinks", 0, 1_000, own.sink_tokens)
    sinks = right.number_input(
        "Sink tokens",
        0,
        1_000,
        key="sinks",
        help="First tokens of the text, which every later token reads. 0 is the published method.",
        persist_state="session",
    )
    states = _states() if analysed else "routed"
    chosen = service.Settings(model, routers, own.num_groups, top_k, int(window), int(sinks), states, plan, head, share)
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


def share_of_pairs(
    place: DeltaGenerator | ModuleType, key: str, own: float, label: str = "Distant pairs read"
) -> float:
    """The share of the distant pairs that narrow routers read; links hold it in percent.

    Args:
        place: where to draw.
        key: setting in links.
        own: the routers' own share.
        label: of the slider.
    """
    options = [round(100 * share, 6) for share in shares(own)]
    if st.session_state.get(key) not in options:
        st.session_state[key] = round(100 * own, 6)
    percent = place.select_slider(
        label,
        options,
        key=key,
        format_func=lambda percent: f"{percent:g}%",
        help="The budget of narrow groups: the share of the keys beyond its window that a query attends to exactly. "
        f"Summaries stand for the others. There is no k. Default of these routers: {100 * own:g}%.",
        persist_state="session",
    )
    return float(percent) / 100


def query_head(trace: Trace, place: DeltaGenerator) -> int:
    """The query head whose reading the pages show, where every query head chooses for itself.

    Args:
        trace: the routing.
        place: where to draw, `Inputs.below_head`.
    """
    count = next((len(parts.packed) for parts in trace.parts or () if parts is not None), 1)
    if count == 1:
        return 0
    state.clamp("query_head", 0, count - 1, 0)
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


def _groups_per_token(own: FocusConfig) -> tuple[int, tuple[int, ...] | None]:
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


def _routers() -> str:
    options = [*shipped_routers(), *jobs.finished_routers(), service.UNTRAINED]
    current = st.session_state["routers"]
    if not current:
        st.session_state["routers"] = current = options[0]
    if st.session_state["model"] == "default":
        st.session_state[_FORM] = {name: form for form, name in _FORM_OF.items()}.get(current)
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
        "untrained routers for comparison, or type the path of a folder that focus train wrote.",
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
