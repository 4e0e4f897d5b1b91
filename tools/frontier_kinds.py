"""Records over several kinds of text as Markdown, for tools/frontier_card.py and tools/readme_card.py."""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import Any

from cards import Record, item, table

from focus_core.baselines import BASELINES, METHODS
from focus_core.baselines.case import Setting
from focus_core.evaluation.compare import MIN_BLOCKS
from focus_core.frontier.kinds.means import MeanRow, blocks_of, kinds_at, lengths_of, mean_rows
from focus_core.frontier.kinds.table import COLUMNS, cells, kinds_title, verdict
from focus_core.frontier.speeds import Speeds, recorded_speeds

RECORD = "frontier-kinds.json"
FRESH = "frontier-fresh.json"
"""The same on texts that nothing was fitted on (tools/held_out.py)."""
LESS = "frontier-fresh-6.json"
"""The same at 6% of the pairs."""
LONG = "frontier-kinds-8192.json"
"""All kinds at 8,192 tokens; those of `FRESH` on the same blocks as in the next record."""
FRESH_LONG = "frontier-fresh-8192.json"
"""Those of `FRESH` alone at 8,192 tokens."""
QWEN = "frontier-qwen.json"
"""Books and code at 8,192 tokens and more, on a model with 32,768 positions."""
GEMMA = "frontier-gemma.json"
"""Four kinds at 8,192 tokens, on a model most of whose layers have windows of their own."""
CANDIDATES = "frontier-candidates.json"
"""The default beside forms that leave something out, on texts that served to choose it."""
PARTS = "frontier-parts.json"
"""The default beside routers without directions of spread, and without heads that recall either, on the same texts."""
MISSING = "Not measured yet."
HEADS = "smollm2-135m-k8-heads-lm"
STALLED = 5
"""A cell that took so many times the median of its method and length waited for something else."""
SETTINGS = {
    "quest": "keys of a page",
    "moba": "keys of a page",
    "sparq": "share of the query's components that choose keys",
    "clusters": "keys of a cluster",
    "kmeans": "clusters, in multiples of 1 / share",
    "lsh": "rounds, and buckets in multiples of 1 / share",
    "magicpig": "sign bits of a table; the number of tables follows from the share",
}
"""What the settings of a baseline are."""


def there(*found: Record | None) -> list[Record]:
    """Those records that exist."""
    return [each for each in found if each is not None]


def blocks_at(record: Record, length: int) -> int:
    """Blocks of all kinds at one length."""
    return sum(blocks_of(record, kind, length) for kind in record["kinds"])


def row_of(record: Record, length: int, method: str | None = None) -> MeanRow | None:
    """The row of a method at one length, or that of our routers; None where it is not measured."""
    return next(
        (
            row
            for row in mean_rows(record, length)
            if (row.ours if method is None else next(iter(row.points.values()))["method"] == method)
        ),
        None,
    )


def divergence(record: Record, length: int, method: str | None = None) -> float | None:
    """KL of a method, or of our routers, at one length; None where it is not measured."""
    row = row_of(record, length, method)
    return None if row is None or row.kl is None else row.kl.difference


def answer(*found: Record) -> str:
    """The first lines of docs/frontier.md: each length with baselines but the first, those with enough blocks first."""
    lengths = [
        (length, record)
        for record in found
        for length in lengths_of(record)
        if any(row.against for row in mean_rows(record, length))
    ]
    shortest = min(length for length, _ in lengths)
    lengths.sort(key=lambda each: (blocks_at(each[1], each[0]) < MIN_BLOCKS, each[0]))
    return "\n".join(_nearest(record, length) for length, record in lengths if length > shortest)


def _nearest(record: Record, length: int) -> str:
    """Ours and the baselines at one length, the nearest first, and what is established."""
    rows = [row for row in mean_rows(record, length) if row.against is not None and row.kl is not None]
    told = "; ".join(f"{_name(row)} {row.kl.difference:.4f}" for row in rows if row.kl is not None)
    ours, blocks = divergence(record, length), blocks_at(record, length)
    if ours is None:
        return f"At T = {length:,} the routers are not measured yet."
    return (
        f"At T = {length:,}, over {blocks} blocks of {len(kinds_at(record, length))} kinds of text, the default "
        f"routers are at a KL of {ours:.4f} from the untouched model.\nThe others, nearest first: {told}.\n"
        f"{_established(rows, blocks)}"
    )


