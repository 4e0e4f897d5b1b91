"""Write docs/benchmarks.md from the recorded runs.

    python tools/benchmark_card.py

Every figure comes from `data/results/benchmarks-*.json` (focus benchmark) and, where there are any, from
`data/results/lora-*.json` (focus lora).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "data" / "results"
ROUTINGS = {"off": "untouched", "soft": "soft gate", "hard-k1": "hard, k = 1", "hard-k2": "hard, k = 2"}


def gap(found: dict[str, float] | None, digits: int = 3) -> str:
    """A difference with its interval."""
    if found is None:
        return ""
    if found["changed"] == 0:
        return "0, every item equal"
    return f"{found['difference']:+.{digits}f} [{found['low']:+.{digits}f}, {found['high']:+.{digits}f}]"


def table(rows: list[dict[str, Any]]) -> str:
    """Scores with exposure and differences, as Markdown."""
    lines = [
        "| task | n | routing | distant pairs | removed | metric | score | minus untouched (95%) "
        "| log-likelihood minus untouched (95%) | same choice |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        metric, shares, gaps = row["headline"], row["exposure"], row.get("differences", {})
        fine = gaps.get("gold_log_probability", gaps.get("log_likelihood"))
        same = f"{row['same_choice']:.0%}" if "same_choice" in row else ""
        lines.append(
            f"| {row['task']} | {row['items_scored']} | {ROUTINGS.get(row['setting'], row['setting'])} | "
            f"{shares['distant_share']:.1%} | {shares['removed_share']:.1%} | {metric} | "
            f"{row['metrics'][metric]:.3f} | {gap(gaps.get(metric))} | {gap(fine)} | {same} |"
        )
    return "\n".join(lines)


def meets_gate(row: dict[str, Any]) -> bool:
    """Whether a tenth of the pairs or more can be removed."""
    return row["exposure"]["distant_share"] >= 0.1


def findings(rows: list[dict[str, Any]]) -> str:
    """What the figures say, counted and not remembered."""
    hard = [row for row in rows if row["mode"] == "hard"]
    lines = []
    for word, chosen in (
        ("under 10%", [row for row in hard if not meets_gate(row)]),
        ("10% or more", [row for row in hard if meets_gate(row)]),
    ):
        scored = [row["differences"][row["headline"]] for row in chosen]
        fine = [
            row["differences"].get("gold_log_probability", row["differences"].get("log_likelihood")) for row in chosen
        ]
        fine = [found for found in fine if found is not None]
        worse = sum(found["high"] < 0 for found in scored)
        better = sum(found["low"] > 0 for found in scored)
        lower = sum(found["high"] < 0 for found in fine)
        undecided = len(scored) - worse - better
        lines.append(
            f"- Where {word} of the pairs are distant ({len(chosen)} rows of hard routing): the score is lower than "
            f"untouched beyond its interval in {worse}, higher in {better}, undecided in "
            f"{undecided}; the log-likelihood is lower beyond its interval in {lower} of {len(fine)}."
        )
    return "\n".join(lines)


def needles(rows: list[dict[str, Any]]) -> str:
    """Accuracy by depth of the needle."""
    found = [row for row in rows if "by_depth" in row]
    if not found:
        return ""
    depths = list(found[0]["by_depth"])
    lines = [
        "| task | routing | " + " | ".join(f"depth {depth}" for depth in depths) + " |",
        "|---" * (2 + len(depths)) + "|",
    ]
    for row in found:
        cells = " | ".join(f"{row['by_depth'][depth]:.2f}" for depth in depths)
        lines.append(f"| {row['task']} | {ROUTINGS.get(row['setting'], row['setting'])} | {cells} |")
    return "## Needles by depth\n\nChance is 0.25.\n\n" + "\n".join(lines) + "\n"


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


def lora(record: dict[str, Any]) -> str:
    """The LoRA comparison."""
    settings, untouched = record["settings"], record["untouched"]
    made = record["made"]
    lines = [
        f"## LoRA, {settings['steps']} steps",
        "",
        f"Adapters on query, key and value projections, {settings['steps']} steps of "
        f"{settings['batch_size']} blocks of {settings['length']} tokens, {len(settings['training_text'])} books; "
        f"perplexity on {settings['blocks']} held-out blocks. Untouched perplexity {untouched['perplexity']:.2f}. "
        f"{made['device']}, torch {made['versions']['torch']}, {made['date'][:10]}.",
        "",
    ]
    if settings["steps"] != 200:
        lines += [
            f"The routers took 200 steps and these adapters {settings['steps']}: no comparison of the two yet.",
            "",
        ]
    names = settings["tasks"]
    lines += ["| adapters | parameters | perplexity | minus untouched (95%) | " + " | ".join(names) + " |"]
    lines += ["|---" * (4 + len(names)) + "|"]
    for row in record["results"]:
        change = row["perplexity_difference"]
        interval = "" if change["low"] is None else f" [{change['low']:+.2f}, {change['high']:+.2f}]"
        cells = []
        for name in names:
            found = row["benchmarks"][name]
            cells.append(
                f"{found['metrics'][found['headline']]:.3f}, n = {found['items_scored']}: "
                f"{gap(found['differences'][found['headline']])}"
            )
        lines.append(
            f"| {row['name']} | {row['trainable_parameters']:,} | {row['perplexity']:.2f} | "
            f"{change['difference']:+.2f}{interval} | " + " | ".join(cells) + " |"
        )
    return "\n".join(lines) + "\n"


def page() -> str:
    """The whole page."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("benchmarks-*.json"))]
    adapters = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("lora-*.json"))]
    parts = [HEAD]
    for record in records:
        rows = record["results"]
        limits = " ".join(
            f"-t {name}" + (f"={count}" if count else "") for name, count in record["settings"]["limits"].items()
        )
        parts += [
            f"## {record['model']['name']}\n",
            where(record) + "\n",
            "```bash\nfocus benchmark --data bench/ " + limits + "\n```\n",
            findings(rows) + "\n",
            table(rows) + "\n",
            needles(rows),
        ]
    parts += [lora(record) for record in adapters]
    return "\n".join(part for part in parts if part)


