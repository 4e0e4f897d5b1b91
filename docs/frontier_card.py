"""Write the tables of docs/frontier.md from recorded runs of `focus frontier`, `focus plan` and `focus bench`.

    python docs/frontier_card.py

Only what stands between the marks is replaced; the text around it is written by hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from focus_core.evaluation import perplexity_difference

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "data" / "results"
PAGE = ROOT / "docs" / "frontier.md"
START, END = "<!-- frontier: python docs/frontier_card.py -->", "<!-- end of frontier -->"
SIZES = (8192, 32768)


def attention_speed(num_groups: int, top_k: int | None, router: str) -> list[str]:
    """Measured speed-up of one attention call, balanced routing, float32; blank where none was measured."""
    path = RESULTS / ("bench-heads-cpu.json" if router == "head" else "bench-cpu.json")
    points = json.loads(path.read_text(encoding="utf-8"))["points"]
    found = {
        point["tokens"]: f"{point['speedup']:.2f}"
        for point in points
        if (point["num_groups"], point["top_k"], point["dtype"]) == (num_groups, top_k, "float32")
    }
    return [found.get(size, "") for size in SIZES]


def table(record: dict[str, Any]) -> str:
    """One line per method and budget, the fewest pairs first; baselines beside the routers they are compared with."""
    settings, made = record["settings"], record["made"]
    texts = ", ".join(text["name"] for text in record["data"])
    points = record["points"]
    untouched = next(point for point in points if point["kind"] == "untouched")
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    lines = [
        f"### T = {settings['length']:,}, w = {settings['window']}, {settings['sink_tokens']} sinks: {texts}",
        "",
        f"{record['model']['name']}, {settings['blocks']} evenly spaced blocks; untouched perplexity "
        f"{untouched['perplexity']:.2f}; {made['device']}, {versions}, {made['date'][:10]}. "
        "Intervals: 95%, paired bootstrap over blocks.",
        "",
        "| method | distant pairs kept | all pairs kept | perplexity | against untouched (perplexity, 95%) "
        "| largest group | attention at 8K | at 32K |",
        "|" + "---|" * 8,
    ]
    for point in sorted(points, key=lambda point: (point["kept_share"] is None, point["kept_share"])):
        gap = perplexity_difference(point["block_nll"], untouched["block_nll"])
        interval = "" if gap.low is None else f" ({gap.low:+.2f} to {gap.high:+.2f})"
        shares = [
            "approximate" if point[name] is None else f"{point[name]:.1%}"
            for name in ("kept_share", "causal_kept_share")
        ]
        largest = "" if point["largest_group_share"] is None else f"{point['largest_group_share']:.1%}"
        label = f"**{point['label']}**" if point["kind"] == "routers" else point["label"]
        source = f" ({point['source']})" if point["kind"] == "baseline" else ""
        kind = point.get("num_groups") or 8, point["top_k"], point.get("router") or "layer"
        speed = attention_speed(*kind) if point["top_k"] else ["", ""]
        relative = point["perplexity"] / untouched["perplexity"] - 1
        lines.append(
            f"| {label}{source} | {' | '.join(shares)} | {point['perplexity']:.2f} | {relative:+.1%}{interval} "
            f"| {largest} | {' | '.join(f'{each}x' if each else '' for each in speed)} |"
        )
    return "\n".join(lines)


def plan_lines() -> str:
    """What each recorded plan chose, and what its layers were expected to cost together."""
    lines = []
    for path in sorted(RESULTS.glob("plan-*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        chosen, settings = record["plan"], record["settings"]
        name = path.stem.replace("plan-", "planned-")
        lines.append(
            f"- `{name}`: budget {chosen['budget']:.1%}, k by layer {chosen['layer_top_k']}, expected "
            f"{chosen['loss']:+.4f} nats if layers add up ({settings['blocks']} training blocks of "
            f"{settings['length']:,} tokens, w = {settings['window']})."
        )
    return "\n".join(lines)


def main() -> None:
    """Replace what stands between the marks."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("frontier-*.json"))]
    records.sort(key=lambda record: (-len(record["data"]), record["settings"]["length"], record["settings"]["window"]))
    parts = [table(record) for record in records]
    plans = plan_lines()
    if plans:
        parts.append("### Plans\n\n" + plans)
    page = PAGE.read_text(encoding="utf-8")
    before, after = page.index(START) + len(START), page.index(END)
    PAGE.write_text(page[:before] + "\n" + "\n\n".join(parts) + "\n" + page[after:], encoding="utf-8")


if __name__ == "__main__":
    main()
