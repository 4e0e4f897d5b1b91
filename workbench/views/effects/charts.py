"""Effects beside the range of chance."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from workbench.charts.theme import style
from workbench.views.effects.tables import LEVEL, MILLI


def effect_chart(table: pd.DataFrame, *, title: str, axis: str, dark: bool = False) -> go.Figure:
    """A mark for each effect on a bar that spans the middle 95% of chance; filled where it is significant.

    Args:
        table: columns name, effect, low, high and p, effects in nats.
        title: of the chart.
        axis: title of the names' axis.
        dark: for a dark page.
    """
    names = table["name"].astype(str).tolist()
    main, band = ("#56B4E9", "#6B7280") if dark else ("#0072B2", "#C4C9D1")
    clear = table["p"] < LEVEL
    known = table.dropna(subset=["low", "high"])
    figure = go.Figure()
    figure.add_bar(
        y=known["name"].astype(str),
        base=known["low"] * MILLI,
        x=(known["high"] - known["low"]) * MILLI,
        orientation="h",
        width=0.5,
        marker={"color": band, "line": {"width": 0}},
        name="chance, middle 95%",
        hoverinfo="skip",
    )
    for significant, symbol, name in ((True, "circle", "significant"), (False, "circle-open", "not significant")):
        part = table[clear == significant]
        if part.empty:
            continue
        figure.add_scatter(
            y=part["name"].astype(str),
            x=part["effect"] * MILLI,
            customdata=part[["p"]],
            mode="markers",
            marker={"size": 12, "color": main, "symbol": symbol, "line": {"width": 2, "color": main}},
            name=name,
            hovertemplate="%{y}<br>%{x:.3g} thousandths of a nat<br>p = %{customdata[0]:.3f}<extra></extra>",
        )
    figure.update_layout(title=title)
    figure.update_xaxes(title="KL, thousandths of a nat per token", rangemode="tozero")
    figure.update_yaxes(
        title=axis, type="category", categoryorder="array", categoryarray=names[::-1], showgrid=False, automargin=True
    )
    return style(figure, dark=dark, height=190 + 34 * len(names))


def of_groups(table: pd.DataFrame) -> pd.DataFrame:
    """The table of `effect_chart` from that of `effects_of_points`."""
    return pd.DataFrame(
        {
            "name": [f"group {group}" for group in table["group"]],
            "effect": table["kl"],
            "low": table["kl low"].astype(float),
            "high": table["kl high"].astype(float),
            "p": table["kl p (Holm)"],
        }
    )


def of_kinds(table: pd.DataFrame) -> pd.DataFrame:
    """The table of `effect_chart` from that of `kind_table`."""
    return pd.DataFrame(
        {
            "name": table["kind"],
            "effect": table["effect"],
            "low": table["low"].astype(float),
            "high": table["high"].astype(float),
            "p": table["p (Holm)"],
        }
    )
