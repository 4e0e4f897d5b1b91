"""One sentence for every view of recorded evidence, counted from its table."""

from __future__ import annotations

from typing import Any

import pandas as pd

from focus_core.evaluation.compare import few_blocks
from workbench.views.quality.records import SPEEDS


def verdict(draw: str, table: pd.DataFrame, metric: str, against: str | None = None) -> str:
    """What a table of `workbench.views.quality.records` says.

    Args:
        draw: how its view is drawn.
        table: the rows.
        metric: what differs.
        against: of a frontier, the column it is drawn against.
    """
    if not len(table):
        return "The record has no row to compare yet."
    if draw == "frontier" and against in SPEEDS:
        return _fast(table, against)
    return {"path": _sweep, "lengths": _lengths, "curves": _curves, "frontier": _frontier}.get(
        draw, lambda rows: _counted(rows, metric)
    )(table)


def caution(content: dict[str, Any]) -> str:
    """A sentence for records whose differences come from too few blocks; empty for the others."""
    settings = content.get("settings") or {}
    blocks = (settings.get("scale") or settings).get("blocks")
    if not isinstance(blocks, int) or content.get("experiment") == "lengths":  # lengths compare pieces of one block
        return ""
    few = few_blocks(blocks)
    return f"Differences come from {blocks} blocks; {few}." if few else ""


def _counted(table: pd.DataFrame, metric: str) -> str:
    known = table.loc[table["low"].notna() & table["high"].notna()]
    above, below = int((known["low"] > 0).sum()), int((known["high"] < 0).sum())
    sentence = (
        f"Of {len(table)} rows, {metric} is beyond its 95% interval above 0 in {above} and below 0 in {below}; "
        f"{len(known) - above - below} cannot be told from 0"
    )
    without = len(table) - len(known)
    return sentence + (f", and {without} have no interval." if without else ".")


def _sweep(table: pd.DataFrame) -> str:
    causal = table.loc[table["series"] == "calibrated"].sort_values("k")
    parts = [
        f"k = {int(row['k'])}: {row['relative'] - 1:+.1%} at {row['distant kept']:.0%} of the distant pairs"
        f" (largest group {row['largest group']:.0%})"
        for row in causal.to_dict("records")
    ]
    return f"Causal routing against the untouched model: {'; '.join(parts)}."


def _lengths(table: pd.DataFrame) -> str:
    parts = []
    for series, rows in table.groupby("series", sort=True):
        every = rows.to_dict("records")
        first, last = every[0], every[-1]
        parts.append(
            f"{series}: {first['difference']:+.2f} at {int(first['length']):,} tokens and {last['difference']:+.2f} at "
            f"{int(last['length']):,} ({first['distant kept']:.0%} and {last['distant kept']:.0%} of the distant pairs "
            "kept)"
        )
    return f"Perplexity above the untouched model: {'; '.join(parts)}."


_BUDGETS = (0.2, 0.35, 0.5)
"""Shares of the distant pairs under which the best routers are named."""


def _frontier(table: pd.DataFrame) -> str:
    routers = table.loc[table["kind"] == "routers"]
    parts: dict[str, str] = {}
    for budget in _BUDGETS:
        within = routers.loc[routers["distant kept"] <= budget].sort_values("perplexity")
        if not len(within):
            continue
        point = within.to_dict("records")[0]
        rivals = table.loc[
            (table["kind"] == "baseline") & ((table["distant kept"] - point["distant kept"]).abs() < 0.05)
        ]
        better = int((rivals["perplexity"] < point["perplexity"]).sum())
        beside = f"; {better} of {len(rivals)} baselines near that share do better" if len(rivals) else ""
        kept = f"{point['relative'] - 1:+.1%} with {point['distant kept']:.0%}{beside}"
        parts.setdefault(point["label"], f"under {budget:.0%} {point['label']} ({kept})")
    if not parts:
        return f"All routers here keep more than {_BUDGETS[-1]:.0%} of the distant pairs."
    return f"The routers that lose least, by share of distant pairs kept: {', '.join(parts.values())}."


_FLOORS = (1.5, 2, 3, 6)
"""Speed-ups from which on what loses least is named."""


def _fast(table: pd.DataFrame, column: str) -> str:
    parts: dict[str, str] = {}
    for floor in _FLOORS:
        within = table.loc[table[column] >= floor].sort_values("perplexity")
        if len(within):
            point = within.to_dict("records")[0]
            kept = "" if pd.isna(point["distant kept"]) else f" with {point['distant kept']:.0%} of the distant pairs"
            loss = f"{point['relative'] - 1:+.1%}{kept}"
            parts[point["label"]] = f"at {floor:g}x and more {point['label']} ({loss}, {point[column]:.1f}x)"
    if not parts:
        return f"Nothing here was measured to be {_FLOORS[0]:g} times as fast as full attention."
    tokens = f"{SPEEDS[column]:,} tokens"
    return f"What loses least, by measured speed-up of one attention call at {tokens}: {', '.join(parts.values())}."


def _curves(table: pd.DataFrame) -> str:
    ends = table.sort_values("step").groupby(["variant", "phase"], sort=False).tail(1)
    parts = []
    for phase, words in (("centroids", "the routers alone"), ("everything", "all weights")):
        rows = ends.loc[ends["phase"] == phase].sort_values("largest group")
        if len(rows):
            low, high = rows.iloc[0], rows.iloc[-1]
            parts.append(
                f"after training {words} the largest group holds {low['largest group']:.0%} of the tokens with "
                f"“{low['variant']}” and {high['largest group']:.0%} with “{high['variant']}”"
            )
    return f"Mean over layers, {max(table['step'])} steps: {'; '.join(parts)}."
