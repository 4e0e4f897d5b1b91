"""Write docs/speed.md and the README's speed table from the recorded benchmarks.

    python tools/speed_card.py

Every figure comes from `data/results/bench-*.json` (focus bench).
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from focus_core.baselines import BASELINES
from focus_core.frontier.speeds import joint_speedup

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "data" / "results"
MARKS = ("<!-- speed: python tools/speed_card.py -->", "<!-- end of speed -->")


def setting(record: dict[str, Any]) -> str:
    """One sentence on machine and shape."""
    machine, settings = record["machine"], record["settings"]
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
    machine, settings, source = record["machine"], record["settings"], record["settings"].get("source")
    dates = sorted({point["date"] for point in record["points"]})
    heads = f"one head of {settings['head_dim']}"
    if source is not None:
        places = dict.fromkeys("layer {}, head {}".format(*point["head"]) for point in record["points"])
        heads = f"{source['model']['name']} reads {source['data'][0]['name']}, {'; '.join(places)}"
    return (
        f"{machine['device']}, {machine['threads']} threads, {machine['instructions']}, torch {machine['torch']}, "
        f"{' and '.join(dates)}; {heads}; float32, w = {settings['window']}, "
        f"{settings['sink_tokens']} sinks, at least {settings['repetitions']} alternating runs a point, choosing once."
    )


def kernel_table(record: dict[str, Any]) -> str:
    """Every point: times, speed-up beside its bound, exactness, memory."""
    lines = [
        "| tokens | K | k | dtype | full, ms | sparse, ms (min-max) | speed-up | bound | of the bound | pairs kept "
        "| largest error, output | log-sum-exp | working memory, MiB (inputs) |",
        "|" + "---|" * 13,
    ]
    for point in sorted(record["points"], key=_order):
        full, sparse = point["full_s"], point["sparse_s"]
        unequal = "" if point.get("share") is None else ", unequal groups"
        memory = "" if point["working_bytes"] is None else f"{point['working_bytes'] / 2**20:.0f}"
        lines.append(
            f"| {point['tokens']:,} | {point['num_groups']} | {point['top_k']}{unequal} | {point['dtype']} "
            f"| {full['median'] * 1e3:,.1f} | {sparse['median'] * 1e3:,.1f} ({sparse['min'] * 1e3:,.1f}-"
            f"{sparse['max'] * 1e3:,.1f}) | {point['speedup']:.2f} | {point['bound']:.2f} "
            f"| {point['share_of_bound']:.0%} | {point['kept_share']:.1%} | {point['error_output']:.1e} "
            f"| {point['error_logsumexp']:.1e} | {memory} ({point['input_bytes'] / 2**20:.0f}) |"
        )
    return "\n".join(lines)


def routing_table(record: dict[str, Any]) -> str:
    """What routing itself costs a layer, on its own line."""
    lines = [
        "| tokens | K | k | projection, ms | calibrated softmax | Sinkhorn, 10 rounds | top-k | sort |",
        "|" + "---|" * 8,
    ]
    for point in sorted(record["points"], key=_order):
        if point["dtype"] == "float32" and point["routing_s"]:
            costs = " | ".join(f"{seconds * 1e3:.2f}" for seconds in point["routing_s"].values())
            lines.append(f"| {point['tokens']:,} | {point['num_groups']} | {point['top_k']} | {costs} |")
    return "\n".join(lines)


def model_table(record: dict[str, Any]) -> str:
    """Reading and writing of a whole model."""
    lines = [
        "| task | tokens | routing | kept | seconds (min-max) | tokens/s | speed-up | memory, MiB | logit error |",
        "|" + "---|" * 9,
    ]
    names = {"prefill": "read", "decode": "write the next token"}
    for row in record["results"]:
        seconds, memory, error = row["seconds"], row.get("memory_bytes"), row.get("error")
        routing = "untouched" if row["top_k"] is None else f"k = {row['top_k']}"
        lines.append(
            f"| {names[row['task']]} | {row['tokens']:,} | {routing} | {row['kept_share']:.1%} "
            f"| {seconds['median']:.3f} ({seconds['min']:.3f}-{seconds['max']:.3f}) | {row['tokens_per_second']:,.1f} "
            f"| {row['speedup']:.2f} | {'' if memory is None else f'{memory / 2**20:,.0f}'} "
            f"| {'' if error is None else f'{error:.0e}'} |"
        )
    return "\n".join(lines)


def readme_table(record: dict[str, Any]) -> str:
    """Speed-up over full attention by length, with the bound in brackets."""
    points = {
        (point["tokens"], point["num_groups"], point["top_k"]): point
        for point in record["points"]
        if point["dtype"] == "bfloat16"
    }
    routings = sorted({key[1:] for key in points})
    lines = [
        "| tokens | " + " | ".join(f"K = {groups}, k = {top_k}" for groups, top_k in routings) + " |",
        "|---|" + "---|" * len(routings),
    ]
    for tokens in sorted({key[0] for key in points}):
        cells = [points[tokens, *routing] for routing in routings]
        lines.append(f"| {tokens:,} | " + " | ".join(f"{c['speedup']:.2f} (of {c['bound']:.2f})" for c in cells) + " |")
    worst = max(point["error_output"] for point in points.values())
    return "\n".join(lines) + (
        f"\n\nSpeed-up of one attention call over PyTorch's full causal flash attention, bfloat16, largest deviation "
        f"from the float32 definition {worst:.0e}; in brackets the bound 1 / share of pairs kept. {setting(record)}"
    )


def fixed_table(record: dict[str, Any]) -> str:
    """The baselines whose time does not depend on what queries and keys are."""
    lines = [
        "| tokens | baseline | distant pairs kept | full, ms | attention, ms (min-max) | executed in | speed-up "
        "| largest error |",
        "|" + "---|" * 8,
    ]
    for point in record["points"]:
        method, attend = BASELINES[point["baseline"]], point["attend_s"]
        if not method.by_content:
            kept = "approximate" if point["kept_share"] is None else f"{point['kept_share']:.1%}"
            chosen = "" if point["select_s"] is None else f", features {point['select_s'] * 1e3:,.1f} ms"
            lines.append(
                f"| {point['tokens']:,} | {method.label} | {kept} | {_ms(point['full_s'])} | {_ms(attend)} "
                f"({attend['min'] * 1e3:,.1f}-{attend['max'] * 1e3:,.1f}) | {point['way']}{chosen} "
                f"| {point['speedup']:.2f} | {point['error_output']:.1e} |"
            )
    return "\n".join(lines)


def content_table(record: dict[str, Any], random: dict[str, Any]) -> str:
    """The baselines that choose by content: all heads together and each, and the same among random tensors."""
    lines = [
        "| tokens | baseline | distant pairs kept | full, ms a head | attention, ms by head | executed in | speed-up "
        "| by head | choosing, ms a head | with choosing | largest error | among random tensors |",
        "|" + "---|" * 12,
    ]
    among = {(point["tokens"], point["baseline"], point["share"]): point["speedup"] for point in random["points"]}
    together: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for point in record["points"]:
        together[point["tokens"], list(BASELINES).index(point["baseline"]), point["share"]].append(point)
    for (tokens, number, share), points in sorted(together.items()):
        name = list(BASELINES)[number]
        kept = sum(point["kept_share"] for point in points) / len(points)
        full, choosing = (
            sum(seconds) / len(points) * 1e3
            for seconds in ([p["full_s"]["median"] for p in points], [p["select_s"] for p in points])
        )
        ways = ", ".join(sorted({point["way"] for point in points}))
        there = f"{among[tokens, name, share]:.2f}" if (tokens, name, share) in among else ""
        lines.append(
            f"| {tokens:,} | {BASELINES[name].label} | {kept:.1%} | {full:,.1f} "
            f"| {' '.join(_ms(point['attend_s']) for point in points)} | {ways} "
            f"| {joint_speedup(point['speedup'] for point in points):.2f} "
            f"| {' '.join(format(point['speedup'], '.2f') for point in points)} | {choosing:,.1f} "
            f"| {joint_speedup(point['speedup_with_choice'] for point in points):.2f} "
            f"| {max(point['error_output'] for point in points):.1e} | {there} |"
        )
    return "\n".join(lines)


def _ms(seconds: dict[str, Any]) -> str:
    return f"{seconds['median'] * 1e3:,.1f}"


def _wanted(points: list[dict[str, Any]]) -> list[str]:
    """The options that ask for these points of baselines, one line for each set of shares."""
    shares: dict[str, dict[float, None]] = defaultdict(dict)
    for point in points:
        shares[point["baseline"]][point["share"]] = None
    common = [share for share in next(iter(shares.values())) if all(share in own for own in shares.values())]
    names = " ".join(f"--baseline {name}" for name in shares)
    found = [f"{names} {' '.join(f'--share {share}' for share in common)}"]
    for extra in dict.fromkeys(tuple(share for share in own if share not in common) for own in shares.values()):
        if extra:
            names = " ".join(
                f"--baseline {name}"
                for name, own in shares.items()
                if tuple(share for share in own if share not in common) == extra
            )
            found.append(f"{names} {' '.join(f'--share {share}' for share in extra)}")
    return found


def _order(point: dict[str, Any]) -> tuple[Any, ...]:
    return point["num_groups"], point["top_k"], point["dtype"], point.get("share") or 0.0, point["tokens"]


def _routings(points: list[dict[str, Any]]) -> list[str]:
    """The options that ask for these points, one line for equal groups and one for unequal ones."""
    kinds = dict.fromkeys((point["num_groups"], point["top_k"], point.get("share")) for point in points)
    equal = [f"--routing {groups}/{k}" for groups, k, share in kinds if share is None]
    unequal = [f"--routing {groups}/{k} --share {share}" for groups, k, share in kinds if share is not None]
    return [" ".join(part) for part in (equal, unequal) if part]


def main() -> None:
    """Write both files."""
    kernel = json.loads((RESULTS / "bench-cpu.json").read_text(encoding="utf-8"))
    model = json.loads((RESULTS / "bench-model-cpu.json").read_text(encoding="utf-8"))
    heads = json.loads((RESULTS / "bench-heads-cpu.json").read_text(encoding="utf-8"))
    made, measured = model["made"], model["settings"]
    baselines = json.loads((RESULTS / "bench-baselines-cpu.json").read_text(encoding="utf-8"))
    reading = json.loads((RESULTS / "bench-baselines-heads-cpu.json").read_text(encoding="utf-8"))
    read = f"--model default --data {reading['settings']['source']['data'][0]['name']}"
    read += f" --repetitions {reading['settings']['repetitions']} --out bench-baselines-heads.json"
    by_content = "\n".join(f"focus bench {wanted} {read}" for wanted in _wanted(reading["points"]))
    random = f"--repetitions {baselines['settings']['repetitions']} --out bench-baselines.json"
    options = "--repetitions 3 --size 8192 --size 32768 --dtype float32"
    commands = "\n".join(
        f"focus bench --router head {options} {routings} --out bench-heads.json"
        for routings in _routings(heads["points"])
    )
    text = f"""# Speed

