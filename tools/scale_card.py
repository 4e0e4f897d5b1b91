"""Write the generated parts of docs/scale.md from the recorded run and the data sheets.

    python tools/scale_card.py [--check]

Constants, predictions and measured times come from `data/results/scale.json`, which `focus bench scale` writes. The
costs of other models follow from data sheets, as `focus scale` computes them.
"""

from __future__ import annotations

from typing import Any

import cards
from cards import ROOT, Pages, Record, read, table

from focus_core.results import machine_of
from focus_core.scale.costs import costs
from focus_core.scale.pays import limits
from focus_core.scale.rates import SHEETS, Rates
from focus_core.scale.shapes import SHAPES
from focus_core.scale.times import Cluster
from focus_core.training.fit import narrow_config

RECORD = "scale.json"
SHEET, SIZE, SHARE = "h100", 2, 0.15
DEVICES = {"135m": 1, "8b": 1, "70b": 8}
LENGTHS = (8192, 131072, 1048576)
CLOSE = 0.15
"""An error that counts as close."""
OPEN = "Not measured yet: run `focus bench scale --out data/results/scale.json`, then `python tools/scale_card.py`."


def answer(record: Record | None, paper: list[dict[str, Any]]) -> str:
    """What the page found, in three sentences."""
    (row,) = (each for each in paper if each["model"] == SHAPES["8b"].name and each["tokens"] == LENGTHS[1])
    full, narrow = row["untouched"], row["narrow"]
    told = (
        f"On paper {row['model']} reads {row['tokens']:,} tokens in {full['prefill_s']:.1f} s on one H100, and in "
        f"{narrow['prefill_s']:.1f} s with narrow groups that read {SHARE:.0%} of the distant keys. A decoded token "
        f"takes {1e3 * full['step_s']:.1f} and {1e3 * narrow['step_s']:.1f} ms."
    )
    if record is None:
        return f"{told} No time was measured yet, so how wrong this is remains open."
    errors = sorted(abs(each["error"]) for each in record["results"])
    close = sum(error <= CLOSE for error in errors)
    return (
        f"{told} The same formulas were checked on this machine: {close} of {len(errors)} times came out within "
        f"{CLOSE:.0%}, half within {errors[len(errors) // 2]:.0%}, and the worst was off by {errors[-1]:.0%}."
    )


def constants(record: Record) -> str:
    """Every constant with the way it was measured."""
    rows = [(f"`{row['name']}`", f"{row['value']:.3g} {row['unit']}", row["how"]) for row in record["constants"]]
    return f"{table(('constant', 'value', 'measured as'), rows)}\n\n{_where(record)}"


def checks(record: Record) -> str:
    """Predicted and measured times."""
    rows = [
        (
            row["task"],
            f"{row['tokens']:,}",
            {"off": "untouched", "hard": "narrow groups", "soft": "groups per layer"}[row["routing"]],
            f"{row['predicted_s']:.3g} s",
            f"{row['measured_s']:.3g} s",
            f"{row['error']:+.0%}",
        )
        for row in record["results"]
    ]
    shown = table(("task", "tokens", "attention", "predicted", "measured", "error"), rows)
    return f"{shown}\n\n{record['model']['name']}, {_where(record)} Record: [`{RECORD}`](../data/results/{RECORD})."


def _where(record: Record) -> str:
    machine = machine_of(record)
    return f"{machine['device']}, {machine['threads']} threads, float32, {record['made']['date'][:10]}."


def on_paper() -> list[dict[str, Any]]:
    """Costs of the three models at the three lengths."""
    config = narrow_config(read_share=SHARE, spread_directions=0)
    return [
        costs(SHAPES[name], tokens, Cluster(SHEETS[SHEET], SIZE, gpus), config)
        for name, gpus in DEVICES.items()
        for tokens in LENGTHS
    ]


def serving(paper: list[dict[str, Any]]) -> str:
    """Prefill, cache and decode, full attention beside narrow groups."""
    names = ("model", "devices", "tokens", "prefill PFLOP", "prefill s", "cache GB", "decode ms", "sent a token, MB")
    rows = []
    for row in paper:
        full, narrow = row["untouched"], row["narrow"]
        pairs = (("prefill_flops", 1e15), ("prefill_s", 1), ("cache_bytes", 1e9), ("step_s", 1e-3))
        both = (f"{full[name] / unit:,.3g} / {narrow[name] / unit:,.3g}" for name, unit in pairs)
        sent = f"{row['sent']['step_bytes'] / 1e6:.3g}"
        rows.append((row["model"], str(row["devices"]), f"{row['tokens']:,}", *both, sent))
    return table(names, rows)


def training(paper: list[dict[str, Any]]) -> str:
    """Analysing and training, each of one text."""
    names = (
        "model",
        "devices",
        "tokens",
        "trace s",
        "fit s",
        "mass s",
        "lm s",
        "weights of a layer",
        "sent, mass / lm",
    )
    rows = []
    for row in paper:
        mass, lm = row["training"]["mass"], row["training"]["lm"]
        seconds = (*row["analysing"].values(), mass["seconds"], lm["seconds"])
        sent = " / ".join(f"{each['sent_bytes'] / 1e9:,.3g}" for each in (mass, lm))
        cells = (*(f"{each:,.3g}" for each in seconds), f"{mass['attention_bytes'] / 1e9:,.3g} GB", f"{sent} GB")
        rows.append((row["model"], str(row["devices"]), f"{row['tokens']:,}", *cells))
    return table(names, rows)


def pays(record: Record | None) -> str:
    """Where narrow groups stop paying, with ideal kernels and with kernels as much slower as here."""
    config, ideal = narrow_config(read_share=SHARE, spread_directions=0), SHEETS[SHEET]
    machines = {"ideal": ideal}
    if record is not None:
        machines["as here"] = ideal.with_kernels_of(Rates.of_record(record))
    names = (
        "model",
        "kernels",
        "prefill from",
        "decode from",
        "share up to, prefill / decode",
        "batch from",
        "bandwidth up to",
        "share, endless prefill",
    )
    rows = []
    for name, gpus in DEVICES.items():
        for kernels, rates in machines.items():
            found = limits(SHAPES[name], Cluster(rates, SIZE, gpus), config, LENGTHS[1:2])
            (at,) = found["at"]
            lengths = (_number(found[f"{part}_tokens"], ",", " tokens") for part in ("prefill", "decode"))
            shares = " / ".join(_number(at[f"{part}_share"], ".0%") for part in ("prefill", "decode"))
            limit = f"{at['decode_bandwidth'] / 1e12:,.3g} TB/s"
            endless = f"{found['endless_share']:.0%}"
            rows.append(
                (SHAPES[name].name, kernels, *lengths, shares, _number(at["decode_batch"], ","), limit, endless)
            )
    return table(names, rows)


def _number(value: float | None, shown: str, unit: str = "") -> str:
    return "none" if value is None else format(value, shown) + unit


def pages() -> Pages:
    """docs/scale.md."""
    record = read(RECORD) if (cards.RESULTS / RECORD).exists() else None
    paper, path = on_paper(), ROOT / "docs" / "scale.md"
    found: Pages = {}
    for name, block in (
        ("answer", answer(record, paper)),
        ("constants", OPEN if record is None else constants(record)),
        ("checks", OPEN if record is None else checks(record)),
        ("serving", serving(paper)),
        ("training", training(paper)),
        ("pays", pays(record)),
    ):
        cards.fill(found, path, name, block)
    return found


if __name__ == "__main__":
    cards.main(pages)
