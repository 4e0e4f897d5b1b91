"""The sentences that answer the question of the Speed page."""

from __future__ import annotations

import pandas as pd


def speed_verdict(crossover: pd.DataFrame, machine: dict[str, str], points: pd.DataFrame) -> str:
    """From which length on it pays, what it reaches of what is possible, and where it loses."""
    where = f"On {machine.get('device', 'an unnamed machine')}"
    if not len(crossover):
        return f"{where} nothing has been measured yet."
    winners = crossover.loc[crossover["faster from"].notna()]
    lost = sum(value <= 1 for value in points["speedup"])
    losses = f"Full attention was faster at {lost} of {len(points)} measured points."
    if not len(winners):
        return f"{where} it does not pay at any measured length. {losses}"
    best = winners.loc[winners["best speed-up"].idxmax()]
    never = len(crossover) - len(winners)
    more = f" {never} of {len(crossover)} series never become faster." if never else ""
    return (
        f"{where} it pays from {int(best['faster from']):,} tokens on with {best['series']}, which reaches "
        f"{best['best speed-up']:.1f}x of a possible {best['bound there']:.1f}x at {int(best['at tokens']):,}. "
        f"{losses}{more}"
    )


def model_speed_verdict(points: pd.DataFrame, model: str) -> str:
    """What routing does to the pace of a whole model, its losses included.

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
                f"{int(best['tokens']):,} tokens, {best['kept share']:.0%} kept), and slower at {slower} of "
                f"{len(rows)} measured settings"
            )
    return f"{model}: {'; '.join(parts)}." if parts else f"{model}: no routed setting has been measured."
