"""A chart with its table and downloads; a table with its downloads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from focus_core.analysis.tables import stamped, to_csv, to_parquet
from workbench.charts.theme import style

Table = pd.DataFrame | Callable[[], pd.DataFrame]
"""A table, or a function that computes it on demand."""


def chart(
    figure: go.Figure,
    table: Table,
    origin: dict[str, Any],
    *,
    name: str,
    alt: str,
    column_config: dict[str, Any] | None = None,
    file: str = "",
    shown: Callable[[pd.DataFrame], pd.DataFrame] | None = None,
) -> None:
    """Draw a figure with its folded table and downloads.

    The camera in the chart's corner saves it as SVG. The table is computed when it is unfolded, so that a page with
    closed tables redraws quickly.

    Args:
        figure: already styled for the page's theme.
        table: the same values.
        origin: model, routers, settings and text of the values, such as `Analysis.origin`; added to every download.
        name: of the chart, unique on the page. It stays the same while the values change with layer or k, so that the
            browser redraws the chart in its place.
        alt: the chart in one sentence, for those who cannot see it.
        column_config: how `st.dataframe` shows the columns.
        file: name of the downloaded files, with the layer for instance; `name` if empty.
        shown: the table as the page shows it, such as with links; files have the table itself.
    """
    file = file or name
    options = {"toImageButtonOptions": {"format": "svg", "filename": file}, "displaylogo": False}
    st.plotly_chart(figure, theme=None, key=f"chart_{name}", config=options, alt=alt)
    twin = st.expander("Table and downloads", key=f"twin_{name}", on_change="rerun")
    if not twin.open:
        return
    with twin:
        made = table() if callable(table) else table
        table_shown = made if shown is None else shown(made)
        st.dataframe(table_shown, hide_index=True, key=f"table_{name}", column_config=column_config)
        downloads(made, origin, name=name, figure=figure, file=file)


def downloads(
    table: Table,
    origin: dict[str, Any],
    *,
    name: str,
    figure: go.Figure | None = None,
    file: str = "",
) -> None:
    """Buttons for a table as CSV and Parquet and a figure as HTML; files are made on demand.

    Args:
        table: the table, or a function that makes it.
        origin: as in `chart`.
        name: of the table, unique on the page, as in `chart`.
        figure: offered as a page of its own that opens without a network.
        file: name of the files; `name` if empty.
    """
    file = file or name

    def made() -> pd.DataFrame:
        return stamped(table() if callable(table) else table, origin)

    kinds: dict[str, tuple[Callable[[], bytes], str, str]] = {
        "CSV": (
            lambda: to_csv(made()),
            "text/csv",
            "Cells that a spreadsheet would run as formulas are made plain text.",
        ),
        "Parquet": (lambda: to_parquet(made()), "application/vnd.apache.parquet", "Exact values."),
    }
    if figure is not None:
        drawn = figure
        kinds["HTML"] = (lambda: _page(drawn, file), "text/html", "The interactive chart; opens without a network.")
    with st.container(horizontal=True, gap="small"):
        for kind, (data, mime, hint) in kinds.items():
            file_name = f"{file}.{kind.lower()}"
            st.download_button(
                kind,
                data,
                file_name=file_name,
                mime=mime,
                icon=":material/download:",
                on_click="ignore",
                key=f"download_{name}_{kind}",
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
