"""Benchmark scores as a table for the terminal."""

from __future__ import annotations

import re
from typing import Any

from rich.table import Table

from focus_core.commands.tables.plain import plain_table


def harness_table(rows: list[dict[str, Any]]) -> Table:
    """One line per task and routing: the score, the gate's exposure and the difference from untouched.

    Args:
        rows: from `focus_core.harness.scores.summary`.
    """
    title = "Scores, the gate's exposure, and differences from the untouched model (95%, t)"
    names = ("task", "items", "routing", "metric", "score", "difference", "distant pairs", "removed")
    table = plain_table(title, *names, left=("task", "routing", "metric"))
    table.caption = "Where no pair is removed, scores are equal by construction. The record has a reading of each row."
    for row in rows:
        metric = row["headline"]
        gap = row.get("differences", {}).get(metric)
        table.add_row(
            _folded(row["task"]),
            str(row["items_scored"]),
            _folded(row["setting"]),
            _folded(metric),
            f"{row['metrics'][metric]:.3f}",
            "" if gap is None else _difference(gap),
            f"{row['exposure']['distant_share']:.1%}",
            f"{row['exposure']['removed_share']:.1%}",
        )
    return table


def _folded(name: str) -> str:
    """A long name over several lines, cut where its words meet."""
    return name if len(name) <= 12 else re.sub(r"(?<=[,-])|(?=_)", "\n", name)


def _difference(gap: dict[str, Any]) -> str:
    ends = "" if gap["low"] is None else f"\n[{gap['low']:+.3f},\n{gap['high']:+.3f}]"
    return f"{gap['difference']:+.3f}{ends}"
