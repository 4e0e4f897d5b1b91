"""A chart or a table with everything that belongs to it: the table twin and the downloads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from focus_core.tables import stamped, to_csv, to_parquet
from workbench.theme import style


def chart(
    figure: go.Figure,
    table: pd.DataFrame,
    origin: dict[str, Any],
    *,
    name: str,
    alt: str,
    column_config: dict[str, Any] | None = None,
) -> None:
    """Draw a figure with its table twin, folded away, and its downloads.

    The camera in the chart's corner saves it as SVG.

    Args:
        figure: already styled for the page's theme.
        table: the same numbers.
        origin: what the numbers were computed from, such as `Analysis.origin`; added to every download.
        name: of the downloaded files and the widgets' keys, unique on the page.
        alt: the chart in one sentence, for those who cannot see it.
        column_config: how `st.dataframe` shows the columns.
    """
    options = {"toImageButtonOptions": {"format": "svg", "filename": name}, "displaylogo": False}
    st.plotly_chart(figure, theme=None, key=f"chart_{name}", config=options, alt=alt)
    with st.expander("Table and downloads"):
        st.dataframe(table, hide_index=True, key=f"table_{name}", column_config=column_config)
        downloads(table, origin, name=name, figure=figure)


def downloads(
    table: pd.DataFrame | Callable[[], pd.DataFrame],
    origin: dict[str, Any],
    *,
    name: str,
    figure: go.Figure | None = None,
) -> None:
    """Buttons for a table as CSV and Parquet and a figure as HTML; nothing is made before it is asked for.

    Args:
        table: the table, or a function that makes it.
        origin: what it was computed from.
        name: of the files and the keys, unique on the page.
        figure: offered as a page of its own that opens without a network.
    """

    def made() -> pd.DataFrame:
        return stamped(table() if callable(table) else table, origin)

    with st.container(horizontal=True, gap="small"):
        _button(
            "CSV", lambda: to_csv(made()), f"{name}.csv", "text/csv", "Cells that a spreadsheet would run are defused."
        )
        _button(
            "Parquet", lambda: to_parquet(made()), f"{name}.parquet", "application/vnd.apache.parquet", "Exact values."
        )
        if figure is not None:
            drawn = figure
            _button(
                "HTML", lambda: _page(drawn, name), f"{name}.html", "text/html", "The chart, live, without a network."
            )


def _button(kind: str, data: Callable[[], bytes], file_name: str, mime: str, hint: str) -> None:
    st.download_button(
        kind,
        data,
        file_name=file_name,
        mime=mime,
        icon=":material/download:",
        on_click="ignore",
        key=f"download_{file_name}",
        help=f"{file_name}. {hint}",
    )


def _page(figure: go.Figure, title: str) -> bytes:
    """The figure on white, with Plotly inside."""
    light = style(go.Figure(figure), dark=False, height=figure.to_dict()["layout"].get("height", 450))
    light.update_layout(paper_bgcolor="#FFFFFF", plot_bgcolor="#FFFFFF")
    body = light.to_html(include_plotlyjs=True, full_html=False)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>'
        f"<body>{body}</body></html>"
    ).encode()
