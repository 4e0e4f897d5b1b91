"""The page's sentence for every view of recorded evidence: the answer first, then details and limits."""

from __future__ import annotations

from typing import Any

import pandas as pd

from focus_core.evaluation.compare import MIN_BLOCKS
from workbench.views.quality.record_tables import SPEEDS

ADAPTATION = (
    "A perplexity below the untouched model's is no win over full attention: routers trained on next tokens also adapt "
    "to the text."
)
NOTHING = "The record has no row to compare yet."


def num_blocks(content: dict[str, Any]) -> int | None:
    """The fewest blocks of text behind a perplexity of a record; None where scores are of another kind.

    None also for lengths, whose differences are over pieces of one block.

    Args:
        content: of a `workbench.views.quality.records.Record`.
    """
    if content.get("experiment") == "lengths":
        return None
    rows = [*(content.get("results") or []), *(content.get("points") or [])]
    counted = [int(row["blocks"]) for row in rows if row.get("blocks")]
    counted += [len(row["block_nll"]) for row in rows if row.get("block_nll")]
    settings = content.get("settings") or {}
    planned = (settings.get("scale") or settings).get("blocks")
    return min(counted) if counted else None if planned is None else int(planned)


def verdict(
    draw: str, table: pd.DataFrame, metric: str, against: str | None = None, *, blocks: int | None = None
) -> str:
    """A headline and, in a paragraph of its own, the details of a table of `workbench.views.quality.records`.

    Args:
        draw: how its view is drawn.
        table: the rows.
        metric: what differs.
        against: of a frontier, the column it is drawn against.
        blocks: from `num_blocks`.
    """
    if not len(table):
        return NOTHING
    if draw == "frontier":
        parts = _fast(table, against) if against in SPEEDS else _frontier(table)
        routers = table.loc[table["kind"] == "routers"]
        parts += [ADAPTATION] if bool((routers["relative"] < 1).any()) else []
    elif draw in _SENTENCES:
        parts = _SENTENCES[draw](table)
    else:
        parts = _counted(table, metric, blocks)
    return _paragraphs([*parts, *few_blocks(blocks)])


def few_blocks(blocks: int | None) -> list[str]:
    """The limit of a measurement over too few blocks, as a list of one sentence or none."""
    if blocks is None or blocks >= MIN_BLOCKS:
        return []
    measured = "one block of text" if blocks == 1 else f"{blocks} blocks of text"
    return [f"Measured on {measured}: fewer than {MIN_BLOCKS}, so small differences and ranks are not established."]


def _paragraphs(parts: list[str]) -> str:
    return "\n\n".join(filter(None, (parts[0], " ".join(parts[1:]))))


def _counted(table: pd.DataFrame, metric: str, blocks: int | None) -> list[str]:
    """Significant rows where the blocks are enough, the range of differences where they are not."""
    known = table.loc[table["low"].notna() & table["high"].notna()]
    without = len(table) - len(known)
    rest = [f"{without} rows have no interval."] if without else []
    if blocks is not None and blocks < MIN_BLOCKS:
        low, high = table["difference"].min(), table["difference"].max()
        return [f"Over {len(table)} rows, {metric} ranges from {low:+.3g} to {high:+.3g}.", *rest]
    above, below = int((known["low"] > 0).sum()), int((known["high"] < 0).sum())
    return [
        f"Of {len(table)} rows, {metric} is significantly above 0 in {above} and below 0 in {below}.",
        f"{len(known) - above - below} are not significant (95% intervals, not corrected for the number of rows).",
        *rest,
    ]


def _sweep(table: pd.DataFrame) -> list[str]:
    causal = table.loc[table["series"] == "calibrated"].sort_values("k")
    parts = [
        f"k = {int(row['k'])} changes perplexity by {row['relative'] - 1:+.1%} and keeps {row['distant kept']:.0%} of "
        f"the distant pairs (largest group {row['largest group']:.0%})."
        for row in causal.to_dict("records")
    ]
    return [f"Causal routing with {parts[0]}", *parts[1:]] if parts else ["The record has no causal routing."]


def _lengths(table: pd.DataFrame) -> list[str]:
    parts = []
    for series, rows in table.groupby("series", sort=True):
        every = rows.to_dict("records")
        first, last = every[0], every[-1]
        parts.append(
            f"{series}: perplexity is {first['difference']:+.2f} from the untouched model at "
            f"{int(first['length']):,} tokens and {last['difference']:+.2f} at {int(last['length']):,}. It keeps "
            f"{first['distant kept']:.0%} and {last['distant kept']:.0%} of the distant pairs there."
        )
    return parts


def _curves(table: pd.DataFrame) -> list[str]:
    ends = table.sort_values("step").groupby(["variant", "phase"], sort=False).tail(1)
    parts = []
    for phase, words in (("centroids", "training the routers alone"), ("everything", "training all weights")):
        rows = ends.loc[ends["phase"] == phase].sort_values("largest group")
        if len(rows):
            low, high = rows.iloc[0], rows.iloc[-1]
            parts.append(
                f"After {words}, the largest group holds {low['largest group']:.0%} of the tokens with "
                f"“{low['variant']}” and {high['largest group']:.0%} with “{high['variant']}”."
            )
    return [*parts, f"Mean over layers, {max(table['step'])} steps."]


_BUDGETS = (0.2, 0.35, 0.5)
"""Shares of the distant pairs under which the routers of smallest perplexity are named."""


def _frontier(table: pd.DataFrame) -> list[str]:
    routers = table.loc[table["kind"] == "routers"]
    parts: dict[str, str] = {}
    for budget in _BUDGETS:
        within = routers.loc[routers["distant kept"] <= budget].sort_values("perplexity")
        if len(within):
            point = within.to_dict("records")[0]
            change = f"“{point['label']}” changes perplexity by {point['relative'] - 1:+.1%}"
            kept = f"keeps {point['distant kept']:.0%}"
            parts.setdefault(point["label"], f"With at most {budget:.0%} of the distant pairs, {change} and {kept}.")
    if not parts:
        return [f"All routers here keep more than {_BUDGETS[-1]:.0%} of the distant pairs."]
    return [*parts.values(), "Named are the routers of smallest perplexity at each share."]


_FLOORS = (1.5, 2, 3, 6)
"""Speed-ups from which on the routers of smallest perplexity are named."""


def _fast(table: pd.DataFrame, column: str) -> list[str]:
    parts: dict[str, str] = {}
    routers = table.loc[table["kind"] == "routers"]
    tokens = f"{SPEEDS[column]:,} tokens"
    for floor in _FLOORS:
        within = routers.loc[routers[column] >= floor].sort_values("perplexity")
        if len(within):
            point = within.to_dict("records")[0]
            change = f"“{point['label']}” changes perplexity by {point['relative'] - 1:+.1%}"
            share = point["distant kept"]
            kept = "" if pd.isna(share) else f" and keeps {share:.0%} of the distant pairs"
            parts[point["label"]] = f"At {tokens} and {point[column]:.1f}x the speed, {change}{kept}."
    left_out = "Baselines are not ranked: their recorded speeds are understated until they are measured again."
    if not parts:
        return [f"No routers here are {_FLOORS[0]:g} times as fast as full attention at {tokens}.", left_out]
    return [*parts.values(), "Speed of one attention call, selection time excluded.", left_out]


_SENTENCES = {"path": _sweep, "lengths": _lengths, "curves": _curves}
