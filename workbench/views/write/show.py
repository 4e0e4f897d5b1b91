"""View models of the Write page: tinted tokens, tables, the chart of KL, and the sentences."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import streamlit as st
from streamlit.components.v2 import component

from focus_core.errors import FocusError
from focus_core.io.reading import read_json
from focus_core.io.schema import table
from focus_core.resources import data_dir
from workbench.charts.theme import is_dark, style
from workbench.charts.tints import BETTER, WORSE, tint
from workbench.views.write.run import Draft, Pair
from workbench.widgets.page.markup import counted

NAMES = ("untouched", "routed")
STRONG = 2.0
"""Change of log-probability, in nats, that has the strongest tint."""
MODEL = "bench-model-narrow"
"""The record of whole-model speeds of the default routers."""
LEAST = 0.001
"""The axis of KL reaches at least this far, in nats."""
_FOLDER = Path(__file__).parent
_component = component(
    "focus-written-text",
    html='<div class="written" role="group"></div>',
    css=(_FOLDER / "text.css").read_text(encoding="utf-8"),
    js=(_FOLDER / "text.js").read_text(encoding="utf-8"),
)


def verdict(pair: Pair) -> str:
    """Whether the texts differ, and how fast each was written."""
    untouched, routed = pair.written
    count = len(routed.tokens)
    if pair.difference is None:
        first = f"Both models write the same {counted(count, 'token')}."
    else:
        same = "token is" if pair.difference == 1 else "tokens are"
        first = f"The first {pair.difference} {same} the same, then the models part."
        if pair.difference == 0:
            first = "The models part at the first token."
    along = pair.along[1]
    kept = along.kept_pairs / along.causal_pairs
    speeds = [each.tokens_per_second for each in (untouched, routed)]
    pace = ""
    if None not in speeds:
        pace = f" Decoding: {speeds[0]:.1f} tokens per second untouched, {speeds[1]:.1f} routed."
    return (
        f"{first}\n\nRouting read {kept:.0%} of the pairs of prompt and text. Along its text the divergence is "
        f"{along.kl.mean():.4f} nats per token on average, {along.kl.max():.3f} at most.{pace}"
    )


def short_prompt(pair: Pair) -> bool:
    """Whether nothing of the prompt and text lies beyond the window, so that routing reads all pairs."""
    return pair.along[1].kept_pairs == pair.along[1].causal_pairs


def speed_note(length: int | None = None) -> str:
    """Up to which length the routed model is not faster at writing, as recorded for the default routers.

    Args:
        length: tokens before the text that was written; None for none yet.

    Returns:
        Empty without a record, and where the length at hand is one at which it was faster.
    """
    try:
        record = read_json(data_dir() / "results" / f"{MODEL}.json", table())
        rows = [row for row in record["results"] if row["task"] == "decode" and row["routing"] == "hard"]
        speeds = {int(row["tokens"]): float(row["speedup"]) for row in rows}
        device = str(record["made"]["device"])
    except (OSError, FocusError, KeyError, TypeError, ValueError):
        return ""
    slow = max((tokens for tokens, speed in speeds.items() if speed <= 1), default=0)
    fast = [tokens for tokens in speeds if tokens > slow]
    if not slow or (length is not None and fast and length >= min(fast)):
        return ""
    here = "" if length is None else f" Here {length:,} tokens stand before the text."
    later = f" After {min(fast):,} tokens it decodes {speeds[min(fast)]:.2f}x as fast." if fast else ""
    return (
        f"After {slow:,} tokens or fewer the routed model decodes no faster. That was measured on {device} with the "
        f"default routers.{later}{here}"
    )


def draft_line(draft: Draft, share: float | None, window: int, sinks: int) -> str:
    """How far a text is: tokens, speed, and what the next token reads."""
    at = draft.prompt_tokens + len(draft.tokens)
    read = at
    if draft.mode == "hard" and share is not None:
        distant = max(0, at - window - sinks)
        read = round(min(at, window + sinks) + share * distant)
    pace = draft.tokens_per_second
    speed = "" if pace is None else f" · {pace:.1f} tokens per second"
    about = "about " if draft.mode == "hard" and read < at else ""
    reads = f" · a token reads {about}{read:,} of {at:,} keys" if draft.mode == "off" or share is not None else ""
    return f"{len(draft.tokens)} tokens{speed}{reads}"


def token_table(pair: Pair, side: int) -> pd.DataFrame:
    """One row per token of one text: log-probabilities under both models, their difference, and KL."""
    along = pair.along[side]
    return pd.DataFrame(
        {
            "token": np.arange(1, len(along.tokens) + 1),
            "text": pair.pieces[side],
            "log-probability, untouched": along.log_probs[0],
            "log-probability, routed": along.log_probs[1],
            "change": along.change,
            "KL": along.kl,
        }
    )


def likeliest(pair: Pair, side: int, place: int) -> pd.DataFrame:
    """The most likely tokens of both models at one place of one text."""
    along = pair.along[side]
    columns: dict[str, Any] = {"rank": np.arange(1, along.top_ids.shape[-1] + 1)}
    for model, name in enumerate(NAMES):
        columns[name] = [pair.names[int(token)] for token in along.top_ids[model, place]]
        columns[f"{name}, probability"] = np.exp(along.top_log_probs[model, place])
    return pd.DataFrame(columns)


def colors(change: float, *, dark: bool = False) -> tuple[str, str]:
    """Fill and ink of a token by the change of its log-probability: orange is less likely, blue more."""
    return tint(abs(change) / STRONG, (WORSE if change < 0 else BETTER)[dark], dark=dark)


def written_text(pair: Pair, side: int, selected: int | None, on_pick: Callable[[int], None]) -> None:
    """Draw one text; a click, or Enter on a focused token, calls `on_pick` with its place."""
    key = f"written_{NAMES[side]}"
    tokens = []
    for text, change, kl in zip(pair.pieces[side], pair.along[side].change.tolist(), pair.along[side].kl.tolist()):
        fill, color = colors(change, dark=is_dark())
        says = f"log-probability {change:+.2f} nats under routing, KL {kl:.3f}"
        tokens.append({"text": text, "fill": fill, "ink": color, "says": says})

    def picked() -> None:
        place = st.session_state[key].picked
        if place is not None:
            on_pick(int(place))

    data = {"tokens": tokens, "difference": pair.difference, "selected": selected}
    _component(key=key, data=data, on_picked_change=picked)


def kl_chart(pair: Pair, side: int, *, dark: bool = False) -> go.Figure:
    """KL at each token of one text; the first token that differs is marked."""
    along, color = pair.along[side], "#56B4E9" if dark else "#0072B2"
    places = np.arange(1, len(along.tokens) + 1)
    figure = go.Figure(
        go.Bar(
            x=places,
            y=along.kl,
            marker={"color": color},
            customdata=[text.replace("<", "&lt;") for text in pair.pieces[side]],
            hovertemplate="token %{x} %{customdata}<br>KL %{y:.4f} nats<extra></extra>",
        )
    )
    if pair.difference is not None and pair.difference < len(places):
        figure.add_vline(
            x=pair.difference + 1, line_dash="dot", annotation_text="first that differs", annotation_position="top"
        )
    figure.update_layout(title=f"Divergence along the text of the {NAMES[side]} model")
    figure.update_xaxes(title="token of the text")
    highest = max(float(along.kl.max()), LEAST)  # differences of rounding alone look like none
    figure.update_yaxes(title="KL, nats", range=[0, 1.05 * highest])
    return style(figure, dark=dark, height=260)
