"""Measured speeds for the rows of a frontier, from records of `focus bench attention` and `focus bench baseline`.

A speed is that of one attention call. For routers, random groups keep about the same share of distant pairs. Baselines
are executed exactly. Content-based baselines count only if timed on heads of a model with a text as input: on normal
tensors, neighbouring queries select different keys.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from focus_core.baselines import BASELINES
from focus_core.bench.attention import SCHEMA as KERNEL
from focus_core.bench.baselines import SCHEMA as BASELINE
from focus_core.errors import FocusError
from focus_core.resources import data_dir

NEAR = 0.04
"""Largest distance between the share of a measured speed and the share of a row."""

Measured = tuple[tuple[Any, ...], int, float, float]
"""Kind ("router", K, k) or (name of a baseline,), tokens, share of distant pairs kept (NaN of estimates), speed-up."""


@dataclass(frozen=True)
class Speeds:
    """Measured speed-ups of one attention call over full attention, float32.

    Attributes:
        points: measured speeds.
    """

    points: tuple[Measured, ...] = ()

    def of(self, kind: tuple[Any, ...], share: float | None) -> dict[int, float]:
        """Speed-up by number of tokens, from the measured points nearest to a share; only for sizes that have one.

        Without a share: from equal groups, which keep the fewest pairs.
        """
        found: dict[int, tuple[float, float]] = {}
        for known, tokens, at, speedup in self.points:
            gap = 0.0 if math.isnan(at) else at if share is None else abs(at - share)
            if known == kind and (share is None or gap <= NEAR) and gap < found.get(tokens, (math.inf, 0.0))[0]:
                found[tokens] = gap, speedup
        return {tokens: speedup for tokens, (_, speedup) in found.items()}


def read_speeds(files: Iterable[Path]) -> Speeds:
    """The points of the records of `focus bench` among files; other files are ignored.

    Raises:
        FocusError: a record of `focus bench` is damaged.
    """
    points: list[Measured] = []
    for path in files:
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            schema = record.get("schema")
        except (OSError, ValueError, AttributeError):
            continue
        try:
            if schema == KERNEL:
                points += _of_routers(record)
            elif schema == BASELINE:
                points += _of_baselines(record["points"])
        except (KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
            raise FocusError(
                f"{path} is a damaged record of focus bench: leave it out, or delete it and measure again."
            ) from error
    return Speeds(tuple(points))


def recorded_speeds() -> Speeds:
    """The speeds that are shipped with the project, read again when a file changes.

    Raises:
        FocusError: one of them is damaged.
    """
    files = sorted((data_dir() / "results").glob("bench-*.json"))
    return _read_once(tuple((file, file.stat().st_mtime_ns) for file in files))


@lru_cache(maxsize=1)
def _read_once(files: tuple[tuple[Path, int], ...]) -> Speeds:
    return read_speeds(file for file, _ in files)


def _of_routers(record: dict[str, Any]) -> list[Measured]:
    settings = record["settings"]
    points: list[Measured] = []
    for point in record["points"]:
        if point["dtype"] == "float32" and "failure" not in point:
            kind = settings.get("router", "layer"), point["num_groups"], point["top_k"]
            share = distant_share(point["kept_share"], point["tokens"], settings["window"])
            points.append((kind, point["tokens"], share, point["speedup"]))
    return points


def _of_baselines(points: list[dict[str, Any]]) -> list[Measured]:
    """One speed for each length, baseline and wanted share, of all measured heads one after another."""
    together: dict[tuple[str, int, float | None], list[tuple[float, float]]] = defaultdict(list)
    for point in points:
        method = BASELINES.get(point["baseline"])
        if method is not None and not (method.by_content and point.get("head") is None):
            share = math.nan if point["kept_share"] is None else point["kept_share"]
            together[point["baseline"], point["tokens"], point.get("share")].append((share, point["speedup"]))
    return [
        ((name,), tokens, sum(share for share, _ in heads) / len(heads), joint_speedup(speed for _, speed in heads))
        for (name, tokens, _), heads in together.items()
    ]


def joint_speedup(speedups: Iterable[float]) -> float:
    """Speed-up of several calls together, with full versions of equal time: the harmonic mean."""
    slowness = [1 / each for each in speedups]
    return len(slowness) / sum(slowness)


def distant_share(kept_share: float, tokens: int, window: int) -> float:
    """Share of distant pairs kept, from the share of all causal pairs: local pairs are always kept."""
    every, distant = tokens * (tokens + 1) / 2, max(0, tokens - window - 1) * max(0, tokens - window) / 2
    return 1.0 if distant == 0 else (kept_share * every - (every - distant)) / distant