def _established(rows: list[MeanRow], blocks: int) -> str:
    if blocks < MIN_BLOCKS:
        return f"Over fewer than {MIN_BLOCKS} blocks no difference is established."
    closer, farther = told_apart(rows)
    if len(rows) == 1:
        return f"The difference is {'significant' if closer + farther else 'not significant'}."
    return (
        f"{closer or 'None'} of these {len(rows)} {'is' if closer < 2 else 'are'} significantly closer than the "
        f"default, and {farther or 'none'} {'is' if farther < 2 else 'are'} significantly farther."
    )


def told_apart(rows: list[MeanRow]) -> tuple[int, int]:
    """How many baselines are significantly closer to the untouched model than ours, and how many farther."""
    closer, farther = (
        sum(row.established and row.against is not None and row.against.difference * sign > 0 for row in rows)
        for sign in (1, -1)
    )
    return closer, farther


def _name(row: MeanRow) -> str:
    """The name of a baseline without its share."""
    return next(iter(row.points.values()))["label"]


def summary(name: str, record: Record) -> str:
    """A sentence and the routers beside the baselines at each length, and the time that it took."""
    stem = name.removesuffix(".json")
    parts = [f"[{kinds_title(record)}](tables/{stem}.md), {record['model']['name']}:"]
    speeds = speeds_beside(name, record)
    for length in lengths_of(record):
        rows = [cells(row, speeds) for row in mean_rows(record, length)]
        parts += [f"### T = {length:,}", verdict(record, length), table(COLUMNS, rows)]
    parts.append(f"![KL against the share of distant pairs kept](../data/results/{stem}.svg)")
    parts.append(duration(record))
    if name == QWEN and (told := read_to_choose(record)):
        parts.append(told)
    return "\n\n".join(parts)


def speeds_beside(name: str, record: Record) -> Speeds:
    """Speeds of the methods of a record; none beside candidates, since those of the default are not theirs."""
    return Speeds() if name in (CANDIDATES, PARTS) else recorded_speeds(record["model"]["name"])


def fresh(record: Record | None, name: str = FRESH) -> str:
    """A record on texts that nothing was fitted on, once there is one."""
    return MISSING if record is None else summary(name, record)


def duration(record: Record) -> str:
    """How long the cells of a record took, by length, and which of them waited for something else."""
    cells_of: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    took: dict[int, float] = defaultdict(float)
    for point in record["points"]:
        cells_of[point["method"], point["length"]].append(point)
        took[point["length"]] += (point["seconds"] or 0) / 60
    told = ", ".join(f"{took[length]:.0f} minutes at {length:,} tokens" for length in sorted(took))
    stalled = [
        f"{point['label']} on {point['text']} at {point['length']:,} tokens ({point['seconds'] / 60:.0f} minutes)"
        for points in cells_of.values()
        for point in points
        if (point["seconds"] or 0) > STALLED * median(each["seconds"] or 0 for each in points)
    ]
    waited = f" In it are cells that stalled beside other load: {', '.join(stalled)}." if stalled else ""
    return (
        f"All cells together took {told}, on {record['made'].get('cores')} cores.{waited} {_prepared(record)}".rstrip()
    )


def _prepared(record: Record) -> str:
    """The time of tuning and training, which older records do not have."""
    tuned = [each.get("seconds") for each in record.get("tuning", [])]
    learned = [each.get("seconds") for each in record.get("learned", {}).values()]
    what = f"Tuning of baselines{' and training of learned ones' * bool(learned)}"
    if not (tuned or learned):
        return ""
    if None in (*tuned, *learned):
        return f"{what} {'are' if learned else 'is'} not counted."
    minutes = (sum(tuned) + max(learned, default=0)) / 60  # learned baselines are trained together
    return f"{what} took {minutes:.0f} minutes more."


