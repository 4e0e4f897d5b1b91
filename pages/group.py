"""Group: what is this group for?"""

from __future__ import annotations

from functools import partial

import streamlit as st
from streamlit.elements.lib.column_types import ColumnConfig

from focus_core.analysis.interventions.groups import EffectSettings
from focus_core.analysis.interventions.run import effects_of_points
from focus_core.report.bundle import MAX_NOTE
from focus_core.report.labels import as_note, guess, named
from focus_core.report.model import Card
from focus_core.resources import pages_dir
from workbench.charts.theme import is_dark
from workbench.engine.labels import Words, notes_key, words_of
from workbench.engine.service import Analysis
from workbench.shell import sessions, state
from workbench.shell.frame import open_page
from workbench.views.effects.cached import Asked, group_point, known
from workbench.views.effects.tables import few_keys_sentence, floor_sentence, most_changed, shown_table, verdict
from workbench.views.group import cached
from workbench.views.group.charts import tag_chart
from workbench.views.group.tables import (
    SHIFTS,
    TOKEN_COLUMNS,
    context_rows,
    matched_rows,
    neighbour_rows,
    reading_rows,
    size_sentence,
    tag_rows,
    token_rows,
)
from workbench.views.report.build import report_of
from workbench.widgets.columns import fitted
from workbench.widgets.export import chart, downloads
from workbench.widgets.group_link import group_column, group_urls, labels_here
from workbench.widgets.guard import guarded
from workbench.widgets.layer import layer_slider
from workbench.widgets.page.markup import plain
from workbench.widgets.short_text import note_if_short

QUESTION = (
    "Everything about one group: a guess at what it holds, its tokens and their contexts, what reads it, its "
    "neighbours, and on demand its effect on the predictions. Its address names the group."
)
EFFECT = EffectSettings(draws=99)
TOKENS = 384
NAME = 80
PERCENT = st.column_config.NumberColumn(format="percent")
TWO = st.column_config.NumberColumn(format="%.2f")
DIGITS = st.column_config.NumberColumn(format="%.3g")


def main() -> None:
    """Draw the page."""
    analysis = open_page("Group: what is it for?", QUESTION)
    if analysis is None:
        _empty_state()
        return
    note_if_short(analysis.trace)
    _group(analysis)


@st.fragment
def _group(analysis: Analysis) -> None:
    with guarded():
        trace = analysis.trace
        with st.spinner("Counting, sampling and tagging …", show_time=True):
            report = report_of(analysis, model=st.session_state["model"], examples=5, seed=0)
        left, right = st.columns(2, gap="medium")
        with left:
            row = layer_slider(trace, "The layer of the group.")
        layer = trace.layers[row]
        own = sessions.notes(notes_key(trace))
        cards = {card.group: card for card in report.of_layer(layer)}
        by_size = sorted(cards, key=lambda group: (-cards[group].count, group))
        state.choose("group", by_size)
        group = right.selectbox(
            "Group, by size",
            by_size,
            format_func=lambda number: _called(cards[number], own.get((layer, number), "")),
            key="group",
            help="Type a number, a token or your own name of a group to find it.",
            persist_state="session",
        )
        state.publish()
        card = cards[group]
        _head(analysis, card, own.get((layer, group), ""), words_of(trace, row).get(group, {}))
        _own_words(analysis, layer, group, own.get((layer, group), ""))
        left, right = st.columns(2, gap="medium")
        with left:
            _tokens(analysis, card)
        with right:
            _tags(analysis, card, report.intervals)
        _contexts(card)
        _others(analysis, row, group)
        _effect(analysis, layer, group)


def _called(card: Card, note: str) -> str:
    """A group in a list: its number, the user's name or the guess, and its size."""
    name = named(note)[0] or guess(card).short
    return f"{card.group}{f': {name}' if name else ''} ({card.share.value:.1%})"


def _head(analysis: Analysis, card: Card, note: str, words: Words) -> None:
    trace, found = analysis.trace, guess(card, words)
    name, _ = named(note)
    head = "" if trace.head is None else f", key/value head {trace.head}"
    where = f"Group {card.group} of layer {card.layer}{head}"
    if name:
        st.markdown(f"#### {where}: {plain(name)}")
    elif found.label:
        st.markdown(f"#### {where} seems to hold {plain(found.label)}.")
    else:
        st.markdown(f"#### {where}: nothing in this text says what it holds.")
    by = "A guess from this text" if found.label else "No guess"
    guessed = f" (guess: {plain(found.label)})" if name and found.label else ""
    st.markdown(f"{by}{guessed}: {plain(found.evidence)} {plain(size_sentence(card, trace.config.num_groups))}")


