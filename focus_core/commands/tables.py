"""Evaluations and benchmarks as tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from focus_core.evaluation import Evaluation, Leak, LengthRow
from focus_core.frontier.table import SIZES, Row


def plain_table(title: str, *columns: str, left: Sequence[str] = ()) -> Table:
    """An empty table that fits a terminal of 80 characters: few lines, and cells that are folded, never cut off."""
    table = Table(title=title, box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    for name in columns:
        heading = name.replace(" ", "\n")  # so that a column is as wide as its widest word
        table.add_column(heading, justify="left" if name in left else "right", overflow="fold")
    return table


def evaluation_table(rows: Sequence[Evaluation], title: str) -> Table:
    """One line per setting: perplexity beside kept share and largest group, never alone."""
    names = ("routing", "k", "balance", "perplexity", "distant kept", "all removed", "largest group")
    table = plain_table(title, *names, left=("routing", "balance"))
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
    names = ("T", "routing", "k", "balance", "perplexity", "above untouched", "95%", "distant kept", "last bin")
    table = plain_table(title, *names, left=("routing", "balance"))
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
    sizes = [f"{size // 1024}K" for size in SIZES]
    names = ("method", "perplexity", "against untouched", "distant kept", "all kept", "largest group", *sizes)
    table = plain_table(title, *names, left=("method",))
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
        record: from `focus_core.bench.attention.run_bench`.
    """
    machine = record["machine"]
    title = f"{machine['device']}, {machine['threads']} threads, torch {machine['torch']}"
    names = ("tokens", "K/k", "dtype", "full ms", "sparse ms", "speed-up", "kept", "error", "MiB")
    table = plain_table(title, *names, left=("dtype",))
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

    Normal tensors have no head.

    Args:
        record: from `focus_core.bench.baselines.run_baseline_bench`.
    """
    machine = record["machine"]
    title = f"One head, {machine['device']}, {machine['threads']} threads, torch {machine['torch']}"
    names = ("tokens", "baseline", "head", "kept", "full ms", "choice ms", "attend ms", "speed", "with choice", "error")
    table = plain_table(title, *names, left=("baseline",))
    for point in record["points"]:
        table.add_row(
            f"{point['tokens']:,}",
            point["baseline"],
            "" if point.get("head") is None else "{}/{}".format(*point["head"]),
            "" if point["kept_share"] is None else f"{point['kept_share']:.1%}",
            f"{point['full_s']['median'] * 1e3:,.1f}",
            "" if point["select_s"] is None else f"{point['select_s'] * 1e3:,.0f}",
            f"{point['attend_s']['median'] * 1e3:,.1f}",
            f"{point['speedup']:.2f}x",
            f"{point['speedup_with_choice']:.2f}x",
            f"{point['error_output']:.0e}",
        )
    return table


def model_bench_table(record: dict[str, Any]) -> Table:
    """One line per length and routing of a whole model.

    Args:
        record: what `focus bench --model` writes.
    """
    machine = record["machine"]
    title = f"{record['model']['name']}, {machine['device']}, {machine['threads']} threads"
    names = ("task", "tokens", "routing", "kept", "seconds", "tokens/s", "speed-up", "MiB", "error")
    table = plain_table(title, *names, left=("task", "routing"))
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
