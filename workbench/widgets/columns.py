"""A table that fits a page, by the headers and widths of its columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import streamlit as st

PAGE = 700
"""Pixels of a page's content in a window of 1,200 with the sidebar open."""
THREE_LINES = 74
"""Pixels of a row of three lines; Streamlit goes on in a next line only in rows of more than twice their height, 35."""


def fitted(sizes: Mapping[str, tuple[str, int]], columns: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a table with short headers and fixed widths; a long name stays as the hint of its header.

    Args:
        sizes: header and width in pixels of each column on show.
        columns: how `st.dataframe` shows the columns otherwise.
    """
    made = {}
    for name, (header, width) in sizes.items():
        own = columns.get(name) or st.column_config.Column()
        hint = own.get("help") or (name if name != header else None)
        made[name] = {**own, "label": header, "width": width, "help": hint}
    return made


def fitted_table(
    rows: pd.DataFrame,
    sizes: Mapping[str, tuple[str, int]],
    columns: Mapping[str, Any],
    *,
    key: str,
    wraps: bool = False,
) -> None:
    """Show some columns of a table, with a dash for what is not known.

    Args:
        rows: of the table, with more columns perhaps.
        sizes: as in `fitted`, in the order of the columns.
        columns: as in `fitted`.
        key: of the widget.
        wraps: whether long text goes on in a second and third line.
    """
    st.dataframe(
        rows,
        hide_index=True,
        placeholder="–",
        column_order=list(sizes),
        column_config=fitted(sizes, columns),
        row_height=THREE_LINES if wraps else None,
        key=key,
    )
