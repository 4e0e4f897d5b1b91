"""Charts of recorded evidence: differences with intervals, paths over k and length, curves of balance."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from focus_core.routing.balance import sees_future
from workbench.charts.labels import Named, beside, in_a_column
from workbench.charts.theme import style
from workbench.views.quality.record_tables import SPEEDS

_LIGHT = ("#0072B2", "#D55E00", "#117733", "#882255", "#E69F00", "#56B4E9")
_DARK = ("#56B4E9", "#E69F00", "#ACD39E", "#FFAABB", "#F0E442", "#99DDFF")
_MARKS = ("circle", "diamond", "square", "x", "triangle-up", "cross")
_DASHES = ("solid", "dash", "dot", "dashdot")
KEPT = "distant kept"


def _color(number: int, dark: bool) -> str:
    return (_DARK if dark else _LIGHT)[number % len(_LIGHT)]


def draw(kind: str, table: pd.DataFrame, *, metric: str, dark: bool = False, against: str | None = None) -> go.Figure:
    """The chart of a view.

    Args:
        kind: `View.draw`.
        table: from `workbench.views.quality.records.read`.
        metric: what differs, for the axis.
        dark: for a dark page.
        against: of a frontier, the column of its horizontal axis; default the share of distant pairs kept.
    """
    if kind == "curves":
        return balance_curves(table, dark=dark)
    if kind == "path":
        return k_path(table, dark=dark)
    if kind == "lengths":
        return length_lines(table, dark=dark)
    if kind == "frontier":
        return frontier_lines(table, dark=dark, against=against or KEPT)
    return difference_chart(table, metric=metric, dark=dark)


def _bars(rows: pd.DataFrame) -> dict[str, object]:
    """Plotly's error bars from the ends of intervals."""
    return {
        "type": "data",
        "symmetric": False,
        "array": (rows["high"] - rows["difference"]).fillna(0),
        "arrayminus": (rows["difference"] - rows["low"]).fillna(0),
        "thickness": 1.5,
        "width": 3,
    }


def _plain(rows: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in rows.to_dict("records")]


def _notes(rows: pd.DataFrame) -> list[str]:
    """Hover text of each difference: its known shares and speeds."""
    notes = []
    for row in _plain(rows):
        known = [f"{name} {row[name]:.2f}x" for name in SPEEDS if not math.isnan(row.get(name, math.nan))]
        known += [
            f"{name} {row[name]:.1%}"
            for name in ("distant kept", "largest group", "distant pairs", "removed", "kept share, difference")
            if not math.isnan(row.get(name, math.nan))
        ]
        notes.append("<br>".join([*known, *([row["reading"]] if row.get("reading") else [])]))
    return notes


def difference_chart(table: pd.DataFrame, *, metric: str, dark: bool = False) -> go.Figure:
    """One line of the chart per label, one mark per series, whiskers for 95% intervals."""
    figure = go.Figure()
    labels = list(dict.fromkeys(table["label"]))
    for number, (series, rows) in enumerate(table.groupby("series", sort=False)):
        figure.add_scatter(
            x=rows["difference"],
            y=rows["label"],
            mode="markers",
            name=str(series),
            marker={"color": _color(number, dark), "symbol": _MARKS[number % len(_MARKS)], "size": 9},
            error_x=_bars(rows),
            customdata=_notes(rows),
            hovertemplate="%{y}: %{x:+.3f}<br>%{customdata}<extra>" + str(series) + "</extra>",
        )
    figure.add_vline(x=0, line={"dash": "dash", "width": 1, "color": "#FFFFFF" if dark else "#000000"})
    figure.update_xaxes(title=f"{metric} (95% intervals; dashed: no difference)")
    figure.update_yaxes(categoryorder="array", categoryarray=labels[::-1])
    return style(figure, dark=dark, height=160 + 26 * max(6, len(labels)))


