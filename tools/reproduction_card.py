"""Write docs/tables/reproduction-*.md, each published table beside ours, and the summary in docs/reproduction.md.

    python tools/reproduction_card.py [--check]

Published figures come from `data/published.json`, measured ones from `data/results/*.json`: from `focus reproduce`, and
where another command measures the same (`focus bench`, `focus align`) from its records.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import cards
from cards import ROOT, Pages, published, read, records, table
from reproduction_summaries import SUMMARIES
from reproduction_tables import command, differs, interval_note, measured_table, scores
from reproduction_verdicts import FAILS, HOLDS, RULES, UNTESTED, Verdict

from focus_core.reproduce.registry import EXPERIMENTS
from focus_core.reproduce.runner import NEEDS
from focus_core.reproduce.studies.rates import rate_remark
from focus_core.results import REPRODUCTION, machine_of

TOOL = "reproduction_card.py"
BEYOND_PAPER = {
    "recipes": "Not in the paper: changes of our own recipe, at the same share of kept pairs.",
    "adapted": "Not in the paper. Perplexity falls with adaptation to the text, whichever pairs are kept. So each row "
    "has two references: the untouched model, and full attention with the same weights.",
}


def reproduced() -> dict[str, list[dict[str, Any]]]:
    """The records of `focus reproduce` for each experiment, the oldest first."""
    found: dict[str, list[dict[str, Any]]] = {}
    for record in records("*.json").values():
        if record.get("schema") == REPRODUCTION:
            found.setdefault(record["experiment"], []).append(record)
    return {name: sorted(each, key=lambda record: record["made"]["date"]) for name, each in found.items()}


def speed() -> str:
    """The shipped speeds at k = 1."""
    record = read("bench-cpu.json")
    rows = [
        (f"{p['tokens']:,}", f"{p['num_groups']}/1", p["dtype"], f"{p['speedup']:.2f}", f"{p['bound']:.2f}",
         f"{p['kept_share']:.1%}")
        for p in sorted(record["points"], key=lambda point: (point["dtype"], point["tokens"]))
        if p["top_k"] == 1
    ]  # fmt: skip
    machine = machine_of(record)
    return "\n\n".join(
        (
            f"Here: {machine['device']} (CPU), {machine['threads']} threads, torch {machine['torch']}, random balanced "
            "routing, selection time excluded, from `focus bench attention`. [Every point](speed-attention.md) has "
            "k = 2 as well. No GPU was timed.",
            table(("tokens", "K/k", "dtype", "speed-up", "bound", "pairs kept"), rows),
        )
    )


def groups() -> str:
    """The counterpart of the group table, routers per layer."""
    parts = []
    for name, page in (
        ("alignment-books.json", "alignment-books.md"),
        ("alignment-ewt-dev.json", "alignment-treebank.md"),
    ):
        record = read(name)
        rows = [
            (row["category"], f"{row['layer']}, {row['group']}", f"{row['purity']:.1%}", f"{row['base_rate']:.1%}",
             f"{row['attainable']:.1%}", f"{row['group_share']:.1%}")
            for row in record["published"]
        ]  # fmt: skip
        texts = ", ".join(text["name"] for text in record["data"])
        parts += [
            f"Here: {record['model']['name']}, {texts}, from `focus align`. [The whole table]({page}) has what the "
            "figures have to beat.",
            table(("category", "layer, group", "purity", "base rate", "attainable", "size of group"), rows),
        ]
    return "\n\n".join(parts)


ELSEWHERE = {
    "speed": speed,
    "groups": groups,
    "retrofit": lambda: "Longer blocks, and baselines at several shares: [the frontier](../frontier.md).",
    "lora": lambda: "More benchmark items, for the routers per layer: [benchmarks](../benchmarks.md).",
}
"""The same measured by another command."""


def section(record: dict[str, Any]) -> list[str]:
    """One record: setting, table, command."""
    name = record["experiment"]
    return [
        "## Measured here",
        differs(record),
        interval_note(record),
        rate_remark(record),
        scores(record),
        measured_table(record),
        f"Not in this record: {', '.join(record['missing'])}." if record["missing"] else "",
        f"```bash\n{command(name, record)}\n```",
    ]


def page(
    made: Pages,
    name: str,
    paper: dict[str, Any] | None,
    found: list[dict[str, Any]],
    verdicts: dict[str, Verdict],
) -> None:
    """One experiment: the claims and the published table where there are such, and ours."""
    experiment, here = EXPERIMENTS[name], f"**Here**: {SUMMARIES[name](found)}."
    parts = [f"{name}: {experiment.title}"]
    if paper is None:
        parts += [BEYOND_PAPER[name], here]
    else:
        rows = [["" if value is None else str(value) for value in row] for row in paper["rows"]]
        claims = [(text, verdicts[claim].word, verdicts[claim].because) for claim, text in paper["claims"].items()]
        parts += [
            f"**Claim** ({paper['source']}): {paper['claim']}",
            table(("part of the claim", "verdict", "because"), claims),
            here,
            f"## Published: {paper['setting']}",
            table(paper["columns"], rows),
        ]
    for record in found:
        parts += section(record)
    if name in ELSEWHERE:
        parts += ["## Measured by another command", ELSEWHERE[name]()]
    elif not found:
        needs = " and ".join(NEEDS[need].partition(":")[0] for need in experiment.needs)
        parts.append(f"**Not run here.** The command needs {needs or 'nothing but the model'}.")
    if not found:
        parts.append(f"```bash\n{command(name, None)}\n```")
    cards.page(made, f"reproduction-{name}.md", TOOL, *parts)


def pages() -> Pages:
    """Everything that this tool makes."""
    paper, found, made, rows = published(), reproduced(), {}, []
    verdicts = {claim: RULES[claim](found) for each in paper.values() for claim in each["claims"]}
    for name in EXPERIMENTS:
        own, link = found.get(name, []), f"[{name}](tables/reproduction-{name}.md)"
        page(made, name, paper.get(name), own, verdicts)
        for claim, text in paper[name]["claims"].items() if name in paper else ():
            rows.append((link, text, verdicts[claim].word, verdicts[claim].because))
        if name not in paper:
            rows.append((link, "(not in the paper)", "", SUMMARIES[name](own)))
    doc = ROOT / "docs" / "reproduction.md"
    cards.fill(made, doc, "answer", answer(verdicts))
    cards.fill(made, doc, "summary", table(("experiment", "the paper's claim", "verdict", "measured here"), rows))
    cards.fill(made, doc, "recorded", recorded(found))
    return made


def answer(verdicts: dict[str, Verdict]) -> str:
    """The first lines: how many claims hold, and of which experiments."""
    lines = []
    for word, told in ((HOLDS, "hold here"), (FAILS, "do not hold here"), (UNTESTED, "are not testable here")):
        names = Counter(claim.rpartition("-")[0] for claim, each in verdicts.items() if each.word == word)
        listed = ", ".join(f"{name} ({count})" if count > 1 else name for name, count in names.items())
        lines.append(f"{names.total()} of {len(verdicts)} published claims {told}: {listed}.")
    return "\n".join(lines)


def recorded(found: dict[str, list[dict[str, Any]]]) -> str:
    """One sentence: how much was run."""
    return (
        f"{len(found)} of {len(EXPERIMENTS)} experiments have a record of `focus reproduce`. Speed and groups come "
        "from `focus bench` and `focus align`."
    )


if __name__ == "__main__":
    cards.main(pages)
