"""Points of a frontier from measured blocks: each block under each attention alone, here or on a cluster.

What is fitted, learned or tuned is made in this process, and sent to the workers once for each attention.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from focus_core.cluster import Cluster
from focus_core.errors import require
from focus_core.evaluation.measure import Measured, joined, measure
from focus_core.evaluation.perplexity import evaluation_in, overrides
from focus_core.evaluation.retention import Untouched
from focus_core.frontier.measure import Part, Point, measure_blocks, point_from, routed_point
from focus_core.machine import describe_machine
from focus_core.progress import Progress, silent
from focus_core.routing.config import FocusConfig
from focus_core.routing.model import FocusModel, Mode
from focus_core.routing.portable import PortableModel, done_on

STATES = 16
"""Blocks of which a worker keeps the untouched model's states, for the next attention."""


@dataclass(frozen=True)
class Routers:
    """The untouched model, or routers, as an attention to measure.

    Attributes:
        method: key of the method.
        label: name in tables.
        source: origin of the routers.
        mode: "off" or "hard".
        settings: changes of `FocusConfig`.
        config: with these.
        sliding_windows: of the model's layers.
        planned: k of every layer of planned routers.
        share: of distant pairs that they were asked to read.
    """

    method: str
    label: str
    source: str
    mode: Mode
    settings: dict[str, Any]
    config: FocusConfig
    sliding_windows: Any
    planned: tuple[int, ...] | None = None
    share: float | None = None

    @classmethod
    def untouched(cls, focus: FocusModel) -> Routers:
        """The model without routing."""
        return cls("untouched", "untouched model", "", "off", {}, focus.config, focus.sliding_windows)

    @classmethod
    def of(
        cls,
        focus: FocusModel,
        method: str,
        label: str,
        source: str,
        top_k: int | None,
        *,
        share: float | None = None,
        **changes: Any,
    ) -> Routers:
        """Hard calibrated routing at a k, or at a share of distant pairs.

        Args:
            focus: the model with the routers.
            method: key of the method.
            label: name in tables.
            source: origin of the routers.
            top_k: k; as planned, or as the share gives, when None.
            share: of routers that read one.
            changes: other settings of `FocusConfig`.
        """
        more = changes if share is None else {**changes, "read_share": share}
        settings = overrides(top_k, "calibrated", more)
        with focus.routing("hard", **settings):
            config = focus.current.config
        planned = focus.config.layer_top_k or None
        return cls(method, label, source, "hard", settings, config, focus.sliding_windows, planned, share)

    def measured(self, focus: FocusModel, states: Untouched) -> list[Measured]:
        """What it does to blocks."""
        return [measure(focus, states.blocks, self.mode, self.settings, untouched=states)]

    def point(self, parts: list[Any]) -> Point:
        """The point of all blocks, measured in parts in their order."""
        row = evaluation_in(joined(parts), self.mode, self.config, self.sliding_windows)
        if self.mode == "off":
            return routed_point(self.method, self.label, self.source, row)
        kind = self.config.router, self.config.num_groups
        return replace(
            routed_point(self.method, self.label, self.source, row, *kind, self.planned), wanted_share=self.share
        )


@dataclass(frozen=True, eq=False)
class Replaced:
    """A baseline in place of attention.

    Attributes:
        name: key of `focus_core.baselines.METHODS`.
        share: of distant pairs.
        setting: of the baseline.
        fitted: what it has from training text, by layer.
        budget: window, sinks, seed and top_k, as of `baseline_point`.
    """

    name: str
    share: float
    setting: Any
    fitted: dict[int, Any]
    budget: dict[str, Any]

    def measured(self, focus: FocusModel, states: Untouched) -> list[Part]:
        """What it does to blocks."""
        given: dict[str, Any] = {"share": self.share, "setting": self.setting, "fitted": self.fitted, **self.budget}
        return measure_blocks(focus, self.name, states, **given)

    def point(self, parts: list[Any]) -> Point:
        """The point of all blocks, measured in parts in their order."""
        return point_from(self.name, parts, share=self.share, setting=self.setting)


Attention = Routers | Replaced


@dataclass(frozen=True, eq=False)
class Wanted:
    """A point to measure.

    Attributes:
        focus: with the routers of the attention; attached until the next point is asked for.
        attention: what to measure.
        states: the blocks.
        place: what the caller knows it by.
    """

    focus: FocusModel
    attention: Attention
    states: Untouched
    place: Any = None


@dataclass(frozen=True)
class Found:
    """A measured point.

    Attributes:
        point: the point.
        place: that of `Wanted`.
        seconds: of the measurement, summed over workers.
        machine: device, processor and threads of a worker; empty where this process measured.
    """

    point: Point
    place: Any
    seconds: float
    machine: dict[str, Any]