Written by `python tools/speed_card.py` from recorded runs. Nothing here is projected.

## One attention call

```bash
focus bench --out bench.json
focus bench --size 8192 --size 32768 --routing 8/3 --routing 8/8 --dtype float32 --out bench.json
```

{setting(kernel)} "Error" is the largest deviation from the float32 definition over queries spread over the text.
Working memory is the peak beyond inputs and output. 1 / bound is the share of causal pairs that are computed.

{kernel_table(kernel)}

Routing itself, for one layer of this model's width, in float32:

{routing_table(kernel)}

## With routers per head

Keys in one of K groups of each key/value head, queries that read k of them. Groups of trained routers are unequal and
keep more pairs than equal ones; random groups that keep the same share of the distant pairs stand for them:

```bash
{commands}
```

{setting(heads)}

{kernel_table(heads)}

## Baselines

The sparse attentions that [frontier.md](frontier.md) compares with, one head over the pairs that each of them chooses,
executed exactly in the fastest of some ways, tried twice each: tiles of 16, 128 or 512 queries with the keys that any
of them keeps, or blocks of 16 keys with the queries that keep any of them, both with PyTorch; windows also in the
backend that routers run in, without groups. Kernels of the papers are not measured. The same points measured an hour
apart differed by up to 40% where a call takes tens of milliseconds.

