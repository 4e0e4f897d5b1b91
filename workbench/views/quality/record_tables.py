"""From the content of a record to the table that the page Quality draws, a function for each kind of record.

A table of differences has the columns of `DIFFERENCES`.
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from focus_core.evaluation import Evaluation, leaks
from focus_core.frontier.speeds import recorded_speeds
from focus_core.frontier.table import SIZES, frontier_rows

DIFFERENCES = ("label", "series", "difference", "low", "high", "distant kept", "largest group")
SPEEDS = {f"speed-up at {size // 1024}K": size for size in SIZES}
"""Columns of the frontier with the measured speed-up of one attention call, and its number of tokens.

A speed belongs beside a perplexity of the same length only, so the columns of other lengths stay empty.
"""
_SETTINGS = {"soft": "soft gate", "off": "untouched"}


def setting_name(row: dict[str, Any]) -> str:
    """Such as "hard, k = 2, calibrated"."""
    parts = [_SETTINGS.get(str(row.get("routing")), str(row.get("routing")))]
    if row.get("top_k"):
        parts.append(f"k = {row['top_k']}")
    if row.get("balance") not in (None, "none") and row.get("routing") != "soft":
        parts.append(str(row["balance"]))
    return ", ".join(parts)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _shares(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "perplexity": _number(row.get("perplexity")),
        "distant kept": _number(row.get("kept_share")),
        "largest group": _number(row.get("largest_group_share")),
    }


def _gap(found: dict[str, Any]) -> dict[str, float]:
    return {name: _number(found.get(name)) for name in ("difference", "low", "high")}


def differences(content: dict[str, Any]) -> pd.DataFrame:
    """Rows with a difference from the untouched model: cell, setting, difference with interval, shares."""
    rows = [
        {"label": str(row["cell"]), "series": setting_name(row), **_gap(row), **_shares(row)}
        | {name: row[name] for name in ("phase", "length", "exposure") if name in row}
        for row in content["results"]
        if row.get("difference") is not None
    ]
    return pd.DataFrame(rows, columns=None if rows else list(DIFFERENCES))


def sweep(content: dict[str, Any]) -> pd.DataFrame:
    """Perplexity and kept share by k."""
    rows = [
        {"k": row.get("top_k"), "series": str(row["balance"]), **_shares(row), "bound": _number(row["speedup_bound"])}
        for row in content["results"]
        if row["routing"] == "hard"
    ]
    untouched = [row for row in content["results"] if row["routing"] == "off"]
    table = pd.DataFrame(rows)
    return table.assign(relative=table["perplexity"] / float(untouched[0]["perplexity"]) if untouched else math.nan)


def lengths(content: dict[str, Any]) -> pd.DataFrame:
    """Difference from the untouched model by length."""
    return differences(content).astype({"length": int}).sort_values(["series", "length"])


def curves(content: dict[str, Any]) -> pd.DataFrame:
    """One row per variant and look: step, phase, loss, largest group, stability."""
    labels = {row["cell"]: row.get("variant") for row in content["results"]}
    rows = [
        {
            "variant": labels.get(cell) or cell,
            "step": int(point["step"]),
            "phase": str(point["phase"]),
            "loss": _number(point["loss"]),
            "largest group": _number(point["largest"]),
            "largest group, worst layer": _number(point["worst"]),
            "stability": _number(point["stability"]),
        }
        for cell, points in content["curve"].items()
        for point in points
    ]
    return pd.DataFrame(rows)


def benchmarks(content: dict[str, Any]) -> pd.DataFrame:
    """Scores minus those of the untouched model, per task and routing, with exposure."""
    rows = []
    for row in content["results"]:
        gap = row.get("differences", {}).get(row["headline"])
        if gap is not None:
            routing = {"routing": row["mode"], "top_k": row.get("top_k"), "balance": row.get("balance")}
            rows.append(
                {
                    "label": str(row["task"]),
                    "series": setting_name(routing),
                    **_gap(gap),
                    "metric": row["headline"],
                    "score": _number(row["metrics"][row["headline"]]),
                    "items": int(row["items_scored"]),
                    "distant pairs": _number(row["exposure"]["distant_share"]),
                    "removed": _number(row["exposure"]["removed_share"]),
                    "reading": str(row["reading"]),
                }
            )
    return pd.DataFrame(rows)


def adapters(content: dict[str, Any]) -> pd.DataFrame:
    """Perplexity of LoRA minus that of the untouched model, scores beside it."""
    rows = []
    for row in content["results"]:
        scores = {
            f"{task}, difference": _number(found["differences"][found["headline"]]["difference"])
            for task, found in row["benchmarks"].items()
        }
        gap = _gap(row["perplexity_difference"])
        shown = {"label": str(row["name"]), "series": f"rank {row['rank']}", **gap}
        rows.append(shown | {"parameters": int(row["trainable_parameters"]), **_shares(row), **scores})
    return pd.DataFrame(rows)


def compared(content: dict[str, Any]) -> pd.DataFrame:
    """Routers and LoRA as `focus reproduce` records them, scores beside perplexity."""
    rows = []
    for row in content["results"]:
        if row.get("difference") is None:
            continue
        scores = {
            f"{task}, difference": _number(found["differences"][found["headline"]]["difference"])
            for task, found in row.get("benchmarks", {}).items()
        }
        kind = setting_name(row) if row.get("routing") else "LoRA"
        rows.append({"label": str(row["cell"]), "series": kind, **_gap(row), **_shares(row), **scores})
    return pd.DataFrame(rows)


def recipes(content: dict[str, Any]) -> pd.DataFrame:
    """Every recipe against the base one at the same kept share, where its k reach that share; shares are those at k."""
    rows = []
    for row in content["results"]:
        if row.get("against_base") is not None:
            gap = {name: _number(row.get(f"against_{name}")) for name in ("low", "high")}
            shown = {"label": str(row["cell"]), "series": "against the base recipe", "candidate": str(row["candidate"])}
            rows.append(
                {**shown, "difference": float(row["against_base"]), **gap, "k": row.get("top_k"), **_shares(row)}
            )
    return pd.DataFrame(rows, columns=None if rows else list(DIFFERENCES))


def leak(content: dict[str, Any]) -> pd.DataFrame:
    """Sequence minus calibrated perplexity at every k, with the difference in kept share and a reading."""
    names = set(Evaluation.__dataclass_fields__)
    rows = [Evaluation(**{key: value for key, value in row.items() if key in names}) for row in content["results"]]
    return pd.DataFrame(
        {
            "label": f"k = {found.top_k}",
            "series": "sequence minus calibrated",
            "difference": found.perplexity_difference,
            "low": _number(found.low),
            "high": _number(found.high),
            "kept share, difference": found.kept_share_difference,
            "reading": found.reading,
        }
        for found in leaks(rows)
    )


def frontier(content: dict[str, Any]) -> pd.DataFrame:
    """Routers and baselines: perplexity, paired difference, kept share, largest group, and speed at the same length."""
    length = int((content.get("settings") or {}).get("length", 0))
    rows = [
        {"label": row.label, "series": row.series, "kind": row.kind}
        | {"difference": row.difference, "low": _number(row.low), "high": _number(row.high)}
        | {"relative": row.relative, "perplexity": row.perplexity}
        | {"distant kept": _number(row.kept_share), "largest group": _number(row.largest_group_share)}
        | {name: row.speedups.get(size, math.nan) if size == length else math.nan for name, size in SPEEDS.items()}
        | {"source": row.source}
        for row in frontier_rows(content, recorded_speeds(content["model"]["name"]))
        if row.kind != "untouched"
    ]
    return pd.DataFrame(rows)
