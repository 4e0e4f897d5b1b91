"""Write docs/reproduction.md: every published table beside what was measured here.

    python tools/reproduction_card.py

Published figures come from `data/published.json`, measured ones from `data/results/*.json`: what `focus reproduce`
wrote, and where another command measures the same (`focus bench`, `focus align`, `focus lora`, `focus benchmark`), what
that one wrote.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from focus_core.reproduce.experiments.adapters import LORA_TASKS
from focus_core.reproduce.registry import EXPERIMENTS
from focus_core.reproduce.runner import NEEDS, SCHEMA
from workbench.views.quality.record_verdicts import verdict
from workbench.views.quality.records import VIEWS, Record, read

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "data" / "results"
SHARES = ("share", "exposure", "largest", "worst", "stability", "purity", "recall", "attainable", "base_rate")
HIDDEN = ("top_k", "balance", "low", "high", "causal_kept_share", "tokens", "variant", "number", "words_chosen_on")
NAMES = {
    "kept_share": "distant kept",
    "largest_group_share": "largest group",
    "difference": "minus untouched (95%)",
    "speedup_bound": "bound on the speed-up",
    "largest": "largest, probe",
    "worst": "worst layer",
}


def records() -> dict[str, list[dict[str, Any]]]:
    """The records of `focus reproduce` for each experiment, the oldest first."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(RESULTS.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if record.get("schema") == SCHEMA:
            found.setdefault(record["experiment"], []).append(record)
    return {name: sorted(each, key=lambda record: record["made"]["date"]) for name, each in found.items()}


def other(pattern: str) -> list[tuple[str, dict[str, Any]]]:
    """Records of other commands, by file name."""
    paths = sorted(RESULTS.glob(pattern))
    return [(path.name, json.loads(path.read_text(encoding="utf-8"))) for path in paths]


def markdown(columns: list[str], rows: list[list[str]]) -> str:
    """A table."""
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def cell(name: str, value: Any) -> str:
    """One value as text."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if any(word in name for word in SHARES) and isinstance(value, float):
        return f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def setting(row: dict[str, Any]) -> str:
    """Routing, k and balance in one cell."""
    parts = [str(row["routing"]), f"k = {row['top_k']}" if row.get("top_k") else ""]
    parts.append(str(row["balance"]) if row.get("balance") not in (None, "none") else "")
    return ", ".join(part for part in parts if part)


def difference(row: dict[str, Any]) -> str:
    """A difference with its interval."""
    if row.get("difference") is None:
        return ""
    interval = "" if row.get("low") is None else f" [{row['low']:+.2f}, {row['high']:+.2f}]"
    return f"{row['difference']:+.2f}{interval}"


def measured_table(record: dict[str, Any]) -> str:
    """The record's rows; a perplexity never without kept share and largest group."""
    rows = record["results"]
    columns = [name for name in record["columns"] if name not in HIDDEN]
    columns = [name for name in columns if any(row.get(name) is not None for row in rows)]
    special = {"routing": setting, "difference": difference}
    tasks = list(dict.fromkeys(task for row in rows for task in row.get("benchmarks", {})))
    table = []
    for row in rows:
        line = [
            special[name](row) if name in special and row.get(name) is not None else cell(name, row.get(name))
            for name in columns
        ]
        table.append(line + [benchmark(row, task) for task in tasks])
    titles = []
    for task in tasks:
        found = {row["benchmarks"][task].get("items_scored") for row in rows if task in row.get("benchmarks", {})}
        titles.append(f"{task} (n = {', '.join(str(n) for n in found if n is not None)})")
    return markdown([(NAMES.get(name) or name.replace("_", " ")) for name in columns] + titles, table)


LIKELIHOODS = ("gold_log_probability", "log_likelihood")


def scores(record: dict[str, Any]) -> str:
    """How many benchmark scores differ from the untouched model's beyond their interval, adapters and routers apart."""
    counts: dict[tuple[str, str], list[int]] = {}
    for row in record["results"]:
        kind = "hard routing" if row.get("routing") == "hard" else "LoRA"
        for found in row.get("benchmarks", {}).values():
            for name, gap in found.get("differences", {}).items():
                if name in (found["headline"], *LIKELIHOODS):
                    what = "log-likelihoods of the right answer" if name in LIKELIHOODS else "scores"
                    count = counts.setdefault((kind, what), [0, 0, 0])
                    count[0] += 1
                    count[1] += gap["high"] < 0
                    count[2] += gap["low"] > 0
    told = [
        f"{kind}, {low} of {every} {what} below the untouched model beyond their 95% interval and {high} above"
        for (kind, what), (every, low, high) in counts.items()
    ]
    return f"**Benchmarks: {'; '.join(told)}.**" if told else ""


