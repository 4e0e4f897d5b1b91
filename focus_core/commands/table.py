"""Evaluations and benchmarks as tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from focus_core.baselines import BASELINES
from focus_core.evaluation import Evaluation, Leak, LengthRow
from focus_core.evaluation.frontier_table import SIZES, Row


def evaluation_table(rows: Sequence[Evaluation], title: str) -> Table:
    """One line per setting: perplexity beside kept share and largest group, never alone."""
    table = Table(title=title)
    for name in ("routing", "k", "balance", "perplexity", "distant kept", "all removed", "largest group"):
        table.add_column(name, justify="left" if name in ("routing", "balance") else "right")
    for row in rows:
        largest = "" if row.largest_group_share is None else f"{row.largest_group_share:.1%}"
        table.add_row(
            row.routing,
            "" if row.top_k is None else str(row.top_k),
            row.balance,
            f"{row.perplexity:.2f}",
            f"{row.kept_share:.1%}",
            f"{1 - row.causal_kept_share:.1%}",
            largest,
        )
    return table


def leak_lines(leaks: Sequence[Leak]) -> list[str]:
    """One sentence per k on what seeing the future is worth to sequence Sinkhorn."""
    lines = []
    for leak in leaks:
        interval = "" if leak.low is None else f" (95%: {leak.low:+.2f} to {leak.high:+.2f})"
        lines.append(
            f"Leak at k={leak.top_k}: perplexity {leak.perplexity_difference:+.2f}{interval} from calibrated to "
            f"sequence, at {leak.kept_share_difference:+.1%} kept: {leak.reading}."
        )
    return lines


def length_table(rows: Sequence[LengthRow], title: str) -> Table:
    """One line per length and setting, beside the difference from the untouched model at that length."""
    table = Table(title=title)
    for name in ("T", "routing", "k", "balance", "perplexity", "above untouched", "95%", "distant kept", "last bin"):
        table.add_column(name, justify="left" if name in ("routing", "balance") else "right")
    for row in rows:
        result, gap, last = row.evaluation, row.above_untouched, row.positions[-1]
        table.add_row(
            f"{row.length:,}",
            result.routing,
            "" if result.top_k is None else str(result.top_k),
            result.balance,
            f"{result.perplexity:.2f}",
            "" if gap is None else f"{gap.difference:+.2f}",
            "" if gap is None or gap.low is None else f"{gap.low:+.2f} to {gap.high:+.2f}",
            f"{result.kept_share:.1%}",
            f"{last.nll:.3f} nats",
        )
    return table


def frontier_table(rows: Sequence[Row], title: str) -> Table:
    """One line per method and budget, the fewest pairs first; speed-ups of one attention call where measured."""
    table = Table(title=title)
    sizes = [f"{size // 1024}K" for size in SIZES]
    for name in ("method", "perplexity", "against untouched", "distant kept", "all kept", "largest group", *sizes):
        table.add_column(name, justify="left" if name == "method" else "right")
    for row in sorted(rows, key=lambda row: (row.kept_share is None, row.kept_share)):
        table.add_row(
            row.label,
            f"{row.perplexity:.2f}",
            f"{row.relative - 1:+.1%}",
            "approximate" if row.kept_share is None else f"{row.kept_share:.1%}",
            "" if row.causal_kept_share is None else f"{row.causal_kept_share:.1%}",
            "" if row.largest_group_share is None else f"{row.largest_group_share:.1%}",
            *(f"{row.speedups[size]:.2f}x" if size in row.speedups else "" for size in SIZES),
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


def baseline_bench_table(record: dict[str, Any]) -> Table:
    """One line per length, head, baseline and share: attention with and without choosing the pairs, exactness.

    Args:
        record: from `focus_core.bench_baselines.run_baseline_bench`.
    """
    machine = record["machine"]
    table = Table(title=f"One head, {machine['device']}, {machine['threads']} threads, torch {machine['torch']}")
    table.add_column("tokens", justify="right")
    table.add_column("baseline", min_width=max(map(len, BASELINES)))
    for name in ("head", "kept", "full ms", "choice ms", "attention ms", "speed-up", "with choice", "error"):
        table.add_column(name, justify="right")
    for point in record["points"]:
        table.add_row(
            f"{point['tokens']:,}",
            point["baseline"],
            "random" if point.get("head") is None else "{}/{}".format(*point["head"]),
            "" if point["kept_share"] is None else f"{point['kept_share']:.1%}",
            f"{point['full_s']['median'] * 1e3:,.1f}",
            "" if point["select_s"] is None else f"{point['select_s'] * 1e3:,.1f}",
            f"{point['attend_s']['median'] * 1e3:,.1f}",
            f"{point['speedup']:.2f}",
            f"{point['speedup_with_choice']:.2f}",
            f"{point['error_output']:.0e}",
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
