"""Write the model cards of the shipped routers, and the table of earlier records in docs/frontier.md.

    python tools/router_card.py [--check]

Every figure comes from `data/routers/*/training.json` (focus train) and `data/results/*.json` (focus eval, focus
frontier, focus reproduce and focus bench).
"""

from __future__ import annotations

from typing import Any

import cards
import frontier_kinds
from cards import RESULTS, ROOT, Pages, read, table
from router_narrow import NARROW, QWEN, narrow_card, qwen_card
from router_texts import ROUTERS, Row, base, beside, book_table, facts

from focus_core.frontier.kinds.means import lengths_of
from focus_core.frontier.speeds import Speeds, read_speeds

NAME = "smollm2-135m-k8"
HEADS = "smollm2-135m-k8-heads-lm"
FIRST_STAGE = "smollm2-135m-k8-heads"
"""The name in the records of routers per head after the first stage alone, which are not shipped."""
MISSING = "not measured yet"
PLACES = (
    (HEADS, "frontier-2048-8-blocks.json", "novels"),
    (HEADS, "frontier-2048-web.json", "web English"),
    (NAME, "frontier-2048.json", "novels"),
    (NAME, "frontier-2048-web.json", "web English"),
)
"""Routers, record of `focus frontier` and kind of text of the table's rows."""
EARLIER = sorted(RESULTS.glob("bench-*cpu.json"))
"""Speeds of the CPU of these records; those of the default routers are of another."""
KINDS = {HEADS: "per head", NAME: "per layer"}


def form(name: str, k: int) -> tuple[str, int, int]:
    """Under which speeds of shipped routers are recorded: kind of router, K and k."""
    routing = beside(name, "focus_config.json")["routing"]
    return routing.get("router", "layer"), routing["num_groups"], k


def summary() -> str:
    """Earlier records: each kind of text with perplexity, kept share, balance, and speed at the same length."""
    speeds = read_speeds(EARLIER)
    columns = ("method", "k", "text", "T", "blocks", "pairs kept", "perplexity", "largest group", "speed at T")
    rows: list[Row] = []
    for name, record, text in PLACES:
        rows += frontier_rows(read(record), name, text, speeds)
    rows += routed_rows(read("reproduce-lengths.json"), "8192", "novels", speeds)
    rows += routed_rows(read("reproduce-domains.json"), "code.py.txt", "Python", speeds)
    rows.append(adapted_row(read("reproduce-lora.json")))
    return table(columns, rows)


def frontier_rows(record: dict[str, Any], name: str, text: str, speeds: Speeds) -> list[Row]:
    """The rows of shipped routers at k = 1 and 2, and of SparQ at the share of k = 1 where it was measured."""
    settings, points = record["settings"], record["points"]
    untouched = next(point["perplexity"] for point in points if point["kind"] == "untouched")
    shown = {point["top_k"]: point for point in points if point["method"] == name and point["top_k"] in (1, 2)}
    rows = []
    for k, point in sorted(shown.items()):
        speed = speeds.of(form(name, k), point["kept_share"]).get(settings["length"])
        rows.append(row(KINDS[name], point, untouched, text, settings["length"], settings["blocks"], speed))
    share = shown[1]["kept_share"]
    for point in points:
        if point["method"] == "sparq" and abs((point["wanted_share"] or 0.0) - share) < 1e-3:
            rows.append(row("SparQ", point, untouched, text, settings["length"], settings["blocks"], None))
    return rows


def routed_rows(record: dict[str, Any], cell: str, text: str, speeds: Speeds) -> list[Row]:
    """The rows of one cell of `focus reproduce lengths` or `domains`: shipped routers per layer at k = 1 and 2."""
    found = [result for result in record["results"] if result["cell"] == cell]
    untouched = next(result["perplexity"] for result in found if result["routing"] == "off")
    rows = []
    for result in found:
        if result["routing"] == "hard":
            speed = speeds.of(form(NAME, result["top_k"]), result["kept_share"]).get(result["length"])
            blocks = result.get("blocks", record["settings"]["scale"]["blocks"])
            rows.append(row(KINDS[NAME], result, untouched, text, result["length"], blocks, speed))
    return rows


def adapted_row(record: dict[str, Any]) -> Row:
    """The row of full attention adapted to the training books, the best of the recorded LoRA runs."""
    scale, results = record["settings"]["scale"], record["results"]
    untouched = next(result["perplexity"] for result in results if result["cell"] == "untouched")
    tuned = [result for result in results if result["cell"].startswith("LoRA ") and result.get("perplexity")]
    best = min(tuned, key=lambda result: result["perplexity"])
    return row("LoRA, full attention", best, untouched, "novels", scale["length"], scale["blocks"], 1.0)