def benchmark(row: dict[str, Any], task: str) -> str:
    """A score, its difference from the untouched model, and its exposure where that was counted."""
    found = row.get("benchmarks", {}).get(task)
    if found is None:
        return ""
    if "differences" not in found:
        from focus_core.harness.tasks import headline

        return f"{found['metrics'][headline(task)]:.3f}"
    gap = found["differences"][found["headline"]]
    moved = (
        f"{gap['difference']:+.3f} [{gap['low']:+.3f}, {gap['high']:+.3f}]" if gap["changed"] else "every item equal"
    )
    text = f"{found['metrics'][found['headline']]:.3f} ({moved})"
    shares = found.get("exposure")
    return text if shares is None else f"{text}, {shares['removed_share']:.0%} of pairs removed"


def command(name: str, record: dict[str, Any] | None) -> str:
    """The command that measures it, with the options of the record where there is one."""
    words = ["focus reproduce", name]
    if record is None:
        words += ["--data books/" if "data" in EXPERIMENTS[name].needs else "", "--held-out book.txt"]
        words += ["--bench bench/" if "bench" in EXPERIMENTS[name].needs else ""]
        return " ".join(word for word in words if word)
    settings, defaults = record["settings"], vars(EXPERIMENTS[name].scale)
    words += [f"--data {text['name']}" for text in settings["data"]]
    words += [f"--held-out {text['name']}" for text in settings["held_out"]]
    words += ["--bench bench/"] * any("benchmarks" in row for row in record["results"])
    tasks = list(record["cells"].get("untouched", {}).get("tasks", ())) if name == "lora" else []
    words += [f"-t {task}" for task in tasks] if not set(tasks) <= set(LORA_TASKS) else []
    models = list(dict.fromkeys(row["model_name"] for row in record["results"] if "model_name" in row))
    words += [f"--model {model}" for model in models] if len(models) > 1 else []
    words += [
        f"--{option.replace('_', '-')} {value}"
        for option, value in settings["scale"].items()
        if value != defaults[option]
    ]
    return " ".join(words)


def differs(published: dict[str, Any] | None, record: dict[str, Any]) -> str:
    """Model, data and scale, published and here."""
    settings, made = record["settings"], record["made"]
    scale = ", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in settings["scale"].items())
    texts = settings["held_out"] or settings["data"]
    seconds = record.get("seconds", {})
    whole = set(seconds) >= set(record["dates"])  # cells of an older version were not timed
    took = f" It took {sum(seconds.values()) / 60:.0f} minutes." if whole else ""
    return (
        (f"Published: {published['setting']}. " if published else "")
        + f"Here: {record['model']['name']} (revision {record['model']['revision']}), "
        f"measured on {', '.join(text['name'] for text in texts) or 'the sample texts'}"
        + (f", trained on {len(settings['data'])} books" if settings["data"] else "")
        + f"; {scale}; seed {settings['seed']}; {made['device']}, {made['threads']} threads, torch "
        f"{made['versions']['torch']}, transformers {made['versions']['transformers']}, {made['date'][:10]}.{took}"
    )


def speed(published: dict[str, Any]) -> str:
    """The shipped speed curves, k = 1."""
    parts = []
    for name, record in other("bench-*.json"):
        if record.get("settings", {}).get("router") == "head":
            continue  # not the published form
        points = [p for p in record.get("points", []) if p.get("top_k") == 1 and "speedup" in p]
        if points:
            rows = [
                [f"{p['tokens']:,}", f"{p['num_groups']}/1", p["dtype"], f"{p['speedup']:.2f}", f"{p['bound']:.2f}",
                 f"{p['kept_share']:.1%}"]
                for p in points
            ]  # fmt: skip
            machine = record["machine"]
            parts += [
                f"Published: {published['setting']}. Here: {machine['device']}, {machine['threads']} threads, torch "
                f"{machine['torch']}, random balanced routing, from `focus bench` (`data/results/{name}`); every point "
                "and k = 2 in [speed.md](speed.md). No GPU was at hand.",
                markdown(["tokens", "K/k", "dtype", "speed-up", "bound", "pairs kept"], rows),
            ]
    return "\n\n".join(parts)


def groups(published: dict[str, Any]) -> str:
    """The counterpart of the group table, from `focus align`."""
    parts = []
    for name, record in other("alignment-*.json"):
        if record["settings"]["config"].get("router") == "head":
            continue  # not the published form; each head is in linguistics.md
        rows = [
            [row["category"], f"{row['layer']}, {row['group']}", f"{row['purity']:.1%}", f"{row['base_rate']:.1%}",
             f"{row['attainable']:.1%}", f"{row['group_share']:.1%}"]
            for row in record.get("published") or []
        ]  # fmt: skip
        if rows:
            texts = ", ".join(text["name"] for text in record["data"])
            parts += [
                f"Published: {published['setting']}. Here: {record['model']['name']}, {texts}, from `focus align` "
                f"(`data/results/{name}`); [linguistics.md](linguistics.md) has what the figures have to beat.",
                markdown(["category", "layer, group", "purity", "base rate", "attainable", "size of group"], rows),
            ]
    return "\n\n".join(parts)