def read_to_choose(record: Record) -> str:
    """What part of every key SparQ reads before it chooses, and what it loses with less; "" where it was not tuned."""
    for entry in record.get("tuning", []):
        if entry["method"] == "sparq":
            tried = sorted((each["setting"]["components"], each["kl"]) for each in entry["tried"])
            told = ", ".join(f"with {components:.1%} {kl:.4f}" for components, kl in tried).replace(".0%", "%")
            chosen = f"{entry['setting']['components']:.0%} of the components of every key"
            return f"To choose, SparQ reads {chosen}. Its KL while tuned: {told}."
    return ""


def at_the_edge(record: Record) -> tuple[list[str], list[str]]:
    """Baselines whose chosen setting is the smallest or largest of their grid, and all that were tuned."""
    chosen = {each["method"]: each["setting"] for each in record.get("tuning", [])}
    edge = []
    for name, setting in chosen.items():
        grid = BASELINES[name].grid
        ends = {key: (min(each[key] for each in grid), max(each[key] for each in grid)) for key in setting}
        if all(value in ends[key] for key, value in setting.items()):
            edge.append(name)
    return edge, list(chosen)


def limits(record: Record, tuning: Record) -> str:
    """What the record itself says about its limits, as a list; `tuning` is the one with most tuned baselines."""
    edge, tuned = at_the_edge(tuning)
    which = (
        f"All {len(tuned)} tuned baselines"
        if len(edge) == len(tuned)
        else f"{len(edge)} of {len(tuned)} tuned baselines"
    )
    rates = [
        METHODS[name].label
        for name, report in record["learned"].items()
        if report["rate"] in (min(map(float, report["trial_kl"])), max(map(float, report["trial_kl"])))
    ]
    learned = f" The learning rate of {' and '.join(rates)} was at the edge, too." if rates else ""
    found = {length: row for length in lengths_of(record) if (row := row_of(record, length, HEADS)) is not None}
    largest = " and ".join(
        f"{row.largest_group_share:.0%} of the tokens at T = {length:,}" for length, row in found.items()
    )
    kept = " and ".join(f"{row.kept_share:.1%}" for row in found.values())
    few = ", ".join(f"{blocks_at(record, length)} at T = {length:,}" for length in lengths_of(record))
    return "\n".join(
        item(text)
        for text in (
            f"**Few blocks.** The record of several kinds has {few}. Those of one kind have four to eight. "
            f"Intervals are Student's t. Under {MIN_BLOCKS} blocks no difference counts as established. From "
            f"{MIN_BLOCKS} on, p-values are corrected by Holm's method over the rows of a table.",
            f"**Tuning.** {which} chose a setting at the edge of their grid ([grids](baselines.md)).{learned} "
            "So a finer grid may bring them closer to the model, and make their choice slower. "
            + read_to_choose(tuning),
            f"**Uneven groups.** Of routers per head with k = 1, the largest group of the worst head has {largest}. "
            f"They keep {kept} of the distant pairs there; even groups would keep about an eighth.",
        )
    )


def grids(record: Record) -> str:
    """The settings of baselines, what each means, and which one the record chose."""
    chosen = {each["method"]: each["setting"] for each in record.get("tuning", [])}
    share = record["settings"]["shares"][0]
    together: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for name, baseline in BASELINES.items():
        if baseline.grid:
            values = ", ".join(_values(each) for each in baseline.grid)
            together[SETTINGS[name], values].append((name, _values(chosen[name]) if name in chosen else ""))
    rows = []
    for (meaning, values), found in together.items():
        picks = list(dict.fromkeys(pick for _, pick in found))
        rows.append((", ".join(f"`{name}`" for name, _ in found), meaning, values, ", ".join(picks)))
    columns = ("baseline", "setting", "values, the default first", f"chosen at {share:.0%}")
    return table(columns, rows)


def _values(setting: Setting) -> str:
    """The numbers of a setting."""
    values = [f"{value:g}" for value in setting.values()]
    return values[0] if len(values) == 1 else f"({', '.join(values)})"