Pairs that are known beforehand, and random features, take the same time whatever is read, so normal tensors do:

```bash
focus bench --baseline all {random}
focus bench --baseline sparq --baseline quest --share 0.256 {random}
```

{baseline_setting(baselines)}

{fixed_table(baselines)}

What is chosen by content is timed on heads of the model while it reads a text, at a quarter, half and three quarters of
its layers and heads: there neighbours want the same keys more than among random tensors, where the commands above
measured the last column. "Speed-up" is that of the heads together. Choosing is reference code, which ranks every key
for every query also where the method ranks blocks. LSH sampling is fitted on 2,048 other tokens and keeps another share
than it is asked for, so it was asked for more of them.

```bash
{by_content}
```

{baseline_setting(reading)}

{content_table(reading, baselines)}

## The whole model

```bash
focus bench --model default --out bench-model.json
```

{model["model"]["name"]}, routers {measured["routers"]}, w = {measured["config"]["window"]}, {measured["dtype"]};
{model["machine"]["device"]}, {model["machine"]["threads"]} threads, torch {made["versions"]["torch"]}, transformers
{made["versions"]["transformers"]}, {made["date"][:10]}. Reading: median of {measured["measured"]["repetitions"]} runs.
Writing: median of {measured["measured"]["steps"]} tokens after a cache of that length, filled under
k = {measured["measured"]["top_k"][0]}; past the model's own positions only the time means anything. The text is
{model["data"][0]["name"]}, repeated to length. "Kept" is the share of causal pairs when reading, of the keys that the
written token reads when writing; memory is the peak beyond what was held before, key/value cache included. The logit
error is against the same routing through the reference backend.

{model_table(model)}
"""
    (ROOT / "docs" / "speed.md").write_text(text, encoding="utf-8")
    readme = ROOT / "README.md"
    pattern = re.compile(f"{re.escape(MARKS[0])}.*{re.escape(MARKS[1])}", re.DOTALL)
    block = f"{MARKS[0]}\n{readme_table(kernel)}\n{MARKS[1]}"
    readme.write_text(pattern.sub(lambda _: block, readme.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