def row(
    method: str,
    point: dict[str, Any],
    untouched: float,
    text: str,
    length: int,
    blocks: int,
    speed: float | None,
) -> Row:
    """One line of the table."""
    largest = point.get("largest_group_share")
    return (
        method,
        str(point.get("top_k") or ""),
        text,
        f"{length:,}",
        str(blocks),
        f"{point['kept_share']:.1%}",
        f"{point['perplexity'] / untouched - 1:+.1%}",
        "" if largest is None else f"{largest:.1%}",
        MISSING if speed is None else f"{speed:.2f}x",
    )


def trained_table(record: dict[str, Any], baseline: dict[str, Any]) -> str:
    """Perplexities of trained routers beside those of untrained ones at the same setting, as Markdown."""
    untrained = {(line["routing"], line["top_k"], line["balance"]): line for line in baseline["results"]}
    rows: list[Row] = []
    for line in record["results"]:
        other = untrained[line["routing"], line["top_k"], line["balance"]]
        rows.append(
            (
                line["routing"],
                str(line["top_k"] or ""),
                line["balance"],
                f"{line['perplexity']:.2f}",
                f"{line['kept_share']:.1%}",
                f"{line['causal_kept_share']:.1%}",
                "" if line["largest_group_share"] is None else f"{line['largest_group_share']:.1%}",
                f"{other['perplexity']:.2f}",
                f"{other['kept_share']:.1%}",
            )
        )
    columns = ("routing", "k", "balance", "perplexity", "distant pairs kept", "all pairs kept", "largest group")
    return table((*columns, "untrained: perplexity", "untrained: distant kept"), rows)


def frontier_table(record: dict[str, Any]) -> str:
    """Perplexities of both kinds of routers at each k, and of untrained ones, as Markdown."""
    untouched = next(point["perplexity"] for point in record["points"] if point["kind"] == "untouched")
    found = {(point["method"], point["top_k"]): point for point in record["points"] if point["kind"] == "routers"}
    labels = {HEADS: HEADS, FIRST_STAGE: "first stage alone", "untrained, per head": "untrained, per head", NAME: NAME}
    rows: list[Row] = [("untouched model", "", "100.0%", f"{untouched:.2f}", "", "")]
    for name, label in labels.items():
        for (method, k), point in sorted(found.items(), key=lambda item: item[0][1] or 0):
            if method == name:
                change = f"{point['perplexity'] / untouched - 1:+.1%}"
                kept, largest = f"{point['kept_share']:.1%}", f"{point['largest_group_share']:.1%}"
                rows.append((label, str(k), kept, f"{point['perplexity']:.2f}", change, largest))
    return table(("routers", "k", "distant pairs kept", "perplexity", "change", "largest group"), rows)


def measured(record: dict[str, Any]) -> list[Row]:
    """On what, with what, where and when a record was measured."""
    settings, made = record["settings"], record["made"]
    config = settings.get("config", settings)
    versions = made["versions"]
    return [
        ("text", " and ".join(item["name"] for item in record["data"])),
        ("blocks", f"{settings['blocks']}, evenly spaced, of T = {settings['length']:,} tokens"),
        ("window, sinks", f"w = {config['window']}, {config['sink_tokens']} sinks"),
        ("machine", f"{made['device']}, float32, {made['date'][:10]}"),
        ("versions", f"torch {versions['torch']}, transformers {versions['transformers']}"),
    ]


def options(training: dict[str, Any]) -> str:
    """The options of `focus train` of one stage."""
    run, length = training["settings"]["training"], training["settings"]["length"]
    return (
        f"--objective {run['objective']} --steps {run['steps']} --length {length} --batch-size {run['batch_size']} "
        "--eval-blocks 0"
    )


def stage_table(*stages: dict[str, Any]) -> str:
    """The stages of training, as Markdown."""
    rows: list[Row] = []
    for number, training in enumerate(stages, 1):
        run, length = training["settings"]["training"], training["settings"]["length"]
        minutes = f"{training['step_seconds'] / 60:.1f}" if "step_seconds" in training else "not recorded"
        tokens, loss = f"{run['batch_size']} x {length:,}", f"{training['final_loss']:.3f}"
        rows.append((str(number), f"`{run['objective']}`", str(run["steps"]), tokens, loss, minutes))
    return table(("stage", "objective", "steps", "tokens a step", "final loss, nats", "minutes"), rows)


