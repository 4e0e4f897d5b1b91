"""Effects: does a group matter for what the model predicts?"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from focus_core.analysis.interventions.experiment import MAX_TOKENS
from focus_core.analysis.interventions.groups import EffectSettings
from focus_core.analysis.interventions.run import LARGEST, SCHEMA, effects_of_points
from focus_core.errors import FocusError
from workbench.charts.theme import is_dark
from workbench.engine import service
from workbench.engine.labels import labels
from workbench.engine.service import Analysis
from workbench.shell import state
from workbench.shell.frame import open_page
from workbench.views.effects import single_box
from workbench.views.effects.cached import Asked, eligible_sizes, group_point, known
from workbench.views.effects.charts import effect_chart, of_groups, of_kinds
from workbench.views.effects.repeats import (
    LENGTH,
    MOST_ROWS,
    TEXTS,
    repeat_map,
    repeat_sentence,
    repeats,
    strongest,
)
from workbench.views.effects.tables import (
    few_keys_sentence,
    floor_sentence,
    kind_table,
    most_changed,
    shown_table,
    target_places,
    target_table,
    verdict,
)
from workbench.widgets.export import chart, downloads
from workbench.widgets.group_link import await_labels, called, group_link, labels_here, labels_place
from workbench.widgets.guard import guarded
from workbench.widgets.layer import layer_slider
from workbench.widgets.page.folded import folded

QUESTION = (
    "A group is only a name until something depends on it. This page removes the distant links of a group, or forces "
    "them, runs the text again, and compares every prediction. Chance is the same done to as many random tokens of the "
    "same layer and head."
)
WHAT = {"knock-out": "Remove its distant links", "force": "Make every later token read it"}
# The page's sentence while nothing has run. (Streamlit would write a string that stands alone into the page.)
BEFORE = {
    "knock-out": "If no token could read a group from afar any more, would the model predict anything else? "
    "Press Run to see, beside as many random tokens.",
    "force": "If every later token read a group, would the model predict anything else? "
    "Press Run to see, beside as many random tokens.",
}
CHANCES = {"keys": "as many random tokens", "links": "as many random links"}
DRAWS, TOKENS = (19, 39, 99, 199, 399), (256, 384, 512, MAX_TOKENS)
WHICH = {"largest": f"The {LARGEST} largest", "chosen": "Choose"}
RUNNING = "effects_running"
SHARES = ("read", "chance", "difference", "low", "high")
_THREE = st.column_config.NumberColumn(format="%.3f")
_DIGITS = st.column_config.NumberColumn(format="%.3g")


def main() -> None:
    """Draw the page."""
    analysis = open_page("Effects: does a group matter?", QUESTION)
    if analysis is None:
        _empty_state()
        return
    _effects(analysis)
    _repeats(analysis)


@st.fragment
def _repeats(analysis: Analysis) -> None:
    """The repeat-sequence test: one run of the model, when it is unfolded."""
    with guarded():
        box = folded("Copying: which heads and groups read what a repeat needs", "effects_repeats")
        if box is None:
            return
        with box:
            text = st.segmented_control(
                "Text of the test",
                list(TEXTS),
                format_func=lambda name: TEXTS[name],
                key="repeat_text",
                default="planted",
            )
            with st.spinner("Running the text once …", show_time=True):
                found = repeats(analysis, text or "planted", st.session_state["model"], st.session_state["routers"])
            st.markdown(f"#### {repeat_sentence(found)}")
            pairs = found.most_pairs
            first = f"{LENGTH} random tokens, twice" if text != "own" else "this text"
            st.caption(
                f"To copy, a token reads the key after its last earlier occurrence (Olsson et al. 2022). In {first}, "
                f"up to {pairs:,} such keys lie beyond the window. Chance: any distant key of the same queries. "
                "Intervals: 95% over stretches of neighbouring pairs. Dot: not significant (Holm over heads)."
            )
            origin = analysis.origin | {"text of the test": TEXTS[text or "planted"]}
            chart(
                repeat_map(found, dark=is_dark()),
                found.heads,
                origin,
                name="repeats",
                alt=f"Share of {pairs} induction keys that {len(found.heads)} heads read, less chance.",
            )
            groups = strongest(found.groups).head(MOST_ROWS)
            if groups.empty:
                st.markdown("**No group alone holds enough of these keys to tell it from chance.**")
                return
            st.markdown("**The groups that are read for such a key most beyond chance**")
            st.caption("Chance here: how often a group is read by tokens that need a key of another group.")
            columns = {name: st.column_config.NumberColumn(format="percent") for name in SHARES}
            st.dataframe(groups, hide_index=True, key="repeat_groups", column_config=columns | {"p": _THREE})
            downloads(found.groups, origin, name="repeat-groups")


@st.fragment
def _effects(analysis: Analysis) -> None:
    with guarded():
        waiting = labels_place()
        row = layer_slider(analysis.trace, "The layer whose groups are tested.")
        asked, groups = _choices(analysis, row)
        state.publish()
        if not groups:
            st.info(
                f"No token of the first {asked.tokens:,} is read from beyond the window of "
                f"{analysis.trace.config.window} tokens. Choose a longer text or other groups.",
                icon=":material/info:",
            )
            return
        points = known(analysis, asked, groups)
        missing = [group for group in groups if group not in {point["group"] for point in points}]
        running = bool(missing) and st.session_state.get(RUNNING) == (asked, tuple(groups))
        left, right = st.columns([1, 5], gap="medium", vertical_alignment="center")
        left.button(
            "Stop" if running else "Run the rest" if points and missing else "Run",
            key="run_effects",
            type="primary",
            icon=":material/stop:" if running else ":material/play_arrow:",
            disabled=not missing,
            on_click=_stop if running else partial(_start, asked, groups),
            help="Runs the text once for each group and each random set. A change of the settings stops it. Groups "
            "that are done are kept.",
        )
        place = right.empty()
        sizes = eligible_sizes(analysis.trace, row, asked.tokens)
        few = few_keys_sentence([int(sizes[group]) for group in groups])
        for warning in filter(None, (floor_sentence(len(groups), asked.effect.draws), few)):
            st.caption(warning)
        if points:
            _results(analysis, asked, points)
        else:
            st.markdown(f"#### {BEFORE[asked.effect.kind]}")
            if asked.tokens < len(analysis.trace.tokens):
                whole = f"{len(analysis.trace.tokens):,}"
                st.caption(f"It runs the first {asked.tokens:,} of the {whole} tokens; more take longer.")
        group_link(analysis.trace, row, key="effects_group_page", names=labels_here(analysis, row))
        box = None if running else folded("One link, or the groups of two tokens", "effects_single")
        if box is not None:
            with box:
                single_box.draw(analysis, asked.layer, asked.head, asked.tokens)
        if running:  # one group at a time, so that its result is shown while the next one runs
            _run_one(analysis, asked, missing[0], len(points), len(groups), place)
            st.rerun()
        await_labels(analysis.trace, waiting)


def _start(asked: Asked, groups: list[int]) -> None:
    st.session_state[RUNNING] = (asked, tuple(groups))


def _stop() -> None:
    st.session_state.pop(RUNNING, None)


def _run_one(analysis: Analysis, asked: Asked, group: int, done: int, count: int, place: DeltaGenerator) -> None:
    bar = place.progress(done / count, text="Starting …")

    def report(message: str, share: float) -> None:
        bar.progress((done + share) / count, text=f"Group {group} ({done + 1} of {count}): {message} …")

    try:
        group_point(analysis, asked, group, st.session_state["model"], st.session_state["routers"], report)
    except FocusError:
        _stop()  # else the next run would fail in the same way
        raise


def _choices(analysis: Analysis, row: int) -> tuple[Asked, list[int]]:
    trace = analysis.trace
    left, middle, right = st.columns(3, gap="medium")
    with left:
        kind = st.selectbox(
            "What is done to a group",
            list(WHAT),
            format_func=lambda name: WHAT[name],
            key="effect_kind",
            help="Removed: no token reads the group from beyond its window, neither exactly nor by a summary. Forced: "
            "every token reads it exactly. All other links stay as they are.",
        )
        chances = list(CHANCES) if kind == "knock-out" else ["keys"]
        chance = st.selectbox(
            "Compared with the same for",
            chances,
            format_func=lambda name: CHANCES[name],
            key="effect_chance",
            help="Random tokens of the same layer and head that can be read from afar; or random links that are read.",
        )
    with middle:
        tokens = st.select_slider(
            "Tokens from the beginning of the text",
            TOKENS,
            value=384,
            key="effect_tokens",
            help="More tokens show smaller effects and take longer.",
        )
        draws = st.select_slider(
            "Random sets, at most",
            DRAWS,
            value=199,
            key="effect_draws",
            help="More give smaller p-values. Drawing stops early where chance does as much as the group.",
        )
    with left:
        typed = st.text_input(
            "Predictions to follow",
            key="effect_targets",
            placeholder="places of tokens, such as 120, 133",
            help="Chosen predictions are tested one by one, against the same random sets; the places are those of "
            "Explore. Choose them before you run: other places run the text again.",
        )
    sizes = eligible_sizes(trace, row, tokens)
    order = [int(group) for group in np.argsort(-sizes, kind="stable") if sizes[group]]
    with right:
        head = trace.head
        if head is None:
            heads = service.load_base(st.session_state["model"]).model.config.get_text_config().num_key_value_heads
            head = int(
                st.selectbox(
                    "Key/value head",
                    range(heads),
                    key="effect_head",
                    help="The groups are those of the whole layer; the links of this head are changed.",
                )
            )
        _take_group_of_link(order)
        names = labels(analysis, row, st.session_state["model"], head)
        st.session_state.setdefault("effect_which", "largest")  # no default beside it: Streamlit would warn
        which = st.segmented_control("Groups", list(WHICH), format_func=lambda name: WHICH[name], key="effect_which")
        groups = order[:LARGEST]
        if which == "chosen":
            key = f"effect_groups_{trace.layers[row]}_{head}_{tokens}"
            chosen = st.session_state.get(key, order[:1])
            st.session_state[key] = [group for group in chosen if group in order]  # also when labels rename the options
            groups = st.multiselect(
                "Chosen groups",
                order,
                format_func=lambda group: f"{called(group, names)} ({sizes[group]} tokens)",
                key=key,
                help="Fewer groups need fewer random sets for the same p-value.",
            )
    length = min(tokens, len(trace.tokens))
    effect = EffectSettings(kind=kind, chance=chance, draws=draws, targets=target_places(typed, length))
    return Asked(trace.layers[row], head, length, effect), list(groups)


def _take_group_of_link(order: list[int]) -> None:
    """Start with the group that a link names."""
    group = st.session_state.get("group", -1)
    if group in order and "effect_which" not in st.session_state:
        st.session_state["effect_which"] = "chosen"
        order.remove(group)
        order.insert(0, group)


def _results(analysis: Analysis, asked: Asked, points: list[dict[str, Any]]) -> None:
    table = effects_of_points(points)
    st.markdown(f"#### {verdict(table, asked.effect.kind, layer=asked.layer, head=asked.head, tokens=asked.tokens)}")
    origin = analysis.origin | {
        "schema": SCHEMA,
        "layer": asked.layer,
        "head": asked.head,
        "tokens": asked.tokens,
        "intervention": asked.effect.kind,
        "chance": asked.effect.chance,
        "seed": asked.effect.seed,
    }
    chart(
        effect_chart(
            of_groups(table),
            title=f"Effect of each group: layer {asked.layer}, head {asked.head}",
            axis="",
            dark=is_dark(),
        ),
        table,
        origin,
        name="effects",
        file=f"effects-layer-{asked.layer}-head-{asked.head}",
        alt=f"Effect of {len(table)} groups on the predictions beside the range of chance.",
    )
    st.dataframe(
        shown_table(table),
        hide_index=True,
        key="effects_table",
        column_config={
            "keys": st.column_config.NumberColumn(help="Tokens of the group that can be read from beyond the window."),
            "KL": st.column_config.NumberColumn(
                format="%.3g",
                help="How far predictions move: KL(without || with), thousandths of a nat per token.",
            ),
            "chance": st.column_config.TextColumn(help="The middle 95% of random sets."),
            "p": st.column_config.NumberColumn(format="%.3f", help="Permutation, by Holm's method over these groups."),
            "loss": st.column_config.NumberColumn(
                format="%.3g", help="Change of the loss, thousandths of a nat per token: above 0 it predicts worse."
            ),
            "p, loss": _THREE,
            "from untouched": st.column_config.NumberColumn(
                format="%.3g", help="Change of KL(untouched || routed): above 0 it leads away from the untouched model."
            ),
        },
    )
    st.caption(
        f"{asked.tokens:,} tokens of one text: the p-values are about this text. Layers after the change run again, "
        "those before it do not change. Nothing before the first changed link can move."
    )
    if asked.effect.targets:
        chosen = target_table(points, asked.effect.targets, analysis.trace)
        st.markdown("**The predictions to follow**")
        st.dataframe(
            chosen, hide_index=True, key="effects_targets", column_config={"change of loss": _DIGITS, "p": _THREE}
        )
        st.caption("Change of the loss in nats; p by Holm's method over these rows.")
        downloads(chosen, origin | {"targets": list(asked.effect.targets)}, name="effects-targets")
    _details(analysis, asked, points, origin)


def _details(analysis: Analysis, asked: Asked, points: list[dict[str, Any]], origin: dict[str, Any]) -> None:
    box = st.expander("One group: which predictions change", key="effect_details", on_change="rerun")
    if not box.open:
        return
    with box:
        own = labels(analysis, analysis.trace.layers.index(asked.layer), st.session_state["model"], asked.head)
        largest = max(range(len(points)), key=lambda place: points[place]["kl"]["value"])
        place = st.selectbox(
            "Group",
            range(len(points)),
            index=largest,
            format_func=lambda place: f"group {called(points[place]['group'], own)}",
            key=f"effect_one_{len(points)}",
        )
        point = points[place]
        names = list(point["kinds"])
        for name, tab in zip(names, st.tabs([name.capitalize() for name in names])):
            with tab:
                table = kind_table(point, name)
                if table.empty:
                    st.caption("Too few predictions of any kind.")
                    continue
                chart(
                    effect_chart(of_kinds(table), title=f"Group {point['group']}, by {name}", axis="", dark=is_dark()),
                    table,
                    origin | {"group": point["group"], "kinds": name},
                    name=f"effects-{name.replace(' ', '-')}",
                    alt=f"Effect of group {point['group']} by {name} beside the range of chance.",
                )
        changed = most_changed(point, analysis.trace)
        st.markdown("**The predictions that change most**")
        st.dataframe(
            changed, hide_index=True, key="effects_changed", column_config={"change of loss": _DIGITS, "KL": _DIGITS}
        )
        downloads(changed, origin | {"group": point["group"]}, name="effects-predictions")


def _empty_state() -> None:
    st.info("**Paste or upload a text in the sidebar**, or choose a sample.", icon=":material/edit_note:")
    st.markdown(
        "You will see:\n"
        "1. **The answer**: the groups whose removal changes predictions more than chance.\n"
        "2. **Every group** beside the range of as many random tokens.\n"
        "3. **One group**: the kinds of predictions it changes, and the tokens it changes most."
    )


with guarded():
    main()
