"""The speeds of narrow groups, the default, as Markdown; tools/speed_card.py puts them into docs/speed.md."""

from __future__ import annotations

from typing import Any

from cards import table
from speed_tables import PAST, length, setting

from focus_core.results import machine_of

DTYPES = ("float32", "bfloat16")


def answer(kernel: dict[str, Any], model: dict[str, Any]) -> str:
    """The first lines of docs/speed.md."""
    machine = machine_of(kernel)
    points = {point["tokens"]: point for point in kernel["points"] if point["dtype"] == "float32"}
    share = model["settings"]["config"]["read_share"]
    prefill, decode = (
        {row["tokens"]: row["speedup"] for row in routed(model, task, "switched")} for task in ("prefill", "decode")
    )
    switch = routed(model, "prefill", "switched")[0]["full_below"]
    longest, cache = max(prefill), max(decode)
    even = min((tokens for tokens, point in points.items() if point["speedup_with_choice"] >= 1), default=None)
    start = "At no measured length" if even is None else f"From {even:,} tokens on"
    return (
        f"On {machine['threads']} threads of an {machine['device']}, in float32, the default routers read {share:.0%} "
        f"of the distant pairs.\nAt {longest:,} tokens one attention call is "
        f"{points[longest]['speedup_with_choice']:.2f} times as fast as full attention, choosing included, and prefill "
        f"of the whole model {prefill[longest]:.2f} times.\nA token after {cache:,} others is decoded "
        f"{decode[cache]:.2f} times as fast. {start} an attention call is faster than full attention.\n"
        f"`full_below` makes the first {switch:,} tokens attend to everything here; with it the slowest measured case "
        f"is {min(*prefill.values(), *decode.values()):.2f} times as fast as the untouched model."
    )


def routed(model: dict[str, Any], task: str, routing: str = "hard") -> list[dict[str, Any]]:
    """The rows of a task with routers; "switched" for those in which the first tokens attend to everything."""
    return [row for row in model["results"] if (row["task"], row["routing"]) == (task, routing)]


def attention_table(record: dict[str, Any]) -> str:
    """Speed-up of one call by length and dtype."""
    found = {(point["tokens"], point["dtype"]): point for point in record["points"]}
    rows = []
    for tokens in sorted({tokens for tokens, _ in found}):
        points = [found.get((tokens, dtype)) for dtype in DTYPES]
        kept = next(point for point in points if point is not None)["kept_share"]
        rows.append((length(tokens), f"{kept:.0%}", *("" if point is None else _cell(point) for point in points)))
    worst = max(point["error_output"] for point in record["points"] if point["dtype"] == "float32")
    share = next(point["share"] for point in record["points"])
    return (
        table(("tokens", "all pairs kept", *DTYPES), rows)
        + f"\n\nSpeed-up over PyTorch's full causal attention in the same dtype: with the choice of pages / with the "
        f"assignment of keys to groups too (of the bound, 1 / pairs kept). {share:.0%} of the distant pairs are read. "
        f"Largest deviation in float32 from the definition in float64, at 1,024 tokens or fewer: {worst:.0e}. {PAST} "
        f"{setting(record)}"
    )


def _cell(point: dict[str, Any]) -> str:
    return f"{point['speedup']:.2f} / {point['speedup_with_choice']:.2f} (of {point['bound']:.2f})"


def model_table(record: dict[str, Any]) -> str:
    """Speed-up of prefill and decode, and of a window of the same share."""
    rows = []
    for task in ("prefill", "decode"):
        for row in routed(record, task):
            beside = [
                other["speedup"]
                for other in record["results"]
                if (other["task"], other["tokens"], other["routing"]) == (task, row["tokens"], "window")
            ]
            window = f"{beside[0]:.2f}" if beside else ""
            switched = next(each for each in routed(record, task, "switched") if each["tokens"] == row["tokens"])
            speeds = f"{row['tokens_per_second']:,.1f}", f"{row['speedup']:.2f}", f"{switched['speedup']:.2f}"
            rows.append((task, f"{row['tokens']:,}", *speeds, window))
    machine = machine_of(record)
    text = (
        f"{record['settings']['routers']}, {record['settings']['dtype']}, {machine['device']}, "
        f"{machine['threads']} threads, {record['made']['date'][:10]}; text: {record['data'][0]['name']}."
    )
    columns = ("task", "tokens", "tokens/s", "speed-up", "with `full_below`", "window of the same share")
    return f"{table(columns, rows)}\n\n{text}"
