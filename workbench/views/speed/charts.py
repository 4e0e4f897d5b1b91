"""Measured curves of time, speed-up, memory and error. Published figures are thin and grey."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from workbench.charts.theme import style
from workbench.charts.ticks import legible, log_ticks
from workbench.views.speed.tables import PUBLISHED, PUBLISHED_TOKENS

_COLORS = (
    ("#0072B2", "#56B4E9"),
    ("#D55E00", "#E69F00"),
    ("#117733", "#ACD39E"),
    ("#882255", "#FFAABB"),
    ("#332288", "#99DDFF"),
    ("#999933", "#F0E442"),
)
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star")
_HEIGHT = 460


def _series(points: pd.DataFrame, dark: bool) -> Iterator[tuple[str, pd.DataFrame, str, str]]:
    """Name, points in order of length, colour and symbol of each series."""
    groups: Any = points.groupby("series", sort=False)
    for place, (name, rows) in enumerate(groups):
        yield name, rows.sort_values("tokens"), _COLORS[place % 6][int(dark)], _SYMBOLS[place % 6]


def time_curves(points: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Milliseconds against tokens, both logarithmic: full attention of each dtype, and every sparse series.

    Bars reach from the fastest to the slowest run. Full attention was timed in turn with every series; its
    curve is the median of those medians, its bars the extremes.
    """
    figure = go.Figure()
    ink = "#FFFFFF" if dark else "#000000"
    for place, (dtype, rows) in enumerate(_grouped(points, "dtype")):
        full = rows.groupby("tokens").agg({"full s": "median", "full min s": "min", "full max s": "max"}).reset_index()
        dash = ("solid", "dash", "dot")[place % 3]
        line = {"color": ink, "dash": dash}
        figure.add_scatter(name=f"full attention, {dtype}", line=line, **_timed(full, "full", ink))
    for name, rows, color, symbol in _series(points, dark):
        timed = _timed(rows, "sparse", color)
        timed["marker"] = {"symbol": symbol, "size": 8}
        figure.add_scatter(name=name, line={"color": color}, **timed)
    figure.update_layout(title="Time of one attention call (bars: fastest to slowest run)")
    milliseconds = 1e3 * pd.concat([points["full s"], points["sparse s"]])
    figure.update_yaxes(title="milliseconds", type="log", tickvals=log_ticks(milliseconds))
    return _finish(figure, points, dark)


def speedup_curves(points: pd.DataFrame, *, dark: bool = False, published: bool = False) -> go.Figure:
    """Speed-up over full attention against tokens, with the bound 1 / kept share of each point as an open mark.

    Args:
        points: measured points.
        dark: for a dark page.
        published: also draw the published curves, thin and grey.
    """
    figure = go.Figure()
    for name, rows, color, symbol in _series(points, dark):
        figure.add_scatter(
            x=rows["tokens"],
            y=rows["speedup"],
            mode="lines+markers",
            name=name,
            legendgroup=name,
            line={"color": color, "width": 2},
            marker={"symbol": symbol, "size": 9},
            customdata=rows[["bound", "share of bound", "kept share", "error output", "speedup with routing"]],
            hovertemplate=(
                "%{x:,} tokens: %{y:.2f}x<br>bound %{customdata[0]:.2f}x (%{customdata[1]:.0%} of it), "
                "kept %{customdata[2]:.1%}<br>choosing included %{customdata[4]:.2f}x<br>"
                "largest error %{customdata[3]:.1e}<extra>" + name + "</extra>"
            ),
        )
        figure.add_scatter(
            x=rows["tokens"],
            y=rows["bound"],
            mode="markers",
            name="bound, 1 / kept share",
            legendgroup=name,
            showlegend=False,
            marker={"symbol": f"{symbol}-open", "size": 9, "color": color, "line": {"width": 1.5}},
            hovertemplate="%{x:,} tokens: bound %{y:.2f}x, not measured<extra>" + name + "</extra>",
        )
    if published:
        for num_groups, values in PUBLISHED.items():
            figure.add_scatter(
                x=PUBLISHED_TOKENS,
                y=values,
                mode="lines",
                name=f"published, H100, K={num_groups}, k=1",
                line={"color": "#9AA0A6", "dash": "dot" if num_groups == 4 else "dashdot", "width": 1.5},
                hovertemplate="%{x:,} tokens: %{y}x<extra>published, H100, not measured here</extra>",
            )
    grey = {"dash": "dash", "width": 1.5, "color": "#FFFFFF" if dark else "#000000"}
    figure.add_hline(y=1, line=grey)
    figure.add_annotation(
        text="below 1: full attention is faster",
        x=1,
        xref="paper",
        xanchor="right",
        y=0,
        yanchor="top",
        showarrow=False,
    )
    figure.update_layout(title="Speed-up over full attention (filled: measured; open: its bound)")
    drawn = [*points["speedup"], *points["bound"], *(value for values in PUBLISHED.values() for value in values)]
    figure.update_yaxes(
        title="times as fast",
        type="log",
        tickvals=log_ticks(drawn if published else drawn[: 2 * len(points)]),
    )
    return _finish(figure, points, dark, PUBLISHED_TOKENS if published else ())


