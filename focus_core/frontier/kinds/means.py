"""Rows of a record of several kinds of text: each method at one length, by kind and as the mean over kinds.

The mean over kinds is the mean of their means. Its interval is Student's t over the blocks of all kinds, paired with
the untouched model or with our routers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from focus_core.errors import FocusError
from focus_core.evaluation.compare import LEVEL, Difference, holm, mean_difference


@dataclass(frozen=True)
class MeanRow:
    """One method at one setting and length.

    Attributes:
        label: its name with its setting; it ends in the number of kinds where some are not measured yet.
        series: name that the rows of one method share.
        kind: "untouched", "routers", "baseline" or "oracle".
        source: paper of a baseline; for routers, their origin.
        length: T in tokens.
        wanted_share: share of distant pairs that a baseline, or routers that read a share, were asked to keep.
        kept_share: share of distant pairs kept, mean over kinds; None for estimates.
        causal_kept_share: share of all causal pairs computed, likewise.
        kl: mean KL(untouched || this) over kinds in nats per token, with its interval; None for the untouched model.
        kl_last_quarter: the same over the last quarter of positions.
        top1_agreement: share of tokens with the untouched model's most likely token, mean over kinds.
        loss: negative log-likelihood minus the untouched model's, nats per token, mean over kinds, with its interval.
        largest_group_share: of routers: largest over kinds.
        by_kind: KL of each kind measured.
        points: the points of the row by kind.
        complete: whether every kind that has text of this length is measured.
        against: KL of our routers minus KL of this, paired over blocks; of complete baselines only.
        p_value: of no such difference, by Holm's method for all rows compared at this length.
    """

    label: str
    series: str
    kind: str
    source: str
    length: int
    wanted_share: float | None
    kept_share: float | None
    causal_kept_share: float | None
    kl: Difference | None
    kl_last_quarter: float | None
    top1_agreement: float | None
    loss: Difference
    largest_group_share: float | None
    by_kind: dict[str, float]
    points: dict[str, dict[str, Any]]
    complete: bool
    ours: bool = False
    against: Difference | None = None
    p_value: float | None = None

    @property
    def relative(self) -> float:
        """Perplexity over that of the untouched model, geometric mean over kinds."""
        return math.exp(self.loss.difference)

    @property
    def established(self) -> bool:
        """Whether KL differs from our routers': enough blocks, and the corrected p-value is below 5%."""
        return (
            self.against is not None and not self.against.mark and self.p_value is not None and self.p_value < 1 - LEVEL
        )


def mean_over_kinds(values: Mapping[str, Sequence[float]]) -> Difference:
    """Mean of the means of kinds, with Student's t interval over all blocks.

    Each block enters with the weight that its kind's share of the mean gives it; with as many blocks of every kind this
    is the interval of all blocks together.

    Args:
        values: a value for each block, by kind.

    Raises:
        FocusError: no kind, or a kind without a block.
    """
    kinds = [np.asarray(each, dtype=float) for each in values.values()]
    if not kinds or not all(each.size for each in kinds):
        raise FocusError("A mean over kinds of text needs at least one block of each: measure a longer text.")
    blocks, mean = sum(each.size for each in kinds), float(np.mean([each.mean() for each in kinds]))
    shares = [mean + blocks / (len(kinds) * each.size) * (each - mean) for each in kinds]
    return mean_difference(np.concatenate(shares))


def lengths_of(record: Mapping[str, Any]) -> list[int]:
    """Lengths that a record has points at, ascending."""
    return sorted({point["length"] for point in record["points"]})


def kinds_at(record: Mapping[str, Any], length: int) -> list[str]:
    """Kinds with text of this length, in the order of the record."""
    return [name for name in record["kinds"] if blocks_of(record, name, length)]


def blocks_of(record: Mapping[str, Any], kind: str, length: int) -> int:
    """Number of blocks of one kind at one length."""
    return record["kinds"][kind]["blocks"].get(str(length), {"used": 0})["used"]


def blocks_available(record: Mapping[str, Any], kind: str, length: int) -> int:
    """Number of blocks that the documents of one kind hold at one length, used or not."""
    blocks = record["kinds"][kind]["blocks"].get(str(length), {"used": 0})
    return blocks.get("available", blocks["used"])


