"""Write: do both models write the same?"""

from __future__ import annotations

from functools import partial

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from focus_core.errors import FocusError
from workbench.charts.theme import is_dark
from workbench.engine.service import Settings
from workbench.shell import state, texts
from workbench.shell.frame import open_bare_page, prepare
from workbench.views.write.pairs import (
    ComparedPrompts,
    PairRequest,
    change_chart,
    compare_prompts,
    next_table,
    pair_table,
    pair_verdict,
)
from workbench.views.write.run import Draft, Pair, Request, write_pair
from workbench.views.write.show import (
    NAMES,
    draft_line,
    kl_chart,
    likeliest,
    short_prompt,
    speed_note,
    token_table,
    verdict,
    written_text,
)
from workbench.widgets.export import chart
from workbench.widgets.guard import guarded
from workbench.widgets.page.markup import counted, plain

QUESTION = (
    "The untouched and the routed model continue the same prompt. Then both read each text, which shows where their "
    "predictions part."
)
EXAMPLE = "To sum up, the"
NOTHING, FILE = "", "file"  # documents before the prompt, beside the samples
LONG = "story"  # long enough for routing to leave something out
PAIR, DRAFTS, PICKED, COMPARED = "written_pair", "written_drafts", "written_token", "compared_prompts"
TASKS = {"continue": "Continue a prompt", "compare": "Compare two prompts"}
EDIT = ("The keeper thanked his brother, because he", "The keeper thanked his sister, because she")
PROBABILITY = st.column_config.NumberColumn("probability", format="percent", width=80)
THREE = st.column_config.NumberColumn(format="%.3f")


def main() -> None:
    """Draw the page."""
    inputs = open_bare_page("Write: do both models write the same?", QUESTION, ("routers", "reading"))
    state.choose("write_as", list(TASKS))
    task = st.segmented_control(
        "What to do",
        list(TASKS),
        format_func=lambda name: TASKS[name],
        key="write_as",
        required=True,
        help="Compare: two prompts that differ by an edit, and how it changes the predictions of both models.",
        persist_state="session",
    )
    if task == "compare":
        _compare(inputs.settings)
        return
    request = _form(inputs.settings)
    state.publish()
    below = st.empty()  # takes the last hint or result away before anything is written
    if request is not None:
        _write(request)
    with below.container():
        _written()


def _written() -> None:
    """The last texts, or what the page will show."""
    pair: Pair | None = st.session_state.get(PAIR)
    if pair is not None:
        _show(pair)
    elif st.session_state.get(DRAFTS):
        _stopped(st.session_state[DRAFTS])
    else:
        st.info("**Press Write** to see both texts grow, the untouched model's first.", icon=":material/edit:")
        st.markdown(
            "You will see:\n"
            "1. **Both texts**, with their speeds and the first token that differs.\n"
            "2. **Each token** tinted by how much more or less likely routing makes it.\n"
            "3. **The ten likeliest tokens** of both models at a token that you select."
        )
        note = speed_note()
        if note:
            st.caption(note)


def _before() -> str:
    """The name of the document before the prompt."""
    samples = texts.samples()
    names = {NOTHING: "nothing", **{name: sample.title for name, sample in samples.items()}, FILE: "a file of yours"}
    st.session_state.setdefault("before", LONG if LONG in samples else NOTHING)
    before = st.selectbox(
        "Document before the prompt",
        list(names),
        format_func=lambda name: names[name],
        key="before",
        help="Routing leaves something out only where the text is longer than its window.",
        persist_state="session",
    )
    return before


def _document(before: str) -> str:
    """The document before the prompt; a file is asked for where that is chosen."""
    samples = texts.samples()
    if before in samples:
        return samples[before].read()
    if before != FILE:
        return ""
    file = st.file_uploader(
        "Document",
        key="document",
        max_upload_size=texts.MAX_UPLOAD_MB,
        help="A plain text file in UTF-8. Routing saves most over long documents.",
    )
    return "" if file is None else texts.uploaded(file.getvalue(), file.name)