def layer_card() -> str:
    """The card of the published form."""
    training = beside(NAME, "training.json")
    trained, untrained = read(f"{NAME}-trained.json"), read(f"{NAME}-untrained.json")
    run, first = training["settings"]["training"], trained["results"][0]
    held = " ".join(f"--data {item['name']}" for item in trained["data"])
    setting = facts(
        *measured(trained),
        ("groups", f"K = {trained['settings']['config']['num_groups']} a layer"),
        ("predicted tokens", f"{first['tokens']:,}"),
        ("gate exposure", f"{first['exposure']:.1%} of the causal pairs are distant"),
    )
    return f"""# Routers {NAME}

One router for each layer, as published. A token attends to its neighbours and to the groups it is in.
`python tools/router_card.py` writes this page from the recorded runs.

{facts(*base(NAME, training), ("seed", str(run["seed"])))}

## Training

{stage_table(training)}

```bash
focus train --data training-books/ --steps {run["steps"]} --seed {run["seed"]} --out data/routers/{NAME}
focus eval -r {NAME} {held} --blocks {trained["settings"]["blocks"]} --out data/results/{NAME}-trained.json
focus eval {held} --blocks {trained["settings"]["blocks"]} --untrained --out data/results/{NAME}-untrained.json
```

## Measured

{setting}

{trained_table(trained, untrained)}

- Calibrated balance is causal. Sequence balance and the soft gate see the whole text, and so the future.
- "Untrained" are routers of seed 0. Their calibrated potentials are zero, so they keep more pairs.
- Compare trained with untrained routers in the rows of sequence balance: the shares are equal there.

## Limits

{limits(NAME, "The potentials fit 512 tokens of English novels. On other text and other lengths groups are less even.")}

## Training text (public-domain books)

{book_table(training)}
"""


def heads_card() -> str:
    """The card of the routers per head."""
    training = beside(HEADS, "training.json")
    first = training["started_from"]
    long, short = read("frontier-2048.json"), read("frontier-512.json")
    held = " ".join(f"-d {item['name']}" for item in long["data"])
    measure = "-k 1 -k 2 -k 3 -k 4 --baseline none --length 2048 --window 128"
    measure += f" --blocks {long['settings']['blocks']} --out frontier.json"
    return f"""# Routers {HEADS}

One router for each key/value head. A key is in one group; a query reads k groups of its own choice.
[docs/method.md](../../../docs/method.md) has the formulas. `python tools/router_card.py` writes this page from the
recorded runs.

{facts(*base(HEADS, training), ("seed", str(first["settings"]["training"]["seed"])))}

## Training

{stage_table(first, training)}

The minutes are those of steps, on 2 CPU cores, {training["made"]["date"][:10]}.

```bash
focus train --data training-books/ --router head {options(first)} --out runs/{FIRST_STAGE}
focus train --data training-books/ --start-from runs/{FIRST_STAGE} {options(training)} --out data/routers/{HEADS}
focus frontier {held} --train training-books/ -r data/routers/{HEADS} {measure}
```

## Measured

{facts(*measured(long))}

{frontier_table(long)}

{facts(*measured(short))}

{frontier_table(short)}

k is the number of groups that a query reads. Routing is calibrated, and so causal.

## Limits

{limits(HEADS, "The potentials fit 2,048 tokens of novels. Elsewhere groups are less even, and k keeps more pairs.")}
- The second stage learned the training books. Perplexities below the untouched model's are mostly or wholly that.
- The held-out books share their authors with training books, and they took part in choosing the recipe.

## Training text (public-domain books)

{book_table(training)}
"""


def limits(name: str, balance: str) -> str:
    """The limits that both cards share."""
    return f"""- Few blocks are no sample: small differences between rows are not established.
- {retention(name)}
- {balance}"""


def retention(name: str) -> str:
    """How far routers are from the untouched model over several kinds of text, where that was measured."""
    record = read(frontier_kinds.RECORD)
    found = {length: frontier_kinds.divergence(record, length, name) for length in lengths_of(record)}
    told = " and ".join(f"{kl:.4f} at T = {length:,}" for length, kl in found.items() if kl is not None)
    if not told:
        return (
            f"Retention, the divergence from the untouched model's predictions, is {MISSING}; `focus eval` records it."
        )
    ours = " and ".join(
        f"{frontier_kinds.divergence(record, length):.4f}" for length, kl in found.items() if kl is not None
    )
    return (
        f"Retention: over {len(record['kinds'])} kinds of text, k = 1, these routers are at a KL of {told} from the "
        f"untouched model. The default routers are at {ours} ([frontier](../../../docs/frontier.md))."
    )


def pages() -> Pages:
    """The model cards, and docs/frontier.md with its table."""
    texts = {NAME: layer_card(), HEADS: heads_card(), NARROW: narrow_card(), QWEN: qwen_card()}
    found: Pages = {ROUTERS / name / "README.md": text for name, text in texts.items()}
    cards.fill(found, ROOT / "docs" / "frontier.md", "summary", summary())
    return found


if __name__ == "__main__":
    cards.main(pages)
