"""Report: what is in each group?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import streamlit as st

from focus_core.analysis.families import SINGLE_COLORS
from focus_core.errors import FocusError
from focus_core.report.bundle import MAX_FILE, MAX_NOTE, read_bundle, write_bundle
from focus_core.report.files import report_files
from focus_core.report.html import summary, to_html, to_json
from focus_core.report.model import SECTIONS, Card, Report
from workbench.charts.theme import is_dark
from workbench.engine.labels import notes_key
from workbench.engine.service import Analysis
from workbench.shell import sessions, state
from workbench.shell.frame import open_page
from workbench.views.report.build import report_of
from workbench.views.report.corpus_box import corpus_box
from workbench.widgets.group_link import group_link, labels_here
from workbench.widgets.guard import guarded
from workbench.widgets.layer import layer_slider
from workbench.widgets.page.empty import empty_state
from workbench.widgets.page.markup import plain
from workbench.widgets.short_text import note_if_short

QUESTION = (
    "A card for every group of every layer: its size and confidence, its tokens and parts of speech, examples, and "
    "whether it persists. You can take notes, export the report, and open the session again later."
)
RESTORED, REFUSED = "session_restored", "session_refused"
MIME = {
    "html": "text/html",
    "json": "application/json",
    "csv": "text/csv",
    "parquet": "application/vnd.apache.parquet",
    "zip": "application/zip",
}


def main() -> None:
    """Draw the page."""
    try:
        analysis = open_page("Report: what is in each group?", QUESTION)
        if analysis is None:
            _empty_state()
        else:
            _restored(analysis)
            note_if_short(analysis.trace)
            _report(analysis)
    finally:  # after an error another session can still be opened
        if state.OWN in st.session_state:  # the sidebar has been drawn
            corpus_box()
        _session_box()


@st.fragment
def _report(analysis: Analysis) -> None:
    with guarded():
        layers = list(analysis.trace.layers)
        chosen, sections, examples, seed = _choices(layers)
        with st.spinner("Counting, sampling and tagging …", show_time=True):
            everything = report_of(analysis, model=st.session_state["model"], examples=examples, seed=seed)
        routers = notes_key(analysis.trace)
        report = everything.with_notes(sessions.notes(routers)).only(chosen, sections)
        if not report.cards:
            st.info("**Choose at least one layer** to see its groups.", icon=":material/layers:")
            return
        st.markdown(f"#### {plain(summary(report))}")
        _exports(report, analysis)
        st.divider()
        row = layer_slider(
            analysis.trace,
            "The layer of the preview and of the notes. The files hold all chosen layers.",
            label="Layer in the preview",
            among=report.layers,
        )
        layer = analysis.trace.layers[row]
        if "notes" in sections:
            _notes(routers, report, layer)
        group_link(analysis.trace, row, key="report_group_page", names=labels_here(analysis, row))
        st.iframe(
            to_html(report.only([layer], sections), "dark" if is_dark() else "light", cards_only=True),
            height=900,
            alt=f"Preview of the report: the groups of layer {layer}.",
        )
        state.publish()


def _choices(layers: list[int]) -> tuple[list[int], list[str], int, int]:
    """The chosen layers, sections, examples per card and seed."""
    keys, session = sessions.CHOICES, st.session_state
    session[keys["layers"]] = [layer for layer in session.get(keys["layers"], layers) if layer in layers]
    session.setdefault(keys["sections"], list(SECTIONS))
    session.setdefault(keys["examples"], 5)
    session.setdefault(keys["seed"], 0)
    left, middle, right = st.columns([3, 1, 1], gap="medium", vertical_alignment="bottom")
    sections = left.pills(
        "Sections",
        list(SECTIONS),
        selection_mode="multi",
        format_func=lambda name: SECTIONS[name],
        key=keys["sections"],
        wrap=True,
        help="Parts of a card. Size and confidence are always there. Parts left out are in none of the files.",
        persist_state="session",
    )
    examples = middle.number_input(
        "Examples",
        0,
        sessions.MAX_EXAMPLES,
        key=keys["examples"],
        help="Random and strongest examples on each card.",
        persist_state="session",
    )
    seed = right.number_input(
        "Seed",
        0,
        999_999,
        key=keys["seed"],
        help="Seed of the random examples and of the intervals. The same seed gives the same report.",
        persist_state="session",
    )
    with st.expander(f"Layers: {len(session[keys['layers']])} of {len(layers)}"):
        chosen = st.multiselect(
            "Layers in the report",
            layers,
            key=keys["layers"],
            select_all=True,
            help="Layers whose groups have cards.",
            persist_state="session",
        )
    return chosen, list(sections), int(examples), int(seed)


def _notes(routers: str, report: Report, layer: int) -> None:
    cards: Sequence[Card] = report.of_layer(layer)
    box = st.expander("Notes on the groups of this layer", key="notes_box", on_change="rerun")
    if not box.open:
        return
    with box:
        several = len(cards) > SINGLE_COLORS
        columns = st.columns(1 if several else 2, gap="medium")
        if several:
            cards = [_card_of_note(cards)]
        for card in cards:
            key = f"note_{routers}_{card.layer}_{card.group}"
            st.session_state.setdefault(key, card.note)
            tokens = " ".join(token.text.strip() for token in card.typical[:5] or card.frequent[:5])
            columns[card.group % len(columns)].text_area(
                f"Group {card.group}{f': {plain(tokens)}' if tokens.strip() else ''}",
                key=key,
                max_chars=MAX_NOTE,
                height=80,
                on_change=partial(_note_changed, key, routers, card.layer, card.group),
                help="Your note on this group. It is kept on this machine; the report and the session file hold it.",
                placeholder="Your note on this group",
            )


def _card_of_note(cards: Sequence[Card]) -> Card:
    """Of many groups the one that is chosen; type its number or one of its tokens to find it."""
    by_size = {card.group: card for card in sorted(cards, key=lambda card: (-card.count, card.group))}

    def named(group: int) -> str:
        tokens = " ".join(token.text.strip() for token in by_size[group].typical[:5] or by_size[group].frequent[:5])
        note = " · has a note" if by_size[group].note else ""
        return f"{group}: {tokens} ({by_size[group].share.value:.1%}){note}"

    chosen = st.selectbox(
        "Group of the note, by size",
        list(by_size),
        format_func=named,
        key="noted_group",
        help="Type a number or a token to find a group.",
    )
    return by_size[chosen]


def _note_changed(key: str, routers: str, layer: int, group: int) -> None:
    sessions.take_note(routers, layer, group, st.session_state[key])


def _exports(report: Report, analysis: Analysis) -> None:
    session = sessions.capture(analysis)  # now: a download is made outside of any run, where widgets have no state
    with st.container(horizontal=True, gap="small"):
        _button(
            "HTML report", lambda: to_html(report).encode(), "report.html", "One page that opens without a network."
        )
        _button(
            "Session (ZIP)",
            lambda: write_bundle(report, session),
            "session.zip",
            "The report in every format, your text, settings and notes. Open it below to continue later.",
        )
        _button("JSON", lambda: to_json(report), "report.json", "Exact values.")
        tables = st.popover(
            "Tables",
            icon=":material/table:",
            help="The tables of the report as CSV and Parquet.",
            key="tables",
            on_change="rerun",
        )
    if tables.open:
        with tables:
            for table in ("cards", *(name for name in SECTIONS if name != "notes" and name in report.sections)):
                if table == "tags" and not report.num_words:
                    continue
                with st.container(horizontal=True, gap="small"):
                    for kind in ("csv", "parquet"):
                        file = f"{table}.{kind}"
                        _button(
                            file,
                            partial(_file, report, file),
                            file,
                            "Every row names model, routers, settings and text.",
                        )


def _file(report: Report, name: str) -> bytes:
    return report_files(report)[name]


def _button(label: str, data, file_name: str, hint: str) -> None:
    st.download_button(
        label,
        data,
        file_name=f"focus-{file_name}",
        mime=MIME[file_name.rpartition(".")[2]],
        icon=":material/download:",
        on_click="ignore",
        key=f"export_{file_name}",
        help=hint,
    )


def _session_box() -> None:
    with st.expander("Open a session file", icon=":material/folder_open:", expanded=REFUSED in st.session_state):
        st.file_uploader(
            "Session file",
            type="zip",
            key="session_file",
            max_upload_size=MAX_FILE // 2**20,
            on_change=_open_session,
            help="A ZIP file from this page or from focus report. It replaces text and settings; its notes join yours.",
        )
        refused = st.session_state.pop(REFUSED, None)
        if refused:
            st.error(plain(refused), icon=":material/error:")


def _open_session() -> None:
    file = st.session_state.get("session_file")
    if file is None:
        return
    try:
        session = read_bundle(file.getvalue())
        sessions.apply(session)
    except FocusError as error:
        st.session_state[REFUSED] = str(error)
        return
    st.session_state[RESTORED] = session


def _restored(analysis: Analysis) -> None:
    session = st.session_state.pop(RESTORED, None)
    if session is None:
        return
    kept = "text, settings and notes" if session.text is not None else "settings and notes (it holds no text)"
    date, name = session.date[:16].replace("T", " "), session.text_name or "a text"
    st.success(
        f"Opened the session of {plain(date)} UTC on {plain(name)}: {kept}.",
        icon=":material/folder_open:",
    )
    routers = analysis.trace.provenance.routers_hash
    if session.routers_hash and session.routers_hash != routers:
        st.warning(
            f"The session was made with routers {plain(session.routers_hash)}, and these are {routers}. Its groups and "
            "notes belong to those other routers.",
            icon=":material/warning:",
        )


def _empty_state() -> None:
    empty_state(
        "You will get:\n"
        "1. **A card for every group**: its size, the router's confidence, its most frequent and most typical tokens.\n"
        "2. **Examples in context**: random ones, which are representative, beside the strongest ones.\n"
        "3. **Parts of speech** with intervals, and whether the group's tokens share a group in other layers.\n"
        "4. **Your notes**, saved with the report.\n"
        "5. **Files**: an HTML page that opens without a network, tables, and a session file to continue later."
        "\n\nFor a whole corpus, give its folder below, or use the command line:",
        command="focus report my-books/ --out runs/my-report",
    )


with guarded():
    main()
