"""Write docs/tables/speed-*.md and the figures of docs/speed.md from recorded benchmarks.

    python tools/speed_card.py [--check]

Every figure comes from `data/results/bench-*.json` (focus bench).
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import cards
import narrow_speeds
from cards import ROOT, Pages, read, read_if_there, records, table
from speed_tables import (
    OLDER,
    PAST,
    baseline_setting,
    baselines_table,
    kernel_table,
    length,
    model_summary,
    model_table,
    routing_table,
    setting,
)

from focus_core.baselines import BASELINES, METHODS
from focus_core.bench.routing import choosing_seconds
from focus_core.frontier.speeds import distant_share, joint_speedup, with_choice
from focus_core.results import machine_of, made_of

TOOL = "speed_card.py"
MISSING = "Not measured yet."
NO_UNITS = "-xeon-no-amx"
OLDER_EPYC = "-epyc-25-avx512"
"""How records of the Xeon without matrix units end."""
FOLDED = ("bench-baselines-epyc-26.json", "bench-baselines-epyc.json", "bench-baselines-xeon.json")
"""Baselines timed with query heads folded, on three CPUs."""


def lengths_table(record: dict[str, Any]) -> str:
    """Speed-up over full attention by length, with the bound in brackets, and the setting."""
    points = {
        (point["tokens"], point["num_groups"], point["top_k"]): point
        for point in record["points"]
        if point["dtype"] == "bfloat16"
    }
    routings = sorted({key[1:] for key in points})
    rows = [
        (
            length(tokens),
            *(_speeds(points[tokens, *routing]) for routing in routings),
        )
        for tokens in sorted({key[0] for key in points})
    ]
    worst = max(point["error_output"] for point in points.values())
    return (
        table(("tokens", *(f"K = {groups}, k = {top_k}" for groups, top_k in routings)), rows)
        + "\n\nSpeed-up of one attention call over PyTorch's full causal flash attention, bfloat16: attention only / "
        "choosing included. In brackets the bound: 1 / share of pairs kept. Largest deviation from the float32 "
        f"definition: {worst:.0e}. {PAST} {setting(record)}"
    )


def _speeds(point: dict[str, Any]) -> str:
    """Attention only, choosing included, and the bound."""
    both = with_choice(point)
    return f"{point['speedup']:.2f}{'' if both is None else f' / {both:.2f}'} (of {point['bound']:.2f})"


def heads_summary(record: dict[str, Any]) -> str:
    """Routers per head at the shares that the trained ones keep of books: 8 groups, k = 1 to 3, and 16, k = 1."""
    wanted = ((8, 1, 0.18), (8, 2, 0.315), (8, 3, 0.45), (16, 1, 0.103))
    found = {(_kind(p), p["tokens"]): p for p in record["points"]}
    sizes = sorted({tokens for kind, tokens in found if kind in wanted})
    rows = []
    for kind in wanted:
        points = {tokens: found[kind, tokens] for tokens in sizes if (kind, tokens) in found}
        kept = (distant_share(p["kept_share"], p["tokens"], record["settings"]["window"]) for p in points.values())
        shares = " and ".join(dict.fromkeys(f"{each:.0%}" for each in kept))
        cells = (_speeds(points[tokens]) if tokens in points else "" for tokens in sizes)
        rows.append((f"{kind[0]}", f"{kind[1]}", shares, *cells))
    columns = ("K", "k", "distant pairs kept", *map(length, sizes))
    text = f"At these lengths, attention only / choosing included (of the bound). {PAST} {setting(record)}"
    return f"{table(columns, rows)}\n\n{text}"


def routing_cost(record: dict[str, Any]) -> str:
    """One sentence on the time of routing beside that of attention."""
    point = next(
        p for p in record["points"] if (p["tokens"], *_kind(p), p["dtype"]) == (32768, 8, 1, None, "float32")
    )  # fmt: skip
    parts = choosing_seconds(point["routing_s"]) * 1e3
    return (
        f"At 32,768 tokens calibrated routing takes {parts:.0f} ms a layer, and the attention call "
        f"{point['sparse_s']['median'] * 1e3:,.0f} ms (K = 8, k = 1, float32)."
    )


def _kind(point: dict[str, Any]) -> tuple[int, int, float | None]:
    return point["num_groups"], point["top_k"], point.get("share")


def folded_table(narrow: dict[str, Any]) -> str:
    """Baselines with folded query heads beside narrow groups of the same CPU, at each length, the fastest first."""
    record = next(each for each in map(read, FOLDED) if machine_of(each)["device"] == machine_of(narrow)["device"])
    sizes, found = record["settings"]["sizes"], {}
    for size in sizes:
        ours = next(each for each in narrow["points"] if each["tokens"] == size and each["dtype"] == "float32")
        found["**narrow groups, the default**", size] = ours["speedup"], ours["speedup_with_choice"]
    for name in record["settings"]["baselines"]:
        for size in sizes:
            points = [point for point in record["points"] if (point["baseline"], point["tokens"]) == (name, size)]
            both = (joint_speedup(point[each] for point in points) for each in ("speedup", "speedup_with_choice"))
            found[METHODS[name].label, size] = tuple(both)
    methods = sorted(dict.fromkeys(label for label, _ in found), key=lambda label: -found[label, sizes[-1]][1])
    rows = [(label, *(" / ".join(f"{each:.2f}" for each in found[label, size]) for size in sizes)) for label in methods]
    share = record["settings"]["shares"][0]
    return (
        f"{table(('method', *(f'{size:,} tokens' for size in sizes)), rows)}\n\nSpeed-up over full attention, choosing "
        f"excluded / included, at {share:.0%} of the distant pairs. LSH sampling keeps another share, and random "
        f"features estimate all pairs. {baseline_setting(record)}"
    )


def _folded_command(record: dict[str, Any]) -> str:
    """The command of a record with folded query heads."""
    settings = record["settings"]
    chosen = [
        f"--setting {name}:{key}={value:g}" for name, found in settings["tuned"].items() for key, value in found.items()
    ]
    names = [] if set(settings["baselines"]) >= set(BASELINES) else settings["baselines"]
    learned = settings["source"].get("learned")
    train = [f"--train TRAIN --learned-tokens {learned['tokens']}"] if learned else []
    sizes = " ".join(f"--size {size}" for size in settings["sizes"])
    shares = " ".join(f"--share {share}" for share in settings["shares"])
    text = settings["source"]["data"][0]["name"]
    measured = f"--model default --data {text} --repetitions {settings['repetitions']} --out bench-baselines.json"
    return " ".join(("focus bench baseline", *names, sizes, shares, *train, *chosen, measured))


def _wanted(points: list[dict[str, Any]]) -> list[str]:
    """The options that ask for these points of baselines, one line for each set of shares."""
    shares: dict[str, dict[float, None]] = defaultdict(dict)
    for point in points:
        if point["share"] is not None:
            shares[point["baseline"]][point["share"]] = None
    common = [share for share in next(iter(shares.values())) if all(share in own for own in shares.values())]
    names = " ".join(shares)
    found = [f"{names} {' '.join(f'--share {share}' for share in common)}"]
    for extra in dict.fromkeys(tuple(share for share in own if share not in common) for own in shares.values()):
        if extra:
            names = " ".join(
                name for name, own in shares.items() if tuple(share for share in own if share not in common) == extra
            )
            found.append(f"{names} {' '.join(f'--share {share}' for share in extra)}")
    return found


def _routings(points: list[dict[str, Any]]) -> list[str]:
    """The options that ask for these points, one line for equal groups and one for unequal ones."""
    kinds = dict.fromkeys((point["num_groups"], point["top_k"], point.get("share")) for point in points)
    equal = [f"--routing {groups}/{k}" for groups, k, share in kinds if share is None]
    unequal = [f"--routing {groups}/{k} --share {share}" for groups, k, share in kinds if share is not None]
    return [" ".join(part) for part in (equal, unequal) if part]


def tables() -> Pages:
    """The pages with every measured point."""
    kernel, heads = read("bench-cpu.json"), read("bench-heads-cpu.json")
    folded = [read(name) for name in FOLDED]
    baselines, reading = read("bench-baselines-cpu.json"), read("bench-baselines-heads-cpu.json")
    made_pages: Pages = {}
    cards.page(
        made_pages,
        "speed-attention.md",
        TOOL,
        "Speed of one attention call, routers per layer",
        f"```bash\n{KERNEL_COMMANDS}\n```",
        setting(kernel),
        '"Error" is the largest deviation from the float32 definition, over queries spread over the text. Working '
        "memory is the peak beyond inputs and output. The bound is 1 / share of causal pairs computed.",
        kernel_table(kernel),
        PAST,
        "## Time of routing itself",
        'One layer of the default model\'s width, float32. "Choosing included" adds it, without Sinkhorn.',
        routing_table(kernel),
    )
    narrow, xeon, newer, narrower = (read(f"bench-narrow{each}.json") for each in ("", "-xeon", NO_UNITS, "-epyc-25"))
    cards.page(
        made_pages,
        "speed-narrow.md",
        TOOL,
        "Speed of one attention call, narrow groups",
        f"```bash\n{NARROW_COMMANDS}\n```",
        setting(narrow),
        '"Attention only" includes the choice of pages; "choosing included" adds the assignment of keys to groups. '
        "There is no k: queries read a share of the keys.",
        kernel_table(narrow),
        PAST,
        "## The whole model",
        narrow_speeds.model_table(read("bench-model-narrow.json")),
        narrow_speeds.model_table(read("bench-model-narrow-bf16.json")),
        "## Another CPU",
        "In bfloat16 its matrix units (AMX) do full attention, and the products of narrow groups. These are of the "
        "default before directions of spread.",
        narrow_speeds.attention_table(xeon),
        narrow_speeds.model_table(read("bench-model-narrow-xeon.json")),
        narrow_speeds.model_table(read("bench-model-narrow-bf16-xeon.json")),
        "## An Intel Xeon whose matrix units are hidden",
        "A virtual machine that offers its guests AVX-512, and no AMX. In bfloat16 full attention is slower there than "
        "in float32.",
        narrow_speeds.attention_table(newer),
        narrow_speeds.model_table(read(f"bench-model-narrow{NO_UNITS}.json")),
        "## An EPYC of an older family, with AVX-512",
        narrow_speeds.attention_table(read(f"bench-narrow{OLDER_EPYC}.json")),
        narrow_speeds.model_table(read(f"bench-model-narrow{OLDER_EPYC}.json")),
        narrow_speeds.model_table(read(f"bench-model-narrow-bf16{OLDER_EPYC}.json")),
        "## A CPU without AVX-512",
        narrow_speeds.attention_table(narrower),
        narrow_speeds.model_table(read("bench-model-narrow-epyc-25.json")),
        "## What the last changes gained",
        "On the EPYC without AVX-512: before it the sums of a step were more than its 16 registers hold, and the "
        "readers of a page were packed through memory.",
        narrow_speeds.gained(read("earlier/bench-narrow-epyc-25-before.json"), narrower),
        "On the Xeon: before it the readers of each page were lists, written far apart, an exponential took a third "
        "more steps, and each step counted references to forty arrays.",
        narrow_speeds.gained(read("earlier/bench-narrow-xeon-before.json"), xeon),
        "On an older EPYC, where the change above is not measured: before it the loops took the fields of arrays in "
        "each turn, their vectors lay across cache lines, and keys were grouped in ten passes and scattered.",
        narrow_speeds.gained(*(read(f"earlier/bench-narrow-epyc-{each}.json") for each in ("before", "after"))),
    )
    options = "--repetitions 3 --size 8192 --size 32768 --dtype float32"
    commands = (f"focus bench attention --router head {options} {each} --out bench-heads.json"
                for each in _routings(heads["points"]))  # fmt: skip
    cards.page(
        made_pages,
        "speed-heads.md",
        TOOL,
        "Speed of one attention call, routers per head",
        "Keys are in one of K groups of each key/value head, and queries read k of them. Groups of trained routers "
        "are unequal and keep more pairs than equal ones. Random groups that keep the same share of the distant pairs "
        "stand for them.",
        "```bash\n" + "\n".join(commands) + "\n```",
        setting(heads),
        kernel_table(heads),
        PAST,
    )
    random = f"--repetitions {baselines['settings']['repetitions']} --out bench-baselines.json"
    read_options = f"--model default --data {reading['settings']['source']['data'][0]['name']}"
    read_options += f" --repetitions {reading['settings']['repetitions']} --out bench-baselines-heads.json"
    by_content = "\n".join(f"focus bench baseline {wanted} {read_options}" for wanted in _wanted(reading["points"]))
    cards.page(
        made_pages,
        "speed-baselines.md",
        TOOL,
        "Speed of published baselines, as executed here",
        BASELINE_NOTE,
        "## With query heads folded, as routed calls have them",
        "Heads of the model read a text, as below. Settings are those that were tuned for the frontier.",
        f"```bash\n{_folded_command(folded[0])}\n```",
        *(part for record in folded for part in (baseline_setting(record), baselines_table(record))),
        "## Patterns known beforehand, and random features",
        "Their time does not depend on the text, so normal tensors serve.",
        f"```bash\nfocus bench baseline all {random}\nfocus bench baseline sparq quest --share 0.256 {random}\n```",
        baseline_setting(baselines),
        baselines_table(baselines, by_content=False),
        "## On heads of a model that reads a text",
        CONTENT_NOTE,
        f"```bash\n{by_content}\n```",
        baseline_setting(reading),
        baselines_table(reading),
        PAST,
    )
    models = records("bench-model*.json").values()
    parts = (part for model in models for part in (model_setting(model), model_table(model)))
    cards.page(
        made_pages,
        "speed-model.md",
        TOOL,
        "Speed of the whole model: prefill and decode",
        "```bash\nfocus bench model -r smollm2-135m-k8 --out bench-model.json\n```",
        *parts,
        r"\* Past the model's positions: only the time means anything.",
    )
    return made_pages


def model_setting(record: dict[str, Any]) -> str:
    """A paragraph on the model, the machine and the columns."""
    made, measured = made_of(record), record["settings"]
    return (
        f"{record['model']['name']}, routers {measured['routers']}, w = {measured['config']['window']}, "
        f"{measured['dtype']}; {made['device']}, {made['threads']} threads, "
        f"torch {made['versions']['torch']}, transformers {made['versions']['transformers']}, {made['date'][:10]}. "
        f"Text: {record['data'][0]['name']}, repeated to length.\n\n"
        f"Prefill: median of {measured['measured']['repetitions']} runs. Decode: median of "
        f"{measured['measured']['steps']} tokens after a cache of that length, filled under "
        f"{_filled(measured)}. "
        '"Kept" is the share of causal pairs in prefill, and of the keys that the new token reads in decode. Memory is '
        "the peak beyond what was held before, key/value cache included. The logit error is against the same routing "
        "through the reference backend."
    )


def _filled(settings: dict[str, Any]) -> str:
    """The budget under which a cache was filled: that of the first k, or of each routing for routers with a share."""
    share = settings["config"].get("read_share")
    return f"k = {settings['measured']['top_k'][0]}" if share is None else "each routing for itself"


KERNEL_COMMANDS = """focus bench attention --out bench.json
focus bench attention --size 8192 --size 32768 --routing 8/3 --routing 8/8 --dtype float32 --out bench.json"""

NARROW_COMMANDS = """focus bench attention --router narrow --size 512 --size 1024 --size 1536 --size 2048 \\
    --size 4096 --size 8192 --size 16384 --size 32768 --repetitions 3 --out bench-narrow.json
