"""The sentences of the Speed page: the answer first, then details and losses."""

from __future__ import annotations

import pandas as pd

EXCLUDED = "Selection time excluded."
"""Ends every sentence on times of attention that start from given groups."""


def speed_verdict(crossover: pd.DataFrame, machine: dict[str, str], points: pd.DataFrame) -> str:
    """The length from which sparse attention is faster, its best speed-up beside the bound, and where it is slower."""
    where = f"On {machine.get('device', 'an unnamed machine')}"
    if not len(crossover):
        return f"{where}, nothing has been measured yet."
    winners = crossover.loc[crossover["faster from"].notna()]
    lost = sum(value <= 1 for value in points["speedup"])
    losses = f"Full attention was faster at {lost} of {len(points)} measured points."
    if not len(winners):
        return f"{where}, routed attention is not faster at any measured length.\n\n{losses} {EXCLUDED}"
    best = winners.loc[winners["best speed-up"].idxmax()]
    never = len(crossover) - len(winners)
    more = f" {never} of {len(crossover)} series never become faster." if never else ""
    return (
        f"{where}, routed attention is faster from {int(best['faster from']):,} tokens on, with {best['series']}.\n\n"
        f"It is at best {best['best speed-up']:.1f}x as fast, at {int(best['at tokens']):,} tokens. Its share of pairs "
        f"allows at most {best['bound there']:.1f}x. {losses}{more} {EXCLUDED}"
    )


def model_speed_verdict(points: pd.DataFrame, model: str) -> str:
    """The change of a whole model's speed by routing, in prefill and in decode.

    Args:
        points: from `workbench.views.speed.tables.read_model_speed`.
        model: its name.
    """
    parts = []
    for task in dict.fromkeys(points["task"]):
        rows = points.loc[(points["task"] == task) & points["k"].notna()]
        if len(rows):
            best = rows.loc[rows["speedup"].idxmax()]
            slower = sum(value <= 1 for value in rows["speedup"])
            parts.append(
                f"{task} is at best {best['speedup']:.2f}x as fast as untouched (k = {int(best['k'])}, "
                f"{int(best['tokens']):,} tokens, {best['kept share']:.0%} kept) and slower at {slower} of "
                f"{len(rows)} measured settings."
            )
    if not parts:
        return f"{model}: no routed setting has been measured."
    details = [f"{part[0].upper()}{part[1:]}" for part in parts[1:]]
    return "\n\n".join(filter(None, (f"{model}: {parts[0]}", " ".join([*details, "Routing included."]))))


def baseline_verdict(points: pd.DataFrame) -> str:
    """How many baselines gain, with attention only and with choosing included.

    Args:
        points: from `workbench.views.speed.baselines.read_baseline_speed`.
    """
    if not len(points):
        return "No baseline has been measured."
    alone, both = (sum(value > 1 for value in points[name]) for name in ("attention only", "choosing included"))
    return (
        f"Attention only, baselines are faster than full attention at {alone} of {len(points)} measured points. "
        f"Choosing included, at {both}.\n\nTimed: {', '.join(dict.fromkeys(points['timed']))}."
    )
