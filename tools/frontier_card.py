"""Write tables and figures beside the recorded runs of `focus frontier`, and the list of them in docs/frontier.md.

    python tools/frontier_card.py

Only what stands between the marks is replaced; the text around it is written by hand.
"""

from __future__ import annotations

import json
from pathlib import Path

from focus_core.frontier.files import write_beside
from focus_core.frontier.speeds import read_speeds
from focus_core.frontier.table import title

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "data" / "results"
PAGE = ROOT / "docs" / "frontier.md"
START, END = "<!-- frontier: python tools/frontier_card.py -->", "<!-- end of frontier -->"


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
    speeds = read_speeds(sorted(RESULTS.glob("bench-*.json")))
    found = [(path, json.loads(path.read_text(encoding="utf-8"))) for path in sorted(RESULTS.glob("frontier-*.json"))]
    found.sort(key=lambda pair: (-len(pair[1]["data"]), pair[1]["settings"]["length"], pair[1]["settings"]["window"]))
    parts = []
    for path, record in found:
        write_beside(path, record, speeds)
        table, figure = (f"../data/results/{path.with_suffix(ending).name}" for ending in (".md", ".svg"))
        parts.append(
            f"### {title(record)}\n\n{record['settings']['blocks']} blocks, {len(record['points'])} points: "
            f"[table]({table}), [record](../data/results/{path.name}).\n\n![{title(record)}]({figure})"
        )
    plans = plan_lines()
    if plans:
        parts.append("### Plans\n\n" + plans)
    page = PAGE.read_text(encoding="utf-8")
    before, after = page.index(START) + len(START), page.index(END)
    PAGE.write_text(page[:before] + "\n" + "\n\n".join(parts) + "\n" + page[after:], encoding="utf-8")


if __name__ == "__main__":
    main()
