"""Write docs/tables/frontier-*.md, the figures beside the records, and those of docs/frontier.md and baselines.md.

    python tools/frontier_card.py [--check]

Every figure comes from `data/results/frontier-*.json` (focus frontier) and `plan-*.json` (focus plan). Records of
several kinds of text show speeds of their own lengths. The others show none: theirs were measured at other lengths.
"""

from __future__ import annotations

import math
from typing import Any

import cards
import frontier_kinds
from cards import RESULTS, ROOT, Pages, read, read_if_there, records, table

from focus_core.frontier.figure import figure
from focus_core.frontier.kinds.figure import kinds_figure
from focus_core.frontier.kinds.record import SCHEMA as KINDS
from focus_core.frontier.kinds.table import kinds_markdown, kinds_title
from focus_core.frontier.speeds import Speeds
from focus_core.frontier.table import Row, frontier_rows, retention_cells, title, worth
from focus_core.models.default_model import NAME

TOOL = "frontier_card.py"
BOOKS, WEB = "frontier-2048.json", "frontier-2048-web.json"
HEADS, FIRST_STAGE = "smollm2-135m-k8-heads-lm", "smollm2-135m-k8-heads"
BUDGETS = (0.10, 0.18, 0.32, 0.45)
METHODS = {
    "routers per head, also trained on next tokens": HEADS,
    "the same with 16 groups": "smollm2-135m-k16-heads-lm",
    "routers per head, attention mass alone": FIRST_STAGE,
    "routers per head, untrained": "untrained, per head",
    "routers per layer, also trained on next tokens": "smollm2-135m-k8-layer-lm",
    "routers per layer, attention mass alone": "smollm2-135m-k8-layer",
    "routers per layer, published recipe, 100 steps": "published",
    "SparQ": "sparq",
    "Quest": "quest",
    "MoBA": "moba",
    "MagicPIG": "magicpig",
    "LSH (Reformer)": "lsh",
    "window + sinks": "streaming",
    "k-means (Routing Transformer)": "kmeans",
    "strided (Sparse Transformer)": "strided",
    "random blocks (BigBird)": "bigbird",
}


def full_table(record: dict[str, Any]) -> str:
    """Every point of a record, the fewest pairs first."""
    rows = sorted(frontier_rows(record, Speeds()), key=lambda row: (row.kept_share is None, row.kept_share))
    retained = any(row.kl is not None for row in rows)
    cells = [
        (
            f"**{row.label}**" if row.kind == "routers" else row.label,
            row.source if row.kind == "baseline" else "",
            *(retention_cells(row) if retained else ()),
            *("approximate" if each is None else f"{each:.1%}" for each in (row.kept_share, row.causal_kept_share)),
            f"{row.perplexity:.2f}",
            f"{row.relative - 1:+.2%}",
            interval(row),
            "" if row.largest_group_share is None else f"{row.largest_group_share:.1%}",
        )
        for row in rows
    ]
    columns = (
        "method", "source", *(("KL", "KL, last quarter", "top-1 same") if retained else ()), "distant pairs kept",
        "all pairs kept", "perplexity", "against untouched", "difference in perplexity, 95%", "largest group",
    )  # fmt: skip
    return table(columns, cells)


def interval(row: Row) -> str:
    """The 95% interval, with a star where the difference is established."""
    if row.low is None or row.high is None:
        return ""
    return f"{row.low:+.2f} to {row.high:+.2f}{' *' if row.established else ''}"


def setting(record: dict[str, Any]) -> str:
    """Model, blocks, machine and what the intervals are worth."""
    settings, made = record["settings"], record["made"]
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    blocks = settings["blocks"]
    return (
        f"{record['model']['name']}, {blocks} evenly spaced blocks, calibrated routing; {made['device']}, {versions}, "
        f"{made['date'][:10]}.\n\n{worth(blocks)}"
    )


def plans() -> str:
    """Budget, expected loss and measured loss of each plan, and the k of every layer."""
    books = read(BOOKS)
    rows, layers = [], []
    for file, record in records("plan-*.json").items():
        name, chosen = file.removesuffix(".json").replace("plan-", "planned-"), record["plan"]
        row = relative(books, name, None)
        rows.append(
            (
                f"`{name}`",
                f"{chosen['budget']:.1%}",
                f"{row.kept_share:.1%}",
                f"{chosen['loss']:+.4f}",
                f"{math.log(row.relative):+.4f}",
            )
        )
        layers.append((f"`{name}`", " ".join(f"{k}" for k in chosen["layer_top_k"])))
    settings = next(iter(records("plan-*.json").values()))["settings"]
    return "\n\n".join(
        (
            f"Expected: the sum of what each layer costs alone, on {settings['blocks']} training blocks of "
            f"{settings['length']:,} tokens, w = {settings['window']}. Measured: held-out books, "
            f"T = {books['settings']['length']:,}. Both in nats a token. The measured loss is larger each time: the "
            "sum does not predict it.",
            table(("plan", "budget", "kept on held-out books", "expected loss", "measured loss"), rows),
            "## k of every layer",
            "8 is full attention.",
            table(("plan", "k, layer 0 to 29"), layers),
        )
    )


