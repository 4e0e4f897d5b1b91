"""Measured speeds for the rows of a frontier, from records of `focus bench`.

`recorded_speeds(model)` reads the shipped records of a model, and `read_speeds(files)` any others. `Speeds.at` answers
for one method, one length and one share: attention alone, attention with the choice of its pairs, and the whole model.
It answers None where that length was not measured: no speed is taken from another length. All speeds are of one CPU.

For routers, random groups keep about the same share of distant pairs. Baselines are executed exactly. Content-based
baselines count only if timed on heads of a model with a text as input: on normal tensors, neighbouring queries select
different keys.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from focus_core.baselines import BASELINES, METHODS
from focus_core.baselines.case import Setting
from focus_core.bench.attention import SCHEMA as KERNEL
from focus_core.bench.baselines import SCHEMA as BASELINE
from focus_core.bench.baselines import UNFOLDED
from focus_core.bench.model import SCHEMA as MODEL
from focus_core.bench.routing import choosing_seconds
from focus_core.errors import FocusError
from focus_core.io.reading import read_json
from focus_core.io.schema import Check, Wrong, array, maybe, number, table, text, whole
from focus_core.models.default_model import NAME
from focus_core.resources import data_dir
from focus_core.results import machine_of, made_of
from focus_core.routing.narrow.directions import DIRECTIONS

NEAR = 0.04
"""Largest distance between the share of a measured speed and the share of a row."""

REFERENCE = "bench-narrow.json"
"""The shipped record whose CPU all shipped speeds of a frontier are of: one attention call of the default."""

Kind = tuple[Any, ...]
"""("head" or "layer", K, k) of routers, or (name of a baseline,)."""

WINDOW: Kind = ("streaming",)
"""The baseline that `focus bench model` runs as well."""


class Measured(NamedTuple):
    """Speed-ups of one attention call over full attention, float32.

    Attributes:
        kind: of routers, or of a baseline.
        tokens: T.
        share: of distant pairs kept; NaN of estimates.
        speedup: the choice of pairs excluded.
        with_choice: the choice of pairs included; None in older records of routers that lack it.
        folded: False in older records of baselines, which timed one query head at a time.
        setting: of a baseline; empty for its default.
    """

    kind: Kind
    tokens: int
    share: float
    speedup: float
    with_choice: float | None = None
    folded: bool = True
    setting: Setting = MappingProxyType({})


class ModelSpeed(NamedTuple):
    """Speed-up of prefill of a whole model over the untouched model, float32.

    Attributes:
        kind: of its routers, or `WINDOW`.
        routers: their name.
        tokens: T.
        share: of distant pairs kept; None in older records.
        speedup: the choice of pairs included.
    """

    kind: Kind
    routers: str
    tokens: int
    share: float | None
    speedup: float


class Speed(NamedTuple):
    """Speed-ups at one length and share; None where they were not measured.

    Attributes:
        attention: of one attention call over full attention, the choice of pairs excluded.
        with_choice: of one attention call with the choice of its pairs.
        model: of prefill of the whole model over the untouched model.
        folded: False if attention was timed one query head at a time (an older record), and is understated.
    """

    attention: float | None = None
    with_choice: float | None = None
    model: float | None = None
    folded: bool = True


@dataclass(frozen=True)
class Speeds:
    """Measured speed-ups of one CPU.

    Attributes:
        points: of one attention call; `Measured`, or its first values.
        models: of whole models.
        machine: the CPU or GPU; empty where records do not name it.
    """

    points: tuple[tuple[Any, ...], ...] = ()
    models: tuple[ModelSpeed, ...] = ()
    machine: str = ""

    def of(self, kind: Kind, share: float | None) -> dict[int, float]:
        """Speed-up of attention alone by number of tokens, from the measured points nearest to a share.

        Only sizes that have one. Without a share: from equal groups, which keep the fewest pairs.
        """
        return {tokens: point.speedup for tokens, point in self._nearest(kind, share).items()}

    def at(
        self,
        method: str | Kind,
        tokens: int,
        share: float | None,
        *,
        routers: str | None = None,
        setting: Setting | None = None,
    ) -> Speed:
        """The speeds of one method at one length, as far as that length was measured near that share.

        Args:
            method: name of a baseline, or the kind ("head" or "layer", K, k) of routers.
            tokens: T.
            share: of distant pairs kept; None for estimates.
            routers: name of the routers, for the speed of the whole model with them.
            setting: of a baseline, empty for its default; None for that of any.

        Returns:
            The speeds, None where not measured. No speed is taken from another length, share, setting or CPU, or
            from other routers.
        """
        kind = (method,) if isinstance(method, str) else tuple(method)
        point = self._nearest(kind, share, setting).get(tokens)
        model = self._model(kind, tokens, share, routers)
        if point is None:
            return Speed(model=model)
        return Speed(point.speedup, point.with_choice, model, point.folded)

    def _nearest(self, kind: Kind, share: float | None, setting: Setting | None = None) -> dict[int, Measured]:
        found: dict[int, tuple[float, Measured]] = {}
        for point in (Measured(*each) for each in self.points):
            gap = 0.0 if math.isnan(point.share) else point.share if share is None else abs(point.share - share)
            near = (share is None or gap <= NEAR) and (setting is None or dict(point.setting) == dict(setting))
            if point.kind == kind and near and (point.tokens not in found or gap < found[point.tokens][0]):
                found[point.tokens] = gap, point
        return {tokens: point for tokens, (_, point) in found.items()}

    def _model(self, kind: Kind, tokens: int, share: float | None, routers: str | None) -> float | None:
        """Routed models by the name of their routers, near the share where both are known; a window by its share."""
        rows = [row for row in self.models if row.kind == kind and row.tokens == tokens]
        if kind == WINDOW:
            gaps = [(abs(row.share - (share or 0.0)), row.speedup) for row in rows if row.share is not None]
            gap, speedup = min(gaps, default=(math.inf, 0.0))
            return speedup if gap <= NEAR else None
        return next((row.speedup for row in rows if row.routers == routers and _alike(row.share, share)), None)


def _alike(share: float | None, other: float | None) -> bool:
    return share is None or other is None or abs(share - other) <= NEAR


_SHARE, _SPEED = maybe(number()), number(above=0)
_POINT = {"tokens": whole(1), "speedup": _SPEED, "kept_share": _SHARE}
_ROUTED = {**_POINT, "num_groups": whole(1), "top_k": whole(1), "kept_share": number(0, 1)}
_MADE = {"made": table(optional={"date": text(), "versions": table()}), "machine": table()}


def _routed_point(point: Any, where: str) -> None:
    """A point of `focus bench attention`: one that failed has a sentence in place of its results."""
    failed = isinstance(point, dict) and "failure" in point
    table({"dtype": text()} | ({} if failed else _ROUTED), {"date": text()})(point, where)


_CHECKS: dict[str, Check] = {
    KERNEL: table({"settings": table({"window": whole(0)}), "points": array(_routed_point)}, _MADE),
    MODEL: table(
        {"settings": table({"config": table({"num_groups": whole(1)})}), "results": array(table({"task": text()}))},
        _MADE,
    ),
}
for _schema in (BASELINE, UNFOLDED):
    _timed = {**_POINT, "baseline": text()} | ({} if _schema == UNFOLDED else {"speedup_with_choice": _SPEED})
    _CHECKS[_schema] = table({"points": array(table(_timed, {"date": text()}))}, _MADE)


@dataclass
class _Machine:
    """The points of one CPU, and the date of its latest record."""

    date: str = ""
    points: list[Measured] = field(default_factory=list)
    models: list[ModelSpeed] = field(default_factory=list)


def read_speeds(
    files: Iterable[Path], *, named: bool = False, model: str | None = None, machine: str | None = None
) -> Speeds:
    """The points of the records of `focus bench` among files.

    Speeds of different CPUs are not comparable: those of one are taken. Where it has folded points of baselines, its
    older unfolded ones are left out.

    Args:
        files: to read.
        named: whether a user named them; other files are then refused, and ignored otherwise.
        model: name of the model whose speeds are wanted, and those of attention calls of its shape; None for any.
        machine: the CPU whose speeds are taken where it has some; otherwise that of the latest record is.

    Raises:
        FocusError: a record of `focus bench` is damaged.
    """
    machines: dict[str, _Machine] = defaultdict(_Machine)
    for path in files:
        try:
            record = read_json(path, table())
        except (OSError, FocusError) as error:
            if named:
                raise FocusError(f"{path} is no record of focus bench: give a file that it wrote.") from error
            continue
        schema = record.get("schema")
        if schema not in (KERNEL, BASELINE, UNFOLDED, MODEL):
            if named:
                raise FocusError(f"{path} is no record of focus bench: give a file that it wrote.")
            continue
        try:
            _CHECKS[schema](record, "")
            if model is not None and _model_of(record) != model:
                continue
            name, date = _made(record)
            found = machines[name]
            found.date = max(found.date, date)
            if schema == KERNEL:
                found.points += _of_routers(record)
            elif schema == MODEL:
                found.models += _of_model(record)
            else:
                found.points += _of_baselines(record["points"], folded=schema == BASELINE)
        except (KeyError, TypeError, AttributeError, ZeroDivisionError, Wrong) as error:
            raise FocusError(
                f"{path} is a damaged record of focus bench: leave it out, or delete it and measure again."
            ) from error
    if not machines:
        return Speeds()
    name, own = max(machines.items(), key=lambda each: (each[0] == machine, each[1].date))
    alike = any(point.folded and point.kind[0] in BASELINES for point in own.points)
    points = (point for point in own.points if point.folded or not alike)
    return Speeds(tuple(points), tuple(own.models), name)


def _model_of(record: dict[str, Any]) -> str:
    """Name of the model that was timed; attention calls have the shape of the default model's."""
    read = record["settings"].get("source", {}) if "settings" in record else {}
    return (record.get("model") or read.get("model") or {}).get("name", NAME)


