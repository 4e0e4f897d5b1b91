"""Write the model card of the shipped routers, and the README's table, from the recorded runs.

    python docs/router_card.py

Every figure comes from `data/routers/*/training.json` (focus train) and `data/results/*.json` (focus eval).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NAME = "smollm2-135m-k8"
MARKS = ("<!-- figures: python docs/router_card.py -->", "<!-- end of figures -->")


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


def main() -> None:
    """Write both files."""
    folder = ROOT / "data" / "routers" / NAME
    training = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    trained, untrained = (
        json.loads((ROOT / "data" / "results" / f"{NAME}-{kind}.json").read_text(encoding="utf-8"))
        for kind in ("trained", "untrained")
    )
    figures = f"{setting(trained)}\n\n{table(trained, untrained)}"
    run = training["settings"]["training"]
    books = "\n".join(f"| {item['name']} | {item['bytes']:,} | `{item['sha256']}` |" for item in training["data"])
    held = " ".join(f"--data {item['name']}" for item in trained["data"])
    given = " ".join(f"--data {item['name']}" for item in training["data"])
    card = f"""# Routers {NAME}

Base model: {training["model"]["name"]}, revision {training["model"]["revision"]}, unchanged. Written by
`python docs/router_card.py` from the recorded runs beside it.

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
    readme = ROOT / "README.md"
    pattern = re.compile(f"{re.escape(MARKS[0])}.*{re.escape(MARKS[1])}", re.DOTALL)
    block = f"{MARKS[0]}\n{figures}\n{MARKS[1]}"
    readme.write_text(pattern.sub(lambda _: block, readme.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
