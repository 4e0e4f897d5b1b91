"""Evaluations as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from focus_core.evaluation import Evaluation


def evaluation_table(rows: Sequence[Evaluation], title: str) -> Table:
    """One line per setting: perplexity beside kept share and largest group, never alone."""
    table = Table(title=title)
    for name in ("routing", "k", "balance", "perplexity", "distant kept", "all kept", "largest group"):
        table.add_column(name, justify="left" if name in ("routing", "balance") else "right")
    for row in rows:
        largest = "" if row.largest_group_share is None else f"{row.largest_group_share:.1%}"
        table.add_row(
            row.routing,
            "" if row.top_k is None else str(row.top_k),
            row.balance,
            f"{row.perplexity:.2f}",
            f"{row.kept_share:.1%}",
            f"{row.causal_kept_share:.1%}",
            largest,
        )
    return table