def frontier(published: dict[str, Any]) -> str:
    """Published sparse attentions at the kept share of the routers, from `focus frontier`."""
    parts = []
    for name, record in other("*.json"):
        if not str(record.get("schema", "")).startswith("focus-frontier"):
            continue
        rows = [
            [str(point["label"]), *(cell("share", point.get(key)) for key in ("wanted_share", "kept_share")),
             f"{point['perplexity']:.2f}", cell("share", point.get("largest_group_share"))]
            for point in record["points"]
        ]  # fmt: skip
        settings = record["settings"]
        parts += [
            f"Published: {published['setting']}. Here: {record['model']['name']}, "
            f"{', '.join(text['name'] for text in record['data'])}, T = {settings['length']}, w = "
            f"{settings['window']}, from `focus frontier` (`data/results/{name}`).",
            markdown(["method", "asked to keep", "distant kept", "perplexity", "largest group"], rows),
        ]
    return "\n\n".join(parts)


def adapters(published: dict[str, Any]) -> str:
    """LoRA and benchmarks are on a page of their own."""
    if not other("lora-*.json") and not other("benchmarks-*.json"):
        return ""
    here = "[benchmarks.md](benchmarks.md), from `focus lora` and `focus benchmark`"
    return f"Published: {published['setting']}. Here: {here}."


ELSEWHERE = {"speed": speed, "groups": groups, "retrofit": frontier, "lora": adapters, "alignment": adapters}


def section(name: str, published: dict[str, Any] | None, found: list[dict[str, Any]]) -> str:
    """One experiment: the claim and the published table where there are such, and ours."""
    experiment = EXPERIMENTS[name]
    parts = [f"## {name}: {experiment.title}"]
    if published is None:
        parts.append("Not in the paper: the changes of the recipe that are discussed in [frontier.md](frontier.md).")
    else:
        rows = [["" if value is None else str(value) for value in row] for row in published["rows"]]
        parts += [
            f"**Claim** ({published['source']}): {published['claim']}",
            f"Published, {published['setting']}:",
            markdown(published["columns"], rows),
        ]
    for record in found:
        view = VIEWS[name]
        told = verdict(view.draw, read(Record(name, name, record["made"]["date"], record)), view.metric)
        parts += ["Measured here:", f"**{told}**", scores(record), measured_table(record), differs(published, record)]
        parts += [f"Not run here: {', '.join(record['missing'])}."] if record["missing"] else []
        parts.append(f"```bash\n{command(name, record)}\n```")
    elsewhere = ELSEWHERE[name](published) if published is not None and name in ELSEWHERE else ""
    if elsewhere:
        parts += ["Also:" if found else "Measured here by another command:", elsewhere]
    if not found and not elsewhere:
        needs = " and ".join(NEEDS[need].partition(":")[0] for need in experiment.needs)
        parts.append(f"**Not run here.** The command needs {needs or 'nothing but the model'}.")
    if not found:
        parts.append(f"```bash\n{command(name, None)}\n```")
    return "\n\n".join(part for part in parts if part)


HEAD = """# Published and measured

Written by `python tools/reproduction_card.py`. Every published table or figure is one command, `focus reproduce NAME`;
the same command with other options (`--model`, `--steps`, `--length`, `--device cuda`) runs at other scales. A run goes
on where it stopped when the command is repeated: finished cells of the table are files in its folder. What was too
large for the two cores at hand says "not run here", and nothing stands in for it.

Model, data and scale differ from the published ones in every table, so absolute figures cannot agree; compare
directions and orders. Perplexities stand beside the share of distant pairs that was kept and the largest group (worst
layer), because an unbalanced routing keeps nearly everything and looks good. "sequence" balances over the whole text,
as published, and so sees the future; "calibrated" does not. Intervals are paired over held-out blocks, 95%.
"""


def page() -> str:
    """The whole page."""
    published = json.loads((ROOT / "data" / "published.json").read_text(encoding="utf-8"))["experiments"]
    found = records()
    done = [name for name in EXPERIMENTS if name in found]
    summary = f"Recorded here: {', '.join(done) or 'none'}; by other commands: speed, groups. Source of all published "
    summary += "figures: arXiv 2604.03260."
    sections = [section(name, published.get(name), found.get(name, [])) for name in EXPERIMENTS]
    return "\n\n".join([HEAD.strip(), summary, *sections]) + "\n"


if __name__ == "__main__":
    target = ROOT / "docs" / "reproduction.md"
    partial = target.with_suffix(".md.partial")
    partial.write_text(page(), encoding="utf-8")
    partial.replace(target)
