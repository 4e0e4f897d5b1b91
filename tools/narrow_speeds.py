"""The speeds of narrow groups, the default, as Markdown; tools/speed_card.py puts them into docs/speed.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cards import listed, table
from speed_tables import PAST, length, setting

from focus_core.evaluation.compare import few_blocks
from focus_core.results import machine_of

DTYPES = ("float32", "bfloat16")
CACHES = ("bench-cache.json", "bench-cache-bfloat16.json")


def answer(kernel: dict[str, Any], model: dict[str, Any]) -> str:
    """The first lines of docs/speed.md."""
    machine = machine_of(kernel)
    points = with_choice(kernel)
    share = model["settings"]["config"]["read_share"]
    prefill, decode = (by_tokens(model, task) for task in ("prefill", "decode"))
    window = by_tokens(model, "prefill", "window")
    longest, cache = max(prefill), max(decode)
    tokens, short = even(kernel), max((each for each in prefill if prefill[each] < 1), default=min(prefill))
    return (
        f"On {machine['threads']} threads of an {machine['device']}, in float32, the default routers read {share:.0%} "
        f"of the distant pairs.\nAt {longest:,} tokens one attention call is {points[longest]:.2f} times as fast as "
        f"full attention, choosing included.\nPrefill of the whole model is {prefill[longest]:.2f} times as fast "
        f"there; with a window of the same share it is {window[longest]:.2f} times as fast.\nA token after {cache:,} "
        f"others is decoded {decode[cache]:.2f} times as fast.\nIn shorter texts the gain shrinks: the call is "
        f"{points[tokens]:.2f} times as fast at {tokens:,} tokens, and prefill {prefill[short]:.2f} times at {short:,}."
    )


def switch(model: dict[str, Any]) -> str:
    """What the switch to full attention in short texts changes."""
    rows = routed(model, "prefill", "switched")
    plain, switched = (
        [row["speedup"] for task in ("prefill", "decode") for row in routed(model, task, routing)]
        for routing in ("hard", "switched")
    )
    longest = max(rows, key=lambda row: row["tokens"])
    return (
        f"With `full_below` the first {rows[0]['full_below']:,} tokens attend to everything here. Prefill of "
        f"{longest['tokens']:,} tokens is then {longest['speedup']:.2f} times as fast as the untouched model. The "
        f"slowest case of the table is {min(switched):.2f} times as fast, and {min(plain):.2f} times without "
        "`full_below`."
    )


def missed(
    kernel: dict[str, Any], others: Sequence[dict[str, Any]], model: dict[str, Any], *caches: dict[str, Any]
) -> str:
    """What the speeds of the default fall short of, as a list.

    Args:
        kernel: one call.
        others: the same on other CPUs.
        model: the whole model.
        caches: see `cache_size`.
    """
    points = {point["tokens"]: point for point in _float32(kernel)}
    prefill, window = by_tokens(model, "prefill"), by_tokens(model, "prefill", "window")
    longest = max(prefill)
    point, memory = points[longest], _memory(model, longest)
    last, page = points[max(points)], model["settings"]["config"]["page_size"]
    with_assignment = [each["speedup_with_choice"] / each["bound"] for each in (point, last)]
    worse = [tokens for tokens, speed in prefill.items() if window.get(tokens, 0) > speed]
    lengths = "every measured length" if worse == list(prefill) else " and ".join(f"{each:,}" for each in worse)
    reached = (
        f"At {longest:,} tokens the attention call reaches {point['share_of_bound']:.0%} of its bound with the choice "
        f"of pages. With the assignment of keys to groups it reaches {with_assignment[0]:.0%}, and "
        f"{with_assignment[1]:.0%} at {last['tokens']:,}."
    )
    if min(with_assignment) >= 1:
        why = "Full attention of PyTorch takes longer for a pair here than narrow groups do. A faster one would lower "
        why += "every speed-up of this page."
    else:
        why = f"The bound counts pairs alone. A score and a summary for every page of {page} keys are as much work as "
        why += f"{1 / page:.0%} of all pairs."
    beside = (
        f"- **A window.** Prefill with a window of the same share is faster at {lengths}. The window keeps other "
        "pairs, and loses more ([frontier](frontier.md))."
    )
    return "\n".join(
        (
            f"- **The bound.** {reached} {why}",
            f"- **Other CPUs.** {' '.join(map(_reached, others))}",
            *([beside] if worse else []),
            f"- **Short texts.** The smallest speed-up of prefill is {min(prefill.values()):.2f}, at "
            f"{min(prefill, key=lambda tokens: prefill[tokens]):,} tokens.",
            f"- **Memory of the cache.** {cache_size(*caches)}",
            f"- **Memory of prefill.** At {longest:,} tokens it takes {memory['hard']:,.0f} MiB beyond what was held "
            f"before, cache included. The untouched model takes {memory['off']:,.0f} MiB.",
        )
    )


def _reached(kernel: dict[str, Any]) -> str:
    """The parts of its bound that a call reaches, and where it is slower than full attention."""
    speeds = with_choice(kernel)
    parts = {point["tokens"]: speeds[point["tokens"]] / point["bound"] for point in _float32(kernel)}
    longest, slower = max(parts), [f"{tokens:,}" for tokens, speed in speeds.items() if speed < 1]
    machine = machine_of(kernel)
    text = f"An {machine['device']} ({machine['instructions']}), reaches {parts[8192]:.0%} of the bound at 8,192 "
    text += f"tokens, and {parts[longest]:.0%} at {longest:,}, assignment included."
    return text + (f" The call is slower than full attention at {listed(slower)}." if slower else "")


def cache_size(record: dict[str, Any], *others: dict[str, Any]) -> str:
    """How much larger the cache of narrow groups is at each length, and the longest in 8 bits.

    Args:
        record: of `focus bench cache`.
        others: of the same lengths in other dtypes.
    """
    lengths, told, small = _cache_sizes(record)
    told_at = listed(f"{each:,}" for each in lengths)
    kinds = [record["settings"]["dtype"], f"8 bits: {small[-1]}"]
    kinds += [f"{other['settings']['dtype']}: {listed(_cache_sizes(other)[1])}" for other in others]
    return f"Caches are {listed(told)} times as large at {told_at} tokens ({'; '.join(kinds)})."


def _cache_sizes(record: dict[str, Any]) -> tuple[list[int], list[str], list[str]]:
    """Lengths, and the cache of narrow groups over the untouched one at each, as it is and in 8 bits."""
    sizes = {(row["tokens"], row["routing"], row["cache_bits"]): row["cache_bytes"] for row in record["results"]}
    lengths = sorted({tokens for tokens, *_ in sizes})
    told, small = (
        [f"{sizes[tokens, 'hard', bits] / sizes[tokens, 'off', None]:.2f}" for tokens in lengths] for bits in (None, 8)
    )
    return lengths, told, small


def cache_table(record: dict[str, Any]) -> str:
    """Caches of `focus bench cache`: bytes, speed, and what the tokens after them predict."""
    rows, full = [], {}
    for row in record["results"]:
        tokens = row["tokens"]
        full.setdefault(tokens, row["cache_bytes"])
        kind = "untouched" if row["routing"] == "off" else "narrow groups"
        far = (
            (f"{row['kl']:.5f} ({row['kl_low']:.5f} to {row['kl_high']:.5f})", f"{row['agreement']:.1%}")
            if "kl" in row
            else ("", "")
        )
        speed = f"{row['tokens_per_second']:.1f}", f"{row['speedup']:.2f}"
        name = kind if row["cache_bits"] is None else f"{kind}, {row['cache_bits']} bits"
        rows.append((f"{tokens:,}", name, f"{row['cache_bytes'] / full[tokens]:.2f}", *speed, *far))
    machine, measured = machine_of(record), record["settings"]["measured"]
    few = f"; {mark}" if (mark := few_blocks(measured["blocks"])) else ""
    columns = ("tokens", "cache", "bytes", "tokens/s", "speed-up", "KL", "top-1 same")
    return (
        f"{table(columns, rows)}\n\nBytes are over the untouched cache's. KL and top-1 are of the {measured['after']} "
        f"tokens after the cache, to the untouched model's predictions, over {measured['blocks']} texts (95%, "
        f"Student's t{few}). Speeds are of the {measured['steps']} tokens after those, for one text. "
        f"{record['settings']['routers']}, "
        f"{record['settings']['dtype']}, {machine['device']}, {machine['threads']} threads, "
        f"{record['made']['date'][:10]}; text: {record['data'][0]['name']}."
    )


def _memory(model: dict[str, Any], tokens: int) -> dict[str, float]:
    """MiB of prefill by routing."""
    rows = (row for row in model["results"] if (row["task"], row["tokens"]) == ("prefill", tokens))
    return {row["routing"]: row["memory_bytes"] / 2**20 for row in rows}


def _float32(kernel: dict[str, Any]) -> list[dict[str, Any]]:
    return [point for point in kernel["points"] if point["dtype"] == "float32"]


def with_choice(kernel: dict[str, Any]) -> dict[int, float]:
    """Speed-ups of one attention call in float32, choosing included, by its number of tokens."""
    return {point["tokens"]: point["speedup_with_choice"] for point in _float32(kernel)}


def even(kernel: dict[str, Any]) -> int:
    """The fewest measured tokens at which the call is as fast as full attention, choosing included."""
    return min(tokens for tokens, speed in with_choice(kernel).items() if speed >= 1)


def by_tokens(model: dict[str, Any], task: str, routing: str = "hard") -> dict[int, float]:
    """Speed-ups of a task by its number of tokens."""
    return {row["tokens"]: row["speedup"] for row in routed(model, task, routing)}


def in_halves(model: dict[str, Any], plain: dict[str, Any]) -> str:
    """Two sentences on a model in bfloat16, beside the untouched model there and in float32."""
    read, written = (by_tokens(model, task) for task in ("prefill", "decode"))
    rows = [row for row in plain["results"] if (row["task"], row["routing"]) == ("decode", "off")]
    tokens, cache = max(read), max(written)
    ours = next(row for row in routed(model, "decode") if row["tokens"] == cache)["tokens_per_second"]
    untouched = next(row for row in rows if row["tokens"] == cache)["tokens_per_second"]
    return (
        f"In bfloat16 prefill of {tokens:,} tokens is {read[tokens]:.2f} times as fast, and a token after {cache:,} "
        f"others is decoded {written[cache]:.2f} times as fast. Against the untouched model in float32, which decodes "
        f"faster, that is {ours / untouched:.2f} times."
    )


def elsewhere(kernel: dict[str, Any]) -> str:
    """One sentence for each dtype on the speeds of another CPU."""
    sentences = []
    for dtype in DTYPES:
        points = [p for p in kernel["points"] if p["dtype"] == dtype and 2048 <= p["tokens"] <= 8192]
        cells = ", ".join(f"{point['speedup_with_choice']:.2f} at {point['tokens']:,}" for point in points)
        sentences.append(f"{cells} in {dtype}")
    machine = machine_of(kernel)
    made = f"an {machine['device']} ({machine['instructions']}), {kernel['made']['date'][:10]}"
    return f"On {made}, an attention call has speed-ups of {'; '.join(sentences)}, choosing included."


def prefill_elsewhere(records: Sequence[dict[str, Any]]) -> str:
    """Prefill on a CPU of another name, in float32 and, with matrix units, in bfloat16; and on one without AVX-512."""
    speeds = [by_tokens(record, "prefill").items() for record in records]
    single, half, narrower = (
        " and ".join(f"{speed:.2f}x" for tokens, speed in each if tokens >= 2048) for each in speeds
    )
    names = [machine_of(record)["device"].partition(",")[0].replace("(R)", "") for record in records]
    before = "" if records[1]["settings"]["config"].get("spread_directions") else ", before directions of spread"
    return (
        f"On an {names[0].removesuffix(' Processor')} prefill is at {single} (bfloat16 with AMX: {half}{before}). "
        f"On an {names[2]} without AVX-512 it is at {narrower}. No GPU was timed."
    )


def gained(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Speed-ups of one call on machines of one name before and after the loops changed."""
    found = {(point["tokens"], point["dtype"]): point for point in after["points"]}
    rows = [
        (length(point["tokens"]), point["dtype"], *(f"{each['speedup_with_choice']:.2f}" for each in (point, now)))
        for point in before["points"]
        if (now := found.get((point["tokens"], point["dtype"]))) is not None
    ]
    where = f"{machine_of(before)['device']}, {before['made']['date'][:10]} and {after['made']['date'][:10]}"
    times = [
        now["full_s"]["median"] / point["full_s"]["median"]
        for point in before["points"]
        if (now := found.get((point["tokens"], point["dtype"]))) is not None
    ]
    return (
        table(("tokens", "dtype", "before", "now"), rows)
        + f"\n\nSpeed-up over full attention, choosing included. {where}. Full attention itself took {min(times):.2f} "
        f"to {max(times):.2f} times as long in the later record."
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


def busy_table(record: dict[str, Any]) -> str:
    """How much slower one call becomes beside another process that keeps a core busy."""
    rows = []
    for point in record["points"]:
        slower = point["loaded"]["slowdown"]
        pair = slower["full_s"], slower["sparse_s"]
        speed = point["loaded"]["full_s"]["median"] / point["loaded"]["sparse_s"]["median"]
        rows.append((length(point["tokens"]), point["dtype"], *(f"{each:.2f}" for each in (*pair, speed))))
    columns = ("tokens", "dtype", "full attention", "narrow groups", "speed-up beside the load")
    runs = record["points"][0]["loaded"]["sparse_s"]["runs"]
    late = sum(run > 2 * min(runs) for run in runs)
    return (
        f"{table(columns, rows)}\n\nMedian time of a call beside another process that never waits, over its time "
        f"alone; and the speed-up there, the choice of pages included. At {record['points'][0]['tokens']:,} tokens "
        f"{late} of {len(runs)} runs of narrow groups took more than twice as long as the fastest: a few runs have no "
        f"stable median. {setting(record)}"
    )


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
            switched = [each for each in routed(record, task, "switched") if each["tokens"] == row["tokens"]]
            speeds = f"{row['tokens_per_second']:,.1f}", f"{row['speedup']:.2f}"
            rows.append((task, f"{row['tokens']:,}", *speeds, *(f"{each['speedup']:.2f}" for each in switched), window))
    machine, measured = machine_of(record), record["settings"]["measured"]
    spread = max(
        (row["seconds"]["max"] - row["seconds"]["min"]) / row["seconds"]["median"]
        for row in record["results"]
        if row["task"] == "prefill"
    )
    runs = (
        f"Medians of {measured['repetitions']} runs of prefill and of {measured['steps']} decoded tokens. Runs of one "
        f"prefill differ by up to {spread:.0%}, so differences of a few per cent mean nothing."
        if measured["repetitions"] > 1
        else "One run of prefill, so differences of some per cent mean nothing; medians of "
        f"{measured['steps']} decoded tokens."
    )
    text = (
        f"{record['settings']['routers']}, {record['settings']['dtype']}, {machine['device']}, "
        f"{machine['threads']} threads, {record['made']['date'][:10]}; text: {record['data'][0]['name']}. {runs}"
    )
    switch = ["with `full_below`"] if routed(record, "prefill", "switched") else []
    columns = ("task", "tokens", "tokens/s", "speed-up", *switch, "window of the same share")
    return f"{table(columns, rows)}\n\n{text}"
