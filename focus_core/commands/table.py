"""Evaluations and benchmarks as tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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


def bench_table(record: dict[str, Any]) -> Table:
    """One line per measured point: times, speed-up beside its bound, exactness, memory.

    Args:
        record: from `focus_core.bench.run_bench`.
    """
    machine = record["machine"]
    table = Table(title=f"{machine['device']}, {machine['threads']} threads, torch {machine['torch']}")
    for name in ("tokens", "K/k", "dtype", "full ms", "sparse ms", "speed-up", "kept", "error", "MiB"):
        table.add_column(name, justify="left" if name == "dtype" else "right")
    for point in record["points"]:
        start = (f"{point['tokens']:,}", f"{point['num_groups']}/{point['top_k']}", point["dtype"])
        if "failure" in point:
            table.add_row(*start, point["failure"])
            continue
        memory = point["working_bytes"]
        table.add_row(
            *start,
            f"{point['full_s']['median'] * 1e3:,.1f}",
            f"{point['sparse_s']['median'] * 1e3:,.1f}",
            f"{point['speedup']:.2f} of {point['bound']:.2f}",
            f"{point['kept_share']:.1%}",
            f"{point['error_output']:.0e}",
            "" if memory is None else f"{memory / 2**20:,.0f}",
        )
    return table


def model_bench_table(record: dict[str, Any]) -> Table:
    """One line per length and routing of a whole model.

    Args:
        record: what `focus bench --model` writes.
    """
    machine = record["machine"]
    table = Table(title=f"{record['model']['name']}, {machine['device']}, {machine['threads']} threads")
    for name in ("task", "tokens", "routing", "kept", "seconds", "tokens/s", "speed-up", "MiB", "error"):
        table.add_column(name, justify="left" if name in ("task", "routing") else "right")
    for row in record["results"]:
        memory, error = row.get("memory_bytes"), row.get("error")
        table.add_row(
            row["task"],
            f"{row['tokens']:,}",
            "untouched" if row["top_k"] is None else f"k = {row['top_k']}",
            f"{row['kept_share']:.1%}",
            f"{row['seconds']['median']:.4g}",
            f"{row['tokens_per_second']:,.1f}",
            f"{row['speedup']:.2f}",
            "" if memory is None else f"{memory / 2**20:,.0f}",
            "" if error is None else f"{error:.0e}",
        )
    return table
