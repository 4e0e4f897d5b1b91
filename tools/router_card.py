"""Write the model cards of the shipped routers, and the README's tables, from the recorded runs.

    python tools/router_card.py

Every figure comes from `data/routers/*/training.json` (focus train) and `data/results/*.json` (focus eval and focus
frontier).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NAME = "smollm2-135m-k8"
HEADS = "smollm2-135m-k8-heads-lm"
FIRST_STAGE = "smollm2-135m-k8-heads"
"""What the records call routers per head after the first stage alone; those were shipped before and are no longer."""
HEADS_MARKS = ("<!-- heads: python tools/router_card.py -->", "<!-- end of heads -->")
MARKS = ("<!-- figures: python tools/router_card.py -->", "<!-- end of figures -->")


def table(record: dict[str, Any], baseline: dict[str, Any]) -> str:
    """Perplexities of trained routers beside those of untrained ones at the same setting, as Markdown."""
    untrained = {(row["routing"], row["top_k"], row["balance"]): row for row in baseline["results"]}
    lines = [
        "| routing | k | balance | perplexity | distant pairs kept | all pairs kept | largest group "
        "| untrained: perplexity | untrained: distant kept |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in record["results"]:
        other = untrained[row["routing"], row["top_k"], row["balance"]]
        largest = "" if row["largest_group_share"] is None else f"{row['largest_group_share']:.1%}"
        lines.append(
            f"| {row['routing']} | {row['top_k'] or ''} | {row['balance']} | {row['perplexity']:.2f} | "
            f"{row['kept_share']:.1%} | {row['causal_kept_share']:.1%} | {largest} | "
            f"{other['perplexity']:.2f} | {other['kept_share']:.1%} |"
        )
    return "\n".join(lines)


def setting(record: dict[str, Any]) -> str:
    """One sentence: on what, with what, where and when the table was measured."""
    settings, made = record["settings"], record["made"]
    config, rows = settings["config"], record["results"]
    return (
        f"{record['model']['name']} (revision {record['model']['revision']}), "
        f"{' and '.join(item['name'] for item in record['data'])}, {settings['blocks']} evenly spaced blocks of "
        f"T = {settings['length']} tokens, stride {settings['stride']} ({rows[0]['tokens']:,} predicted tokens), "
        f"K = {config['num_groups']}, w = {config['window']}, {config['sink_tokens']} sinks, gate exposure "
        f"{rows[0]['exposure']:.1%}; {made['device']}, float32, torch {made['versions']['torch']}, "
        f"transformers {made['versions']['transformers']}, {made['date'][:10]}."
    )


def base(folder: Path, training: dict[str, Any]) -> str:
    """The model by both of its names: of the file it came from, and of the weights in memory, which the app shows."""
    weights = json.loads((folder / "focus_config.json").read_text(encoding="utf-8"))["base"]["fingerprint"]
    model = training["model"]
    return f"Base model: {model['name']}, revision {model['revision']}, weights {weights}, unchanged."


def layer_card() -> None:
    """Write the card of the published form, and its table into the README."""
    folder = ROOT / "data" / "routers" / NAME
    training = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    trained, untrained = (
        json.loads((ROOT / "data" / "results" / f"{NAME}-{kind}.json").read_text(encoding="utf-8"))
        for kind in ("trained", "untrained")
    )
    figures = f"{setting(trained)}\n\n{table(trained, untrained)}"
    run = training["settings"]["training"]
    books = book_lines(training)
    held = " ".join(f"--data {item['name']}" for item in trained["data"])
    given = " ".join(f"--data {item['name']}" for item in training["data"])
    card = f"""# Routers {NAME}

{base(folder, training)} Written by
`python tools/router_card.py` from the recorded runs beside it.

Trained with seed {run["seed"]}, {run["steps"]} steps of {run["batch_size"]} blocks of {training["settings"]["length"]}
tokens, objective `{run["objective"]}`, final loss {training["final_loss"]:.3f} nats:

```bash
focus train {given} --steps {run["steps"]} --seed {run["seed"]} --out data/routers/{NAME}
focus eval {held} --blocks {trained["settings"]["blocks"]} --out data/results/{NAME}-trained.json
focus eval {held} --blocks {trained["settings"]["blocks"]} --untrained --out data/results/{NAME}-untrained.json
```

## Measured

{figures}

"calibrated" is causal; "sequence" and the soft gate balance over the whole text and so see the future. "untrained" are
routers of seed 0 at the same setting; their calibrated potentials are zero.

## Training text (public-domain books)

