"""Sentences, tables and the chart of the Find page."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from focus_core.analysis import Trace
from focus_core.analysis.tokens import context
from focus_core.report.labels import guess, named
from focus_core.report.model import Card
from workbench.charts.theme import style
from workbench.views.find.cached import Search
from workbench.widgets.page.markup import counted

LEVEL = 0.05
"""p below which a group is called significant."""
CONTEXTS = 8
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#999999")
_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "star", "triangle-down", "x")


def place_of(row: Mapping[str, Any], heads: bool) -> str:
    """A group by its address: "layer 3, head 1, group 12"."""
    head = f", head {int(row['head'])}" if heads else ""
    return f"layer {int(row['layer'])}{head}, group {int(row['group'])}"


def link_of(row: Mapping[str, Any], heads: bool) -> dict[str, str]:
    """What a link to the page of a group holds; all other settings of the session stay."""
    names = ("layer", "head", "group") if heads else ("layer", "group")
    return {"v": "1", **{name: str(int(row[name])) for name in names}}


def row_sentence(row: Mapping[str, Any]) -> str:
    """A group's share of the matches, beside its share of the text."""
    interval = "" if np.isnan(row["low"]) else f" (95% interval {_times(row['low'])} to {_times(row['high'])})"
    held = (
        f"{row['of the matches']:.0%} of the matches ({int(row['matching']):,}), {row['of the text']:.1%} of the text"
    )
    return f"{held}: {_times(row['lift'])} times chance{interval}, {_p(row['p'])}."


def verdict(found: Search, heads: bool, what: str) -> str:
    """Where the matches gather, and in how many groups.

    Args:
        found: the search.
        heads: whether heads have groups of their own.
        what: is looked for, as the page calls it.
    """
    first, table = found.listed.iloc[0], found.found.table
    significant = int(np.count_nonzero(table["p"].to_numpy() <= LEVEL))
    where = "all layers and heads" if heads else "all layers"
    if not significant:
        return (
            f"{what}: no group holds significantly more than chance.\n\nOf {found.searched:,} groups of {where} the "
            f"nearest to it is {place_of(first, heads)}, {_p(first['p'])}."
        )
    interval = "" if np.isnan(first["low"]) else f" (95% interval {_times(first['low'])} to {_times(first['high'])})"
    return (
        f"{what}: {first['of the matches']:.0%} are in {place_of(first, heads)}, {_times(first['lift'])} times as many "
        f"as by chance{interval}.\n\n"
        f"{significant:,} of the {found.searched:,} groups of {where} hold significantly more than chance."
    )


def matches_sentence(found: Search) -> str:
    """How much of the text matches."""
    share = found.found.matching / found.found.tokens
    return f"{counted(found.found.matching, 'token')} at {counted(found.places, 'place')}, {share:.1%} of the text."


CONTEXT_COLUMNS = {"token": ("token", 70), "in context": ("in context", 630)}
"""Header and width in pixels of the columns of a `context_table`."""


def context_table(trace: Trace, matches: np.ndarray, count: int = CONTEXTS) -> pd.DataFrame:
    """Some matching tokens in context, evenly spaced through the text."""
    tokens = np.flatnonzero(matches)
    chosen = tokens[np.unique(np.linspace(0, len(tokens) - 1, min(count, len(tokens))).astype(int))]
    return pd.DataFrame({"token": chosen, "in context": [context(trace, int(token)) for token in chosen]})


def listed_table(found: Search, names: Mapping[tuple[int, int, int], str], heads: bool) -> pd.DataFrame:
    """The groups with intervals, with the user's own names where there are any."""
    table = found.listed if heads else found.listed.drop(columns="head")
    if names:
        places = zip(found.listed["layer"], found.listed["head"], found.listed["group"])
        table = table.assign(name=[names.get((int(a), int(b), int(c)), "") for a, b, c in places])
    return table


def own_names(notes: Mapping[str, Mapping[str, str]]) -> dict[tuple[int, int, int], tuple[str, str]]:
    """The user's names and notes by layer, head and group.

    Args:
        notes: of `workbench.runs.notes.of_every_head`.
    """
    found = {}
    for routers, own in notes.items():
        head = int(routers.rpartition("/head-")[2]) if "/head-" in routers else 0
        for place, note in own.items():
            layer, _, group = place.partition("/")
            found[int(layer), head, int(group)] = named(note)
    return found


def label_rows(
    cards: tuple[Card, ...], head: int, names: Mapping[tuple[int, int, int], tuple[str, str]], query: str
) -> pd.DataFrame:
    """Groups whose name, note or guessed label holds a text, in any case: own names first, then by size.

    Args:
        cards: of the head on show, in every layer.
        head: that head.
        names: from `own_names`.
        query: the text.
    """
    wanted = query.strip().casefold()
    rows = []
    for (layer, of, group), (name, note) in names.items():
        if wanted in name.casefold() or wanted in note.casefold():
            rows.append((layer, of, group, name or "(a note)", "your own", note, np.inf))
    for card in cards:
        made = guess(card)
        if wanted in made.label.casefold():
            rows.append((card.layer, head, card.group, made.label, "a guess", made.evidence, card.count))
    rows.sort(key=lambda row: (-row[-1], row[:3]))
    columns = ["layer", "head", "group", "label", "by", "evidence", "tokens"]
    return pd.DataFrame(rows, columns=columns).drop(columns="tokens")


def lift_chart(
    found: Search, heads: bool, *, dark: bool = False, names: Mapping[tuple[int, int, int], str] | None = None
) -> go.Figure:
    """The surest group of every layer and head by its lift; open marks are not significant.

    Args:
        found: the search.
        heads: whether heads have groups of their own.
        dark: for a dark page.
        names: labels by layer, head and group, for the hover text.
    """
    best = found.listed.drop_duplicates(["layer", "head"]).sort_values(["head", "layer"])
    figure = go.Figure()
    for head, part in best.groupby("head"):
        color, symbol = (each[int(str(head)) % len(each)] for each in (_COLORS, _SYMBOLS))
        symbols = np.where(part["p"] <= LEVEL, symbol, f"{symbol}-open")
        says = [
            f"{place_of(row, heads)}{_called(row, names or {})}<br>{row_sentence(row)}"
            for row in part.to_dict("records")
        ]
        figure.add_scatter(
            x=part["layer"],
            y=part["lift"],
            mode="markers",
            name=f"head {head}" if heads else "surest group",
            marker={"color": color, "symbol": symbols, "size": 10, "line": {"width": 2, "color": color}},
            customdata=says,
            hovertemplate="%{customdata}<extra></extra>",
            showlegend=heads,
        )
    figure.add_hline(y=1, line_dash="dot", annotation_text="chance", annotation_position="top right")
    of = "each layer and head" if heads else "each layer"
    figure.update_layout(title=f"The surest group of {of}")
    figure.update_xaxes(title="layer")
    figure.update_yaxes(title="times as many as by chance", rangemode="tozero")
    return style(figure, dark=dark, height=360)


def _called(row: Mapping[str, Any], names: Mapping[tuple[int, int, int], str]) -> str:
    name = names.get((int(row["layer"]), int(row["head"]), int(row["group"])), "")
    return f": {html.escape(name)}" if name else ""


def _times(value: float) -> str:
    return f"{value:.0f}" if value >= 9.5 else f"{value:.1f}"


def _p(value: float) -> str:
    return (
        f"p\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{value:.3f}"
        if value >= 0.001
        else "p\N{NO-BREAK SPACE}<\N{NO-BREAK SPACE}0.001"
    )