def _form(settings: Settings) -> Request | None:
    st.session_state.setdefault("prompt", EXAMPLE)
    before = _before()
    with st.form("write_form", border=False):
        prompt = st.text_area(
            "Prompt",
            key="prompt",
            height=110,
            help="Text to continue. It stays on this machine and is never part of a link.",
            persist_state="session",
        )
        document = _document(before)
        one, two, three, four = st.columns(4, vertical_alignment="bottom")
        count = one.number_input(
            "New tokens",
            1,
            400,
            60,
            key="new_tokens",
            help="Tokens at most; a model may end earlier.",
            persist_state="session",
        )
        temperature = two.number_input(
            "Temperature",
            0.0,
            2.0,
            0.0,
            0.1,
            key="temperature",
            help="0 takes the likeliest token each time.",
            persist_state="session",
        )
        seed = three.number_input("Seed", 0, 10**6, 0, key="seed", help="Of sampling.", persist_state="session")
        chat = four.toggle(
            "Chat message",
            key="chat",
            help="Put the prompt into the model's chat template, as a message of the user.",
            persist_state="session",
        )
        pressed = st.form_submit_button(
            "Write", type="primary", icon=":material/edit:", help="Write with both models, one after the other."
        )
    if not pressed:
        return None
    whole = f"{document.rstrip()}\n\n{prompt}" if document else prompt
    if not whole.strip():
        raise FocusError("The prompt is empty: give some text to continue, or a document.")
    return Request(whole, settings, int(count), float(temperature), int(seed), bool(chat))


def _compare(settings: Settings) -> None:
    """Two prompts that differ by an edit."""
    before = _before()
    with st.form("compare_form", border=False):
        places = zip(("First prompt", "Second prompt"), ("first_prompt", "second_prompt"), EDIT, st.columns(2))
        for label, key, example, column in places:
            st.session_state.setdefault(key, example)
            column.text_area(
                label,
                key=key,
                height=110,
                help="It stays on this machine and is never part of a link.",
                persist_state="session",
            )
        document = _document(before)
        pressed = st.form_submit_button(
            "Compare", type="primary", icon=":material/difference:", help="Both models read both prompts."
        )
    state.publish()
    below = st.empty()  # as on the other task
    if pressed:
        st.session_state.pop(COMPARED, None)
        prepare(settings.model)
        request = PairRequest(document, st.session_state["first_prompt"], st.session_state["second_prompt"], settings)
        with st.spinner("Both models read both prompts …", show_time=True):
            st.session_state[COMPARED] = compare_prompts(request)
    with below.container():
        _compared()


def _compared() -> None:
    """The last two prompts that were compared, or what to press."""
    found: ComparedPrompts | None = st.session_state.get(COMPARED)
    if found is None:
        st.info(
            "**Press Compare** to see how the edit changes the predictions of both models.",
            icon=":material/difference:",
        )
        return
    st.markdown(f"#### {plain(pair_verdict(found))}")
    st.markdown("**The likeliest next tokens**")
    st.dataframe(next_table(found), hide_index=True, key="pair_next")
    settings = found.request.settings
    chart(
        change_chart(found, dark=is_dark()),
        pair_table(found),
        {"model": found.model, "routers": settings.routers, **settings.changes},
        name="pair",
        alt="Change of the loss at every token that both prompts share, of both models.",
    )


def _write(request: Request) -> None:
    """Write, drawing both texts as they grow. A press of Stop ends this run of the page; the drafts stay."""
    st.session_state.pop(PAIR, None)
    st.session_state.pop(PICKED, None)
    drafts: dict[str, Draft] = {}
    st.session_state[DRAFTS] = drafts
    prepare(request.settings.model)
    whole = st.empty()
    with whole.container():
        st.button("Stop", icon=":material/stop:", key="stop_writing", help="Keep what is written so far.")
        places: dict[str, DeltaGenerator] = dict(zip(("off", "hard"), _columns()))
        share = request.settings.read_share

        def show(draft: Draft) -> None:
            drafts[draft.mode] = draft
            line = draft_line(draft, share, request.settings.window, request.settings.sink_tokens)
            places[draft.mode].markdown(f"{plain(draft.text) or '…'}\n\n:gray[{line}]")

        pair = write_pair(request, show)
    whole.empty()
    st.session_state[PAIR] = pair


