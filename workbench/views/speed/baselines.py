"""Records of `focus bench baseline` as tables: attention only beside choosing included."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd

from focus_core.baselines import METHODS
from focus_core.bench.baselines import SCHEMA, UNFOLDED
from focus_core.resources import data_dir
from focus_core.results import machine_of
from workbench.views.speed.tables import (
    SpeedRecord,
    damage,
    listed,
    not_negative,
    positive,
    read_record,
    spread,
    whole,
    words,
)

OLDER = "one query head at a time (older record)"
FOLDED = "query heads of a key/value head together"


def is_baselines(data: bytes) -> bool:
    """Whether a file says that it measured baselines."""
    return any(schema.encode() in data[:200] for schema in (SCHEMA, UNFOLDED))


def shipped_baselines() -> dict[str, Path]:
    """The measurements of baselines that come with the project, by name."""
    files = sorted((data_dir() / "results").glob("bench-*.json"))
    return {file.stem: file for file in files if is_baselines(file.read_bytes()[:200])}


def read_baseline_speed(data: bytes, name: str) -> SpeedRecord:
    """Read a record of `focus bench baseline`. Ratios are computed again, not taken from the file.

    Args:
        data: content of the file.
        name: of the file or run.

    Raises:
        FocusError: it is too large, another file, or has a value that cannot be.
    """
    schema = UNFOLDED if UNFOLDED.encode() in data[:200] else SCHEMA
    record = read_record(data, name, schema)
    with damage(name):
        timed = OLDER if schema == UNFOLDED else FOLDED
        rows = [_row(point, timed) for point in listed(record["points"])]
        shape = {key: record["settings"][key] for key in ("window", "sink_tokens", "repetitions", "seed")}
        return SpeedRecord(name, words(machine_of(record)), words(shape), pd.DataFrame(rows), pd.DataFrame())


def _row(point: dict[str, Any], timed: str) -> dict[str, Any]:
    full, attend = spread(point["full_s"])[0], spread(point["attend_s"])[0]
    select = None if point["select_s"] is None else not_negative(point["select_s"])
    both = spread(point["attend_with_choice_s"])[0] if "attend_with_choice_s" in point else attend
    head, share = point.get("head"), point["kept_share"]
    return {
        "tokens": whole(point["tokens"]),
        "baseline": METHODS[point["baseline"]].label,
        "head": "" if head is None else "{}/{}".format(*map(int, head)),
        "kept share": math.nan if share is None else not_negative(share),
        "full s": full,
        "attention s": attend,
        "choosing s": math.nan if select is None else select,
        "attention only": full / attend,
        "choosing included": full / (both + (select or 0.0)),
        "timed": timed,
        "error output": not_negative(point["error_output"]),
        "bound": 1 / positive(point["causal_kept_share"]) if point["causal_kept_share"] is not None else math.nan,
    }
