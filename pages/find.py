"""Find: where do names gather?"""

from __future__ import annotations

from typing import Any

import streamlit as st

from focus_core.analysis.linguistics.corpus.tagging import ENTITIES
from focus_core.analysis.linguistics.corpus.words import UPOS
from focus_core.analysis.search.matches import MAX_PATTERN
from focus_core.report.labels import TAG_WORDS
from focus_core.resources import pages_dir
from workbench.charts.theme import is_dark
from workbench.engine.labels import labels
from workbench.engine.service import Analysis
from workbench.runs import notes
from workbench.shell import state
from workbench.shell.frame import open_page
from workbench.shell.sidebar import GROUPS
from workbench.views.find import cached
from workbench.views.find.show import (
    CONTEXT_COLUMNS,
    context_table,
    label_rows,
    lift_chart,
    link_of,
    listed_table,
    matches_sentence,
    own_names,
    place_of,
    row_sentence,
    verdict,
)
from workbench.views.linguistics.cached import tagged
from workbench.views.report.build import report_of
from workbench.widgets.columns import fitted
from workbench.widgets.export import chart
from workbench.widgets.group_link import await_labels, labels_place
from workbench.widgets.guard import guarded
from workbench.widgets.page.empty import empty_state
from workbench.widgets.page.markup import counted, plain
from workbench.widgets.short_text import note_if_short

QUESTION = (
    "Look for a word, a pattern, a part of speech or an entity type in the text. The page ranks the groups of all "
    "layers and heads by how surely they hold more of it than chance."
)
KINDS = {
    "tag": "Part of speech",
    "word": "Word",
    "pattern": "Pattern",
    "entity": "Entity",
    "label": "Label of a group",
}
HINTS = {
    "word": ("A word or phrase", "lamp", "Whole words, in any case."),
    "pattern": (
        "A regular expression",
        r"\b[A-Z]\w+",
        r"Python's syntax. \b is the edge of a word, \w a letter or digit, \d a digit. Capitals count.",
    ),
    "label": ("Part of a label", "names", "Your own names and notes of groups, and the guesses of the page Group."),
}
ROWS, MOST_LABELS = 10, 30
PERCENT = st.column_config.NumberColumn(format="percent")
TWO = st.column_config.NumberColumn(format="%.2f")


def main() -> None:
    """Draw the page."""
    analysis = open_page("Find: where do names gather?", QUESTION, parts=GROUPS)
    if analysis is None:
        empty_state(
            "You will see:\n"
            "1. **The groups** of all layers and heads that hold most of what you look for, each a link to its page.\n"
            "2. **Each layer** and head: how many times as much its surest group holds as by chance.\n"
            "3. **The matches** in context."
        )
        return
    note_if_short(analysis.trace)
    _find(analysis)


@st.fragment
def _find(analysis: Analysis) -> None:
    with guarded():
        waiting = labels_place()
        by, query = _asked(analysis)
        state.publish()
        if not query.strip():
            if by in HINTS:
                st.info(f"Type {HINTS[by][0].lower()} and press Enter.", icon=":material/search:")
        elif by == "label":
            _labels(analysis, query)
        else:
            _gathered(analysis, by, query)
        await_labels(analysis.trace, waiting)


def _asked(analysis: Analysis) -> tuple[str, str]:
    """The kind of search, and what is looked for."""
    state.choose("find_by", list(KINDS))
    left, right = st.columns([3, 2], gap="medium", vertical_alignment="bottom")
    by = left.segmented_control(
        "Look for",
        list(KINDS),
        format_func=lambda name: KINDS[name],
        key="find_by",
        required=True,
        wrap=True,
        help="Parts of speech and entities are predictions of spaCy's small English model.",
        persist_state="session",
    )
    by = by or "tag"
    if by not in ("tag", "entity"):
        label, example, hint = HINTS[by]
        with right:
            return by, st.text_input(
                label,
                key="find",
                max_chars=MAX_PATTERN,
                placeholder=f"such as: {example}",
                help=f"{hint} Links hold it.",
                persist_state="session",
            )
    with st.spinner("Tagging words …", show_time=True):
        kinds = tagged(analysis).tags if by == "tag" else cached.entities(analysis).kinds
    present = [name for name in (UPOS if by == "tag" else ENTITIES) if name in kinds]
    if not present:
        st.info("spaCy finds none in this text. Look for a word or a pattern.", icon=":material/search_off:")
        return by, ""
    key, words = ("find_tag", TAG_WORDS) if by == "tag" else ("find_entity", ENTITIES)
    state.choose(key, present)
    with right:
        chosen = st.selectbox(
            KINDS[by],
            present,
            format_func=lambda name: f"{words[name]} ({name}), {kinds.count(name):,}",
            key=key,
            help="Those in this text, with their number.",
            persist_state="session",
        )
    return by, chosen


