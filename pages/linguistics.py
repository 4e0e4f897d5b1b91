"""Linguistics: what explains the groups?"""

from __future__ import annotations

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from focus_core.analysis.linguistics.alignment import MIN_WORDS, Alignment, pair_lift
from focus_core.analysis.linguistics.corpus.sample import WordSample
from focus_core.analysis.linguistics.corpus.tagging import ENGLISH_SHARE, english_share
from focus_core.analysis.linguistics.corpus.words import SUBWORD_RULES, TAG_SETS
from focus_core.analysis.linguistics.explain import MIN_BLOCKS
from focus_core.analysis.linguistics.group_profile import group_purity, top_words
from focus_core.analysis.linguistics.verdicts import explained_sentence, explained_verdicts, layer_sentence, verdicts
from focus_core.analysis.states import StateGroups
from workbench.charts.theme import is_dark
from workbench.engine import cached
from workbench.engine.service import Analysis
from workbench.shell import state
from workbench.shell.frame import open_page
from workbench.shell.sidebar import GROUPS
from workbench.views.linguistics import cached as kept
from workbench.views.linguistics.charts import MOST_GROUPS, ami_by_layer, residual_map
from workbench.views.linguistics.explained import share_bars_of, share_lines, share_table
from workbench.views.linguistics.tables import largest_first, layer_table, residual_table, word_lists
from workbench.widgets.export import chart, downloads
from workbench.widgets.group_link import group_link, labels_here
from workbench.widgets.guard import guarded
from workbench.widgets.layer import layer_slider
from workbench.widgets.page.empty import empty_state
from workbench.widgets.page.folded import folded
from workbench.widgets.page.markup import counted, plain

QUESTION = (
    "Groups that look like parts of speech may follow spelling only. This page predicts the group of words held out "
    "from what is known of them: spelling, the word before, part of speech, relation, entity, frequency and position. "
    "The better the prediction, the more that property explains."
)
SETS = {"upos": "Universal tags (17)", "coarse": "Five classes"}
RULES = {"last": "last subword", "first": "first subword", "all": "every subword"}
READY = "linguistics_clusterings"
FEW_WORDS = 30  # below this many no agreement is shown
SHARES = {
    f"{part}{end}": st.column_config.NumberColumn(format="percent")
    for part in ("alone", "unique")
    for end in ("", " low", " high")
}
THREE = st.column_config.NumberColumn(format="%.3f")
PERCENT = st.column_config.NumberColumn(format="percent", width=66)


def main() -> None:
    """Draw the page."""
    analysis = open_page("Linguistics: what explains the groups?", QUESTION, parts=GROUPS)
    if analysis is None:
        _empty_state()
        return
    _linguistics(analysis)


@st.fragment
def _linguistics(analysis: Analysis) -> None:
    with guarded():
        rule = _rule()
        with st.spinner("Tagging words …", show_time=True):
            words = kept.sample(analysis, st.session_state["model"], rule)
        if words.num_words < FEW_WORDS:
            st.markdown(
                f"#### Too short to tell: over {counted(words.num_words, 'word')} any groups follow any tags.\n\n"
                f"Take a text of {FEW_WORDS} words or more; intervals need {MIN_WORDS}."
            )
            state.publish()
            return
        row = layer_slider(analysis.trace, "The layer whose groups are explained.")
        _explained(analysis, words, row)
        for label, key, draw in (
            ("Every layer: what explains its groups", "linguistics_layers", _every_layer),
            ("Agreement with parts of speech, beside chance, balance and spelling", "linguistics_ami", _agreement),
            ("Each group of this layer: its word class and its words", "linguistics_groups", _groups),
        ):
            box = folded(label, key)
            if box is not None:
                with box:
                    draw(analysis, words, row)
        state.publish()


def _rule() -> str:
    state.choose("subword", list(SUBWORD_RULES))
    return st.selectbox(
        "A word's group is that of its",
        list(RULES),
        format_func=lambda name: RULES[name],
        key="subword",
        help="In a causal model only the last subword has read the whole word. With every subword, each counts as a "
        "word.",
        persist_state="session",
    )


def _explained(analysis: Analysis, words: WordSample, row: int) -> None:
    """The first thing on the page: the shares of one layer."""
    with st.spinner("Predicting the groups of words held out …", show_time=True):
        found = kept.explained(analysis, words, row)
    if found is None:
        few = f"Too few sentences to predict groups from: take an English text of {MIN_BLOCKS} sentences or more."
        st.markdown(f"#### {few}")
    else:
        answer, stop, more = explained_sentence(found).partition(". ")
        st.markdown(f"#### {answer}{stop.strip()}\n\n{more}")
    _not_english(analysis)
    if found is None:
        return
    chart(
        share_bars_of(found, dark=is_dark()),
        lambda: share_table([found]),
        analysis.origin,
        name="explained",
        file=f"explained-layer-{found.layer}",
        alt=f"Share of the groups of layer {found.layer} that each of {len(found.features)} features explains.",
        column_config=SHARES,
    )
    st.caption(
        f"n = {found.words:,} words ({words.coverage:.1%} of {words.num_words:,} have tokens; {words.exact:.0%} of "
        f"them begin and end where tokens do). Tags, relations and entities: {plain(str(words.tagger))}. Group: first "
        f"group of the {RULES[words.rule]}. Intervals: 95% over {found.blocks} stretches of sentences **of this text**."
        " A share is established above 0 after Holm's correction over this layer."
    )


