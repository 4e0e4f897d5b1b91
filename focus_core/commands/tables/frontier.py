"""The frontier as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from focus_core.commands.tables.plain import plain_table
from focus_core.frontier.kinds.means import kinds_at, mean_rows
from focus_core.frontier.kinds.table import by_kind_cells
from focus_core.frontier.table import SIZES, Row, retention_cells


def frontier_table(rows: Sequence[Row], title: str) -> Table:
    """One line per method and budget, the fewest pairs first: retention where measured, speed-ups of attention else."""
    retained = any(row.kl is not None for row in rows)
    first = ("KL", "KL, last quarter", "top-1 same") if retained else ()
    last = () if retained else ("all kept", *(f"{size // 1024}K" for size in SIZES))  # as many as fit
    names = ("method", *first, "perplexity", "against untouched", "distant kept", "largest group", *last)
    table = plain_table(title, *names, left=("method",))
    for row in sorted(rows, key=lambda row: (row.kept_share is None, row.kept_share)):
        speeds = (f"{row.speedups[size]:.2f}x" if size in row.speedups else "" for size in SIZES)
        share = "" if row.causal_kept_share is None else f"{row.causal_kept_share:.1%}"
        table.add_row(
            row.label,
            *(retention_cells(row) if retained else ()),
            f"{row.perplexity:.2f}",
            f"{row.relative - 1:+.1%}{' *' if row.established else ''}",
            "approximate" if row.kept_share is None else f"{row.kept_share:.1%}",
            "" if row.largest_group_share is None else f"{row.largest_group_share:.1%}",
            *(() if retained else (share, *speeds)),
        )
    return table


def means_table(record: dict[str, Any], length: int) -> Table:
    """Mean over kinds at one length, retention first; the table beside the record has intervals and speeds, too."""
    names = ("method", "kept", "KL", "last quarter", "ours minus", "perplexity", "largest group")
    table = plain_table(f"{record['model']['name']}, T={length}, mean over kinds", *names, left=("method",))
    for row in mean_rows(record, length):
        table.add_row(
            row.label,
            "all" if row.kept_share is None else f"{row.kept_share:.1%}",
            "" if row.kl is None else f"{row.kl.difference:.4f}",
            "" if row.kl_last_quarter is None else f"{row.kl_last_quarter:.4f}",
            "" if row.against is None else f"{row.against.difference:+.4f}{' *' if row.established else ''}",
            "" if row.kl is None else f"{row.relative - 1:+.1%}",
            "" if row.largest_group_share is None else f"{row.largest_group_share:.0%}",
        )
    return table


def by_kind_table(record: dict[str, Any], length: int) -> Table:
    """KL of every method on every kind of text at one length."""
    kinds = kinds_at(record, length)
    table = plain_table(f"KL by kind, T={length}", "method", *kinds, left=("method",))
    for row in mean_rows(record, length):
        if row.by_kind:
            table.add_row(*by_kind_cells(row, kinds))
    return table
