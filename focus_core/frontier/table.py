"""The frontier as a table: perplexity and its interval, kept pairs, largest group and measured speed.

Speeds are those of one attention call at 8K and 32K tokens, from records of `focus bench`. Rows without a measured
speed near their share have none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from focus_core.errors import FocusError
from focus_core.evaluation.compare import LEVEL, Difference, few_blocks, holm, perplexity_difference
from focus_core.frontier.speeds import Speeds, joint_speedup
from focus_core.frontier.texts import one_document

SIZES = (8192, 32768)


@dataclass(frozen=True)
class Row:
    """One method at one budget.

    Attributes:
        label: its name with its setting.
        series: name that the points of one method share.
        kind: "untouched", "routers" or "baseline".
        source: paper of a baseline; for routers, their origin.
        kept_share: of distant pairs; None for estimates.
        causal_kept_share: of all causal pairs; None for estimates.
        perplexity: exp of the mean negative log-likelihood.
        relative: perplexity over that of the untouched model.
        difference: perplexity minus that of the untouched model.
        low: lower end of its 95% interval, Student's t over blocks, paired; None without.
        high: upper end.
        p_value: of no difference, adjusted by Holm's method for all rows of the record; None without.
        established: whether blocks are enough and the adjusted p-value is below 5%.
        mark: the remark where blocks are too few; empty otherwise.
        largest_group_share: of routers.
        speedups: of one attention call over full attention, by tokens; for a plan, of all layers' calls together,
            each with equal groups.
        kl: mean KL(untouched || this) in nats per token; None in records that do not have it.
        kl_last_quarter: the same over the last quarter of positions.
        top1_agreement: share of tokens with the untouched model's most likely token.
    """

    label: str
    series: str
    kind: str
    source: str
    kept_share: float | None
    causal_kept_share: float | None
    perplexity: float
    relative: float
    difference: float
    low: float | None
    high: float | None
    p_value: float | None
    established: bool
    mark: str
    largest_group_share: float | None
    speedups: dict[int, float]
    kl: float | None = None
    kl_last_quarter: float | None = None
    top1_agreement: float | None = None


def frontier_rows(record: dict[str, Any], speeds: Speeds) -> list[Row]:
    """Every point of a record of `focus frontier`, in its order.

    Args:
        record: as `focus frontier` writes it.
        speeds: measured speeds.

    Raises:
        FocusError: the record lacks the untouched model.
    """
    points = record["points"]
    untouched = next((point for point in points if point["kind"] == "untouched"), None)
    if untouched is None:
        raise FocusError("The record has no point of the untouched model: measure it again.")
    gaps = [perplexity_difference(point["block_nll"], untouched["block_nll"]) for point in points]
    p_values = holm([None if point is untouched else gap.p_value for point, gap in zip(points, gaps)])
    rows = []
    for point, gap, p_value in zip(points, gaps, p_values):
        rows.append(
            Row(
                label=point["label"],
                series=point["method"] if point["kind"] == "routers" else point["label"],
                kind=point["kind"],
                source=point["source"],
                kept_share=point["kept_share"],
                causal_kept_share=point["causal_kept_share"],
                perplexity=point["perplexity"],
                relative=point["perplexity"] / untouched["perplexity"],
                difference=gap.difference,
                low=gap.low,
                high=gap.high,
                p_value=p_value,
                established=_established(gap, p_value),
                mark=gap.mark,
                largest_group_share=point["largest_group_share"],
                speedups=_speedups(point, speeds),
                **{name: point.get(name) for name in ("kl", "kl_last_quarter", "top1_agreement")},
            )
        )
    return rows


def _established(gap: Difference, p_value: float | None) -> bool:
    return not gap.mark and p_value is not None and p_value < 1 - LEVEL


def _speedups(point: dict[str, Any], speeds: Speeds) -> dict[int, float]:
    if point["kind"] == "untouched":
        return dict.fromkeys(SIZES, 1.0)
    if point["kind"] == "baseline":
        return speeds.of((point["method"],), point["kept_share"])
    # Records from before 2026-11-22 lack K and the kind of router, which were 8 and "layer" then.
    kind = point.get("router") or "layer", point.get("num_groups") or 8
    # Routers with a share of the pairs have neither a k nor a plan.
    if point["top_k"] is not None or not point.get("layer_top_k"):
        return speeds.of((*kind, point["top_k"]), point["kept_share"])
    layers = [speeds.of((*kind, top_k), None) for top_k in point["layer_top_k"]]
    both = [size for size in SIZES if layers and all(size in layer for layer in layers)]
    return {size: joint_speedup(layer[size] for layer in layers) for size in both}


def markdown(record: dict[str, Any], speeds: Speeds) -> str:
    """The table, the fewest pairs first, under a heading with model, texts, versions and date."""
    settings, made = record["settings"], record["made"]
    rows = sorted(frontier_rows(record, speeds), key=lambda row: (row.kept_share is None, row.kept_share))
    untouched = next(row for row in rows if row.kind == "untouched")
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    lines = [
        f"### {title(record)}",
        "",
        f"{record['model']['name']}, {settings['blocks']} evenly spaced blocks; untouched perplexity "
        f"{untouched.perplexity:.2f}; {made['device']}, {versions}, {made['date'][:10]}. "
        f"{worth(settings['blocks'], record.get('documents', ()))}",
        "",
        "| method | KL | KL, last quarter | top-1 same | distant pairs kept | all pairs kept | perplexity "
        "| against untouched (perplexity, 95%) | largest group | attention at 8K | at 32K |",
        "|" + "---|" * 11,
    ]
    for row in rows:
        interval = "" if row.low is None or row.high is None else f" ({row.low:+.2f} to {row.high:+.2f})"
        interval += " *" if row.established else ""
        shares = [
            "approximate" if share is None else f"{share:.1%}" for share in (row.kept_share, row.causal_kept_share)
        ]
        largest = "" if row.largest_group_share is None else f"{row.largest_group_share:.1%}"
        label = f"**{row.label}**" if row.kind == "routers" else row.label
        source = f" ({row.source})" if row.kind == "baseline" else ""
        speed = " | ".join(f"{row.speedups[size]:.2f}x" if size in row.speedups else "" for size in SIZES)
        lines.append(
            f"| {label}{source} | {' | '.join((*retention_cells(row), *shares))} | {row.perplexity:.2f} "
            f"| {row.relative - 1:+.1%}{interval} | {largest} | {speed} |"
        )
    return "\n".join(lines)


def retention_cells(row: Row) -> tuple[str, str, str]:
    """KL, KL over the last quarter and top-1 agreement; empty where a record does not have them."""
    return (
        "" if row.kl is None else f"{row.kl:.4f}",
        "" if row.kl_last_quarter is None else f"{row.kl_last_quarter:.4f}",
        "" if row.top1_agreement is None else f"{row.top1_agreement:.1%}",
    )


def worth(blocks: int, documents: Iterable[str] = ()) -> str:
    """The method of the intervals, and a remark where blocks are too few or of one document."""
    few, text = few_blocks(blocks), "Intervals: 95%, Student's t over blocks, paired with the untouched model."
    text = " ".join((text, *filter(None, [one_document(documents)])))
    if few:
        return f"{text} {few.capitalize()}."
    return f"{text} * established: p below 5% after Holm's correction over all rows."


def title(record: dict[str, Any]) -> str:
    """Length, window, sinks and texts."""
    settings, texts = record["settings"], ", ".join(text["name"] for text in record["data"])
    return f"T = {settings['length']:,}, w = {settings['window']}, {settings['sink_tokens']} sinks: {texts}"
