"""The tables of recorded speeds, as Markdown; tools/speed_card.py puts them into pages."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from cards import table

from focus_core.baselines import BASELINES
from focus_core.frontier.speeds import joint_speedup
from focus_core.results import machine_of


def setting(record: dict[str, Any]) -> str:
    """One sentence on machine and shape."""
    machine, settings = machine_of(record), record["settings"]
    dates = sorted({point["date"] for point in record["points"]})
    balanced = "" if any(point.get("share") for point in record["points"]) else "balanced "
    return (
        f"{machine['device']}, {machine['threads']} threads, {machine['instructions']}, torch {machine['torch']}, "
        f"{' and '.join(dates)}; {settings['heads']} query heads and {settings['kv_heads']} key/value heads of "
        f"{settings['head_dim']}, w = {settings['window']}, {settings['sink_tokens']} sinks, random {balanced}routing, "
        f"at least {settings['repetitions']} alternating runs a point."
    )


def baseline_setting(record: dict[str, Any]) -> str:
    """One sentence on machine and heads."""
    machine, settings, source = machine_of(record), record["settings"], record["settings"].get("source")
    dates = sorted({point["date"] for point in record["points"]})
    heads = f"one head of {settings['head_dim']}"
    if source is not None:
        places = dict.fromkeys("layer {}, head {}".format(*point["head"]) for point in record["points"])
        heads = f"{source['model']['name']} in prefill of {source['data'][0]['name']}, {'; '.join(places)}"
    return (
        f"{machine['device']}, {machine['threads']} threads, {machine['instructions']}, torch {machine['torch']}, "
        f"{' and '.join(dates)}; {heads}; float32, w = {settings['window']}, "
        f"{settings['sink_tokens']} sinks, at least {settings['repetitions']} alternating runs a point, selection "
        "timed once."
    )


def kernel_table(record: dict[str, Any]) -> str:
    """Every point: times, speed-up beside its bound, exactness, memory."""
    columns = (
        "tokens", "K", "k", "dtype", "full, ms", "sparse, ms (min-max)", "speed-up", "bound", "of the bound",
        "pairs kept", "largest error, output", "log-sum-exp", "working memory, MiB (inputs)",
    )  # fmt: skip
    rows = []
    for point in sorted(record["points"], key=_order):
        sparse = point["sparse_s"]
        unequal = "" if point.get("share") is None else ", unequal groups"
        memory = "" if point["working_bytes"] is None else f"{point['working_bytes'] / 2**20:.0f} "
        rows.append(
            (
                f"{point['tokens']:,}",
                f"{point['num_groups']}",
                f"{point['top_k']}{unequal}",
                point["dtype"],
                _ms(point["full_s"]),
                f"{_ms(sparse)} {_range(sparse)}",
                f"{point['speedup']:.2f}",
                f"{point['bound']:.2f}",
                f"{point['share_of_bound']:.0%}",
                f"{point['kept_share']:.1%}",
                f"{point['error_output']:.1e}",
                f"{point['error_logsumexp']:.1e}",
                f"{memory}({point['input_bytes'] / 2**20:.0f})",
            )
        )
    return table(columns, rows)


def routing_table(record: dict[str, Any]) -> str:
    """Milliseconds of each step of routing in a layer."""
    points = [p for p in sorted(record["points"], key=_order) if p["dtype"] == "float32" and p.get("routing_s")]
    steps = list(dict.fromkeys(step for point in points for step in point["routing_s"]))
    rows = [
        (
            f"{point['tokens']:,}",
            f"{point['num_groups']}",
            f"{point['top_k']}",
            *(f"{point['routing_s'][step] * 1e3:.2f}" if step in point["routing_s"] else "" for step in steps),
        )
        for point in points
    ]
    return table(("tokens", "K", "k", *map(_step, steps)), rows)


def _step(name: str) -> str:
    """Heading of a step: "sinkhorn_10_rounds" is "Sinkhorn, 10 rounds"."""
    if name.startswith("sinkhorn"):
        return f"Sinkhorn, {name.split('_')[1]} rounds"
    return {"projection": "projection, ms", "calibrated": "calibrated softmax", "top_k": "top-k"}.get(name, name)


def model_table(record: dict[str, Any]) -> str:
    """Prefill and decode of a whole model."""
    columns = (
        "task", "tokens", "routing", "kept", "seconds (min-max)", "tokens/s", "speed-up", "memory, MiB", "logit error"
    )  # fmt: skip
    rows = []
    for row in record["results"]:
        seconds, memory, error = row["seconds"], row.get("memory_bytes"), row.get("error")
        rows.append(
            (
                row["task"],
                f"{row['tokens']:,}",
                "untouched" if row["top_k"] is None else f"k = {row['top_k']}",
                f"{row['kept_share']:.1%}",
                f"{seconds['median']:.3f} ({seconds['min']:.3f}-{seconds['max']:.3f})",
                f"{row['tokens_per_second']:,.1f}",
                f"{row['speedup']:.2f}",
                "" if memory is None else f"{memory / 2**20:,.0f}",
                "" if error is None else f"{error:.0e}",
            )
        )
    return table(columns, rows)


def fixed_table(record: dict[str, Any]) -> str:
    """The baselines whose time does not depend on queries and keys."""
    columns = (
        "tokens", "baseline", "distant pairs kept", "full, ms", "attention, ms (min-max)", "executed in", "speed-up",
        "largest error",
    )  # fmt: skip
    rows = []
    for point in record["points"]:
        method, attend = BASELINES[point["baseline"]], point["attend_s"]
        if not method.by_content:
            selection = "" if point["select_s"] is None else f", features {point['select_s'] * 1e3:,.1f} ms"
            rows.append(
                (
                    f"{point['tokens']:,}",
                    method.label,
                    "approximate" if point["kept_share"] is None else f"{point['kept_share']:.1%}",
                    _ms(point["full_s"]),
                    f"{_ms(attend)} {_range(attend)}",
                    f"{point['way']}{selection}",
                    f"{point['speedup']:.2f}",
                    f"{point['error_output']:.1e}",
                )
            )
    return table(columns, rows)


def content_table(record: dict[str, Any], random: dict[str, Any]) -> str:
    """Content-based baselines: all heads together and each, and the same among random tensors."""
    columns = (
        "tokens", "baseline", "distant pairs kept", "full, ms a head", "attention, ms by head", "executed in",
        "speed-up", "by head", "selection, ms a head", "speed-up with selection", "largest error",
        "speed-up among random tensors",
    )  # fmt: skip
    among = {(point["tokens"], point["baseline"], point["share"]): point["speedup"] for point in random["points"]}
    together: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for point in record["points"]:
        together[point["tokens"], list(BASELINES).index(point["baseline"]), point["share"]].append(point)
    rows = []
    for (tokens, number, share), points in sorted(together.items()):
        name, count = list(BASELINES)[number], len(points)
        rows.append(
            (
                f"{tokens:,}",
                BASELINES[name].label,
                f"{sum(point['kept_share'] for point in points) / count:.1%}",
                f"{sum(point['full_s']['median'] for point in points) / count * 1e3:,.1f}",
                " ".join(_ms(point["attend_s"]) for point in points),
                ", ".join(sorted({point["way"] for point in points})),
                f"{joint_speedup(point['speedup'] for point in points):.2f}",
                " ".join(format(point["speedup"], ".2f") for point in points),
                f"{sum(point['select_s'] for point in points) / count * 1e3:,.1f}",
                f"{joint_speedup(point['speedup_with_choice'] for point in points):.2f}",
                f"{max(point['error_output'] for point in points):.1e}",
                f"{among[tokens, name, share]:.2f}" if (tokens, name, share) in among else "",
            )
        )
    return table(columns, rows)


def _ms(seconds: dict[str, Any]) -> str:
    return f"{seconds['median'] * 1e3:,.1f}"


def _range(seconds: dict[str, Any]) -> str:
    return f"({seconds['min'] * 1e3:,.1f}-{seconds['max'] * 1e3:,.1f})"


def _order(point: dict[str, Any]) -> tuple[Any, ...]:
    return point["num_groups"], point["top_k"], point["dtype"], point.get("share") or 0.0, point["tokens"]