def relative(record: dict[str, Any], method: str, top_k: int | None, share: float | None = None) -> Row:
    """The row of routers at some k, or of a baseline nearest to a share."""
    rows = frontier_rows(record, Speeds())
    found = [
        row
        for row, point in zip(rows, record["points"], strict=True)
        if point["method"] == method and point["top_k"] == top_k
    ]
    return min(found, key=lambda row: 0.0 if share is None else abs((row.kept_share or 0.0) - share))


def budgets_table(record: dict[str, Any]) -> str:
    """Change of perplexity by method and budget, with the share that was kept."""
    rows = [
        (point["method"], row.kept_share, f"{row.relative - 1:+.1%} ({row.kept_share:.0%})")
        for row, point in zip(frontier_rows(record, Speeds()), record["points"], strict=True)
        if row.kept_share is not None
    ]
    lines = []
    for name, method in METHODS.items():
        cells: dict[float, tuple[float, str]] = dict.fromkeys(BUDGETS, (1.0, ""))
        for _, share, text in (each for each in rows if each[0] == method):
            budget = min(BUDGETS, key=lambda each: abs(each - share))
            if abs(budget - share) < 0.06:
                cells[budget] = min(cells[budget], (abs(budget - share), text))
        lines.append((name, *(text for _, text in cells.values())))
    return table(("method", *(f"about {budget:.0%}" for budget in BUDGETS)), lines)


def web_table(record: dict[str, Any]) -> str:
    """Routers per head, SparQ and Quest on web text."""
    chosen = [
        *((f"routers per head, also trained on next tokens, k = {k}", relative(record, HEADS, k)) for k in (1, 2, 3)),
        *((f"routers per head, attention mass alone, k = {k}", relative(record, FIRST_STAGE, k)) for k in (1, 2, 3)),
        ("SparQ", relative(record, "sparq", None)),
        ("Quest", relative(record, "quest", None)),
    ]
    lines = [
        (
            name,
            f"{row.kept_share:.1%}",
            f"{row.relative - 1:+.2%}",
            "" if row.largest_group_share is None else f"{row.largest_group_share:.0%}",
        )
        for name, row in chosen
    ]
    return table(("method", "distant pairs kept", "against untouched", "largest group"), lines)


def eight_blocks() -> str:
    """The same routers over twice as many blocks."""
    record = read("frontier-2048-8-blocks.json")
    rows = [relative(record, HEADS, 1), relative(record, HEADS, 2), relative(record, "sparq", None)]
    first, second, sparq = (f"{row.relative - 1:+.2%} at {row.kept_share:.1%}" for row in rows)
    return (
        f"Over {record['settings']['blocks']} blocks the shipped routers per head are at {first} (k = 1) and {second} "
        f"(k = 2), SparQ at {sparq}."
    )


def adaptation() -> str:
    """How far adapters and routers of one size move perplexity, and what sparse attention costs the adapted model."""
    record = read("reproduce-adapted.json")
    scale, rows = record["settings"]["scale"], record["results"]
    untouched = next(row["perplexity"] for row in rows if row["cell"] == "untouched")
    adapter = next(row for row in rows if row["cell"] == "LoRA, full attention")
    told = {
        name: next(row for row in rows if row["cell"] == cell)  # k = 1 comes first
        for name, cell in (
            ("routers", "routers"),
            ("narrow groups", "narrow groups on LoRA"),
            ("SparQ", "baseline sparq"),
            ("these routers", "routers on LoRA"),
            ("the window", "baseline streaming"),
        )
    }
    routers = told.pop("routers")
    distances = [f"{name} {row['kl_from_full']:.4f} ({row['kept_share']:.0%} kept)" for name, row in told.items()]
    return (
        f"Full attention with LoRA adapters (rank {adapter['rank']}, {scale['steps']} steps on the same seven books, "
        f"learning rate {adapter['learning_rate']:g}, {adapter['rate_grid']}) is at "
        f"{adapter['perplexity'] / untouched - 1:+.1%}, over {scale['blocks']} blocks of {scale['length']} tokens of "
        f"three other books. Routers with as many parameters, trained alike, are at "
        f"{routers['perplexity'] / untouched - 1:+.1%}.\n\nKL from the adapted model's own full attention, on these "
        f"blocks: {', '.join(distances)}."
    )


