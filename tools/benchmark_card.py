"""Write docs/tables/benchmarks.md and the figures of docs/benchmarks.md from the recorded runs of `focus harness`.

    python tools/benchmark_card.py [--check]

Every figure comes from `data/results/benchmarks-smollm2-135m-k8.json`, and those about retrieval from
`data/results/retrieval-*.json`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cards
import numpy as np
from cards import ROOT, Pages, listed, read, read_if_there, table
from scipy import stats

from focus_core.evaluation.compare import MIN_BLOCKS

TOOL = "benchmark_card.py"
RECORD = "benchmarks-smollm2-135m-k8.json"
RETRIEVAL = "retrieval-smollm2-135m-narrow64.json"
LONG_RETRIEVAL = ("retrieval-8192.json", "retrieval-8192-seed-1.json")
"""The longest lists that the model can read, with the questions of two seeds."""
OTHER_RETRIEVAL = "retrieval-qwen.json"
"""On another model."""
PARTS = {
    RETRIEVAL: "the default",
    **dict.fromkeys(LONG_RETRIEVAL, "the default"),
    "retrieval-neither.json": "neither",
    "retrieval-seed-1.json": "the default",
    "retrieval-neither-seed-1.json": "neither",
}
"""The default, and routers with neither directions of spread nor heads that recall, with the questions of two seeds."""
ROUTINGS = {"off": "untouched", "soft": "soft gate", "hard-k1": "hard, k = 1", "hard-k2": "hard, k = 2"}
METRICS = {"acc": "accuracy", "gold_log_probability": "log-likelihood"}
"""What retrieval is judged by."""
EXPOSED = 0.1
"""The share of distant pairs from which on routing can matter to an item."""


def gap(found: dict[str, float] | None) -> str:
    """A difference with its interval."""
    if found is None:
        return ""
    if found["changed"] == 0:
        return "0, every item equal"
    return cards.interval_of(found)


def likelihood(row: dict[str, Any]) -> dict[str, float] | None:
    """The difference in log-likelihood of the right answer, where there is one."""
    gaps = row.get("differences", {})
    return gaps.get("gold_log_probability", gaps.get("log_likelihood"))


def full_table(rows: list[dict[str, Any]]) -> str:
    """Scores with exposure and differences, every routing."""
    columns = (
        "task", "n", "routing", "distant pairs", "removed", "metric", "score", "minus untouched (95%)",
        "log-likelihood minus untouched (95%)", "same choice",
    )  # fmt: skip
    lines = [
        (
            row["task"],
            f"{row['items_scored']}",
            ROUTINGS[row["setting"]],
            f"{row['exposure']['distant_share']:.1%}",
            f"{row['exposure']['removed_share']:.1%}",
            row["headline"],
            f"{row['metrics'][row['headline']]:.3f}",
            gap(row.get("differences", {}).get(row["headline"])),
            gap(likelihood(row)),
            f"{row['same_choice']:.0%}" if "same_choice" in row else "",
        )
        for row in rows
    ]
    return table(columns, lines)


def scores_table(rows: list[dict[str, Any]]) -> str:
    """One line for each task: exposure, and the score under each routing."""
    found = {(row["task"], row["setting"]): row for row in rows}
    lines = []
    for task in dict.fromkeys(row["task"] for row in rows):
        one = found[task, "hard-k1"]
        scores = (found[task, setting]["metrics"][one["headline"]] for setting in ("off", "hard-k1", "hard-k2"))
        lines.append(
            (
                task,
                f"{one['items_scored']}",
                f"{one['exposure']['distant_share']:.0%}",
                f"{one['exposure']['removed_share']:.0%}",
                *(f"{score:.2f}" for score in scores),
            )
        )
    return table(("task", "items", "distant pairs", "removed, k = 1", "untouched", "k = 1", "k = 2"), lines)


def counts(rows: list[dict[str, Any]], exposed: bool) -> dict[str, int]:
    """Rows of hard routing by exposure: how many, and how many intervals of score and log-likelihood exclude zero."""
    chosen = [row for row in rows if row["mode"] == "hard" and (row["exposure"]["distant_share"] >= EXPOSED) == exposed]
    scored = [row["differences"][row["headline"]] for row in chosen]
    fine = [found for row in chosen if (found := likelihood(row)) is not None]
    return {
        "rows": len(chosen),
        "outside": sum(cards.direction(found) != 0 for found in scored),
        "fine": len(fine),
        "fine_lower": sum(cards.direction(found) < 0 for found in fine),
        "fine_higher": sum(cards.direction(found) > 0 for found in fine),
    }


def pairs(records: Sequence[dict[str, Any]], missed: bool | None = None, who: str = "the default") -> str:
    """Retrieval of one of many pairs: right answers of routers at every length, and what is significant.

    Args:
        records: of lists of different lengths.
        missed: only lengths at which the routers miss something, see `misses`, or only the others; None for all.
        who: answers with the routers.

    Returns:
        Sentences; empty for no length.
    """
    found = {tokens: rows for tokens, rows in _pairs(records).items() if missed is None or misses(*rows) == missed}
    by_items: dict[int, list[int]] = {}
    for tokens, (off, _) in found.items():
        by_items.setdefault(off["items_scored"], []).append(tokens)
    told = []
    for items, lengths in by_items.items():
        right = [listed([_right(found[tokens][mode]) for tokens in lengths]) for mode in (1, 0)]
        told.append(
            f"Over lists of {_tokens(lengths)} tokens {who} answers {right[0]} of {items} questions rightly, the "
            f"untouched model {right[1]}."
        )
    same = " The difference is not significant (95%)." if any(misses(*rows) for rows in found.values()) else ""
    return " ".join(told) + (_lower(found) or same)


def retrievals() -> list[dict[str, Any]]:
    """The records of what the default finds, the longest lists last."""
    return [found for name in (RETRIEVAL, *LONG_RETRIEVAL) if (found := read_if_there(name)) is not None]


def _pairs(records: Sequence[dict[str, Any]]) -> dict[int, tuple[dict[str, Any], dict[str, Any]]]:
    """The rows of the untouched model and of the routers, by tokens of a list; those of several seeds as one."""
    found: dict[int, dict[str, list[dict[str, Any]]]] = {}
    for row in (row for record in records for row in record["results"]):
        name, _, tokens = row["task"].partition("_")
        if name == "pairs":
            found.setdefault(int(tokens), {}).setdefault(row["mode"], []).append(row)
    return {tokens: (_joined(found[tokens]["off"]), _joined(found[tokens]["hard"])) for tokens in sorted(found)}


def _joined(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Rows of one task with the questions of several seeds, as one row of all of their questions."""
    if len(rows) == 1:
        return rows[0]
    items = [row["items_scored"] for row in rows]
    found = {
        "items_scored": sum(items),
        "metrics": {"acc": float(np.average([row["metrics"]["acc"] for row in rows], weights=items))},
    }
    if all("differences" in row for row in rows):
        gaps = {metric: [row["differences"][metric] for row in rows] for metric in METRICS}
        found["differences"] = {metric: pooled(each, items) for metric, each in gaps.items()}
    return found