def _every_layer(analysis: Analysis, words: WordSample, row: int) -> None:
    place, found = st.empty(), []
    for each, layer in enumerate(words.layers):
        place.progress(each / len(words.layers), text=f"Predicting the groups of layer {layer} …")
        one = kept.explained(analysis, words, each)
        if one is not None:
            found.append(one)
    place.empty()
    if not found:
        return
    st.markdown("\n".join(f"- {sentence}" for sentence in explained_verdicts(found)))
    chart(
        share_lines(found, dark=is_dark(), layer=words.layers[row]),
        lambda: share_table(found),
        analysis.origin,
        name="explained_layers",
        file="explained-layers",
        alt=f"Share of the groups that each feature explains in {len(found)} layers.",
        column_config=SHARES,
    )


def _agreement(analysis: Analysis, words: WordSample, row: int) -> None:
    """AMI with tags, beside its references."""
    tag_set, compare = _choices()
    wanted = (cached.groups_key(analysis), words.rule)
    ready = compare and st.session_state.get(READY) == wanted
    waiting = st.empty()
    grouped = _clusterings(analysis, words, waiting) if ready else None
    with st.spinner("Comparing every layer with its references …", show_time=True):
        found = kept.alignment(analysis, words, tag_set, grouped)
    _verdict(found, waiting=compare and not ready)
    st.markdown(f"**{layer_sentence(found, row)}**{_lift(words, row, tag_set)}")
    _layers(analysis, found, row)
    _residuals(analysis, words, row, tag_set)
    measures = folded("All measures of every layer", "linguistics_measures")
    if measures is not None:
        with measures:
            _measures(analysis, found)
    if compare and not ready:  # all of this can be read meanwhile; then it is drawn again with two more lines
        _clusterings(analysis, words, waiting)
        st.session_state[READY] = wanted
        state.publish()
        st.rerun()


def _groups(analysis: Analysis, words: WordSample, row: int) -> None:
    _purity(analysis, words, row)
    _words(analysis, words, row)
    group_link(analysis.trace, row, key="linguistics_group_page", names=labels_here(analysis, row))


def _choices() -> tuple[str, bool]:
    state.choose("tags", list(TAG_SETS))
    left, right = st.columns([2, 3], gap="medium", vertical_alignment="bottom")
    tag_set = left.segmented_control(
        "Tags",
        list(SETS),
        format_func=lambda name: SETS[name],
        key="tags",
        required=True,
        help="Universal part-of-speech tags, or nominal, verbal, modifier, function word and other.",
        persist_state="session",
    )
    compare = right.toggle(
        "Compare with clusterings of the same hidden states",
        value=True,
        key="compare_states",
        help="Balanced k-means and untrained routers on the hidden states that these routers read. Runs the model "
        "again, after the rest of the page is drawn.",
    )
    return tag_set or "upos", compare


def _clusterings(analysis: Analysis, words: WordSample, place: DeltaGenerator) -> StateGroups:
    """The clusterings, with a progress bar in a place of the page if they have to be made."""

    def report_progress(message: str, share: float) -> None:
        place.progress(share, text=f"Clusterings of the same hidden states: {message.lower()} …")

    chosen = st.session_state
    try:
        return kept.clusterings(analysis, words, chosen["model"], chosen["routers"], report_progress)
    finally:
        place.empty()


def _verdict(found: Alignment, *, waiting: bool) -> None:
    first, *others = verdicts(found)
    st.markdown(f"**{first}**")
    if others:
        st.markdown("\n".join(f"- {sentence}" for sentence in others))
    if waiting:
        st.caption("Untrained routers and k-means are being computed.")
    if found.descriptive:
        st.info(
            f"This text has {found.num_words} tagged words. Below {MIN_WORDS} words, intervals and tests are left out.",
            icon=":material/info:",
        )
        return
    st.caption(
        f"Intervals: bootstrap over {found.num_blocks} sentences, **within this text**. Token identity is learnt on "
        f"the other half of the text; {found.unseen:.0%} of the words occur in one half only."
    )


def _not_english(analysis: Analysis) -> None:
    share = english_share(kept.tagged(analysis))
    if share < ENGLISH_SHARE:
        st.warning(
            f"The tagger is for English, and this text does not look like English prose: {share:.0%} of its words are "
            "English function words, in novels 50% to 60%. Tags and shares mean little here.",
            icon=":material/translate:",
        )