def _gathered(analysis: Analysis, by: str, query: str) -> None:
    spans = cached.spans_of(analysis, by, query)
    if not len(spans):
        st.info(f"Nothing in this text matches {plain(query)}.", icon=":material/search_off:")
        return
    with st.spinner("Searching the groups of all layers and heads …", show_time=True):
        found = cached.search(analysis, spans)
    heads = analysis.trace.head is not None
    st.markdown(f"#### {verdict(found, heads, _named(by, query))}")
    st.markdown(matches_sentence(found))
    names = {
        place: name
        for place, (name, _) in own_names(notes.of_every_head(analysis.trace.provenance.routers_hash)).items()
        if name
    }
    shown = found.listed.head(ROWS).to_dict("records")
    guessed = _guessed(analysis, shown) | names
    for row in shown:
        left, right = st.columns([2, 5], gap="small", vertical_alignment="center")
        name = guessed.get((int(row["layer"]), int(row["head"]), int(row["group"])), "")
        place = place_of(row, heads).capitalize()
        left.page_link(
            pages_dir() / "group.py",
            label=f"{place}: {plain(name)}" if name else place,
            icon=":material/workspaces:",
            query_params=link_of(row, heads),
        )
        right.markdown(row_sentence(row))
    st.caption(
        "The surest first. Chance: the same matches moved along the text by every distance. p is for the best of all "
        "groups, so it allows for their number. An interval is of its group alone, over stretches of this text; those "
        "of the first in a ranking flatter them."
    )
    chart(
        lift_chart(found, heads, dark=is_dark(), names=guessed),
        listed_table(found, names, heads),
        analysis.origin | {"find by": by, "find": query},
        name="find",
        alt=f"The lift of the surest group in each of {len(analysis.trace.layers)} layers.",
        column_config={
            **dict.fromkeys(("of the matches", "of the text", "inside"), PERCENT),
            **dict.fromkeys(("lift", "low", "high"), TWO),
            "p": st.column_config.NumberColumn(format="%.4f"),
        },
    )
    st.markdown("**The matches in context**")
    st.dataframe(
        context_table(analysis.trace, found.matches),
        hide_index=True,
        key="find_contexts",
        column_config=fitted(CONTEXT_COLUMNS, {}),
    )


def _guessed(analysis: Analysis, rows: list[dict[str, Any]]) -> dict[tuple[int, int, int], str]:
    """Labels of the groups of some rows, by layer, head and group, as far as they are known."""
    layers = analysis.trace.layers
    places = {(int(row["layer"]), int(row["head"])) for row in rows}
    found = {place: labels(analysis, layers.index(place[0]), st.session_state["model"], place[1]) for place in places}
    return {(*place, group): name for place, own in found.items() for group, name in own.items()}


def _named(by: str, query: str) -> str:
    """What is looked for, at the beginning of a sentence."""
    words = {"tag": TAG_WORDS, "entity": ENTITIES}.get(by)
    return f"“{plain(query)}”" if words is None else words[query].capitalize()


def _labels(analysis: Analysis, query: str) -> None:
    trace = analysis.trace
    heads = trace.head is not None
    with st.spinner("Counting, sampling and tagging …", show_time=True):
        report = report_of(analysis, model=st.session_state["model"], examples=5, seed=0)
    names = own_names(notes.of_every_head(trace.provenance.routers_hash))
    table = label_rows(report.cards, trace.head or 0, names, query)
    st.markdown(f"#### {counted(len(table), 'group')} with “{plain(query.strip())}” in the label.")
    if heads:
        st.caption(f"Your own names of all heads, and guesses for key/value head {trace.head}, from this text.")
    for row in table.head(MOST_LABELS).to_dict("records"):
        left, right = st.columns([2, 5], gap="small", vertical_alignment="center")
        left.page_link(
            pages_dir() / "group.py",
            label=place_of(row, heads).capitalize(),
            icon=":material/workspaces:",
            query_params=link_of(row, heads),
        )
        right.markdown(f"{plain(row['label'])} ({row['by']}). {plain(row['evidence'])}")
    if len(table) > MOST_LABELS:
        st.caption(f"The first {MOST_LABELS} are shown: give more of the label.")


with guarded():
    main()
