"""One short line for each experiment of `focus reproduce`, computed from its records.

Changes of perplexity are relative to the untouched model on the same blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cards import direction, read

from focus_core.reproduce.studies.rates import NOT_BRACKETED
from focus_core.results import machine_of

Found = list[dict[str, Any]]
"""The records of one experiment, the oldest first."""


def rows_of(found: Found, **wanted: Any) -> list[dict[str, Any]]:
    """The rows of the oldest record with these values."""
    return [row for row in found[0]["results"] if all(row.get(name) == value for name, value in wanted.items())]


def row_of(found: Found, **wanted: Any) -> dict[str, Any]:
    """The only such row."""
    (row,) = rows_of(found, **wanted)
    return row


def change(row: dict[str, Any]) -> str:
    """Perplexity over the untouched model's, in per cent."""
    return f"{row['difference'] / (row['perplexity'] - row['difference']):+.1%}"


def hard(found: Found, cell: str, top_k: int = 2) -> dict[str, Any]:
    """Hard, causal routing of a cell at a k."""
    return row_of(found, cell=cell, routing="hard", top_k=top_k, balance="calibrated")


def retrofit(found: Found) -> str:
    """Both recipes and the best baseline."""
    ours = hard(found, "our recipe")
    return (
        f"perplexity at k = 2, causal: published recipe {change(hard(found, 'published recipe'))}, our recipe "
        f"{change(ours)}, SparQ at the share of ours {change(row_of(found, cell='baseline sparq'))}"
    )


def scale(found: Found) -> str:
    """Two small models."""
    models = dict.fromkeys((row["cell"], row["model_name"], row["parameters"]) for row in found[0]["results"])
    told = (f"{name} ({size / 1e6:.0f}M parameters) {change(hard(found, cell))}" for cell, name, size in models)
    return f"published recipe, k = 2, causal: {', '.join(told)}; k = 3 equals untouched"