def _lift(words: WordSample, row: int, tag_set: str) -> str:
    lift, band = pair_lift(words, row, tag_set)
    if lift is None:
        return ""
    by_chance = "" if band is None else f" (shuffled: {band.low:.2f} to {band.high:.2f})"
    k = int(words.membership[row, 0].sum())
    return f" At k = {k}, pairs of the same tag share a group {lift:.2f} times as often as all pairs{by_chance}."


def _layers(analysis: Analysis, found: Alignment, row: int) -> None:
    best = max(found.layers, key=lambda layer: layer.measures.ami)
    chart(
        ami_by_layer(found, dark=is_dark(), row=row),
        lambda: layer_table(found),
        analysis.origin | {"tags": found.tag_set},
        name="alignment",
        file=f"alignment-{found.tag_set}",
        alt=f"AMI of groups with tags in {len(found.layers)} layers beside its references. The highest is "
        f"{best.measures.ami:.2f} in layer {best.layer}; the ceiling is {found.ceiling:.2f}.",
    )


def _residuals(analysis: Analysis, words: WordSample, row: int, tag_set: str) -> None:
    tests = kept.tag_tests(analysis, words, tag_set)
    table = residual_table(tests, words, row, tag_set)
    chart(
        residual_map(table, dark=is_dark(), tag_set=tag_set),
        table,
        analysis.origin | {"tags": tag_set},
        name="residuals",
        file=f"residuals-{tag_set}-layer-{words.layers[row]}",
        alt=f"Adjusted residuals of groups and tags in layer {words.layers[row]}.",
        column_config={"expected": st.column_config.NumberColumn(format="%.1f"), "residual": THREE, "q": THREE},
    )
    st.caption(
        "Adjusted Pearson residuals, standard normal by chance. Dot: not significant (exact permutation test, false "
        "discovery rate 5% over all layers, groups and tags). Blank: fewer than 5 words expected"
        + ("." if words.num_groups <= MOST_GROUPS else f"; {words.num_groups} groups need a text of several pages.")
    )


def _purity(analysis: Analysis, words: WordSample, row: int) -> None:
    layer = words.layers[row]
    table = largest_first(
        group_purity(words, row, blocks=None if len(words) < MIN_WORDS else words.sentences), words, row
    )
    st.markdown(f"**Groups of layer {layer} as word classes**")
    st.dataframe(
        table.dropna(axis=1, how="all"),
        hide_index=True,
        key="purity",
        column_config={
            "group": st.column_config.NumberColumn(width=50),
            "words": st.column_config.NumberColumn(format="localized", width=58),
            "category": st.column_config.TextColumn(
                width=130, help="The largest of the six word classes in the paper."
            ),
            "purity": st.column_config.NumberColumn(
                format="percent", width=66, help="Share of the group's words in that class, with its 95% interval."
            ),
            "low": PERCENT,
            "high": PERCENT,
            "base rate": st.column_config.NumberColumn(
                format="percent", width=72, help="Share of all words in that class."
            ),
        },
    )
    downloads(table, analysis.origin, name="group-purity", file=f"group-purity-layer-{layer}")


def _words(analysis: Analysis, words: WordSample, row: int) -> None:
    layer = words.layers[row]
    top = top_words(words, row)
    st.markdown(f"**Words of each group of layer {layer}** (in brackets: how often in the group)")
    st.dataframe(
        largest_first(word_lists(top), words, row),
        hide_index=True,
        key="top_words",
        column_config={
            "group": st.column_config.NumberColumn(width="small"),
            "most associated (PMI)": st.column_config.TextColumn(
                help="Highest log ratio of the frequency in the group over that in the text, of words that occur "
                "three times or more in the group."
            ),
        },
    )
    downloads(top, analysis.origin, name="top-words", file=f"top-words-layer-{layer}")


def _measures(analysis: Analysis, found: Alignment) -> None:
    table = layer_table(found)
    st.markdown(
        "Only AMI and ARI are corrected for chance. Homogeneity, V and many-to-one accuracy grow with K, so "
        "compare them between layers only."
    )
    names = ["layer", "AMI", "ARI", "homogeneity", "completeness", "V", "many-to-one", "one-to-one", "selectivity"]
    shown = table[names]
    st.dataframe(
        shown, hide_index=True, key="measures", column_config={name: THREE for name in names if name != "layer"}
    )
    downloads(table, analysis.origin | {"tags": found.tag_set}, name="measures", file=f"measures-{found.tag_set}")


def _empty_state() -> None:
    empty_state(
        "You will see:\n"
        "1. **The answer**: the property that explains most of a layer's groups, and what it adds to all others.\n"
        "2. **Every layer**: the share of each property, with intervals.\n"
        "3. **Parts of speech** in detail, and the tags and words of each group.\n\n"
        f"Intervals and tests need at least {MIN_WORDS} words. For a corpus, or a treebank with gold tags, run "
        "`focus align`.",
        first="**Paste or upload an English text in the sidebar**, or choose a sample.",
    )


with guarded():
    main()