def pooled(gaps: Sequence[dict[str, float]], items: Sequence[int]) -> dict[str, Any]:
    """The mean difference over all items and its 95% interval by Student's t, from those of parts of the items.

    An interval and its number of items tell the variance, so this is the interval of all items to rounding.

    Args:
        gaps: ``difference``, ``low`` and ``high`` of each part.
        items: of each part, 2 at least.
    """
    counts, means = np.asarray(items, float), np.asarray([gap["difference"] for gap in gaps])
    halves = np.asarray([gap["high"] - gap["low"] for gap in gaps]) / 2
    variances = (halves / stats.t.ppf(0.975, counts - 1)) ** 2 * counts
    total, mean = counts.sum(), np.average(means, weights=counts)
    squares = ((counts - 1) * variances + counts * (means - mean) ** 2).sum()
    half = stats.t.ppf(0.975, total - 1) * np.sqrt(squares / (total - 1) / total)
    low, high = float(mean - half), float(mean + half)
    return {"difference": float(mean), "low": low, "high": high, "established": low > 0 or high < 0}


def misses(off: dict[str, Any], hard: dict[str, Any]) -> bool:
    """Whether routers find more than one item less than the untouched model, or significantly less."""
    fewer = (off["metrics"]["acc"] - hard["metrics"]["acc"]) * off["items_scored"]
    return fewer > 1.5 or any(cards.direction(hard["differences"][metric]) < 0 for metric in METRICS)


