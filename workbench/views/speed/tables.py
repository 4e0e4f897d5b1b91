"""Speed measurements as tables. A record without its numerical errors is refused."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from focus_core.bench.attention import SCHEMA
from focus_core.bench.settings import DTYPES
from focus_core.errors import FocusError
from focus_core.io.reading import parse_json, regular
from focus_core.resources import data_dir
from focus_core.results import machine_of

MAX_BYTES = 20_000_000
MODEL_SCHEMA = "focus-bench-model/1"
TASKS = ("prefill", "decode")
DEFAULTS = ("bench-narrow", "bench-model-narrow")
"""Shipped measurements of the default routers, in the order of the page."""
_TITLES = {
    "bench-narrow": "One attention call, default routers",
    "bench-narrow-no-directions": "One attention call, default routers without directions of spread",
    "bench-model-narrow": "Whole model, default routers",
    "bench-model-narrow-bf16": "Whole model, default routers, bfloat16",
    "busy-narrow": "One attention call beside a busy process, default routers",
    "bench-cpu": "One attention call, 8 groups",
    "bench-heads-cpu": "One attention call, 16 groups per head",
    "bench-model-cpu": "Whole model, 8 groups",
    "bench-model-qwen": "Whole model, Qwen2.5-Coder-0.5B",
    "bench-model-qwen-bf16": "Whole model, Qwen2.5-Coder-0.5B, bfloat16",
    "bench-baselines-cpu": "Other methods",
    "bench-baselines-heads-cpu": "Other methods, MagicPIG",
}
_MACHINES = {
    "xeon": "Intel Xeon",
    "xeon-no-amx": "Intel Xeon without AMX",
    "epyc": "AMD EPYC",
    "epyc-25": "AMD EPYC, family 25",
    "epyc-25-avx512": "AMD EPYC, family 25, AVX-512",
    "epyc-26": "AMD EPYC, family 26",
}
_MAX_POINTS = 5_000
_MAX_WORD = 120
_ROUTING_PARTS = ("projection", "calibrated", "top_k", "sort")
"""Parts of the time of causal routing at inference; Sinkhorn runs in training only."""
NARROW = "narrow"
"""How backends of narrow groups begin; their time has the choice of pages, and `select_s` the assignment of keys."""

PUBLISHED_TOKENS = (1024, 4096, 16384, 32768, 65536, 262144, 1048576)
PUBLISHED = {4: (0.2, 0.5, 1.5, 2.2, 3.0, 4.0, 4.1), 8: (0.2, 0.6, 1.8, 3.1, 4.7, 7.6, 8.6)}
"""Published speed-up over full attention by K, at k = 1, on an H100 80 GB (arXiv 2604.03260)."""


@dataclass(frozen=True)
class SpeedRecord:
    """A measurement file.

    Attributes:
        name: of the file or run.
        machine: device, threads and versions, plain words.
        settings: heads, window and so on, plain words.
        points: one row per measured point; times in seconds, memory in bytes.
        failures: points that could not be measured, with the reason.
    """

    name: str
    machine: dict[str, str]
    settings: dict[str, str]
    points: pd.DataFrame
    failures: pd.DataFrame

    @property
    def origin(self) -> dict[str, Any]:
        """Name, machine and settings of the measurement, for downloads."""
        return {"measurement": self.name, **self.machine, **self.settings}


def read_speed(data: bytes, name: str) -> SpeedRecord:
    """Read a record of `focus bench attention`. Ratios are computed again, not taken from the file.

    Args:
        data: content of the file.
        name: of the file or run.

    Raises:
        FocusError: it is too large, no benchmark, or has a value that cannot be.
    """
    record = read_record(data, name, SCHEMA)
    with damage(name):
        points = listed(record["points"])
        measured = [_point(point) for point in points if "failure" not in point]
        failed = [_identity(point) | {"reason": _word(point["failure"])} for point in points if "failure" in point]
        machine, settings = words(machine_of(record)), words(record["settings"])
        return SpeedRecord(name, machine, settings, _table(measured), pd.DataFrame(failed))


def read_record(data: bytes, name: str, schema: str) -> dict[str, Any]:
    """The content of a record of one schema.

    Raises:
        FocusError: it is too large, no JSON, or of another schema.
    """
    if len(data) > MAX_BYTES:
        raise FocusError(f"{name} is larger than {MAX_BYTES / 1e6:.0f} MB: give a record of focus bench.")
    with damage(name):
        record = parse_json(data, name)
    if not isinstance(record, dict) or record.get("schema") != schema:
        raise FocusError(f"{name} is no speed measurement of schema {schema}: give a record of focus bench.")
    return record


def listed(points: Any) -> list[dict[str, Any]]:
    """The points of a record, not too many."""
    if not isinstance(points, list) or len(points) > _MAX_POINTS:
        raise ValueError("its points")
    return points


@contextmanager
def damage(name: str) -> Iterator[None]:
    """Turn every error of a damaged file into one sentence."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise FocusError(f"{name} is damaged or was changed by hand ({_reason(error)}): measure again.") from error


