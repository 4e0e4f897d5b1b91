"""The sentences of the Speed page: the answer first, then details and losses."""

from __future__ import annotations

import pandas as pd

from workbench.views.speed.tables import is_faster

EXCLUDED = "Choosing excluded."
"""Ends every sentence on times of attention that start from given groups."""
INCLUDED = "Choosing included."
"""Ends those with the time of everything that decides which pairs are read."""


def speed_verdict(crossover: pd.DataFrame, machine: dict[str, str], points: pd.DataFrame) -> str:
    """The length from which sparse attention is faster, its best speed-up beside the bound, and where it is slower.

    With the time of choosing where every point has it.
    """
    where = f"On {machine.get('device', 'an unnamed machine')}"
    if not len(crossover):
        return f"{where}, nothing has been measured yet."
    timed = bool(points["speedup with routing"].notna().all())
    start, best, each, ending = (
        ("choosing included, from", "choosing included", "speedup with routing", INCLUDED)
        if timed
        else ("faster from", "best speed-up", "speedup", EXCLUDED)
    )
    winners = crossover.loc[crossover[start].notna()]
    lost = sum(not is_faster(value) for value in points[each])
    losses = f"Full attention was as fast or faster at {lost or 'none'} of the {len(points)} measured points."
    if not len(winners):
        return f"{where}, routed attention is not faster at any measured length.\n\n{losses} {ending}"
    top = winners.loc[winners[best].idxmax()]
    never = len(crossover) - len(winners)
    more = f" {never} of {len(crossover)} series never become faster." if never else ""
    if top[best] <= top["bound there"]:
        beside = f", where its share of pairs allows at most {top['bound there']:.1f}x."
    else:
        beside = (
            f". Its share of pairs explains {top['bound there']:.1f}x; full attention takes longer for a pair, too."
        )
    return (
        f"{where}, routed attention is faster from {int(top[start]):,} tokens on, with {top['series']}.\n\n"
        f"It is {top[best]:.1f}x as fast at {int(top['at tokens']):,} tokens{beside} {losses}{more} {ending}"
    )


def model_speed_verdict(points: pd.DataFrame, model: str) -> str:
    """The change of a whole model's speed by routing, in prefill and in decode.

    Args:
        points: from `workbench.views.speed.tables.read_model_speed`.
        model: its name.
    """
    parts = []
    for task in dict.fromkeys(points["task"]):
        rows = points.loc[(points["task"] == task) & points["routed"]]
        if len(rows):
            best = rows.loc[rows["speedup"].idxmax()]
            slower = sum(not is_faster(value) for value in rows["speedup"])
            parts.append(
                f"{task} is at best {best['speedup']:.2f}x as fast as untouched ({best['routing']}, "
                f"{int(best['tokens']):,} tokens, {best['kept share']:.0%} of the pairs) and no faster at "
                f"{slower or 'none'} of the {len(rows)} measured settings."
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
    alone, both = (sum(is_faster(value) for value in points[name]) for name in ("attention only", "choosing included"))
    return (
        f"Attention only, baselines are faster than full attention at {alone or 'none'} of the "
        f"{len(points)} measured points. Choosing included, at {both or 'none'}.\n\n"
        f"Timed: {', '.join(dict.fromkeys(points['timed']))}."
    )