def devices_of(record: Mapping[str, Any]) -> str:
    """The devices that measured the points of a record; of older ones, whose points lack it, that of the last call."""
    found = [point["made"]["device"] for point in record["points"] if point.get("made")]
    return " and ".join(dict.fromkeys(found)) or record["made"]["device"]


def mean_rows(record: Mapping[str, Any], length: int) -> list[MeanRow]:
    """Rows at one length: the untouched model, routers, baselines and oracles, each by KL, the least first.

    Points over other blocks than the record's present ones are left out.

    Args:
        record: as `measure_protocol` writes it.
        length: T in tokens.
    """
    kinds = kinds_at(record, length)
    cells: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = defaultdict(dict)
    for point in record["points"]:
        if point["length"] == length and len(point["block_nll"]) == blocks_of(record, point["text"], length):
            cells[point["method"], point["top_k"], point["wanted_share"]][point["text"]] = point
    untouched = cells.get(("untouched", None, None), {})
    rows = [
        _row(found, untouched, kinds, length, record["ours"])
        for by_kind in cells.values()
        if (found := {name: by_kind[name] for name in kinds if name in by_kind and name in untouched})
    ]
    return sorted(_compared(rows), key=_rank)


def _rank(row: MeanRow) -> tuple[int, float]:
    ranks = {"untouched": 0, "routers": 1, "oracle": 3}
    return ranks.get(row.kind, 2), 0.0 if row.kl is None else row.kl.difference


def _row(
    found: dict[str, dict[str, Any]],
    untouched: dict[str, dict[str, Any]],
    kinds: Sequence[str],
    length: int,
    ours: Mapping[str, Any],
) -> MeanRow:
    point = next(iter(found.values()))
    complete = len(found) == len(kinds)
    off = point["kind"] == "untouched"
    losses = {
        name: np.subtract(each["block_nll"], untouched[name]["block_nll"]).tolist() for name, each in found.items()
    }
    largest = [each["largest_group_share"] for each in found.values() if each["largest_group_share"] is not None]
    return MeanRow(
        label=label_of(point) + ("" if complete else f" ({len(found)} of {len(kinds)} kinds)"),
        series=point["method"] if point["kind"] == "routers" else point["label"],
        kind=point["kind"],
        source=point["source"],
        length=length,
        wanted_share=point["wanted_share"],
        kept_share=_mean(found, "kept_share"),
        causal_kept_share=_mean(found, "causal_kept_share"),
        kl=None if off else mean_over_kinds({name: each["block_kl"] for name, each in found.items()}),
        kl_last_quarter=_mean(found, "kl_last_quarter"),
        top1_agreement=_mean(found, "top1_agreement"),
        loss=mean_over_kinds(losses),
        largest_group_share=max(largest, default=None),
        by_kind={} if off else {name: each["kl"] for name, each in found.items()},
        points=found,
        complete=complete,
        ours=(point["method"], point["top_k"], point["wanted_share"])
        == (ours["method"], ours["top_k"], ours.get("share")),
    )


def label_of(point: Mapping[str, Any]) -> str:
    """The name of a point with its share, where it was asked for one."""
    share = point["wanted_share"]
    return point["label"] if share is None else f"{point['label']}, {share:.0%}"


def _mean(found: Mapping[str, Mapping[str, Any]], name: str) -> float | None:
    values = [point[name] for point in found.values()]
    return None if any(value is None for value in values) else float(np.mean(values))


def _compared(rows: Iterable[MeanRow]) -> list[MeanRow]:
    """Rows with the difference of our routers from each complete baseline, and p-values by Holm's method."""
    rows = list(rows)
    ours = next((row for row in rows if row.ours and row.complete), None)
    gaps = [_gap(ours, row) for row in rows]
    p_values = holm([None if gap is None else gap.p_value for gap in gaps])
    return [replace(row, against=gap, p_value=value) for row, gap, value in zip(rows, gaps, p_values, strict=True)]


def _gap(ours: MeanRow | None, row: MeanRow) -> Difference | None:
    if ours is None or not row.complete or row.kind != "baseline":
        return None
    return mean_over_kinds(
        {
            name: np.subtract(ours.points[name]["block_kl"], point["block_kl"]).tolist()
            for name, point in row.points.items()
        }
    )
