"""One link restored, or two tokens with exchanged groups: choices, run and results."""

from __future__ import annotations

import dataclasses
import json
import threading
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import streamlit as st

from focus_core.analysis import Trace
from focus_core.analysis.interventions import Experiment
from focus_core.analysis.interventions.single import SingleEffect, restore_effect, swap_effect
from focus_core.analysis.tokens import context, token_text
from focus_core.progress import Progress
from focus_core.routing.model import FocusModel
from workbench.engine import service
from workbench.engine.cached import setting_key
from workbench.engine.service import Analysis
from workbench.views.effects.tables import MILLI, most_changed
from workbench.widgets.export import downloads

KINDS = {"restore": "Restore one link", "swap": "Swap the groups of two tokens"}
_NAMES = {"restore": ("Token that reads", "Token to be read"), "swap": ("First token", "Second token")}
_ENGINE = {"restore": restore_effect, "swap": swap_effect}
_CHANCE = {
    "restore": "Chance: the same token reads another distant token that routing drops",
    "swap": "Chance: the first token exchanges its group with a random token of another group",
}
DRAWS = 99
DIGITS = st.column_config.NumberColumn(format="%.3g")


@dataclass(frozen=True)
class Single:
    """One small change.

    Attributes:
        kind: a key of `KINDS`.
        layer: number of the layer.
        head: key/value head.
        tokens: from the beginning of the text.
        first: place of the token that reads, or of the first token.
        second: place of the token to be read, or of the second one.
    """

    kind: str
    layer: int
    head: int
    tokens: int
    first: int
    second: int


@dataclass
class _Made:
    lock: threading.Lock = field(default_factory=threading.Lock)
    found: SingleEffect | None = None


def draw(analysis: Analysis, layer: int, head: int, tokens: int) -> None:
    """Draw the choices, and the results once they were run.

    Args:
        analysis: of the text.
        layer: number of the layer.
        head: key/value head.
        tokens: from the beginning of the text.

    Raises:
        FocusError: the change is not possible.
    """
    trace, last = analysis.trace, tokens - 1
    sinks = trace.config.sink_tokens
    # A reader in the middle: the last token predicts nothing.
    reader = max(tokens // 2, trace.config.window + sinks + 1)
    kind = st.segmented_control(
        "What is changed", list(KINDS), format_func=lambda name: KINDS[name], key="single_kind", default="restore"
    )
    kind = kind or "restore"
    columns = st.columns(2, gap="medium")
    places = []
    for column, name, at in zip(columns, _NAMES[kind], (min(reader, last), min(sinks, last))):
        with column:
            place = int(st.number_input(name, 0, last, value=at, key=f"single_{kind}_{name}_{tokens}"))
            st.text(context(trace, place, 30))
        places.append(place)
    asked = Single(kind, layer, head, tokens, *places)
    made = _made(json.dumps([setting_key(analysis), dataclasses.asdict(asked)]))
    run = st.button(
        "Run",
        key="run_single",
        icon=":material/play_arrow:",
        disabled=made.found is not None,
        help=f"Runs the first {tokens:,} tokens with this change, and with up to {DRAWS} random ones like it.",
    )
    if run:
        bar = st.progress(0.0, text="Running the text as it is …")

        def report(message: str, share: float) -> None:
            bar.progress(share, text="Comparing with random ones …")

        _run(made, analysis, asked, report)
        st.rerun()
    if made.found is not None:
        _results(analysis, asked, made.found)


def _run(made: _Made, analysis: Analysis, asked: Single, progress: Progress) -> None:
    model, routers = st.session_state["model"], st.session_state["routers"]
    settings = dataclasses.replace(service.settings_of(analysis, model, routers), states="routed")
    base, ids = service.load_base(model), np.array(analysis.trace.input_ids[: asked.tokens])

    def work(focus: FocusModel) -> SingleEffect:
        experiment = Experiment(focus, ids, asked.layer, asked.head)
        return _ENGINE[asked.kind](experiment, asked.first, asked.second, draws=DRAWS, progress=progress)

    with made.lock:
        if made.found is None:
            with base.lock:
                made.found = service.routed(base, settings, work)


@st.cache_resource(max_entries=64, show_spinner=False)
def _made(key: str) -> _Made:
    return _Made()


def _results(analysis: Analysis, asked: Single, found: SingleEffect) -> None:
    trace = analysis.trace
    st.markdown(f"#### {sentence(trace, asked, found)}")
    st.caption(
        f"{_CHANCE[asked.kind]}; {found.kl.draws} random ones, middle 95%. Thousandths of a nat per token, over "
        f"{asked.tokens:,} tokens of one text."
    )
    origin = analysis.origin | dataclasses.asdict(asked) | {"intervention": asked.kind, "seed": 0}
    table = single_table(found)
    st.dataframe(
        table, hide_index=True, key="single_table", column_config=dict.fromkeys(("effect", "low", "high", "p"), DIGITS)
    )
    downloads(table, origin, name="single", file=f"effect-{asked.kind}")
    change = found.trial.change
    moved = most_changed({"token_kl": change.kl.tolist(), "token_loss": change.loss.tolist()}, trace)
    if moved.empty:
        return
    tested = [found.at(int(token)) for token in moved["token"]]
    moved = moved.assign(chance=[f"{each.low:.2g} to {each.high:.2g}" for each in tested])
    st.markdown("**The predictions that change most**")
    st.dataframe(
        moved, hide_index=True, key="single_changed", column_config=dict.fromkeys(("change of loss", "KL"), DIGITS)
    )


def sentence(trace: Trace, asked: Single, found: SingleEffect) -> str:
    """What the change does, in one sentence."""
    first, second = (f"“{token_text(trace, place)}” ({place})" for place in (asked.first, asked.second))
    what = f"{first} reading {second}" if asked.kind == "restore" else f"{first} and {second} exchanging groups"
    where = f"in layer {asked.layer}, head {asked.head}"
    if not found.links:
        reason = "it reads that token already" if asked.kind == "restore" else "no link depends on it"
        return f"Nothing changes {where}: {reason}."
    verb = "changes the predictions more than chance does" if found.kl.p_value < 0.05 else "matters no more than chance"
    return f"{what[0].upper()}{what[1:]} {where} {verb} (p = {found.kl.p_value:.2g})."


def single_table(found: SingleEffect) -> pd.DataFrame:
    """KL and loss, each with the range of chance and its p-value."""
    rows = [
        {
            "of": name,
            "effect": each.value * MILLI,
            "low": each.low * MILLI,
            "high": each.high * MILLI,
            "p": each.p_value,
        }
        for name, each in (("KL", found.kl), ("loss", found.loss))
    ]
    return pd.DataFrame(rows)