def _own_words(analysis: Analysis, layer: int, group: int, note: str) -> None:
    routers = notes_key(analysis.trace)
    name, text = named(note)
    key = f"own_{routers}_{layer}_{group}"
    left, right = st.columns([1, 2], gap="medium")
    with left:
        st.text_input(
            "Your name of it",
            name,
            max_chars=NAME,
            key=f"{key}_name",
            on_change=partial(_keep, key, routers, layer, group),
            placeholder="such as: names of people",
            help="Kept on this machine, for these routers. It travels in session files.",
        )
    with right:
        st.text_area(
            "Your note",
            text,
            max_chars=MAX_NOTE - NAME - 3,
            height=80,
            key=f"{key}_text",
            on_change=partial(_keep, key, routers, layer, group),
            help="Kept on this machine, for these routers. Reports and session files hold it.",
        )


def _keep(key: str, routers: str, layer: int, group: int) -> None:
    note = as_note(st.session_state[f"{key}_name"], st.session_state[f"{key}_text"])
    with guarded():
        sessions.take_note(routers, layer, group, note)


def _tokens(analysis: Analysis, card: Card) -> None:
    table = token_rows(card)
    st.markdown("**Its tokens**")
    if table.empty:
        st.caption("None in this text.")
        return
    shown = fitted(TOKEN_COLUMNS, {"PMI (bits)": TWO})
    st.dataframe(table, hide_index=True, key="group_tokens", height=330, column_config=shown)
    downloads(table, analysis.origin, name="group-tokens", file=f"tokens-layer-{card.layer}-group-{card.group}")


def _tags(analysis: Analysis, card: Card, intervals: str) -> None:
    table = tag_rows(card)
    if table.empty:
        st.markdown("**Parts of speech**")
        st.caption("No tagged word of this group.")
        return
    chart(
        tag_chart(table, card.group, dark=is_dark()),
        table,
        analysis.origin,
        name="group-tags",
        file=f"tags-layer-{card.layer}-group-{card.group}",
        alt=f"Parts of speech of group {card.group}, with intervals, beside the whole text.",
        column_config={name: PERCENT for name in ("share", "low", "high", "in the text")},
    )
    st.caption(plain(intervals))


def _contexts(card: Card) -> None:
    st.markdown("**In context**")
    random, strongest = st.tabs(["Drawn at random", "Strongest"])
    for tab, examples, name in ((random, card.random, "random"), (strongest, card.strongest, "strongest")):
        with tab:
            table = context_rows(examples)
            if table.empty:
                st.caption("No token of this text is in the group.")
            else:
                st.dataframe(
                    table,
                    hide_index=True,
                    key=f"contexts_{name}",
                    column_config={"before": st.column_config.TextColumn(alignment="right", width=170)},
                )