def title_of(name: str) -> str:
    """A shipped measurement by what was measured; the name of its file where that is not known."""
    for machine, where in _MACHINES.items():
        if name.endswith(f"-{machine}"):
            known = _TITLES.get(name.removesuffix(f"-{machine}")) or _TITLES.get(f"{name.removesuffix(machine)}cpu")
            return f"{known}, {where}" if known else name
    return _TITLES.get(name, name)


def shipped_speeds() -> dict[str, Path]:
    """The measurements that come with the project, by name."""
    found = {}
    for path in sorted((data_dir() / "results").rglob("*.json")):
        with regular(path).open(encoding="utf-8", errors="replace") as file:
            start = file.read(200)
        if SCHEMA in start or MODEL_SCHEMA in start:
            found[path.stem] = path
    return found


def apart(points: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The points to draw, and those of a table only: unequal groups, where equal ones were measured too."""
    unequal = points["unequal"].to_numpy(dtype=bool)
    if unequal.all():
        return points, points.iloc[:0]
    return points.loc[~unequal].reset_index(drop=True), points.loc[unequal].reset_index(drop=True)


def noise(points: pd.DataFrame) -> float:
    """Time of the slowest run over that of the fastest, at the median point."""
    return statistics.median(high / low for high, low in zip(points["sparse max s"], points["sparse min s"]))


def is_whole_model(data: bytes) -> bool:
    """Whether a file says that it measured a whole model."""
    return MODEL_SCHEMA.encode() in data[:200]


def read_model_speed(data: bytes, name: str) -> SpeedRecord:
    """Read a record of `focus bench model`; ``points`` has one row per task, length and routing.

    Args:
        data: content of the file.
        name: of the file or run.

    Raises:
        FocusError: it is too large, another file, or has a value that cannot be.
    """
    record = read_record(data, name, MODEL_SCHEMA)
    with damage(name):
        settings = record["settings"]
        said = {"model": record["model"]["name"], "routers": settings["routers"], "dtype": settings["dtype"]}
        config = {key: settings["config"][key] for key in ("num_groups", "window", "sink_tokens", "balance")}
        rows = [_model_row(row) for row in listed(record["results"])]
        return SpeedRecord(name, words(machine_of(record)), words(said | config), pd.DataFrame(rows), pd.DataFrame())


def _model_row(row: dict[str, Any]) -> dict[str, Any]:
    if row["task"] not in TASKS:
        raise ValueError("task")
    seconds, kept = spread(row["seconds"]), positive(row["kept_share"])
    if kept > 1:
        raise ValueError("kept_share")
    memory, cache, error = (row.get(name) for name in ("memory_bytes", "cache_bytes", "error"))
    top_k = None if row["top_k"] is None else whole(row["top_k"])
    routing = {"off": "untouched", "hard": "narrow groups" if top_k is None else f"k={top_k}"}.get(row["routing"])
    if row["routing"] == "window":
        routing = f"window and sinks, {_share(row['distant_share']):.0%}"
    elif row["routing"] == "switched":
        routing = f"narrow groups from token {whole(row['full_below']):,} on"
    elif routing is None:
        raise ValueError("routing")
    return {
        "task": row["task"],
        "tokens": whole(row["tokens"]),
        "routing": routing,
        "k": top_k,
        "routed": row["routing"] in ("hard", "switched"),
        "kept share": kept,
        **dict(zip(("seconds", "min s", "max s"), seconds)),
        "tokens per second": positive(row["tokens_per_second"]),
        "speedup": positive(row["speedup"]),
        "working bytes": math.nan if memory is None else not_negative(memory),
        "cache bytes": math.nan if cache is None else not_negative(cache),
        "largest logit error": math.nan if error is None else not_negative(error),
    }


def series_name(num_groups: int, top_k: int, dtype: str, backend: str = "", share: float | None = None) -> str:
    """Name of the points of one routing, dtype and backend; unequal groups with their share of distant pairs.

    Narrow groups have a share and no k.
    """
    if backend.startswith(NARROW):
        return f"{backend.replace(NARROW, 'narrow groups', 1)}, {share or 0:.0%} of the distant pairs, {dtype}"
    unequal = "" if share is None else f", unequal groups ({share:.0%})"
    return f"K={num_groups}, k={top_k}{unequal}, {dtype}" + (f", {backend}" if backend else "")


def is_faster(speedup: float) -> bool:
    """Whether a speed-up is one in the two decimals that are shown: 1.00 is not, nor is one that was not measured."""
    return round(speedup, 2) > 1


def crossovers(points: pd.DataFrame) -> pd.DataFrame:
    """Per series, the length from which sparse attention is faster (`is_faster`), and its best speed-up.

    ``faster from`` is the shortest measured length from which every longer one is faster too, or None. ``slower at``
    lists the measured lengths at which it is not faster. Lengths between measured ones are not estimated.
    """
    rows = []
    groups: Any = points.groupby("series", sort=False)
    for series, group in groups:
        ordered = group.sort_values("tokens")
        best = ordered.loc[ordered["speedup"].idxmax()]
        lost = [tokens for tokens, speedup in zip(ordered["tokens"], ordered["speedup"]) if not is_faster(speedup)]
        rows.append(
            {
                "series": series,
                "faster from": faster_from(ordered["tokens"], ordered["speedup"]),
                "choosing included, from": faster_from(ordered["tokens"], ordered["speedup with routing"]),
                "slower at": ", ".join(f"{tokens:,}" for tokens in lost),
                "best speed-up": best["speedup"],
                "choosing included": best["speedup with routing"],
                "bound there": best["bound"],
                "at tokens": int(best["tokens"]),
                "largest error": ordered["error output"].max(),
            }
        )
    return pd.DataFrame(rows)


def faster_from(lengths: Iterable[int], speedups: Iterable[float]) -> int | None:
    """The shortest of rising lengths from which on every one is faster; None if the last one is not."""
    start = None
    for tokens, speedup in zip(lengths, speedups):
        if not is_faster(speedup):
            start = None
        elif start is None:
            start = int(tokens)
    return start


def _table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=list(_COLUMNS))
    return table.sort_values(["dtype", "K", "k", "tokens"], kind="stable", ignore_index=True)


_COLUMNS = (
    *("series", "tokens", "K", "k", "unequal", "dtype", "backend", "full s", "full min s", "full max s"),
    *("sparse s", "sparse min s", "sparse max s", "speedup", "bound", "share of bound", "kept share"),
    *("routing s", "speedup with routing", "error output", "error logsumexp", "working bytes", "input bytes", "date"),
)


def _identity(point: dict[str, Any]) -> dict[str, Any]:
    num_groups, top_k = whole(point["num_groups"]), whole(point["top_k"])
    dtype = point["dtype"]
    if dtype not in DTYPES or not 1 <= top_k <= num_groups:
        raise ValueError("dtype or k")
    return {"tokens": whole(point["tokens"]), "K": num_groups, "k": top_k, "dtype": dtype}


def _point(point: dict[str, Any]) -> dict[str, Any]:
    known = _identity(point)
    backend = _word(point["backend_used"])
    share = None if point.get("share") is None else positive(point["share"])
    full, sparse = spread(point["full_s"]), spread(point["sparse_s"])
    kept = positive(point["kept_share"])
    if kept > 1:
        raise ValueError("kept_share")
    routing = _choosing(point)
    memory = point.get("working_bytes")
    speedup = full[0] / sparse[0]
    return {
        "series": series_name(known["K"], known["k"], known["dtype"], backend, share),
        **known,
        "unequal": share is not None and not backend.startswith(NARROW),
        "backend": backend,
        **dict(zip(("full s", "full min s", "full max s"), full)),
        **dict(zip(("sparse s", "sparse min s", "sparse max s"), sparse)),
        "speedup": speedup,
        "bound": 1 / kept,
        "share of bound": speedup * kept,
        "kept share": kept,
        "routing s": routing,
        "speedup with routing": full[0] / (sparse[0] + routing),
        "error output": not_negative(point["error_output"]),
        "error logsumexp": not_negative(point["error_logsumexp"]),
        "working bytes": math.nan if memory is None else not_negative(memory),
        "input bytes": not_negative(point["input_bytes"]),
        "date": _word(point.get("date", "")),
    }


def _choosing(point: dict[str, Any]) -> float:
    """Seconds of what comes before the attention call; NaN where it was not timed."""
    if costs := point.get("routing_s"):
        return sum(positive(costs[part]) for part in _ROUTING_PARTS)
    return math.nan if point.get("select_s") is None else not_negative(point["select_s"])


def spread(times: dict[str, Any]) -> tuple[float, float, float]:
    """Median, minimum and maximum seconds, in order."""
    median, low, high = (positive(times[name]) for name in ("median", "min", "max"))
    if not low <= median <= high:
        raise ValueError("times")
    return median, low, high


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError("a value that is no number")
    return float(value)


def positive(value: Any) -> float:
    """A number above 0."""
    if _number(value) <= 0:
        raise ValueError("a value that is not above 0")
    return float(value)


def _share(value: Any) -> float:
    if not 0 <= _number(value) <= 1:
        raise ValueError("a share that is none")
    return float(value)


def not_negative(value: Any) -> float:
    """A number of at least 0."""
    if _number(value) < 0:
        raise ValueError("a value below 0")
    return float(value)


def whole(value: Any) -> int:
    """A whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 10**10:
        raise ValueError("a count that is none")
    return value


def _word(value: Any) -> str:
    return str(value).replace("\x00", "")[:_MAX_WORD]


def words(values: dict[str, Any]) -> dict[str, str]:
    """Names and values as short plain text."""
    return {_word(name): _word(value) for name, value in list(values.items())[:40]}


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{_word(error.args[0])} is missing"
    return "no JSON" if isinstance(error, FocusError) else _word(error)[:60]
