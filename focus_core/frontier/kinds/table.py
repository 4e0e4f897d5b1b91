"""The table of several kinds of text: for each length the mean over kinds, then KL by kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from focus_core.evaluation.compare import MIN_BLOCKS, few_blocks
from focus_core.frontier.kinds.means import (
    MeanRow,
    blocks_available,
    blocks_of,
    devices_of,
    kinds_at,
    lengths_of,
    mean_rows,
)
from focus_core.frontier.speeds import Speed, Speeds
from focus_core.frontier.texts import one_document
from focus_core.shipped import shipped_routers

COLUMNS = (
    "method",
    "distant pairs kept",
    "KL",
    "KL, last quarter",
    "ours minus this",
    "top-1 same",
    "perplexity",
    "largest group",
    "attention, choosing excluded",
    "attention, choosing included",
    "whole model",
)
"""Retention first. "ours minus this" is the difference in KL of the routers of the record, with its 95% interval."""


UNEQUAL = 0.02
"""A larger difference between shares of pairs is told beside a comparison."""


def timed(row: MeanRow, speeds: Speeds) -> Speed:
    """The speed-ups of a row that were measured at its own length and near its share.

    One call of narrow groups was measured with the pages of those that ship. Others may have other pages, or directions
    of spread, and have no speed of a call.
    """
    point = next(iter(row.points.values()))
    if row.kind == "untouched":
        return Speed(1.0, 1.0, 1.0)
    if row.kind != "routers":
        return speeds.at(point["method"], row.length, row.kept_share, setting=point.get("setting"))
    kind = point["router"], point["num_groups"], point["top_k"]
    found = speeds.at(kind, row.length, row.kept_share, routers=point["method"])
    measured = point["router"] != "narrow" or point["method"] in shipped_routers()
    return found if measured else Speed(model=found.model)


def cells(row: MeanRow, speeds: Speeds) -> tuple[str, ...]:
    """The row as text, one cell for each of `COLUMNS`."""
    gap = row.against
    against = "" if gap is None else f"{gap.difference:+.4f}{_interval(gap.low, gap.high, '+.4f')}"
    loss = row.loss
    return (
        row.label,
        "approximate" if row.kept_share is None else f"{row.kept_share:.1%}",
        "" if row.kl is None else f"{row.kl.difference:.4f}{_interval(row.kl.low, row.kl.high, '.4f')}",
        "" if row.kl_last_quarter is None else f"{row.kl_last_quarter:.4f}",
        against + (" *" if row.established else ""),
        "" if row.top1_agreement is None else f"{row.top1_agreement:.1%}",
        "" if row.kl is None else f"{row.relative - 1:+.1%}" + (" †" if _differs(loss.low, loss.high) else ""),
        "" if row.largest_group_share is None else f"{row.largest_group_share:.0%}",
        *("" if speed is None else f"{speed:.2f}x" for speed in timed(row, speeds)[:3]),
    )


def _interval(low: float | None, high: float | None, form: str) -> str:
    return "" if low is None or high is None else f" ({low:{form}} to {high:{form}})"


def _differs(low: float | None, high: float | None) -> bool:
    return low is not None and high is not None and not low <= 0 <= high


def kinds_markdown(record: Mapping[str, Any], speeds: Speeds) -> str:
    """All lengths of a record: a sentence, the means over kinds, and KL by kind."""
    made = record["made"]
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    lines = [
        f"## {kinds_title(record)}",
        "",
        f"{record['model']['name']}; {devices_of(record)}, {versions}, {made['date'][:10]}.",
        "",
        *(f"- {note}" for note in notes(record)),
    ]
    for length in lengths_of(record):
        rows, kinds = mean_rows(record, length), kinds_at(record, length)
        if not rows:
            continue
        lines += ["", f"### T = {length:,}", "", verdict(record, length), "", "Mean over kinds of text:", ""]
        lines += _table(COLUMNS, [_emphasised(row, cells(row, speeds)) for row in rows])
        lines += ["", "KL by kind of text:", ""]
        lines += _table(("method", *kinds), [by_kind_cells(row, kinds) for row in rows if row.by_kind])
    return "\n".join(lines)


def by_kind_cells(row: MeanRow, kinds: list[str]) -> tuple[str, ...]:
    """The name of a row and its KL on each kind; empty where it is not measured."""
    return row.label, *(f"{row.by_kind[kind]:.4f}" if kind in row.by_kind else "" for kind in kinds)


def _emphasised(row: MeanRow, texts: tuple[str, ...]) -> tuple[str, ...]:
    source = f" ({row.source})" if row.kind == "baseline" else ""
    return (f"**{texts[0]}**" if row.ours else texts[0] + source, *texts[1:])


def _table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    lines = [" | ".join(("", *each, "")).strip() for each in (columns, *rows)]
    return [lines[0], "|" + "---|" * len(columns), *lines[1:]]


def kinds_title(record: Mapping[str, Any]) -> str:
    """Kinds of text, window and sinks."""
    settings = record["settings"]
    return f"{', '.join(record['kinds'])}: w = {settings['window']}, {settings['sink_tokens']} sinks"


def notes(record: Mapping[str, Any]) -> list[str]:
    """How intervals and speeds are to be read, which texts are short or a single document, and the time it took."""
    found = [
        "KL is of the untouched model's next-token distribution from the sparse one, in nats per token. "
        "Intervals: 95%, Student's t over the blocks of all kinds.",
        "* significant: p below 5% after Holm's correction over the baselines of a length. "
        "† the interval of the change in perplexity leaves zero out.",
        "Routers keep the pairs that their k gives. Baselines are asked for a share. Oracles need the attention that "
        "they save: they are bounds, and no part of the comparison.",
    ]
    used = {
        length: {name: blocks_of(record, name, length) for name in record["kinds"]} for length in lengths_of(record)
    }
    most = max((count for counts in used.values() for count in counts.values()), default=0)
    for length, counts in used.items():
        told = [_fewer(record, name, length) for name, count in counts.items() if count < most]
        if told:
            found.append(f"Fewer than {most} blocks of {length:,} tokens: {', '.join(told)}.")
        few = few_blocks(sum(counts.values()))
        if few:
            found.append(f"T = {length:,}: {few}.")
    for name, entry in record["kinds"].items():
        documents = [document for blocks in entry["blocks"].values() for document in blocks["documents"]]
        if warning := one_document(documents):
            found.append(f"{name}: {warning[0].lower()}{warning[1:]}")
    return [*found, *filter(None, [cost(record)])]


def cost(record: Mapping[str, Any]) -> str:
    """How long all points took, and what baselines got from training text; older records tell less, or nothing."""
    seconds = {
        "points": sum(point.get("seconds") or 0.0 for point in record["points"]),
        "settings of baselines": sum(entry.get("seconds", 0.0) for entry in record.get("tuning", ())),
        "learned baselines": max(
            (each.get("seconds", 0.0) for each in record.get("learned", {}).values()), default=0.0
        ),
    }
    told = [f"{name} {each / 60:,.1f}" for name, each in seconds.items() if each]
    return f"Time in minutes: {', '.join(told)}." if told else ""


def _fewer(record: Mapping[str, Any], kind: str, length: int) -> str:
    """Why a kind has few blocks: not all of its text was used, or there is no more."""
    used, available = blocks_of(record, kind, length), blocks_available(record, kind, length)
    if used < available:
        return f"{kind} used {used} of {available}"
    return f"{kind} has {used}" if used else f"{kind} has none"


def verdict(record: Mapping[str, Any], length: int) -> str:
    """What the routers keep at one length, how close they stay, and how many baselines are closer or farther."""
    rows = mean_rows(record, length)
    ours = next((row for row in rows if row.ours), None)
    if ours is None or ours.kl is None:
        return "The routers are not measured at this length yet."
    kept = "" if ours.kept_share is None else f" keep {ours.kept_share:.1%} of the distant pairs and"
    text = (
        f"The routers ({ours.label}){kept} are {ours.kl.difference:.4f} nats of KL per token from the untouched model."
    )
    compared = [row for row in rows if row.against is not None]
    if not compared:
        return text
    text += f" {_counted(compared)}"
    fewer = sum((ours.kept_share or 0) > (row.kept_share or 1) + UNEQUAL for row in compared)
    if fewer:
        text += f" {fewer} of {len(compared)} keep fewer pairs than the routers, which favours the routers."
    return text


def _being(count: int) -> str:
    return f"{count} {'is' if count == 1 else 'are'}"


def _counted(compared: list[MeanRow]) -> str:
    """How many baselines are closer to the untouched model than our routers, and how many farther."""
    gaps = [row.against for row in compared if row.against is not None]
    number = f"Of {len(gaps)} baselines" if len(gaps) > 1 else "Of 1 baseline"
    if any(gap.mark for gap in gaps):
        closer = _being(sum(gap.difference > 0 for gap in gaps))
        return f"{number}, {closer} closer, but over fewer than {MIN_BLOCKS} blocks nothing is established."
    established = [row.against.difference for row in compared if row.against is not None and row.established]
    closer, farther = _being(sum(gap > 0 for gap in established)), sum(gap < 0 for gap in established)
    return f"{number}, {closer} significantly closer and {farther} significantly farther."
