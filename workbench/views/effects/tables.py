"""Tables and sentences of the effects of groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from focus_core.analysis import Trace
from focus_core.errors import FocusError
from focus_core.evaluation.compare import holm

LEVEL = 0.05
MILLI = 1000
"""Effects are shown in thousandths of a nat."""
MOST_CHANGED = 12
FEW_KEYS = 10
DONE = {"knock-out": "Removing", "force": "Forcing every later token to read"}
"""How an intervention begins a sentence."""


def verdict(table: pd.DataFrame, kind: str, *, layer: int, head: int, tokens: int) -> str:
    """The answer in one sentence.

    Args:
        table: from `effects_of_points`.
        kind: of the intervention.
        layer: number of the layer.
        head: key/value head.
        tokens: length of the text.
    """
    where = f"layer {layer}, head {head}"
    beyond = table.loc[table["kl p (Holm)"].lt(LEVEL)].sort_values(by="kl", ascending=False)
    act = DONE[kind]
    if len(table) == 1:
        group = int(table["group"].iloc[0])
        if len(beyond):
            return f"{act} group {group} of {where} changes the model's predictions more than chance does."
        return (
            f"{act} group {group} of {where} changes the model's predictions no more than as many random tokens do, "
            f"as far as {tokens:,} tokens show."
        )
    if beyond.empty:
        return (
            f"None of these {len(table)} groups of {where} matters more to the model's predictions than as many random "
            f"tokens do, as far as {tokens:,} tokens show."
        )
    names = listed([str(group) for group in beyond["group"]])
    if len(beyond) == 1:
        return f"Group {names} of {where} matters: {act.lower()} it changes the predictions more than chance does."
    return f"Groups {names} of {where} matter: {act.lower()} one changes the predictions more than chance does."


def floor_sentence(groups: int, draws: int) -> str:
    """A warning where no p-value can be significant after correction; else empty."""
    floor = min(1.0, groups / (draws + 1))
    if floor < LEVEL:
        return ""
    return (
        f"With {draws} random sets and {groups} {'group' if groups == 1 else 'groups'}, no corrected p-value can be "
        f"below {floor:.2g}: for a significant result, choose more random sets or fewer groups."
    )


def few_keys_sentence(sizes: Sequence[int]) -> str:
    """A warning where groups have so few tokens that can be read from afar that little can show; else empty.

    Args:
        sizes: such tokens of each group that is tested.
    """
    few = [size for size in sizes if size < FEW_KEYS]
    if not few:
        return ""
    which = "Each of these groups has" if len(few) == len(sizes) else f"{len(few)} of these {len(sizes)} groups have"
    if len(sizes) == 1:
        which = "This group has"
    return f"{which} fewer than {FEW_KEYS} tokens that can be read from afar, so little can show. Take more tokens."


def target_places(typed: str, tokens: int) -> tuple[int, ...]:
    """Places of the predictions to follow, as somebody types them: "120, 133".

    Raises:
        FocusError: no number, or a token that is not predicted.
    """
    try:
        places = tuple(dict.fromkeys(int(part) for part in typed.replace(",", " ").split()))
    except ValueError as error:
        raise FocusError(f"{typed!r} is no list of places: write numbers such as 120, 133.") from error
    wrong = [place for place in places if not 1 <= place < tokens]
    if wrong:
        raise FocusError(f"Token {wrong[0]} is not predicted here: choose places from 1 to {tokens - 1}.")
    return places


def target_table(points: Sequence[dict[str, Any]], targets: Sequence[int], trace: Trace) -> pd.DataFrame:
    """The chosen predictions: one row for each group and token, p-values by Holm's method over all rows."""
    rows = []
    for point in points:
        for place, tested in zip(targets, point["targets"]):
            start, end = trace.offsets[place]
            values = np.array([tested["low"], tested["high"]], dtype=float)
            rows.append(
                {
                    "group": point["group"],
                    "token": place,
                    "text before": f"…{trace.text[max(0, start - 60) : start]}".replace("\n", "⏎"),
                    "predicted": trace.text[start:end],
                    "change of loss": tested["value"],
                    "chance": _range(values),
                    "p": tested["p_value"],
                }
            )
    table = pd.DataFrame(rows, columns=["group", "token", "text before", "predicted", "change of loss", "chance", "p"])
    return table.assign(p=holm(table["p"].tolist())) if len(table) else table


def listed(names: Sequence[str]) -> str:
    """Names as running text."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def shown_table(table: pd.DataFrame) -> pd.DataFrame:
    """The table of a page, in thousandths of a nat."""
    return pd.DataFrame(
        {
            "group": table["group"],
            "keys": table["keys"],
            "KL": table["kl"] * MILLI,
            "chance": [_range(row) for row in table[["kl low", "kl high"]].to_numpy() * MILLI],
            "p": table["kl p (Holm)"],
            "loss": table["loss"] * MILLI,
            "chance, loss": [_range(row) for row in table[["loss low", "loss high"]].to_numpy() * MILLI],
            "p, loss": table["loss p (Holm)"],
            "from untouched": table["untouched kl"].astype(float) * MILLI,
            "random sets": table["draws"],
        }
    )


def kind_table(point: dict[str, Any], name: str) -> pd.DataFrame:
    """The effect of one group on each kind of prediction, in nats.

    Args:
        point: of the group.
        name: of the kinds, such as "part of speech".
    """
    columns = ["kind", "tokens", "effect", "low", "high", "p", "p (Holm)"]
    return pd.DataFrame(point["kinds"].get(name, []), columns=columns)


def most_changed(point: dict[str, Any], trace: Trace, limit: int = MOST_CHANGED) -> pd.DataFrame:
    """The predictions that change most: the token, the text before it, the change of its loss, and KL."""
    kl = np.asarray(point["token_kl"])
    rows = []
    for place in np.argsort(-kl, kind="stable")[:limit].tolist():
        if not kl[place]:
            break
        start, end = trace.offsets[place + 1]
        before = trace.text[max(0, start - 60) : start].replace("\n", "⏎")
        rows.append((place + 1, f"…{before}", trace.text[start:end], point["token_loss"][place], kl[place]))
    return pd.DataFrame(rows, columns=["token", "text before", "predicted", "change of loss", "KL"])


def _range(ends: np.ndarray) -> str:
    low, high = ends
    return "" if np.isnan(low) else f"{low:.2g} to {high:.2g}"