def points_of(
    wanted: Iterable[Wanted], *, cluster: Cluster | None = None, model: Any = None, progress: Progress = silent
) -> Generator[Found]:
    """The points, in their order.

    Args:
        wanted: the points; on a cluster they are asked for before earlier ones are measured.
        cluster: workers that measure blocks; None for this process.
        model: what a cluster loads, by name.
        progress: told when workers are awaited.

    Raises:
        FocusError: settings that do not fit the routers, or a cluster that cannot be used.
    """
    if cluster is not None:
        yield from _on(cluster, model, iter(wanted), progress)
        return
    for each in wanted:
        start = time.perf_counter()
        point = each.attention.point(each.attention.measured(each.focus, each.states))
        yield Found(point, each.place, round(time.perf_counter() - start, 2), {})


def _on(cluster: Cluster, model: Any, wanted: Iterator[Wanted], progress: Progress) -> Generator[Found]:
    first = next(wanted, None)
    if first is None:
        return
    pieces = _pieces(chain([first], wanted))
    portable = PortableModel.of(first.focus, model)
    with closing(done_on(cluster, portable, FrontierJob(), pieces, progress=progress)) as done:
        parts, seconds = [], 0.0
        for piece, (found, taken, machine) in done:
            parts, seconds = [*parts, *found], seconds + taken
            if piece.last is not None:
                yield Found(piece.attention.point(parts), piece.last.place, round(seconds, 2), machine)
                parts, seconds = [], 0.0


@dataclass(frozen=True, eq=False)
class Piece:
    """A block under one attention.

    Attributes:
        block: (1, T) int64 token ids.
        attention: what to measure, without what was fitted.
        routers: reference to the files of the routers.
        fitted: reference to what was fitted.
        last: of the last block of a point; nothing of it is sent.
    """

    block: np.ndarray
    attention: Attention
    routers: Any
    fitted: Any
    last: Wanted | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What is sent to a worker."""
        return {**self.__dict__, "last": None}


def _pieces(wanted: Iterable[Wanted]) -> Iterator[Piece]:
    """The blocks of points; routers, and what was fitted, go to the cluster once for each attention."""
    ray = require("ray", "ray")
    focus = files = routers = before = fitted = None
    for each in wanted:
        if each.focus is not focus:
            focus, own = each.focus, _files(each.focus)
            if own != files:
                files, routers = own, ray.put(own)
        attention = each.attention
        if attention is not before:
            before, fitted = attention, ray.put(attention.fitted) if isinstance(attention, Replaced) else None
        sent = replace(attention, fitted={}) if isinstance(attention, Replaced) else attention
        for number, block in enumerate(each.states.blocks, 1):
            yield Piece(block[None], sent, routers, fitted, each if number == len(each.states.blocks) else None)


def _files(focus: FocusModel) -> dict[str, bytes]:
    with TemporaryDirectory() as folder:
        focus.save_pretrained(folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


class FrontierJob:
    """Measures blocks, see `focus_core.routing.portable.Job`. It keeps the routers and states of the last ones."""

    def __init__(self) -> None:
        self.focus: FocusModel | None = None
        self.routers: Any = None
        self.fitted: tuple[Any, dict[int, Any]] = (None, {})
        self.states: dict[bytes, Untouched] = {}

    def work(self, focus: FocusModel, tokenizer: Any, piece: Piece) -> tuple[list[Any], float, dict[str, Any]]:
        """What the attention does to the block, the seconds that it took, and the machine."""
        own, attention = self._attached(focus, piece.routers), piece.attention
        if isinstance(attention, Replaced):
            attention = replace(attention, fitted=self._fitted(piece.fitted))
        start = time.perf_counter()
        found = attention.measured(own, self._states(piece.block))
        seconds = time.perf_counter() - start
        machine = describe_machine(own.model.device.type)
        return found, seconds, {name: machine[name] for name in ("device", "processor", "threads")}

    def _attached(self, focus: FocusModel, routers: Any) -> FocusModel:
        """The routers of a piece in place of those before."""
        if self.focus is None or self.routers != routers:
            (self.focus or focus).detach()
            with TemporaryDirectory() as folder:
                for name, data in require("ray", "ray").get(routers).items():
                    (Path(folder) / name).write_bytes(data)
                self.focus = FocusModel.from_pretrained(focus.model, folder)
            self.routers = routers
        return self.focus

    def _fitted(self, reference: Any) -> dict[int, Any]:
        if self.fitted[0] != reference:
            # Arrays of Ray's shared memory cannot be written to, and compiled code asks for those that can.
            self.fitted = reference, deepcopy(require("ray", "ray").get(reference))
        return self.fitted[1]

    def _states(self, block: np.ndarray) -> Untouched:
        key = block.tobytes()
        states = self.states.pop(key, None) or Untouched(block.copy())
        self.states[key] = states
        while len(self.states) > STATES:
            del self.states[next(iter(self.states))]
        return states