def best_adapter(found: Found, rank: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The newest record of lora with adapters of a rank, and their row of the lowest perplexity."""
    for record in sorted(found, key=lambda record: ("rates" in record, record["made"]["date"]), reverse=True):
        rows = [row for row in record["results"] if f"{row['cell']} ".startswith(f"LoRA r{rank} ")]
        if rows:
            return record, min(rows, key=lambda row: row["perplexity"])
    raise ValueError(f"no record of lora has adapters of rank {rank}")


def lora(found: Found) -> str:
    """Adapters of both ranks at their best rate beside our routers."""
    best = {rank: best_adapter(found, rank) for rank in (4, 16)}
    ranks = (
        f"LoRA r = {rank} {change(row)}{'' if 'rates' in record else f' ({NOT_BRACKETED})'}"
        for rank, (record, row) in best.items()
    )
    gaps = [
        task["differences"][task["headline"]]
        for record in found
        for row in record["results"]
        if row["cell"].startswith("LoRA")
        for task in row["benchmarks"].values()
    ]
    changed = sum(direction(gap) != 0 for gap in gaps)
    return (
        f"perplexity: {', '.join(ranks)}, our routers at k = 2 {change(hard([best[4][0]], 'our recipe'))}; "
        f"{changed or 'none'} of {len(gaps)} LoRA scores changed significantly, over 5 to 20 items each"
    )


def adapted(found: Found) -> str:
    """Routers beside the adapted model, and on it narrow groups beside the closest baseline that ran."""
    if not found:
        return "not run here"
    ours, full = hard(found, "routers", 1), row_of(found, cell="LoRA, full attention")
    both, narrow = hard(found, "routers on LoRA", 1), row_of(found, cell="narrow groups on LoRA")
    baselines = [row for record in found for row in record["results"] if row["cell"].startswith("baseline")]
    best = min(baselines, key=lambda row: row["kl_from_full"])
    return (
        f"perplexity: routers at k = 1 {change(ours)}, LoRA with full attention {change(full)}; KL to full attention "
        f"with the same weights, and distant pairs kept: routers {distance(ours)}; on LoRA narrow groups "
        f"{distance(narrow)}, routers {distance(both)}, {best['routing']} {distance(best)}, the closest of "
        f"{len(baselines)} baselines"
    )


def distance(row: dict[str, Any]) -> str:
    """How far from full attention with the same weights, never without the share that was kept."""
    return f"{row['kl_from_full']:.4f} nats ({row['kept_share']:.1%})"


def alignment(found: Found) -> str:
    """TruthfulQA on few items."""
    rows = {
        "untouched": row_of(found, cell="untouched"),
        "LoRA at 1e-4": row_of(found, cell="LoRA r4 lr 0.0001"),
        "our routers at k = 2": hard(found, "our recipe"),
    }
    told = (f"{name} {row['benchmarks']['truthfulqa_mc1']['metrics']['acc']:.2f}" for name, row in rows.items())
    return f"TruthfulQA MC1 over 20 items: {', '.join(told)}"


def finetune(found: Found) -> str:
    """Perplexities after training all weights."""
    rows = {
        "full attention": row_of(found, cell="full attention"),
        "our recipe": hard(found, "our recipe"),
        "published recipe": hard(found, "published recipe"),
    }
    told = (f"{name} {row['perplexity']:.1f}" for name, row in rows.items())
    steps = found[0]["settings"]["scale"]["full_steps"]
    return f"perplexity after {steps} steps of all weights, k = 2, causal: {', '.join(told)}"


def domains(found: Found) -> str:
    """The least and the most that k = 2 costs."""
    rows = sorted(rows_of(found, routing="hard", top_k=2), key=lambda row: row["perplexity"] / (
        row["perplexity"] - row["difference"]))  # fmt: skip
    low, high = rows[0], rows[-1]
    single = sum(row["low"] is None for row in rows)
    return (
        f"k = 2 over {len(rows)} texts: from {change(low)} ({low['cell']}) to {change(high)} ({high['cell']}); "
        f"{single} of them are a single block, without an interval"
    )


def lengths(found: Found) -> str:
    """The shortest and the longest."""
    told = []
    for k in (1, 2):
        short, long = (hard(found, cell, k) for cell in ("512", "8192"))
        told.append(f"k = {k} {change(short)} at 512 tokens and {change(long)} at 8,192")
    return "; ".join(told)


def speed(found: Found) -> str:
    """One call on a CPU."""
    record = read("bench-cpu.json")
    points = {
        p["tokens"]: p["speedup"]
        for p in record["points"]
        if (p["num_groups"], p["top_k"], p["dtype"]) == (8, 1, "bfloat16")
    }
    told = ", ".join(f"{points[tokens]:.1f} times at {tokens:,} tokens" for tokens in (1024, 4096, 16384, 32768))
    return f"{machine_of(record)['device']} CPU, K = 8, k = 1, attention alone: {told}"


def k_sweep(found: Found) -> str:
    """Change and kept share for each k."""
    rows = (hard(found, f"k={k}", k) for k in (1, 2, 3))
    told = (f"k = {row['top_k']} {change(row)} with {row['kept_share']:.0%} of the distant pairs" for row in rows)
    return f"K = 8: {', '.join(told)}"


def stability(found: Found) -> str:
    """The largest group after all weights were trained."""
    names = {"softmax": "softmax", "balance-x5": "balance weight x5", "sinkhorn-10": "Sinkhorn, 10 rounds"}
    rows = {name: row_of(found, cell=cell, phase="everything", routing="hard") for cell, name in names.items()}
    told = (f"{name} {row['largest']:.0%}" for name, row in rows.items())
    return f"largest group (mean over layers) after {rows['softmax']['steps']} steps: {', '.join(told)}"


def ablation(found: Found) -> str:
    """K at k = 2."""
    cells = {4: "num_groups=4", 8: "default", 16: "num_groups=16", 32: "num_groups=32"}
    rows = {groups: hard(found, cell) for groups, cell in cells.items()}
    told = (f"K = {groups} {change(row)} ({row['kept_share']:.0%} kept)" for groups, row in rows.items())
    return f"k = 2: {', '.join(told)}"


def recipes(found: Found) -> str:
    """The worst and the best trained change."""
    rows = [row for row in found[0]["results"] if row.get("against_base") is not None and row["cell"] != "untrained"]
    worst, best = (choose(rows, key=lambda row: row["against_base"]) for choose in (max, min))
    told = (
        f"{row['candidate']} {row['against_base']:+.2f} [{row['against_low']:+.2f}, {row['against_high']:+.2f}]"
        for row in (best, worst)
    )
    return f"perplexity against the base recipe at 40% of the pairs: {', '.join(told)}"


def groups(found: Found) -> str:
    """The purest and the least pure category on the books."""
    rows = sorted(read("alignment-books.json")["published"], key=lambda row: row["purity"])
    told = (f"{row['category']} {row['purity']:.0%}" for row in (rows[-1], rows[-2], rows[0]))
    return f"purity of the purest group on books: {', '.join(told)}"


SUMMARIES: dict[str, Callable[[Found], str]] = {
    "retrofit": retrofit,
    "scale": scale,
    "lora": lora,
    "adapted": adapted,
    "alignment": alignment,
    "finetune": finetune,
    "domains": domains,
    "lengths": lengths,
    "speed": speed,
    "k-sweep": k_sweep,
    "stability": stability,
    "ablation": ablation,
    "recipes": recipes,
    "groups": groups,
}
