"""Measurements of speed as tables for the terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from focus_core.commands.tables.plain import plain_table
from focus_core.results import machine_of


def bench_table(record: dict[str, Any]) -> Table:
    """One line per measured point: times, speed-up beside its bound, exactness, memory.

    Args:
        record: from `focus_core.bench.attention.run_bench`.
    """
    machine = machine_of(record)
    title = f"{machine['device']}, {machine['threads']} threads, torch {machine['torch']}"
    names = ("tokens", "K/k", "dtype", "full ms", "sparse ms", "speed-up", "with choice", "kept", "error", "MiB")
    loaded = any("loaded" in point for point in record["points"])
    table = plain_table(title, *names, *(("full / sparse beside load",) if loaded else ()), left=("dtype",))
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
            f"{point['speedup_with_choice']:.2f}" if "speedup_with_choice" in point else "",
            f"{point['kept_share']:.1%}",
            f"{point['error_output']:.0e}",
            "" if memory is None else f"{memory / 2**20:,.0f}",
            *((_slowdown(point),) if loaded else ()),
        )
    return table


def _slowdown(point: dict[str, Any]) -> str:
    if "loaded" not in point:
        return ""
    slowdown = point["loaded"]["slowdown"]
    return f"{slowdown['full_s']:.2f} / {slowdown['sparse_s']:.2f} times as long"


def baseline_bench_table(record: dict[str, Any]) -> Table:
    """One line per length, head, baseline and share: attention alone and with the choice of pairs, exactness.

    Times are those of a key/value head with its query heads. Normal tensors have no head.

    Args:
        record: from `focus_core.bench.baselines.run_baseline_bench`.
    """
    machine = machine_of(record)
    title = f"One key/value head, {machine['device']}, {machine['threads']} threads, torch {machine['torch']}"
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


def _routing(row: dict[str, Any]) -> str:
    if row["routing"] == "window":
        return f"window of {row['window']:,}"
    if row["routing"] == "off":
        return "untouched"
    if row["routing"] == "switched":
        return f"share, from token {row['full_below']:,} on"
    return "share of the routers" if row["top_k"] is None else f"k = {row['top_k']}"


def model_bench_table(record: dict[str, Any]) -> Table:
    """One line per length and routing of a whole model: in MiB the peak of prefill, and the cache before decode.

    Args:
        record: from `focus_core.bench.model.record_model_bench`.
    """
    machine = machine_of(record)
    title = f"{record['model']['name']}, {machine['device']}, {machine['threads']} threads"
    names = ("task", "tokens", "routing", "kept", "seconds", "tokens/s", "speed-up", "MiB", "error")
    table = plain_table(title, *names, left=("task", "routing"))
    for row in record["results"]:
        memory, error = row.get("memory_bytes", row.get("cache_bytes")), row.get("error")
        table.add_row(
            row["task"],
            f"{row['tokens']:,}",
            _routing(row),
            f"{row['kept_share']:.1%}",
            f"{row['seconds']['median']:.4g}",
            f"{row['tokens_per_second']:,.1f}",
            f"{row['speedup']:.2f}",
            "" if memory is None else f"{memory / 2**20:,.0f}",
            "" if error is None else f"{error:.0e}",
        )
    return table


def cache_bench_table(record: dict[str, Any]) -> Table:
    """One line per length and kind of cache.

    Args:
        record: from `focus_core.bench.cache.record_cache_bench`.
    """
    machine = machine_of(record)
    title = f"{record['model']['name']}, {machine['device']}, {machine['threads']} threads"
    table = plain_table(title, "tokens", "cache", "MiB", "tokens/s", "speed-up", "KL", "top-1 same", left=("cache",))
    for row in record["results"]:
        kind = "untouched" if row["routing"] == "off" else "narrow groups"
        table.add_row(
            f"{row['tokens']:,}",
            kind if row["cache_bits"] is None else f"{kind}, {row['cache_bits']} bits",
            f"{row['cache_bytes'] / 2**20:,.0f}",
            f"{row['tokens_per_second']:,.1f}",
            f"{row['speedup']:.2f}",
            "" if "kl" not in row else f"{row['kl']:.5f}",
            "" if "agreement" not in row else f"{row['agreement']:.1%}",
        )
    return table


def scale_table(record: dict[str, Any]) -> Table:
    """One line per prediction.

    Args:
        record: from `focus_core.scale.record.record_scale`.
    """
    machine = machine_of(record)
    title = f"{record['model']['name']}, {machine['device']}, {machine['threads']} threads"
    table = plain_table(
        title, "task", "tokens", "routing", "predicted s", "measured s", "error", left=("task", "routing")
    )
    for row in record["results"]:
        times = (f"{row[name]:,.3g}" for name in ("predicted_s", "measured_s"))
        table.add_row(row["task"], f"{row['tokens']:,}", row["routing"], *times, f"{row['error']:+.0%}")
    return table
