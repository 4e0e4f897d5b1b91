"""The tables of recorded speeds, as Markdown; tools/speed_card.py puts them into pages."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from cards import table

from focus_core.baselines import METHODS
from focus_core.bench.baselines import UNFOLDED
from focus_core.frontier.speeds import joint_speedup, with_choice
from focus_core.results import machine_of

POSITIONS = 8192
"""Positions of the default model, for records that do not name them."""
PAST = f"\\* Past the {POSITIONS:,} positions of the default model: the attention kernel alone, no quality beside it."
OLDER = "timed one query head at a time (older record)"


def length(tokens: int, positions: int = POSITIONS) -> str:
    """A number of tokens, with a star past the model's positions."""
    return f"{tokens:,}" + (r" \*" if tokens > positions else "")


def positions_of(model: dict[str, Any]) -> int:
    """Positions of the model of a record."""
    return model.get("positions") or POSITIONS


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
    heads = f"{settings.get('query_heads', 1)} query heads of {settings['head_dim']} on a key/value head"
    if source is not None:
        places = dict.fromkeys("layer {}, head {}".format(*point["head"]) for point in record["points"])
        heads = f"{source['model']['name']} in prefill of {source['data'][0]['name']}, {'; '.join(places)}"
    return (
        f"{machine['device']}, {machine['threads']} threads, {machine['instructions']}, torch {machine['torch']}, "
        f"{' and '.join(dates)}; {heads}; float32, w = {settings['window']}, "
        f"{settings['sink_tokens']} sinks, at least {settings['repetitions']} alternating runs a point; "
        + (f"{OLDER}, selection timed once." if unfolded(record) else "grouped query heads folded in every call.")
    )


def unfolded(record: dict[str, Any]) -> bool:
    """Whether a record timed baselines one query head at a time."""
    return record["schema"] == UNFOLDED


def kernel_table(record: dict[str, Any]) -> str:
    """Every point: times, speed-up beside its bound, exactness, memory."""
    columns = (
        "tokens", "K", "k", "dtype", "full, ms", "sparse, ms (min-max)", "attention only", "choosing included",
        "bound", "of the bound",
        "pairs kept", "largest error, output", "log-sum-exp", "working memory, MiB (inputs)",
    )  # fmt: skip
    rows = []
    for point in sorted(record["points"], key=_order):
        sparse = point["sparse_s"]
        unequal = "" if point.get("share") is None else ", unequal groups"
        memory = "" if point["working_bytes"] is None else f"{point['working_bytes'] / 2**20:.0f} "
        both = with_choice(point)
        rows.append(
            (
                length(point["tokens"]),
                f"{point['num_groups']}",
                f"{point['top_k']}{unequal}",
                point["dtype"],
                _ms(point["full_s"]),
                f"{_ms(sparse)} {_range(sparse)}",
                f"{point['speedup']:.2f}",
                "" if both is None else f"{both:.2f}",
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
            length(point["tokens"]),
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
    rows, positions = [], positions_of(record["model"])
    for row in record["results"]:
        seconds, memory, error = row["seconds"], row.get("memory_bytes"), row.get("error")
        rows.append(
            (
                row["task"],
                length(row["tokens"], positions),
                _routing(row),
                f"{row['kept_share']:.1%}",
                f"{seconds['median']:.3f} ({seconds['min']:.3f}-{seconds['max']:.3f})",
                f"{row['tokens_per_second']:,.1f}",
                f"{row['speedup']:.2f}",
                "" if memory is None else f"{memory / 2**20:,.0f}",
                "" if error is None else f"{error:.0e}",
            )
        )
    return table(columns, rows)


def _routing(row: dict[str, Any]) -> str:
    if row["routing"] == "window":
        return f"window of {row['window']:,} and sinks"
    if row["routing"] == "off":
        return "untouched"
    return "share read" if row["top_k"] is None else f"k = {row['top_k']}"


def model_summary(record: dict[str, Any]) -> str:
    """Speed-ups within the model's positions; a window is named by the k of the same share."""
    positions, top_k = positions_of(record["model"]), record["settings"]["measured"]["top_k"]
    matched = not record["settings"]["measured"].get("shares")
    found: dict[tuple[str, int], dict[str, str]] = defaultdict(dict)
    for row in record["results"]:
        cells = found[row["task"], row["tokens"]]
        windows = sum(name.startswith("window") for name in cells)
        if row["tokens"] > positions or row["routing"] == "off":
            continue
        if row["routing"] == "window":
            name = f"window, as k = {top_k[windows]}" if matched else f"window, share {windows + 1}"
        else:
            name = f"k = {row['top_k']}"
        cells[name] = f"{row['speedup']:.2f}"
    names = list(dict.fromkeys(name for cells in found.values() for name in cells))
    rows = [
        (task, f"{tokens:,}", *(cells.get(name, "") for name in names))
        for (task, tokens), cells in found.items()
        if cells
    ]
    return table(("task", "tokens", *names), rows)


def baselines_table(record: dict[str, Any], *, by_content: bool | None = None) -> str:
    """Baselines at each length and share, all measured heads one after another.

    Args:
        record: of `focus bench baseline`, also an older one.
        by_content: content-based ones alone, or the others alone; all when None.
    """
    columns = (
        "tokens", "baseline", "distant pairs kept", "full, ms", "attention, ms by head", "choosing, ms", "executed in",
        "attention only", "choosing included", "largest error",
    )  # fmt: skip
    together: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for point in record["points"]:
        if point["baseline"] in METHODS and by_content in (None, METHODS[point["baseline"]].by_content):
            setting = tuple(sorted((point.get("setting") or {}).items()))
            place = list(METHODS).index(point["baseline"])
            together[point["tokens"], place, point["share"] or 0.0, setting].append(point)
    rows = []
    for (tokens, number, _, setting), points in sorted(together.items()):
        count, name = len(points), list(METHODS)[number]
        kept = [point["kept_share"] for point in points]
        select = [point["select_s"] for point in points]
        tuned = f" ({', '.join(f'{key} {value:g}' for key, value in setting)})" if setting else ""
        rows.append(
            (
                length(tokens),
                METHODS[name].label + tuned,
                "approximate" if None in kept else f"{sum(kept) / count:.1%}",
                f"{sum(point['full_s']['median'] for point in points) / count * 1e3:,.1f}",
                " ".join(_ms(point["attend_s"]) for point in points),
                "" if None in select else f"{sum(select) / count * 1e3:,.1f}",
                ", ".join(sorted({point["way"] for point in points})),
                f"{joint_speedup(point['speedup'] for point in points):.2f}",
                f"{joint_speedup(point['speedup_with_choice'] for point in points):.2f}",
                f"{max(point['error_output'] for point in points):.1e}",
            )
        )
    return table(columns, rows)


def _ms(seconds: dict[str, Any]) -> str:
    return f"{seconds['median'] * 1e3:,.1f}"


def _range(seconds: dict[str, Any]) -> str:
    return f"({seconds['min'] * 1e3:,.1f}-{seconds['max'] * 1e3:,.1f})"


def _order(point: dict[str, Any]) -> tuple[Any, ...]:
    return point["num_groups"], point["top_k"], point["dtype"], point.get("share") or 0.0, point["tokens"]
