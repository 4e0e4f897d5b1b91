"""The frontier as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from focus_core.commands.tables.plain import plain_table
from focus_core.frontier.table import SIZES, Row, retention_cells


def frontier_table(rows: Sequence[Row], title: str) -> Table:
    """One line per method and budget, the fewest pairs first; speed-ups of one attention call where measured."""
    sizes = [f"{size // 1024}K" for size in SIZES]
    retained = ("KL", "KL, last quarter", "top-1 same")
    beside = ("distant kept", "all kept", "largest group")
    names = ("method", *retained, "perplexity", "against untouched", *beside, *sizes)
    table = plain_table(title, *names, left=("method",))
    for row in sorted(rows, key=lambda row: (row.kept_share is None, row.kept_share)):
        table.add_row(
            row.label,
            *retention_cells(row),
            f"{row.perplexity:.2f}",
            f"{row.relative - 1:+.1%}{' *' if row.established else ''}",
            "approximate" if row.kept_share is None else f"{row.kept_share:.1%}",
            "" if row.causal_kept_share is None else f"{row.causal_kept_share:.1%}",
            "" if row.largest_group_share is None else f"{row.largest_group_share:.1%}",
            *(f"{row.speedups[size]:.2f}x" if size in row.speedups else "" for size in SIZES),
        )
    return table
