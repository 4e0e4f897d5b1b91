"""Two prompts that differ by an edit: run, tables, chart and sentence."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from focus_core.errors import FocusError
from focus_core.evaluation.minimal_pair import MinimalPair, minimal_pair
from workbench.charts.theme import style
from workbench.engine import service
from workbench.engine.service import Settings
from workbench.tokens.pieces import token_names
from workbench.views.write.show import NAMES

NEXT = 5
"""Likeliest next tokens that are shown."""


@dataclass(frozen=True)
class PairRequest:
    """Two prompts.

    Attributes:
        document: text before both; may be empty.
        first: the first prompt.
        second: the second prompt.
        settings: model, routers and routing.
    """

    document: str
    first: str
    second: str
    settings: Settings


@dataclass(frozen=True, eq=False)
class ComparedPrompts:
    """Two prompts with the predictions of both models along them.

    Attributes:
        request: what was asked for.
        pair: the predictions.
        names: spelling of every token id that is shown.
        model: the model's name.
    """

    request: PairRequest
    pair: MinimalPair
    names: dict[int, str]
    model: str


def compare_prompts(request: PairRequest) -> ComparedPrompts:
    """Let both models read both prompts.

    Raises:
        FocusError: empty, equal or too long prompts, or settings or routers that cannot be used.
    """
    first, second = request.first.strip(), request.second.strip()
    if not first or not second:
        raise FocusError("A prompt is empty: give two prompts that differ by an edit.")
    if first == second:
        raise FocusError("Both prompts are the same: change a word in one of them.")
    base = service.load_base(request.settings.model)
    document = f"{request.document.rstrip()}\n\n" if request.document.strip() else ""
    encoded = [service.encoding(request.settings.model, document + prompt) for prompt in (first, second)]
    starts = [max(1, int((each.offsets[:, 1] <= len(document)).sum())) for each in encoded]
    if any(len(each.input_ids) <= start for each, start in zip(encoded, starts)):
        raise FocusError("A prompt has a single token: give two or more, or a document before it.")
    settings = replace(request.settings, states="routed")
    with base.lock:
        pair = service.routed(
            base,
            settings,
            lambda focus: minimal_pair(
                focus,
                np.array(encoded[0].input_ids),
                np.array(encoded[1].input_ids),
                (starts[0], starts[1]),
                changes=settings.changes,
            ),
        )
    shown = {int(token) for each in pair.along for token in each.tokens}
    shown |= {int(token) for each in pair.following for token in each.top_ids[..., :NEXT].ravel()}
    return ComparedPrompts(request, pair, token_names(base.tokenizer, shown), base.info.name)


def pair_verdict(found: ComparedPrompts) -> str:
    """How much the edit moves the predictions after it, and the next token, for both models."""
    sizes = np.abs(found.pair.change[:, after_edit(found.pair)])
    if sizes.shape[1]:
        first = (
            f"The edit moves the loss of the {sizes.shape[1]:,} shared tokens after it by {sizes[0].mean():.3f} nats "
            f"per token in the untouched model, and by {sizes[1].mean():.3f} in the routed one."
        )
    else:
        first = "No shared token follows the edit: the next tokens below show what it changes."
    return f"{first}\n\n{_next(found, 0)} {_next(found, 1)}"


def after_edit(pair: MinimalPair) -> np.ndarray:
    """(m,) bool: shared tokens after the first edit."""
    same = pair.same
    return same & (np.cumsum(~same) > 0)


def pair_table(found: ComparedPrompts) -> pd.DataFrame:
    """One row per aligned token: its loss in both prompts and the change, for both models; blank where one has none."""
    rows: dict[str, Any] = {}
    for side, name in enumerate(("first", "second")):
        tokens = found.pair.along[side].tokens
        rows[name] = [found.names[int(tokens[at])] if at >= 0 else "" for at in found.pair.aligned[:, side]]
    for model, name in enumerate(NAMES):
        for side, prompt in enumerate(("first", "second")):
            losses = -found.pair.along[side].log_probs[model]
            rows[f"loss in the {prompt}, {name}"] = [
                float(losses[at]) if at >= 0 else np.nan for at in found.pair.aligned[:, side]
            ]
        rows[f"change, {name}"] = found.pair.change[model].astype(float)
    return pd.DataFrame(rows)


def next_table(found: ComparedPrompts) -> pd.DataFrame:
    """The likeliest tokens after each prompt, of both models."""
    columns: dict[str, Any] = {"rank": np.arange(1, NEXT + 1)}
    for model, name in enumerate(NAMES):
        for side, prompt in enumerate(("first", "second")):
            following = found.pair.following[side]
            columns[f"{name}, after the {prompt}"] = [
                f"{found.names[int(token)]} {np.exp(value):.0%}"
                for token, value in zip(
                    following.top_ids[model, 0, :NEXT].tolist(), following.top_log_probs[model, 0, :NEXT].tolist()
                )
            ]
    return pd.DataFrame(columns)


def change_chart(found: ComparedPrompts, *, dark: bool = False) -> go.Figure:
    """Change of the loss at every shared token, both models side by side; edited tokens are shaded."""
    figure, pair = go.Figure(), found.pair
    tokens = pair.along[1].tokens
    says = [found.names[int(tokens[at])].replace("<", "&lt;") if at >= 0 else "" for at in pair.aligned[:, 1]]
    places = np.arange(1, len(pair.aligned) + 1)
    for model, (name, color) in enumerate(zip(NAMES, ("#56B4E9" if dark else "#0072B2", "#D55E00"))):
        figure.add_bar(
            x=places,
            y=pair.change[model],
            name=name,
            marker={"color": color},
            customdata=says,
            hovertemplate="token %{x} %{customdata}<br>%{y:+.3f} nats<extra>" + name + "</extra>",
        )
    for place in places[~pair.same].tolist():
        figure.add_vrect(x0=place - 0.5, x1=place + 0.5, fillcolor="gray", opacity=0.25, line_width=0)
    figure.update_layout(title="Change of the loss by the edit")
    figure.update_xaxes(title="token, edited ones shaded")
    figure.update_yaxes(title="second minus first, nats")
    return style(figure, dark=dark, height=320)


def _next(found: ComparedPrompts, model: int) -> str:
    best = [found.names[int(each.top_ids[model, 0, 0])] for each in found.pair.following]
    if best[0] == best[1]:
        return f"The {NAMES[model]} model's likeliest next token stays “{best[0]}”."
    return f"The {NAMES[model]} model's likeliest next token was “{best[0]}” and becomes “{best[1]}”."
