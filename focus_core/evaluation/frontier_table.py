"""The frontier as a table: perplexity and its interval beside kept pairs, largest group and measured speed.

Speeds come from records of `focus bench`, not from the run that measured perplexity: those of one attention call at
8K and 32K tokens, for routers with random groups that keep about the same share of distant pairs, for baselines an
exact execution on random tensors, a lower bound for those that choose by content. Where nothing near that share was
measured there is none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from focus_core.bench import SCHEMA as KERNEL
from focus_core.bench_baselines import SCHEMA as BASELINE
from focus_core.evaluation.compare import perplexity_difference
from focus_core.resources import data_dir

SIZES = (8192, 32768)
NEAR = 0.04
"""How far the share at which speed was measured may be from the share of a row."""


@dataclass(frozen=True)
class Speeds:
    """Measured speed-ups of one attention call over full attention, float32.

    Attributes:
        points: kind ("router", K, k) or name of a baseline, tokens, share of distant pairs kept (NaN of estimates),
            speed-up.
    """

    points: tuple[tuple[tuple[Any, ...], int, float, float], ...] = ()

    def of(self, kind: tuple[Any, ...], share: float | None) -> dict[int, float]:
        """Speed-up by number of tokens, of the measured points nearest to a share; only sizes that have one.

        Without a share that of equal groups, which keep the fewest pairs.
        """
        found: dict[int, tuple[float, float]] = {}
        for known, tokens, at, speedup in self.points:
            gap = 0.0 if math.isnan(at) else at if share is None else abs(at - share)
            if known == kind and (share is None or gap <= NEAR) and gap < found.get(tokens, (math.inf, 0.0))[0]:
                found[tokens] = gap, speedup
        return {tokens: speedup for tokens, (_, speedup) in found.items()}


def read_speeds(files: Iterable[Path]) -> Speeds:
    """The points of those files that are records of `focus bench`; others are passed over."""
    points: list[tuple[tuple[Any, ...], int, float, float]] = []
    for path in files:
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            schema, measured = record.get("schema"), record.get("points")
        except (OSError, ValueError, AttributeError):
            continue
        if schema == KERNEL:
            settings = record["settings"]
            for point in measured:
                if point["dtype"] == "float32" and "failure" not in point:
                    kind = (settings.get("router", "layer"), point["num_groups"], point["top_k"])
                    share = distant_share(point["kept_share"], point["tokens"], settings["window"])
                    points.append((kind, point["tokens"], share, point["speedup"]))
        elif schema == BASELINE:
            for point in measured:
                share = math.nan if point["kept_share"] is None else point["kept_share"]
                points.append(((point["baseline"],), point["tokens"], share, point["speedup"]))
    return Speeds(tuple(points))


def recorded_speeds() -> Speeds:
    """Those that come with the project."""
    return read_speeds(sorted((data_dir() / "results").glob("bench-*.json")))


def distant_share(kept_share: float, tokens: int, window: int) -> float:
    """Share of distant pairs kept, from the share of all causal pairs: local pairs are always kept."""
    every, distant = tokens * (tokens + 1) / 2, max(0, tokens - window - 1) * max(0, tokens - window) / 2
    return 1.0 if distant == 0 else (kept_share * every - (every - distant)) / distant


@dataclass(frozen=True)
class Row:
    """One method at one budget.

    Attributes:
        label: its name with its setting.
        series: what belongs together.
        kind: "untouched", "routers" or "baseline".
        source: paper of a baseline, how routers were made otherwise.
        kept_share: of distant pairs, None for estimates.
        causal_kept_share: of all pairs, likewise.
        perplexity: exp of the mean negative log-likelihood.
        relative: perplexity over that of the untouched model.
        difference: perplexity minus that of the untouched model.
        low: lower end of its 95% interval, paired bootstrap over blocks; None without.
        high: upper end.
        largest_group_share: of routers.
        speedups: of one attention call over full attention, by tokens; of a plan, of all layers' calls together, each
            with equal groups.
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
    largest_group_share: float | None
    speedups: dict[int, float]


def frontier_rows(record: dict[str, Any], speeds: Speeds) -> list[Row]:
    """Every point of a record of `focus frontier`, in its order.

    Args:
        record: as `focus frontier` writes it.
        speeds: what was measured.
    """
    points = record["points"]
    untouched = next(point for point in points if point["kind"] == "untouched")
    rows = []
    for point in points:
        gap = perplexity_difference(point["block_nll"], untouched["block_nll"])
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
                largest_group_share=point["largest_group_share"],
                speedups=_speedups(point, speeds),
            )
        )
    return rows


def _speedups(point: dict[str, Any], speeds: Speeds) -> dict[int, float]:
    if point["kind"] == "untouched":
        return dict.fromkeys(SIZES, 1.0)
    if point["kind"] == "baseline":
        return speeds.of((point["method"],), point["kept_share"])
    # Records of before 2026-11-22 do not say K and the kind of router, which were 8 and layer then.
    kind = point.get("router") or "layer", point.get("num_groups") or 8
    if point["top_k"] is not None:
        return speeds.of((*kind, point["top_k"]), point["kept_share"])
    layers = [speeds.of((*kind, top_k), None) for top_k in point.get("layer_top_k") or ()]
    both = [size for size in SIZES if layers and all(size in layer for layer in layers)]
    return {size: len(layers) / sum(1 / layer[size] for layer in layers) for size in both}


def markdown(record: dict[str, Any], speeds: Speeds) -> str:
    """The table, the fewest pairs first, with a heading that says on what it was measured."""
    settings, made = record["settings"], record["made"]
    rows = sorted(frontier_rows(record, speeds), key=lambda row: (row.kept_share is None, row.kept_share))
    untouched = next(row for row in rows if row.kind == "untouched")
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    lines = [
        f"### {title(record)}",
        "",
        f"{record['model']['name']}, {settings['blocks']} evenly spaced blocks; untouched perplexity "
        f"{untouched.perplexity:.2f}; {made['device']}, {versions}, {made['date'][:10]}. "
        "Intervals: 95%, paired bootstrap over blocks.",
        "",
        "| method | distant pairs kept | all pairs kept | perplexity | against untouched (perplexity, 95%) "
        "| largest group | attention at 8K | at 32K |",
        "|" + "---|" * 8,
    ]
    for row in rows:
        interval = "" if row.low is None or row.high is None else f" ({row.low:+.2f} to {row.high:+.2f})"
        shares = [
            "approximate" if share is None else f"{share:.1%}" for share in (row.kept_share, row.causal_kept_share)
        ]
        largest = "" if row.largest_group_share is None else f"{row.largest_group_share:.1%}"
        label = f"**{row.label}**" if row.kind == "routers" else row.label
        source = f" ({row.source})" if row.kind == "baseline" else ""
        speed = " | ".join(f"{row.speedups[size]:.2f}x" if size in row.speedups else "" for size in SIZES)
        lines.append(
            f"| {label}{source} | {' | '.join(shares)} | {row.perplexity:.2f} | {row.relative - 1:+.1%}{interval} "
            f"| {largest} | {speed} |"
        )
    return "\n".join(lines)


def title(record: dict[str, Any]) -> str:
    """Length, window, sinks and texts."""
    settings, texts = record["settings"], ", ".join(text["name"] for text in record["data"])
    return f"T = {settings['length']:,}, w = {settings['window']}, {settings['sink_tokens']} sinks: {texts}"