def _made(record: dict[str, Any]) -> tuple[str, str]:
    """The CPU or GPU of a record, with its matrix units, and its date; empty where it does not name them."""
    if "made" not in record and "machine" not in record:
        return "", ""
    dates = [point.get("date") or "" for point in record.get("points") or ()]
    machine = machine_of(record)
    units = ", AMX" if "AMX" in str(machine.get("instructions")) else ""
    return f"{machine.get('device', '')}{units}", max([made_of(record).get("date", "")[:10], *dates])


def recorded_speeds(model: str = NAME) -> Speeds:
    """The speeds of a model that are shipped with the project, read again when a file changes.

    They are of the CPU of the default's own record, `REFERENCE`, whatever was measured elsewhere since.

    Raises:
        FocusError: one of them is damaged.
    """
    files = sorted((data_dir() / "results").glob("bench-*.json"))
    return _read_once(tuple((file, file.stat().st_mtime_ns) for file in files), model)


@lru_cache(maxsize=4)
def _read_once(files: tuple[tuple[Path, int], ...], model: str) -> Speeds:
    reference = next((read_json(file, table()) for file, _ in files if file.name == REFERENCE), None)
    machine = None if reference is None else _made(reference)[0]
    return read_speeds((file for file, _ in files), model=model, machine=machine)