| file | bytes | SHA-256 |
|---|---|---|
{books}
"""
    (folder / "README.md").write_text(card, encoding="utf-8")
    fill("README.md", MARKS, figures)


def book_lines(training: dict[str, Any]) -> str:
    """One line of a table for each training text."""
    return "\n".join(f"| {item['name']} | {item['bytes']:,} | `{item['sha256']}` |" for item in training["data"])


def fill(name: str, marks: tuple[str, str], text: str) -> None:
    """Replace what stands between two marks of a file."""
    path = ROOT / name
    pattern = re.compile(f"{re.escape(marks[0])}.*{re.escape(marks[1])}", re.DOTALL)
    block = f"{marks[0]}\n{text}\n{marks[1]}"
    path.write_text(pattern.sub(lambda _: block, path.read_text(encoding="utf-8")), encoding="utf-8")


def frontier_lines(length: int) -> str:
    """What both kinds of routers cost at each k, and untrained ones of their kind, from `focus frontier`."""
    path = ROOT / "data" / "results" / f"frontier-{length}.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    untouched = next(point["perplexity"] for point in record["points"] if point["kind"] == "untouched")
    settings, made = record["settings"], record["made"]
    found = {(point["method"], point["top_k"]): point for point in record["points"] if point["kind"] == "routers"}
    lines = [
        f"T = {settings['length']:,}, w = {settings['window']}, {settings['sink_tokens']} sinks, {settings['blocks']} "
        f"evenly spaced blocks of {' and '.join(item['name'] for item in record['data'])}, calibrated routing; "
        f"untouched {untouched:.2f}; {made['device']}, torch {made['versions']['torch']}, {made['date'][:10]}:",
        "",
        "| routers | k | distant pairs kept | perplexity | against untouched | largest group |",
        "|---|---|---|---|---|---|",
    ]
    first = "first stage alone"
    labels = {HEADS: HEADS, FIRST_STAGE: first, "untrained, per head": "untrained, per head", NAME: NAME}
    for name, label in labels.items():
        for (method, k), point in sorted(found.items(), key=lambda item: item[0][1] or 0):
            if method == name:
                lines.append(
                    f"| {label} | {k} | {point['kept_share']:.1%} | {point['perplexity']:.2f} | "
                    f"{point['perplexity'] / untouched - 1:+.1%} | {point['largest_group_share']:.1%} |"
                )
    return "\n".join(lines)


def stage(record: dict[str, Any]) -> str:
    """One stage of training in words."""
    run, length = record["settings"]["training"], record["settings"]["length"]
    return (
        f"objective `{run['objective']}`, {run['steps']} steps of {run['batch_size']} x {length:,} tokens, final loss "
        f"{record['final_loss']:.3f} nats, {record['step_seconds'] / 60:.1f} minutes"
    )


def options(record: dict[str, Any]) -> str:
    """The options of `focus train` of one stage."""
    run, length = record["settings"]["training"], record["settings"]["length"]
    return (
        f"--objective {run['objective']} --steps {run['steps']} --length {length} --batch-size {run['batch_size']} "
        "--eval-blocks 0"
    )


def heads_card() -> None:
    """Write the card of the routers per head, and its tables into the README."""
    folder = ROOT / "data" / "routers" / HEADS
    training = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    first = training["started_from"]
    held = "-d chesterton-thursday.txt -d austen-persuasion.txt"
    measured = "-k 1 -k 2 -k 3 -k 4 --baseline none --length 2048 --window 128 --blocks 4"
    seconds = first["step_seconds"] + training["step_seconds"]
    figures = "\n\n".join(frontier_lines(length) for length in (2048, 512))
    card = f"""# Routers {HEADS}

{base(folder, training)} Groups per key/value
head, and queries that choose what they read (docs/method.md). Written by `python tools/router_card.py` from the
recorded runs.

Trained with seed {first["settings"]["training"]["seed"]} in two stages, {seconds / 60:.0f} minutes of steps on
2 CPU cores ({training["made"]["date"][:10]}):

1. {stage(first)}
2. {stage(training)}

```bash
focus train --data training-books/ --router head {options(first)} --out runs/{FIRST_STAGE}
focus train --data training-books/ --start-from runs/{FIRST_STAGE} {options(training)} --out data/routers/{HEADS}
focus frontier {held} --train training-books/ -r data/routers/{HEADS} {measured} --out frontier.json
```

`training-books/` holds the books below.

## Measured

{figures}

k is the number of groups a query reads; a key is in one. Groups are even over texts of 2,048 tokens, the length of
calibration; in shorter ones the largest is larger, and more pairs are kept than k says.

## Training text (public-domain books)

| file | bytes | SHA-256 |
|---|---|---|
{book_lines(training)}
"""
    (folder / "README.md").write_text(card, encoding="utf-8")
    fill("README.md", HEADS_MARKS, frontier_lines(2048))


def main() -> None:
    """Write both cards."""
    layer_card()
    heads_card()


if __name__ == "__main__":
    main()
