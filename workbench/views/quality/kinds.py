"""Several kinds of text: the sentence, the table of means, and the map of KL by method and kind, for one length."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from focus_core.evaluation.compare import MIN_BLOCKS
from focus_core.frontier.kinds.means import blocks_of, kinds_at, lengths_of, mean_rows
from focus_core.frontier.kinds.table import notes, timed, verdict
from focus_core.frontier.speeds import recorded_speeds
from workbench.charts.theme import style

CHANGE = "perplexity, change"
"""Column with the relative change of perplexity."""
SHARES = ("distant kept", "top-1 same", CHANGE, "largest group")
"""Columns that are shares or relative changes."""
GROUPS = {
    "routers": ("routers", "#0072B2", "#56B4E9", "star"),
    "baseline": ("other methods", "#D55E00", "#E69F00", "circle"),
    "oracle": ("oracles, which cannot be computed in use", "#6B7280", "#9CA3AF", "diamond-open"),
}
"""Kinds of rows: what the chart calls them, their colours on light and dark pages, and their marks."""
TIMES = ("attention", "with choosing", "whole model")
"""Columns with measured speed-ups at the length of the table."""
KINDS_COLUMNS = {
    "method": ("method", 235),
    "distant kept": ("kept", 62),
    "KL": ("KL", 57),
    "KL, low": ("low", 57),
    "KL, high": ("high", 57),
    "ours minus this": ("ours − this", 80),
    "significant": ("significant", 82),
    "whole model": ("model", 62),
}
"""Columns of the open table: headers, and widths in pixels that fit a window of 1,200."""
_LIGHT = ("#FFFFFF", "#F6C9A0", "#D55E00", "#7A3500")
_DARK = ("#262730", "#7A3500", "#D55E00", "#F6C9A0")


def kinds_table(content: dict[str, Any]) -> pd.DataFrame:
    """Each method's mean over kinds at each length (column "T"), retention first.

    Args:
        content: of a record of `focus frontier --kinds`.
    """
    speeds = recorded_speeds(content["model"]["name"])
    rows = []
    for row in [row for length in lengths_of(content) for row in mean_rows(content, length)]:
        kl = (math.nan,) * 3 if row.kl is None else (row.kl.difference, _number(row.kl.low), _number(row.kl.high))
        rows.append(
            {
                "T": row.length,
                "method": row.label,
                "kind": row.kind,
                "distant kept": _number(row.kept_share),
                "KL": kl[0],
                "KL, last quarter": _number(row.kl_last_quarter),
                "KL, low": kl[1],
                "KL, high": kl[2],
                "ours minus this": math.nan if row.against is None else row.against.difference,
                "significant": None if row.against is None else "yes" if row.established else "no",
                "top-1 same": _number(row.top1_agreement),
                CHANGE: math.nan if row.kl is None else row.relative - 1,
                "largest group": _number(row.largest_group_share),
                **dict(zip(TIMES, map(_number, timed(row, speeds)[:3]), strict=True)),
                "source": row.source,
            }
        )
    return pd.DataFrame(rows)


def kinds_lengths(content: dict[str, Any]) -> list[int]:
    """Lengths that a record has points at, ascending."""
    return lengths_of(content)


def usual_length(content: dict[str, Any]) -> int:
    """The longest length with enough blocks for a difference to be established; else that with the most."""
    blocks = {
        length: sum(blocks_of(content, kind, length) for kind in kinds_at(content, length))
        for length in kinds_lengths(content)
    }
    enough = [length for length, count in blocks.items() if count >= MIN_BLOCKS]
    return max(enough) if enough else max(blocks, key=lambda length: (blocks[length], length))


def kinds_frontier(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """KL against the share of distant pairs kept: one point for each method at one length, by kind of method.

    Args:
        table: rows of one length, from `kinds_table`.
        dark: colours for a dark page.
    """
    figure = go.Figure()
    for kind, (name, light, bright, symbol) in GROUPS.items():
        part = table.loc[table["kind"].eq(kind) & table["KL"].gt(0) & table["distant kept"].notna()]
        if part.empty:
            continue
        color = bright if dark else light
        figure.add_scatter(
            x=part["distant kept"],
            y=part["KL"],
            mode="markers",
            name=name,
            marker={"color": color, "symbol": symbol, "size": 12, "line": {"width": 1.5, "color": color}},
            customdata=part["method"],
            hovertemplate="%{customdata}<br>%{x:.1%} of distant pairs, KL %{y:.4f}<extra></extra>",
        )
    figure.update_layout(title="Divergence from the untouched model by share of pairs kept")
    figure.update_xaxes(title="distant pairs kept", tickformat=".0%", rangemode="tozero")  # few shares may be alike
    figure.update_yaxes(title="KL, nats per token (log)", type="log", exponentformat="power")
    return style(figure, dark=dark, height=420)


def by_kind(content: dict[str, Any], length: int) -> pd.DataFrame:
    """KL in nats per token: one row for each method, one column for each kind of text."""
    kinds = kinds_at(content, length)
    rows = [
        {"method": row.label} | {kind: row.by_kind.get(kind, math.nan) for kind in kinds}
        for row in mean_rows(content, length)
        if row.by_kind
    ]
    return pd.DataFrame(rows, columns=["method", *kinds])


def kinds_verdict(content: dict[str, Any], length: int) -> str:
    """A headline in plain words: what the routers keep, how close they stay, and how baselines compare."""
    said = verdict(content, length)
    return f"At {length:,} tokens {said[:1].lower()}{said[1:]}"


def kinds_notes(content: dict[str, Any]) -> list[str]:
    """How to read intervals and marks, which texts are short or a single document, and the time it took."""
    return notes(content)


def kinds_map(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Heatmap of `by_kind`: methods down, kinds of text across, colour by the logarithm of KL.

    Args:
        table: from `by_kind`.
        dark: for a dark page.
    """
    kinds = [str(name) for name in table.columns if name != "method"]
    values = table[kinds].to_numpy(dtype=float)
    logs = [[math.log10(value) if value > 0 else None for value in row] for row in values]
    known = [value for row in logs for value in row if value is not None] or [0.0]
    colors = _DARK if dark else _LIGHT
    figure = go.Figure(
        go.Heatmap(
            z=logs,
            x=kinds,
            y=table["method"],
            zmin=min(known),
            zmax=max(known),
            text=[["" if math.isnan(value) else f"{value:.4f}" for value in row] for row in values],
            texttemplate="%{text}",
            colorscale=[[place / (len(colors) - 1), color] for place, color in enumerate(colors)],
            showscale=False,
            hovertemplate="%{y}<br>%{x}: KL %{text} nats per token<extra></extra>",
        )
    )
    figure.update_yaxes(autorange="reversed")
    worse = "brighter" if dark else "darker"
    figure.update_layout(title=f"KL from the untouched model, nats per token ({worse} is worse)")
    return style(figure, dark=dark, height=120 + 28 * max(4, len(table)))


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