def with_choice(point: dict[str, Any]) -> float | None:
    """Speed-up of a point of `focus bench attention`, its routing included; None where that was not timed.

    Older points have the time of routing and no such speed-up.
    """
    steps = point.get("routing_s")
    if not steps:
        return point.get("speedup_with_choice")
    return point["full_s"]["median"] / (point["sparse_s"]["median"] + choosing_seconds(steps))


def _of_routers(record: dict[str, Any]) -> list[Measured]:
    settings = record["settings"]
    points: list[Measured] = []
    for point in record["points"]:
        if point["dtype"] == "float32" and "failure" not in point:
            router = settings.get("router", "layer")
            directions = settings.get("directions", 0)
            if router == "narrow" and directions != DIRECTIONS:  # another form than that of the default
                router = f"narrow with {directions} directions"
            # Narrow groups have a share and no k.
            kind = router, point["num_groups"], None if router.startswith("narrow") else point["top_k"]
            share = distant_share(point["kept_share"], point["tokens"], settings["window"])
            points.append(Measured(kind, point["tokens"], share, point["speedup"], with_choice(point)))
    return points


def _of_baselines(points: list[dict[str, Any]], *, folded: bool) -> list[Measured]:
    """One speed for each length, baseline and wanted share, of all measured heads one after another."""
    together: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for point in points:
        method = METHODS.get(point["baseline"])
        if method is not None and not (method.by_content and point.get("head") is None):
            setting = tuple(sorted((point.get("setting") or {}).items()))
            together[point["baseline"], point["tokens"], point.get("share"), setting].append(point)
    found = []
    for (name, tokens, _, setting), heads in together.items():
        shares = [math.nan if head["kept_share"] is None else head["kept_share"] for head in heads]
        alone = joint_speedup(head["speedup"] for head in heads)
        both = [head["speedup_with_choice"] for head in heads if folded]
        chosen = joint_speedup(both) if both else None
        found.append(Measured((name,), tokens, sum(shares) / len(shares), alone, chosen, folded, dict(setting)))
    return found


def _of_model(record: dict[str, Any]) -> list[ModelSpeed]:
    settings = record["settings"]
    config = settings["config"]
    found = []
    for row in record["results"]:
        if row["task"] == "prefill" and row["routing"] != "off" and settings["dtype"] == "float32":
            routed = config.get("router", "layer"), config["num_groups"], row["top_k"]
            kind = WINDOW if row["routing"] == "window" else routed
            share = row.get("distant_share")
            found.append(ModelSpeed(kind, settings["routers"], row["tokens"], share, row["speedup"]))
    return found


def joint_speedup(speedups: Iterable[float]) -> float:
    """Speed-up of several calls together, with full versions of equal time: the harmonic mean."""
    slowness = [1 / each for each in speedups]
    return len(slowness) / sum(slowness)


def distant_share(kept_share: float, tokens: int, window: int) -> float:
    """Share of distant pairs kept, from the share of all causal pairs: local pairs are always kept."""
    every, distant = tokens * (tokens + 1) / 2, max(0, tokens - window - 1) * max(0, tokens - window) / 2
    return 1.0 if distant == 0 else (kept_share * every - (every - distant)) / distant