HEAD = """# Benchmarks

Written by `python tools/benchmark_card.py` from the recorded runs in `data/results/`.

```bash
pip install 'focus-workbench[eval]'
focus benchmark --hub -t truthfulqa_mc1 -t piqa -t piqa_long -t needle_1024 --limit 100
python -m focus_core.harness.model run --model focus --model_args pretrained=default,top_k=1 --tasks piqa
```

The first command runs lm-evaluation-harness under every routing and compares item by item; the second is the harness's
own command line with a routed model (`routers=FOLDER`, `mode=off|soft|hard`, `top_k`, `balance`, `window`).
`--data FOLDER` takes the tasks from local files instead of the hub: `arc_easy.jsonl`, `gsm8k.jsonl`,
`hellaswag_dev.json`, `lambada_openai.jsonl`, `piqa.jsonl`, `truthfulqa_mc1.json`, one JSON object a line. A run goes on
where it was stopped when the command is repeated.

**How to read it.** *Distant pairs* is the share of an item's causal pairs that are further apart than the window,
so that routing can drop them; *removed* is the share that hard routing did drop. An item that is no longer than the
window has none: its score is equal by construction and says nothing about routing. The published claim of unchanged
benchmarks rests on such items, so each task is also run in a form that does meet the gate: `NAME_long` puts other
items with their answers before the question until the prompt has 1,024 tokens, `lambada_openai_after_N` puts N
tokens of another text before the passage, `needle_N` hides one sentence in N tokens and asks for its number among
four. Differences are paired over the same items, with 95% percentile bootstrap intervals (2,000 resamples).
Accuracy is coarse at these n; the log-likelihood of the right answer (among the choices, or of the last word) moves
with less. The items are the first n of each file, and intervals are about such items and this model alone: an
interval that holds 0 is no proof of equality. Local HellaSwag rows lack the activity label that the harness puts in
front.
"""

if __name__ == "__main__":
    (ROOT / "docs" / "benchmarks.md").write_text(page(), encoding="utf-8")