focus bench model --data BOOK --routers smollm2-135m-narrow64 --repetitions 2 --out bench-model-narrow.json
focus bench model --data BOOK --routers smollm2-135m-narrow64 --dtype bfloat16 --repetitions 2 \\
    --out bench-model-narrow-bf16.json"""

BASELINE_NOTE = f"""Two speed-ups stand beside each other: attention only, and choosing the pairs included. Where a
record says "{OLDER}", the speed-ups are understated. Routed calls fold the query heads of a
key/value head into one, and those calls did not. Do not set such rows beside routed ones.

Each baseline runs over the pairs that it selects, exactly, in the fastest of several ways, each tried twice. The ways
are tiles of 16, 128 or 512 queries with the keys that any of them keeps, and blocks of 16 keys with the queries that
keep any of them. Windows also run in the backend of the routers, without groups. Kernels of the papers are not
measured. The same points an hour apart differed by up to 40% where a call takes tens of milliseconds."""

CONTENT_NOTE = """They are timed in prefill of a text, at a quarter, half and three quarters of the layers and heads.
Neighbouring queries want the same keys there, more than among random tensors. Speed-ups are those of the heads
together. Older records time the selection of reference code, which ranks every key for every query. LSH sampling keeps
another share than it is asked for."""


def pages() -> Pages:
    """Everything that this tool makes."""
    kernel, heads, model = read("bench-cpu.json"), read("bench-heads-cpu.json"), read("bench-model-cpu.json")
    narrow, whole = (read(f"bench-{name}.json") for name in ("narrow", "model-narrow"))
    caches = [read(name) for name in narrow_speeds.CACHES]
    made = tables()
    doc = ROOT / "docs" / "speed.md"
    cards.fill(made, doc, "answer", narrow_speeds.answer(narrow, whole))
    cards.fill(made, doc, "narrow", narrow_speeds.attention_table(narrow))
    cards.fill(made, doc, "narrow-model", narrow_speeds.model_table(whole))
    qwen = read_if_there("bench-model-qwen.json")
    cards.fill(made, doc, "qwen", MISSING if qwen is None else narrow_speeds.model_table(qwen))
    busy = read_if_there("busy-narrow.json")
    cards.fill(made, doc, "busy", MISSING if busy is None else narrow_speeds.busy_table(busy))
    cards.fill(made, doc, "switch", narrow_speeds.switch(whole))
    cards.fill(made, doc, "bfloat", narrow_speeds.in_halves(read("bench-model-narrow-bf16.json"), whole))
    others = [read(f"bench-narrow{each}.json") for each in ("-xeon", NO_UNITS, OLDER_EPYC, "-epyc-25")]
    cards.fill(made, doc, "missed", narrow_speeds.missed(narrow, others[1:], whole, *caches))
    cards.fill(made, doc, "cache", narrow_speeds.cache_table(caches[0]))
    cards.fill(made, doc, "halves", narrow_speeds.cache_size(caches[1]))
    cards.fill(made, doc, "folded", folded_table(narrow))
    cards.fill(made, doc, "other-cpu", "\n".join(map(narrow_speeds.elsewhere, others)))
    cards.fill(made, doc, "attention", lengths_table(kernel))
    cards.fill(made, doc, "heads", heads_summary(heads))
    cards.fill(made, doc, "model", f"{_model(model)}\n\n{model_summary(model)}")
    cards.fill(made, doc, "routing", routing_cost(kernel))
    return made


def _model(record: dict[str, Any]) -> str:
    """One line on routers and machine of a whole model."""
    made = made_of(record)
    return f"{record['settings']['routers']}, {record['settings']['dtype']}, {made['device']}, {made['date'][:10]}:"


if __name__ == "__main__":
    cards.main(pages)