def k_path(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Perplexity against kept pairs, joined in the order of k."""
    figure = go.Figure()
    for number, (series, rows) in enumerate(table.groupby("series", sort=True)):
        ordered = rows.sort_values("k")
        figure.add_scatter(
            x=ordered["distant kept"],
            y=ordered["relative"] - 1,
            mode="lines+markers+text",
            name=f"{series} (sees later tokens)" if sees_future(series) else str(series),
            text=[f"k={int(k)}" for k in ordered["k"]] if not sees_future(series) else None,
            textposition="top right",
            line={"color": _color(number, dark), "dash": _DASHES[number % len(_DASHES)]},
            marker={"size": 9, "symbol": "diamond-open" if sees_future(series) else "circle"},
            customdata=ordered[["perplexity", "largest group", "bound"]],
            hovertemplate="perplexity %{customdata[0]:.2f} (%{y:+.1%})<br>distant pairs kept %{x:.1%}<br>"
            "largest group %{customdata[1]:.1%}<br>bound on the speed-up %{customdata[2]:.2f}x<extra></extra>",
        )
    figure.update_xaxes(title="share of distant pairs kept", tickformat=".0%", range=[0, 1.08])
    figure.update_yaxes(title="perplexity against the untouched model", tickformat="+.2~%")
    return style(figure, dark=dark, height=420)


def length_lines(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Difference from the untouched model over length, with intervals."""
    figure = go.Figure()
    for number, (series, rows) in enumerate(table.groupby("series", sort=True)):
        figure.add_scatter(
            x=rows["length"],
            y=rows["difference"],
            mode="lines+markers",
            name=str(series),
            line={"color": _color(number, dark), "dash": _DASHES[number % len(_DASHES)]},
            marker={"size": 9, "symbol": _MARKS[number % len(_MARKS)]},
            error_y=_bars(rows),
            customdata=_notes(rows),
            hovertemplate="%{x:,} tokens: %{y:+.2f}<br>%{customdata}<extra>" + str(series) + "</extra>",
        )
    figure.add_hline(y=0, line={"dash": "dash", "width": 1, "color": "#FFFFFF" if dark else "#000000"})
    ticks = sorted(set(table["length"]))
    figure.update_xaxes(
        title="context length in tokens", type="log", tickvals=ticks, ticktext=[f"{t:,}" for t in ticks]
    )
    figure.update_yaxes(title="perplexity above the untouched model")
    return style(figure, dark=dark, height=420)


def frontier_lines(table: pd.DataFrame, *, dark: bool = False, against: str = KEPT) -> go.Figure:
    """Perplexity against kept pairs or a speed, the points of a method joined and named; baselines grey.

    The axis ends a little above the worst router. Points beyond it stand at the upper edge with their value. Rows
    without a value on the horizontal axis are left out; colours are those of the whole table.
    """
    figure = go.Figure()
    known: pd.DataFrame = table.loc[table[against].notna() & table["relative"].notna()]
    x_range, y_range, top = _frontier_ranges(known, against)
    height = 560
    wide, high = 12 * (x_range[1] - x_range[0]) / 880, 14 * (y_range[1] - y_range[0]) / (height - 110)  # pixels
    firsts: list[Named] = []
    alone: list[tuple[bool, float, Named]] = []
    every = [(float(x), 0.0) for x in np.linspace(*x_range, 120)]  # the dashed line
    grey = "#B8BEC8" if dark else "#5F6570"
    numbers = {
        name: number for number, name in enumerate(dict.fromkeys(table.loc[table["kind"] == "routers", "series"]))
    }
    column = known[against].to_numpy(dtype=float)
    most = float(column.max(initial=0.0))
    start = float(column.min(initial=math.inf)) + (0.03 if against == KEPT else 0.08 * most)
    for series, rows in known.groupby("series", sort=False):
        ordered = rows.sort_values(against)
        routers, number = series in numbers, numbers.get(str(series), 0)
        color, symbol = (_color(number, dark), _MARKS[number % 4]) if routers else (grey, "circle-open")
        above = ordered["relative"] - 1
        shown = above.clip(upper=top)
        beyond = [f"{value:+.0%}" if value > top else "" for value in above]
        figure.add_scatter(
            x=ordered[against],
            y=shown,
            mode="lines+markers+text",
            name=str(series),
            text=beyond,
            textposition="top center",
            textfont={"size": 11, "color": color},
            line={"color": color, "dash": "solid" if routers else "dot", "width": 3 if routers else 1},
            marker={
                "size": 10 if routers else 7,
                "symbol": ["triangle-up-open" if value else symbol for value in beyond],
            },
            customdata=[
                [row["perplexity"], note, row["relative"] - 1, row["label"]]
                for row, note in zip(_plain(ordered), _notes(ordered))
            ],
            hovertemplate="perplexity %{customdata[0]:.2f} (%{customdata[2]:+.1%})<br>%{customdata[1]}"
            "<extra>%{customdata[3]}</extra>",
        )
        points = list(zip(ordered[against].to_numpy(dtype=float), shown.to_numpy(dtype=float)))
        every += points
        # Names keep clear of the values above cut-off points, and of the lines.
        every += [(x + side * wide, y + high) for (x, y), text in zip(points, beyond) if text for side in (-1, 0, 1)]
        for (x, y), (to_x, to_y) in pairwise(points):
            every += [(x + part * (to_x - x), y + part * (to_y - y)) for part in np.linspace(0, 1, 60)]
        named = Named(*points[0], str(series), color, elsewhere=tuple(points[:0:-1]))
        if points[0][0] < start:
            firsts.append(named)
        else:  # routers before baselines, and of each those that lose least, have the first choice of a place
            alone.append((not routers, min(y for _, y in points), named))
    figure.add_hline(y=0, line={"dash": "dash", "width": 1, "color": "#FFFFFF" if dark else "#000000"})
    notes = in_a_column(firsts, y_range=y_range, height=height - 110)
    names = [named for _, _, named in sorted(alone, key=lambda each: each[:2])]
    drawn = [*names, *(Named(x, y) for x, y in every)]
    notes += beside(drawn, x_range=x_range, y_range=y_range, sizes=[(880, height - 110)])
    figure.update_layout(annotations=notes, showlegend=False, title="Routers, and baselines in grey")
    if against == KEPT:
        figure.update_xaxes(title="share of distant pairs kept, sinks included", tickformat=".0%", range=x_range)
    else:
        title = f"measured {against} tokens of one attention call over full attention"
        ticks = list(range(math.ceil(most) + 1))  # none below 0, where names stand
        figure.update_xaxes(title=title, tickvals=ticks, ticktext=[f"{n}x" for n in ticks], range=x_range)
    figure.update_yaxes(title="perplexity against the untouched model (dashed)", tickformat="+.2~%", range=y_range)
    return style(figure, dark=dark, height=height)


def _frontier_ranges(known: pd.DataFrame, against: str) -> tuple[tuple[float, float], tuple[float, float], float]:
    """Ranges of the axes, with room for names on the left, and the difference at which points are cut off."""
    kept, above = (known[name].to_numpy(dtype=float) for name in (against, "relative"))
    above = above - 1
    routers = above[known["kind"].eq("routers").to_numpy()]
    best, most = float(above.min(initial=0.0)), float(above.max(initial=0.01))
    top = min(most, max(0.01, 1.4 * float(routers.max(initial=0.0)))) if len(routers) else most
    right = 1.12 * float(kept.max(initial=0.01))
    right = min(1.04, right) if against == KEPT else right
    left = min(0.0, (float(kept.min(initial=right)) - 0.2 * right) / 0.8)
    return (left, right), (best - 0.06 * (top - best), top + 0.08 * (top - best)), top


def balance_curves(table: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Largest group and stability of every variant over steps; the dotted line is where all weights join in."""
    titles = ("Largest group, mean over layers", "Tokens that kept their group")
    figure = make_subplots(2, 1, subplot_titles=titles, shared_xaxes=True, vertical_spacing=0.1)
    for number, (variant, rows) in enumerate(table.groupby("variant", sort=False)):
        ordered = rows.sort_values("step")
        for place, column in enumerate(("largest group", "stability"), start=1):
            figure.add_scatter(
                x=ordered["step"],
                y=ordered[column],
                mode="lines+markers",
                name=str(variant),
                legendgroup=str(variant),
                showlegend=place == 1,
                line={"color": _color(number, dark), "dash": _DASHES[number // len(_LIGHT) % len(_DASHES)], "width": 2},
                marker={"size": 6, "symbol": _MARKS[number % len(_MARKS)]},
                hovertemplate=f"{variant}<br>step %{{x}}: %{{y:.1%}}<extra></extra>",
                row=place,
                col=1,
            )
    last = table.loc[table["phase"] == "centroids", "step"].max()
    for place in (1, 2):
        if pd.notna(last):
            figure.add_vline(x=last, line={"dash": "dot", "width": 1}, row=place, col=1)  # type: ignore[arg-type]
    figure.update_xaxes(title="step (dotted: all weights train from here on)", row=2, col=1)
    figure.update_yaxes(title="share of tokens", tickformat=".0%", range=[0, 1.02])
    figure.update_annotations(font_size=14)
    return style(figure, dark=dark, height=720)