def memory_curves(points: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Working memory of a call beyond inputs and output, against tokens, with the inputs' size for scale."""
    figure = go.Figure()
    for name, rows, color, symbol in _series(points.loc[points["working bytes"].notna()], dark):
        # A logarithmic axis has no zero: nothing is drawn as one page of memory.
        figure.add_scatter(
            x=rows["tokens"],
            y=rows["working bytes"].clip(lower=4096) / 2**20,
            mode="lines+markers",
            name=name,
            line={"color": color},
            marker={"symbol": symbol, "size": 8},
            hovertemplate="%{x:,} tokens: %{y:.3g} MiB<extra>" + name + "</extra>",
        )
    for place, (dtype, rows) in enumerate(_grouped(points, "dtype")):
        inputs = rows.groupby("tokens")["input bytes"].first().reset_index()
        figure.add_scatter(
            x=inputs["tokens"],
            y=inputs["input bytes"] / 2**20,
            mode="lines",
            name=f"query, key and value, {dtype}",
            line={"color": "#9AA0A6", "dash": ("dash", "dot", "dashdot")[place % 3]},
            hovertemplate="%{x:,} tokens: %{y:.3g} MiB of inputs<extra></extra>",
        )
    figure.update_layout(title="Memory of one sparse call beyond inputs and output")
    mebibytes = pd.concat([points["working bytes"].clip(lower=4096), points["input bytes"]]) / 2**20
    figure.update_yaxes(title="MiB", type="log", tickvals=log_ticks(mebibytes))
    return _finish(figure, points, dark)


def error_curves(points: pd.DataFrame, *, dark: bool = False) -> go.Figure:
    """Largest deviation of the output from the float32 definition, against tokens, both logarithmic."""
    figure = go.Figure()
    for name, rows, color, symbol in _series(points, dark):
        figure.add_scatter(
            x=rows["tokens"],
            y=rows["error output"].clip(lower=1e-12),  # a logarithmic axis has no zero
            mode="lines+markers",
            name=name,
            line={"color": color},
            marker={"symbol": symbol, "size": 8},
            customdata=rows[["error logsumexp"]],
            hovertemplate="%{x:,} tokens: %{y:.1e}<br>log-sum-exp %{customdata[0]:.1e}<extra>" + name + "</extra>",
        )
    figure.update_layout(title="Largest error of the output against the float32 definition")
    figure.update_yaxes(
        title="largest absolute error",
        type="log",
        tickvals=log_ticks(points["error output"].clip(lower=1e-12)),
        tickformat=".1e",  # neighbouring errors differ in their second digit
    )
    return _finish(figure, points, dark)


def model_curves(points: pd.DataFrame, task: str, *, dark: bool = False) -> go.Figure:
    """Tokens a second of a whole model against the length, untouched and routed, both axes logarithmic.

    Args:
        points: from `workbench.views.speed.tables.read_model_speed`.
        task: "prefill" or "decode".
        dark: for a dark page.
    """
    figure = go.Figure()
    chosen = points.loc[points["task"] == task]
    for place, (routing, rows) in enumerate(_grouped(chosen, "routing")):
        untouched = routing == "untouched"
        color = ("#FFFFFF" if dark else "#000000") if untouched else _COLORS[(place - 1) % 6][int(dark)]
        figure.add_scatter(
            x=rows["tokens"],
            y=rows["tokens per second"],
            mode="lines+markers",
            name=str(routing),
            line={"color": color, "dash": "dash" if untouched else "solid"},
            marker={"symbol": _SYMBOLS[place % 6], "size": 9},
            customdata=rows[["speedup", "kept share"]],
            hovertemplate=(
                "%{x:,} tokens: %{y:,.4g} tokens/s<br>%{customdata[0]:.2f}x the untouched model<br>"
                "kept %{customdata[1]:.1%}<extra>" + str(routing) + "</extra>"
            ),
        )
    figure.update_layout(title=f"{task.capitalize()} of the whole model")
    figure.update_yaxes(title="tokens per second", type="log", tickvals=log_ticks(chosen["tokens per second"]))
    _finish(figure, chosen, dark)
    return figure.update_xaxes(title="tokens of the text" if task == "prefill" else "tokens in the cache")


def _grouped(points: pd.DataFrame, column: str) -> Any:
    return points.groupby(column, sort=False)


def _timed(rows: pd.DataFrame, which: str, color: str) -> dict[str, Any]:
    """Arguments of a curve of times with asymmetric bars, in milliseconds."""
    median = rows[f"{which} s"]
    return {
        "x": rows["tokens"],
        "y": median * 1e3,
        "error_y": {
            "array": (rows[f"{which} max s"] - median) * 1e3,
            "arrayminus": (median - rows[f"{which} min s"]) * 1e3,
            "color": color,
            "thickness": 1,
            "width": 3,
        },
        "mode": "lines+markers",
        "hovertemplate": "%{x:,} tokens: %{y:.3g} ms<extra>%{fullData.name}</extra>",
    }


def _finish(figure: go.Figure, points: pd.DataFrame, dark: bool, others: Iterable[int] = ()) -> go.Figure:
    lengths = sorted({int(value) for value in points["tokens"]} | set(others))
    named = legible(lengths)
    figure.update_xaxes(
        title="tokens",
        type="log",
        tickvals=lengths,
        ticktext=[_short(value) if value in named else "" for value in lengths],
        tickangle=0,
    )
    return style(figure, dark=dark, height=_HEIGHT)


def _short(tokens: int) -> str:
    for unit, name in ((2**20, "M"), (2**10, "K")):
        if tokens >= unit and tokens % unit == 0:
            return f"{tokens // unit}{name}"
    return str(tokens)