def _lower(found: dict[int, tuple[dict[str, Any], dict[str, Any]]]) -> str:
    """What of the default is significantly worse, and at which lengths; empty for nothing."""
    told: dict[str, list[str]] = {}
    for metric, what in METRICS.items():
        where = [tokens for tokens, (_, hard) in found.items() if cards.direction(hard["differences"][metric]) < 0]
        if where:
            told.setdefault("" if len(where) == len(found) else f" at {_tokens(where)}", []).append(what)
    if not told:
        return ""
    lower = listed([f"{listed(what)}{at}" for at, what in told.items()])
    several = len([what for each in told.values() for what in each]) > 1
    return f" By 95% intervals {lower} {'are' if several else 'is'} lower."


def _tokens(lengths: list[int]) -> str:
    return listed([f"{tokens:,}" for tokens in lengths])


def _right(row: dict[str, Any]) -> str:
    """How many items were answered rightly."""
    return f"{round(row['metrics']['acc'] * row['items_scored'])}"


def answer(rows: list[dict[str, Any]], retrieved: Sequence[dict[str, Any]]) -> str:
    """The first lines of docs/benchmarks.md."""
    short, long = counts(rows, exposed=False), counts(rows, exposed=True)
    items = [row["items_scored"] for row in rows]
    changed = short["outside"] + long["outside"]
    return (
        f"{pairs(retrieved)}\n"
        "On other benchmarks only the published form, routers per layer, is measured. There, in "
        f"{changed or 'none'} of {short['rows'] + long['rows']} comparisons did the score change significantly, but "
        f"each has only {min(items)} to {max(items)} items.\n"
        f"In {short['rows']} of them fewer than {EXPOSED:.0%} of the pairs are distant, so routing could hardly change "
        "anything.\n"
        f"The log-likelihood of the right answer is significantly lower in {long['fine_lower']} of the {long['fine']} "
        f"comparisons where routing can matter, and higher in {long['fine_higher']}."
    )


def needles(rows: list[dict[str, Any]]) -> str:
    """Accuracy by depth of the needle."""
    found = [row for row in rows if "by_depth" in row]
    depths = list(found[0]["by_depth"])
    lines = [
        (row["task"], ROUTINGS[row["setting"]], *(f"{row['by_depth'][depth]:.2f}" for depth in depths)) for row in found
    ]
    return table(("task", "routing", *(f"depth {depth}" for depth in depths)), lines)


def retrieval(record: dict[str, Any]) -> str:
    """What the default routers still find, item by item beside the untouched model."""
    rows = record["results"]
    untouched = {row["task"]: row for row in rows if row["mode"] == "off"}
    lines = []
    for row in rows:
        if row["mode"] == "off":
            continue
        gaps, items = row["differences"], row["items_scored"]
        right = (round(each["metrics"]["acc"] * items) for each in (untouched[row["task"]], row))
        lines.append(
            (
                row["task"],
                f"{items}",
                f"{row['exposure']['removed_share']:.0%}",
                *(f"{number}" for number in right),
                gap(gaps["acc"]),
                gap(gaps["gold_log_probability"]),
            )
        )
    columns = (
        "task", "items", "pairs removed", "right, untouched", "right, routed", "accuracy minus untouched (95%)",
        "log-likelihood minus untouched (95%)",
    )  # fmt: skip
    return f"{table(columns, lines)}\n\n{where(record)} {intervals(rows)}\n\n```bash\n{command(record)}\n```"


def command(record: dict[str, Any]) -> str:
    """How retrieval was measured, with the questions of seed 0."""
    settings, name = record["settings"], record["model"]["name"]
    model = f"--model {name} " if name.endswith(".gguf") else ""
    tasks = settings["limits"]
    filler = f"--filler {settings['filler'][0]['name']} " if any(task.startswith("needle") for task in tasks) else ""
    return f"focus harness {model}--hub {filler}{' '.join(f'-t {task}={count}' for task, count in tasks.items())}"