def _others(analysis: Analysis, row: int, group: int) -> None:
    trace, head = analysis.trace, analysis.trace.head
    layer, names = trace.layers[row], labels_here(analysis, row)
    read, pairs = cached.reading(analysis, row)
    readers = reading_rows(read, pairs, group, of="readers")
    reads = reading_rows(read, pairs, group, of="read")
    said = {
        "What reads it": (
            readers,
            "group_readers",
            "Of the distant pairs of a reader's group and this one.",
        ),
        "What it reads": (reads, "group_reads", "Of the distant pairs of this group and another."),
    }
    for title, (table, key, hint) in said.items():
        st.markdown(f"**{title}**", help=hint)
        if table.empty:
            st.caption("The text is too short: too few pairs lie beyond the window.")
            continue
        st.dataframe(
            table.assign(group=group_urls(table["group"], layer, head, names)),
            hide_index=True,
            key=key,
            column_config={
                "group": group_column(width=300),
                "distant pairs": st.column_config.NumberColumn("pairs", help=hint, width=70),
                "read": st.column_config.NumberColumn(format="percent", width=75),
                **_ends("the share read"),
                "times the mean": st.column_config.NumberColumn(
                    "× mean", format="%.2f", width=75, help="The share read, over that of all groups together."
                ),
            },
        )
    columns = st.columns([5, 2], gap="medium")
    with columns[0]:
        st.markdown(
            "**In the layers beside it**",
            help="The groups of two layers are paired so that most tokens stay together.",
        )
        beside = matched_rows(trace, row, group)
        urls = [
            url
            for other, partner in zip(beside["layer"].tolist(), beside["group"].tolist())
            for url in group_urls([partner], other, head, labels_here(analysis, trace.layers.index(other)))
        ]
        st.dataframe(
            beside.assign(group=urls),
            hide_index=True,
            key="group_matched",
            column_config={
                "layer": st.column_config.NumberColumn(width=48),
                "group": group_column(width=126),
                "shared": st.column_config.NumberColumn(help="Tokens in both.", width=58),
                "of this group": st.column_config.NumberColumn(
                    "share", format="percent", width=60, help="Tokens in both, of those of this group."
                ),
                **_ends("that share"),
                "by chance": st.column_config.NumberColumn(
                    "chance",
                    format="percent",
                    width=62,
                    help=f"The same with the other layer moved along the text and matched anew, mean of {SHIFTS}.",
                ),
            },
        )
        st.caption("Low and high: 95% intervals over stretches of this text, not for others.")
    with columns[1]:
        st.markdown("**Nearest groups**", help="By the cosine of their centroids, which the routers hold.")
        near = neighbour_rows(
            cached.centroids(analysis, st.session_state["model"], st.session_state["routers"])[trace.layers[row]], group
        )
        st.dataframe(
            near.assign(group=group_urls(near["group"], layer, head, names)),
            hide_index=True,
            key="group_near",
            column_config={
                "group": group_column(width=110),
                "cosine of centroids": st.column_config.NumberColumn("cosine", format="%.2f", width=65),
            },
        )


def _ends(of: str) -> dict[str, ColumnConfig]:
    """The columns of an interval."""
    hint = f"End of the 95% interval of {of}, over stretches of this text."
    return {end: st.column_config.NumberColumn(format="percent", width=60, help=hint) for end in ("low", "high")}


def _effect(analysis: Analysis, layer: int, group: int) -> None:
    trace = analysis.trace
    st.markdown("**Does it matter?**")
    if trace.head is None:
        st.caption("All heads of a layer share these groups; the Effects page tests one head at a time.")
    asked = Asked(layer, trace.head or 0, min(TOKENS, len(trace.tokens)), EFFECT)
    points = known(analysis, asked, [group])
    place = st.empty()
    if not points:
        pressed = place.button(
            "Remove its links and measure",
            icon=":material/science:",
            key="measure_effect",
            help=f"Runs the first {asked.tokens} tokens without the group's distant links, and without as many random "
            f"ones, up to {EFFECT.draws} times. The Effects page has more choices.",
        )
        if not pressed:
            return
        bar = place.progress(0.0, text="Starting …")

        def report(message: str, share: float) -> None:
            bar.progress(share, text=f"{message} …")

        points = [group_point(analysis, asked, group, st.session_state["model"], st.session_state["routers"], report)]
        place.empty()
    st.page_link(pages_dir() / "effects.py", label="Other groups, texts and comparisons: the page Effects")
    table = effects_of_points(points)
    st.markdown(verdict(table, EFFECT.kind, layer=layer, head=asked.head, tokens=asked.tokens))
    st.dataframe(shown_table(table), hide_index=True, key="group_effect", column_config={"p": TWO, "p, loss": TWO})
    warnings = f"{floor_sentence(1, EFFECT.draws)} {few_keys_sentence([len(points[0]['keys'])])}"
    st.caption(f"KL and loss in thousandths of a nat per token; chance is as many random tokens. {warnings}")
    changed = most_changed(points[0], trace)
    if len(changed):
        st.markdown("The predictions that change most:")
        st.dataframe(
            changed, hide_index=True, key="group_changed", column_config={"KL": DIGITS, "change of loss": DIGITS}
        )


def _empty_state() -> None:
    st.info("**Paste or upload a text in the sidebar**, or choose a sample.", icon=":material/edit_note:")
    st.markdown(
        "You will see, for any group:\n"
        "1. **A guess** at what it holds, with its evidence, and your own name and note.\n"
        "2. **Its tokens** in context, its parts of speech, its neighbours, and who reads it.\n"
        "3. **Its effect** on the predictions, if you ask for it."
    )


with guarded():
    main()