def _columns() -> list[DeltaGenerator]:
    places = []
    for column, name in zip(st.columns(2, gap="medium"), NAMES):
        column.markdown(f"##### The {name} model")
        places.append(column.empty())
    return places


def _stopped(drafts: dict[str, Draft]) -> None:
    st.markdown("#### Stopped: this is what was written.")
    for place, mode in zip(_columns(), ("off", "hard")):
        draft = drafts.get(mode)
        place.markdown(plain(draft.text) if draft is not None and draft.text else ":gray[not begun]")
    st.caption("Predictions are compared once both texts are finished.")


@st.fragment
def _show(pair: Pair) -> None:
    with guarded():
        st.markdown(f"#### {verdict(pair)}")
        if short_prompt(pair):
            st.info(
                "All of this fits into the window, so routing reads every pair. Give a longer prompt or a document to "
                "see what it leaves out.",
                icon=":material/info:",
            )
        side, place = _selected(pair)
        for number, column in enumerate(st.columns(2, gap="medium")):
            with column:
                st.markdown(f"##### The {NAMES[number]} model")
                with st.container(border=True):
                    written_text(pair, number, place if number == side else None, partial(_pick, number))
                st.caption(_written_line(pair, number))
        st.caption(
            "Blue: more likely under routing. Orange: less likely. Wavy line: the first token that differs. Both "
            "models read each text. Select a token for their likeliest ones."
        )
        note = speed_note(pair.written[1].prompt_tokens)
        if note:
            st.caption(note)
        _details(pair, side, place)


def _selected(pair: Pair) -> tuple[int, int]:
    side, place = st.session_state.get(PICKED, (1, pair.difference or 0))
    return side, min(place, len(pair.along[side].tokens) - 1)


def _pick(side: int, place: int) -> None:
    st.session_state[PICKED] = (side, place)


def _written_line(pair: Pair, side: int) -> str:
    written = pair.written[side]
    pace = "" if written.tokens_per_second is None else f", {written.tokens_per_second:.1f} tokens per second"
    reads = "all pairs" if side == 0 else written.budget
    made = f"{counted(len(written.tokens), 'token')} after {written.prompt_tokens:,}"
    return f"{made}; prefill {written.prefill_seconds:.1f} s{pace}; {reads}."


def _details(pair: Pair, side: int, place: int) -> None:
    settings = pair.request.settings
    origin = {
        "model": pair.model,
        "routers": settings.routers,
        "text of": NAMES[side],
        **settings.changes,
        "temperature": pair.request.temperature,
        "seed": pair.request.seed,
    }
    left, right = st.columns(2, gap="medium")
    with left:
        st.markdown(f"**The likeliest at token {place + 1}** of the text of the {NAMES[side]} model")
        st.dataframe(
            likeliest(pair, side, place),
            hide_index=True,
            key="likeliest",
            column_config={
                "rank": st.column_config.NumberColumn(width=40),
                **{name: st.column_config.TextColumn(width=80) for name in NAMES},
                **{f"{name}, probability": PROBABILITY for name in NAMES},
            },
        )
    with right:
        chart(
            kl_chart(pair, side, dark=is_dark()),
            token_table(pair, side),
            origin,
            name="written",
            file=f"written-{NAMES[side]}",
            alt=f"KL at each of {len(pair.along[side].tokens)} tokens of the text of the {NAMES[side]} model.",
            column_config={
                name: THREE for name in ("log-probability, untouched", "log-probability, routed", "change", "KL")
            },
        )


with guarded():
    main()
