"""Recorded evaluations as one table, each compared with the untouched model."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from focus_core.errors import FocusError
from focus_core.evaluation.compare import perplexity_difference
from focus_core.io.reading import parse_json, regular
from focus_core.routing.balance import sees_future

MAX_BYTES = 5_000_000
UNTOUCHED, TRAINED, UNTRAINED = "untouched", "trained", "untrained"
FUTURE = "sees later tokens"
"""Remark on rows whose routing is balanced over the whole text, so that a token's groups depend on later tokens."""

COLUMNS = (
    *("model", "routers", "kind", "routing", "k", "budget", "balance", "perplexity", "relative"),
    *("relative low", "relative high", "distant kept", "all kept"),
    *("largest group", "exposure", "remark", "text", "T", "stride", "K", "w", "sinks", "tokens", "date", "device"),
    "file",
)


@dataclass(frozen=True)
class Found:
    """The recorded evaluations among some files.

    Attributes:
        table: one row per evaluated setting, columns as in `COLUMNS`.
        skipped: (file name, reason) of files that hold no evaluation.
    """

    table: pd.DataFrame
    skipped: tuple[tuple[str, str], ...]


def find_results(files: Iterable[Path]) -> Found:
    """Read recorded evaluations; other files are skipped with a reason."""
    rows: list[dict[str, Any]] = []
    skipped: list[tuple[str, str]] = []
    for path in files:
        try:
            if regular(path).stat().st_size > MAX_BYTES:
                raise FocusError(f"larger than {MAX_BYTES / 1e6:.0f} MB")
            name = path.parent.name if path.name == "training.json" else path.stem
            rows += result_rows(path.read_bytes(), name)
        except FocusError as error:
            skipped.append((path.name, str(error)))
        except OSError as error:
            skipped.append((path.name, error.strerror or "cannot be read"))
    return Found(pd.DataFrame(rows, columns=list(COLUMNS)), tuple(skipped))


def result_rows(data: bytes, name: str) -> list[dict[str, Any]]:
    """The rows of one recorded run, as `focus eval --out` and `focus train` write them.

    Args:
        data: content of the file.
        name: of the file, and of the routers where the record does not name them.

    Raises:
        FocusError: it is no recorded evaluation.
    """
    try:
        record = parse_json(data, name)
    except FocusError as error:
        raise FocusError("no JSON") from error
    if not isinstance(record, dict):
        raise FocusError("no recorded run")
    if str(record.get("schema", "")).startswith("focus-bench"):
        raise FocusError("a speed measurement: see the page Speed")
    if str(record.get("schema", "")).startswith(("focus-reproduce", "focus-frontier")):
        raise FocusError("a table of another kind: choose it under Evidence")
    if not isinstance(record.get("results"), list):
        raise FocusError("no recorded evaluation")
    try:
        return _rows(record, name)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FocusError("a record of another kind: it has no perplexity with kept share for every row") from error


def _rows(record: dict[str, Any], name: str) -> list[dict[str, Any]]:
    settings = record["settings"]
    config, made = settings["config"], record.get("made", {})
    held_out = record.get("held_out") or []
    if "training" in settings:  # the record of a training run: evaluated on held-out text
        text = _names(held_out) or f"held-out end of {_names(record.get('data', []))}"
        kind, routers = TRAINED, name
    else:
        text = _names(record.get("data", []))
        kind = TRAINED if settings["trained"] else UNTRAINED
        routers = str(settings["routers"])
    common = {
        "model": str(record["model"]["name"]),
        "text": text,
        "T": int(settings["length"]),
        "stride": int(settings.get("stride", settings["length"])),
        "K": int(config["num_groups"]),
        "w": int(config["window"]),
        "sinks": int(config["sink_tokens"]),
        "date": str(made.get("date", ""))[:10],
        "device": str(made.get("device", "")),
        "file": name,
    }
    measured = [(kind, routers, row) for row in record["results"]]
    measured += [(UNTRAINED, "untrained, calibrated", row) for row in record.get("untrained", [])]
    untouched = next((row for _, _, row in measured if row["routing"] == "off"), {})
    unlike = "as planned" if config.get("read_share") is None else f"budget {100 * config['read_share']:g}%"
    return [common | _row(which, called, row, untouched, unlike) for which, called, row in measured]


def _row(kind: str, routers: str, row: dict[str, Any], untouched: dict[str, Any], unlike: str) -> dict[str, Any]:
    """One row of the table; `unlike` names the budget of hard routing that has no k of its own."""
    perplexity, kept = float(row["perplexity"]), float(row["kept_share"])
    if not (math.isfinite(perplexity) and perplexity > 0 and 0 <= kept <= 1) or row["routing"] not in (
        *("off", "soft", "hard"),
    ):
        raise ValueError(row)
    off = row["routing"] == "off"
    largest, top_k = row.get("largest_group_share"), row.get("top_k")
    low, high = (None, None) if off else _interval(row, untouched)
    budget = "" if row["routing"] != "hard" else unlike if top_k is None else f"k={int(top_k)}"
    return {
        "routers": "" if off else routers,
        "kind": UNTOUCHED if off else kind,
        "routing": row["routing"],
        "k": None if top_k is None else int(top_k),
        "budget": budget,
        "balance": str(row["balance"]),
        "perplexity": perplexity,
        "relative": perplexity / float(untouched.get("perplexity", math.nan)),
        "relative low": low,
        "relative high": high,
        "distant kept": kept,
        "all kept": float(row["causal_kept_share"]),
        "largest group": None if largest is None else float(largest),
        "exposure": float(row["exposure"]),
        "remark": FUTURE if sees_future(row["balance"]) else "",
        "tokens": int(row["tokens"]),
    }


def _names(texts: list[dict[str, Any]]) -> str:
    return ", ".join(str(text["name"]) for text in texts)


def _interval(row: dict[str, Any], untouched: dict[str, Any]) -> tuple[float | None, float | None]:
    """The 95% interval of the ratio to the untouched perplexity, paired over blocks; None for records without them."""
    ours, theirs = row.get("block_nll") or (), untouched.get("block_nll") or ()
    if len(ours) < 2 or len(ours) != len(theirs):
        return None, None
    found, baseline = perplexity_difference(ours, theirs), float(untouched["perplexity"])
    if found.low is None or found.high is None:
        return None, None
    return 1 + found.low / baseline, 1 + found.high / baseline