def parts(records: dict[str, dict[str, Any]]) -> str:
    """The default and routers that lack parts of it, on the same lists of pairs; records by file name."""
    lines, made_by = [], {}
    for file, record in records.items():
        rows = [row for row in record["results"] if row["task"].startswith("pairs_")]
        untouched = {row["task"]: row for row in rows if row["mode"] == "off"}
        name, settings = PARTS[file], record["settings"]
        made_by[name] = f"{name} is {settings['routers']}"
        for row in rows:
            if row["mode"] != "off":
                right = (f"{_right(each)}" for each in (untouched[row["task"]], row))
                gaps = (gap(row["differences"][metric]) for metric in ("acc", "gold_log_probability"))
                lines.append((row["task"], f"{settings['seed']}", name, f"{row['items_scored']}", *right, *gaps))
    lines.sort(key=lambda line: (line[1], int(line[0].partition("_")[2])))
    columns = (
        "task", "seed", "routers", "items", "right, untouched", "right", "accuracy minus untouched (95%)",
        "log-likelihood minus untouched (95%)",
    )  # fmt: skip
    told = ", ".join(made_by.values())
    return f"{table(columns, lines)}\n\nOf the routers, {told}. {intervals(records[RETRIEVAL]['results'])}"


def intervals(rows: list[dict[str, Any]]) -> str:
    """The kind of intervals in the record: older ones have percentiles."""
    gaps = [gap for row in rows for gap in row.get("differences", {}).values()]
    if all("established" in gap for gap in gaps):
        how = "95% intervals by Student's t"
        few = f"Under {MIN_BLOCKS} items nothing is established."
    else:
        how = "95% percentile bootstrap intervals (2,000 resamples)"
        few = f"Under {MIN_BLOCKS} items such an interval excludes a true zero too often."
    return f"Differences are paired over the same items, with {how}, not corrected for the number of comparisons. {few}"


def where(record: dict[str, Any]) -> str:
    """Model, settings, versions, device and date in one paragraph."""
    settings, made = record["settings"], record["made"]
    config, model, routers = settings["config"], record["model"], Path(settings["routers_name"]).name
    return (
        f"{model['name']} (revision {model['revision']}), routers {routers} "
        f"({settings['routers']}), K = {config['num_groups']}, w = {config['window']}, {config['sink_tokens']} sinks, "
        f"balance {config['balance']}, seed {settings['seed']}, tasks from {settings['source']}; lm-eval "
        f"{record['harness']['lm_eval']}, torch {made['versions']['torch']}, transformers "
        f"{made['versions']['transformers']}, {made['device']}, float32, {made['date'][:10]}."
    )


def pages() -> Pages:
    """Everything that this tool makes."""
    record = read(RECORD)
    rows, made = record["results"], {}
    limits = " ".join(f"-t {name}={count}" for name, count in record["settings"]["limits"].items())
    cards.page(
        made,
        "benchmarks.md",
        TOOL,
        f"Benchmark scores of {record['model']['name']}, routers per layer",
        f"```bash\nfocus harness -r smollm2-135m-k8 --data bench/ {limits}\n```",
        where(record),
        intervals(rows),
        full_table(rows),
        "## Needles by depth",
        "Chance is 0.25.",
        needles(rows),
    )
    doc = ROOT / "docs" / "benchmarks.md"
    cards.fill(made, doc, "answer", answer(rows, retrievals()))
    cards.fill(made, doc, "scores", scores_table(rows))
    first = [found for name in (RETRIEVAL, LONG_RETRIEVAL[0]) if (found := read_if_there(name)) is not None]
    cards.fill(made, doc, "retrieval", "\n\n".join(map(retrieval, first)))
    if (other := read_if_there(OTHER_RETRIEVAL)) is not None:
        told = pairs([other], who="Qwen2.5-Coder with its routers")
        cards.fill(made, doc, "other", f"{told}\n\n{retrieval(other)}")
    cards.fill(made, doc, "parts", parts({file: found for file in PARTS if (found := read_if_there(file)) is not None}))
    return made


if __name__ == "__main__":
    cards.main(pages)
