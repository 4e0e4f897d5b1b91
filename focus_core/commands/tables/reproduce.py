"""Records of `focus reproduce` as tables for the terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from focus_core.commands.tables.plain import plain_table
from focus_core.reproduce.runner import NEEDS, Experiment

SHARES = ("largest", "worst", "stability", "purity", "recall", "attainable")
FOLDED = (
    "variant",
    "rate_grid",
    "low",
    "high",
    *(f"{name}_{end}" for name in ("from_full", "kl", "kl_from_full") for end in ("low", "high")),
    "top_k",
    "balance",
    "causal_kept_share",
    "exposure",
    "tokens",
)
"""Columns that the terminal leaves out or joins."""


def experiments_table(experiments: dict[str, Experiment]) -> Table:
    """One line per experiment: its name, title and inputs."""
    table = Table(title="focus reproduce NAME")
    for title in ("name", "table or figure", "needs"):
        table.add_column(title)
    for name, each in experiments.items():
        needs = "; ".join(NEEDS[need].partition(":")[0] for need in each.needs)
        table.add_row(name, each.title, needs)
    return table


def experiment_table(record: dict[str, Any]) -> Table:
    """One line per measured setting, narrow enough for a terminal; the record has every column.

    Args:
        record: from `focus_core.reproduce.runner.run_experiment`.
    """
    columns = ["setting" if name == "routing" else name for name in record["columns"] if name not in FOLDED]
    rows = [{**row, "setting": _setting(row)} for row in record["results"]]
    shown = [name for name in columns if any(row.get(name) is not None for row in rows)]
    names = [name.replace("_", " ") for name in shown]
    left = [name for name, key in zip(names, shown) if any(isinstance(row.get(key), str) for row in rows)]
    table = plain_table(record["title"], *names, left=left)
    for row in rows:
        table.add_row(*(_text(name, row.get(name)) for name in shown))
    return table


def _setting(row: dict[str, Any]) -> str | None:
    parts = [row.get("routing"), f"k={row['top_k']}" if row.get("top_k") else None]
    balance = row.get("balance")
    return " ".join(filter(None, [*parts, balance if balance != "none" else None])) or None


def _text(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.1%}" if name.endswith("share") or name in SHARES else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
