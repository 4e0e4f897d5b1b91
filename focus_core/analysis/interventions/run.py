"""The effects of groups on a text as a record; `focus effects` and notebooks call the same function."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from focus_core.analysis.interventions.experiment import MAX_TOKENS, Experiment
from focus_core.analysis.interventions.groups import EffectSettings, GroupEffect, group_effect, largest_groups
from focus_core.analysis.interventions.slices import Kinds, by_kind, copied_or_new, distances, parts_of_speech
from focus_core.analysis.linguistics.corpus.tagging import tag_text
from focus_core.analysis.tables import text_hash
from focus_core.errors import FocusError
from focus_core.evaluation.compare import holm
from focus_core.io.locks import claims_file
from focus_core.io.schema import array, number, table, whole
from focus_core.models import LoadedModel, check_positions
from focus_core.progress import Progress, silent
from focus_core.results import plain, record_run, resume_record, stamp
from focus_core.routing.attach import attached
from focus_core.routing.model import FocusModel
from focus_core.routing.storage import routers_hash
from focus_core.text import Encoding, encode

SCHEMA = "focus-effects/1"
LARGEST = 8
"""Groups that are tested where none are named."""

_TESTED = table({"value": number(), "p_value": number(0, 1)})
POINT = table({"group": whole(0), "keys": array(whole(0)), "loss": _TESTED, "kl": _TESTED, "kinds": table()})
"""Check of the point of one group in a stored record."""


@dataclass(frozen=True)
class TextEffects:
    """The effects of groups on one text.

    Attributes:
        table: one row per group: keys, links, effect on KL and loss with the range of chance, p-values by Holm.
        record: everything as plain values: one point per group, with every prediction and every kind of them.
    """

    table: pd.DataFrame
    record: dict[str, Any]


@claims_file()
def effects_of_text(
    text: str,
    *,
    layer: int,
    head: int = 0,
    groups: Sequence[int] = (),
    model: str | Path | LoadedModel = "default",
    routers: str | Path | FocusModel | None = None,
    untrained: bool = False,
    settings: EffectSettings | None = None,
    tokens: int = MAX_TOKENS,
    out: str | Path | None = None,
    progress: Progress = silent,
) -> TextEffects:
    """Knock out or force groups in one key/value head of one layer, each against chance.

    Args:
        text: the text; its first `tokens` tokens are taken.
        layer: a layer with a router.
        head: a key/value head.
        groups: the groups; the `LARGEST` with the most keys if none are named.
        model: a loaded model, or a name that `load_model` accepts.
        routers: a folder, a shipped name, or a `FocusModel` of the loaded model; None for those shipped for the model.
        untrained: use untrained routers instead.
        settings: see `EffectSettings`.
        tokens: at most `MAX_TOKENS`.
        out: also write the record to this file after every group; a stored one is resumed.
        progress: told of every run.

    Raises:
        FocusError: a text, routers or settings that cannot be used, or a file that holds another record.
        OSError: the file cannot be written.
    """
    settings = settings or EffectSettings()
    if not 2 <= tokens <= MAX_TOKENS:
        raise FocusError(f"tokens is {tokens}: an experiment takes 2 to {MAX_TOKENS:,} tokens.")
    with attached(model, routers, untrained=untrained, progress=progress) as (loaded, focus):
        shown, encoding = first_tokens(loaded.tokenizer, text, tokens)
        check_positions(loaded, len(encoding.input_ids))
        report = {
            "schema": SCHEMA,
            "model": loaded.info.identity,
            "settings": {
                "config": focus.config,
                "routers": focus.name,
                "routers_hash": routers_hash(focus.routers),
                "trained": focus.trained,
                "layer": layer,
                "head": head,
                "text_sha256": text_hash(shown),
                "tokens": len(encoding.input_ids),
                **dataclasses.asdict(settings),
            },
        }
        record = {**plain(report), "points": []} if out is None else resume_record(Path(out), report, point=POINT)
        progress("Running the text as it is", 0.0)
        experiment = Experiment(focus, encoding.input_ids, layer, head, untouched=True)
        wanted = list(dict.fromkeys(groups)) or largest_groups(experiment, LARGEST)
        if not wanted:
            raise FocusError(
                f"No token of this text is read from beyond the window of {focus.config.window} tokens: "
                "give a longer text."
            )
        spoken = parts_of_speech(tag_text(shown), encoding.offsets)
        done = {point["group"]: point for point in record["points"]}
        for place, group in enumerate(wanted):
            if group not in done:
                found = group_effect(
                    experiment,
                    group,
                    settings,
                    untouched=True,
                    progress=lambda _, share, at=place, number=group: progress(
                        f"Group {number}, {at + 1} of {len(wanted)}", (at + share) / len(wanted)
                    ),
                )
                kinds = [copied_or_new(encoding.input_ids), distances_of(experiment, found.keys), spoken]
                done[group] = plain(point_of(found, kinds))
                record["points"] = list(done.values())
                if out is not None:
                    record = record_run(Path(out), _unstamped(record))
    chosen = [done[group] for group in wanted]
    return TextEffects(effects_of_points(chosen), record if out is not None else stamp(record))


def first_tokens(tokenizer: Any, text: str, tokens: int) -> tuple[str, Encoding]:
    """The beginning of a text that has at most so many tokens, and these.

    Raises:
        FocusError: an empty text.
    """
    found = encode(tokenizer, text, opening=True)
    if len(found.input_ids) <= tokens:
        return text, found
    cut = Encoding(found.input_ids[:tokens], found.offsets[:tokens], found.tokens[:tokens])
    return text[: int(cut.offsets[:, 1].max())], cut


def distances_of(experiment: Experiment, keys: np.ndarray) -> Kinds:
    """The predictions of an experiment by their distance from some keys."""
    return distances(keys, experiment.length, experiment.site.reading.window)


def point_of(found: GroupEffect, kinds: Sequence[Kinds]) -> dict[str, Any]:
    """The effect of one group as plain values: against chance, by prediction, and by kind of prediction."""
    return {
        "group": found.group,
        "keys": found.keys.tolist(),
        "links": found.links,
        "loss": found.loss,
        "kl": found.kl,
        "targets": list(found.targets),
        "untouched_kl": found.untouched_kl,
        "kinds": {each.name: by_kind(found.trial, each).to_dict("records") for each in kinds},
        "token_loss": found.trial.change.loss.tolist(),
        "token_kl": found.trial.change.kl.tolist(),
    }


def effects_of_points(points: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """`TextEffects.table` from the points of a record, with Holm's correction over these groups."""
    adjusted = {name: holm([point[name]["p_value"] for point in points]) for name in ("kl", "loss")}
    rows = []
    for place, point in enumerate(points):
        row = {"group": point["group"], "keys": len(point["keys"]), "links": point["links"]}
        for name in ("kl", "loss"):
            value = point[name]
            row |= {
                name: value["value"],
                f"{name} low": value["low"],
                f"{name} high": value["high"],
                f"{name} p": value["p_value"],
                f"{name} p (Holm)": adjusted[name][place],
            }
        rows.append(row | {"untouched kl": point["untouched_kl"], "draws": point["kl"]["draws"]})
    return pd.DataFrame(rows)


def _unstamped(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "made"}