def pages() -> Pages:
    """Everything that this tool makes."""
    made: Pages = {}
    lines = []
    every = records("frontier-*.json")
    kinds = {name: record for name, record in every.items() if record["schema"] == KINDS}
    for name, record in kinds.items():
        stem = name.removesuffix(".json")
        made[RESULTS / f"{stem}.svg"] = kinds_figure(record) + "\n"
        image = f"![KL against kept pairs](../../data/results/{stem}.svg)"
        model = "" if record["model"]["name"] == NAME else f", {record['model']['name']}"
        lines.append((f"[{kinds_title(record)}{model}](tables/{stem}.md)", "", f"{len(record['points'])}"))
        cards.page(
            made,
            f"{stem}.md",
            TOOL,
            kinds_title(record),
            image,
            kinds_markdown(record, frontier_kinds.speeds_beside(name, record)),
        )
    found = sorted(
        ((name, record) for name, record in every.items() if name not in kinds),
        key=lambda pair: (
            -len(pair[1]["data"]),
            pair[1]["settings"]["length"],
            pair[1]["settings"]["window"],
            pair[1]["settings"]["blocks"],
        ),
    )
    for name, record in found:
        stem, blocks = name.removesuffix(".json"), record["settings"]["blocks"]
        heading = f"{title(record)}, {blocks} blocks"
        made[RESULTS / f"{stem}.svg"] = figure(record, Speeds()) + "\n"
        image = f"![Perplexity against kept pairs: {heading}](../../data/results/{stem}.svg)"
        cards.page(made, f"{stem}.md", TOOL, heading, setting(record), image, full_table(record))
        lines.append((f"[{title(record)}](tables/{stem}.md)", f"{blocks}", f"{len(record['points'])}"))
    cards.page(
        made,
        "plans.md",
        TOOL,
        "Plans: a k for every layer under one budget",
        "Chosen by `focus plan` from the loss of each layer alone, for the shipped routers per layer.",
        plans(),
    )
    doc, books, several = ROOT / "docs" / "frontier.md", read(BOOKS), read(frontier_kinds.RECORD)
    long = read_if_there(frontier_kinds.LONG)
    cards.fill(made, doc, "answer", frontier_kinds.answer(*frontier_kinds.there(several, long)))
    cards.fill(made, doc, "kinds", frontier_kinds.summary(frontier_kinds.RECORD, several))
    fresh = read_if_there(frontier_kinds.FRESH)
    cards.fill(made, doc, "fresh", frontier_kinds.fresh(fresh))
    less = read_if_there(frontier_kinds.LESS)
    cards.fill(made, doc, "less", frontier_kinds.fresh(less, frontier_kinds.LESS))
    cards.fill(made, doc, "long", frontier_kinds.fresh(long, frontier_kinds.LONG))
    fresh_long = read_if_there(frontier_kinds.FRESH_LONG)
    cards.fill(made, doc, "fresh long", frontier_kinds.fresh(fresh_long, frontier_kinds.FRESH_LONG))
    qwen = read_if_there(frontier_kinds.QWEN)
    cards.fill(made, doc, "qwen", frontier_kinds.fresh(qwen, frontier_kinds.QWEN))
    gemma = read_if_there(frontier_kinds.GEMMA)
    cards.fill(made, doc, "gemma", frontier_kinds.fresh(gemma, frontier_kinds.GEMMA))
    candidates = read_if_there(frontier_kinds.CANDIDATES)
    cards.fill(made, doc, "candidates", frontier_kinds.fresh(candidates, frontier_kinds.CANDIDATES))
    parts = read_if_there(frontier_kinds.PARTS)
    cards.fill(made, doc, "parts", frontier_kinds.fresh(parts, frontier_kinds.PARTS))
    cards.fill(made, doc, "limits", frontier_kinds.limits(several, fresh or several))
    cards.fill(made, ROOT / "docs" / "baselines.md", "grids", frontier_kinds.grids(fresh or several))
    cards.fill(made, doc, "budgets", budgets_table(books))
    cards.fill(made, doc, "eight blocks", eight_blocks())
    cards.fill(made, doc, "web", web_table(read(WEB)))
    cards.fill(made, doc, "adaptation", adaptation())
    cards.fill(made, doc, "list", table(("measured at", "blocks", "points"), lines))
    return made


if __name__ == "__main__":
    cards.main(pages)
