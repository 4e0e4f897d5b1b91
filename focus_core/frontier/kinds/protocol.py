"""The protocol: routers and baselines at one share of pairs, on several kinds of text and at several lengths.

A cell is one method at one k or share, on one kind of text at one length. The record is written after every cell.
Short lengths come first and, within a length, what matters most, so that an interrupted run is useful.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from torch import Tensor

from focus_core.baselines import METHODS
from focus_core.baselines.learned.train import LearnedSettings
from focus_core.cluster import Cluster
from focus_core.errors import FocusError
from focus_core.evaluation.exposure import check_exposed
from focus_core.evaluation.retention import Untouched
from focus_core.frontier.files import check_beside, write_beside
from focus_core.frontier.kinds.figure import kinds_figure
from focus_core.frontier.kinds.methods import Cell, Method, routed_methods
from focus_core.frontier.kinds.record import SCHEMA, contained, described, resumed
from focus_core.frontier.kinds.rivals import Rivals
from focus_core.frontier.kinds.table import kinds_markdown
from focus_core.frontier.kinds.timing import Clock
from focus_core.frontier.measure import Point, check_names, point_of
from focus_core.frontier.speeds import Speeds, recorded_speeds
from focus_core.frontier.texts import Cut, check_held_out, cut, find_kinds
from focus_core.frontier.tuning import Tuning, training_pool
from focus_core.frontier.work import Attention, Found, Replaced, Routers, Wanted, points_of
from focus_core.io.files import to_json, write_atomic
from focus_core.io.locks import claims_file
from focus_core.models import LoadedModel, check_positions, load_model
from focus_core.models.positions import positions_of
from focus_core.progress import Progress, silent
from focus_core.results import made_now, record_run, text_records
from focus_core.routing.attach import attach
from focus_core.routing.config import FocusConfig
from focus_core.routing.model import FocusModel
from focus_core.text import find_texts

LENGTHS = (512, 2048, 8192)
LONG = 2048
"""Above this length only `LEADING` baselines are measured unless others are named: exact selection is slow there."""
LEADING = ("streaming", "sparq", "quest")
BLOCKS, LONG_BLOCKS = 3, 1
"""Blocks of each kind of text, and those above `LONG` tokens, where one takes minutes for each method."""


@dataclass(frozen=True)
class ProtocolSettings:
    """Methods and sizes of the protocol.

    Attributes:
        routers: folders or shipped names, the first of which are compared with all baselines; None for those shipped.
        top_k: k of the routers.
        baselines: keys of `focus_core.baselines.METHODS`; None for all, above `LONG` tokens for `LEADING`.
        lengths: T in tokens; None for those of `LENGTHS` that the model has positions for.
        shares: of distant pairs, for baselines and for routers that read a share.
        blocks: of each kind of text at each length, evenly spaced over its documents; None for `BLOCKS`, above `LONG`
            tokens for `LONG_BLOCKS`.
        window: w, for all methods.
        sink_tokens: first tokens that all methods keep.
        seed: of random baselines.
        learned_tokens: of training text that learned baselines are trained on.
        tuned: whether settings of baselines are chosen on training text; their defaults otherwise.

    Raises:
        FocusError: an unknown baseline, or a share that is not above 0 and below 1.
    """

    routers: tuple[str | Path | None, ...] = (None,)
    top_k: tuple[int, ...] = (1,)
    baselines: tuple[str, ...] | None = None
    lengths: tuple[int, ...] | None = None
    shares: tuple[float, ...] = (0.15,)
    blocks: int | None = None
    window: int = 128
    sink_tokens: int = 4
    seed: int = 0
    learned_tokens: int = LearnedSettings.tokens
    tuned: bool = True

    def __post_init__(self) -> None:
        check_names(self.baselines or (), self.shares)

    def blocks_at(self, length: int) -> int:
        """Blocks of each kind of text at one length."""
        if self.blocks is not None:
            return self.blocks
        return BLOCKS if length <= LONG else LONG_BLOCKS

    def baselines_at(self, length: int) -> list[str]:
        """Baselines of one length, the most important first."""
        names = self.baselines
        if names is None:
            names = tuple(METHODS) if length <= LONG else LEADING
        return sorted(dict.fromkeys(names), key=_tier)


def _tier(name: str) -> int:
    """Rank of a baseline: the leading ones, then oracles, then others."""
    if name in LEADING:
        return LEADING.index(name)
    return len(LEADING) + (not METHODS[name].oracle)


@claims_file()
def measure_protocol(
    kinds: Path,
    train: Sequence[Path],
    out: Path,
    settings: ProtocolSettings | None = None,
    *,
    model: str | LoadedModel = "default",
    speeds: Speeds | None = None,
    cluster: Cluster | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Measure every cell that the file does not hold yet, and write the table and the figure beside it.

    Kinds, lengths, methods, shares and blocks may be added to a record by another call. A cell that was measured over
    fewer blocks is measured again.

    Args:
        kinds: folder with a .txt file or a subfolder of them for each kind of text, see `find_kinds`.
        train: training text, to fit baselines.
        out: the JSON file, replaced atomically after every cell; table and figure end in .md and .svg.
        settings: methods and sizes; the defaults when None.
        model: a loaded model, or a name that `load_model` accepts.
        speeds: measured speeds for the table; those that are shipped when None.
        cluster: workers of Ray that measure blocks, with the model by name; None for this process. Fitting, tuning and
            training stay here.
        progress: told of each cell, and of the time that the others will take.

    Returns:
        The record: ``schema``, ``made``, ``model``, ``settings``, ``training_text``, ``kinds`` (documents and blocks),
        ``routers`` (hash, settings and training text), ``ours`` (the routers that baselines are compared with),
        ``learned`` (rate, parameters, divergence and seconds of each learned baseline), ``tuning`` (the settings tried
        of each baseline, on which blocks, and the seconds) and ``points``, each with its machine and date. ``made`` is
        of the last call. Lengths, blocks, shares and k in ``settings`` are those of all points.

    Raises:
        FocusError: a text, a model or routers are missing, a text was trained on, a length is past the model's
            positions, or the file holds a measurement of other settings.
        OSError: a file cannot be written.
    """
    check_beside(out)
    settings = settings or ProtocolSettings()
    texts, train_files = find_kinds(kinds), find_texts(train)
    loaded = model if isinstance(model, LoadedModel) else load_model(model, progress=progress)
    speeds = recorded_speeds(loaded.info.name) if speeds is None else speeds
    lengths = wanted_lengths(loaded, settings.lengths)
    for length in lengths:
        check_exposed(length, FocusConfig(window=settings.window))
    cuts = {
        (text.name, length): cut(loaded.tokenizer, text.files, length, settings.blocks_at(length))
        for length in lengths
        for text in texts
    }
    empty = next((length for length in lengths if all(not len(cuts[text.name, length].blocks) for text in texts)), None)
    if empty is not None:
        raise FocusError(f"No document in {kinds} has {empty:,} tokens: add longer ones or a shorter --length.")
    methods, routers = routed_methods(loaded, settings.routers, settings.top_k, settings.shares)
    training_text = text_records(train_files)
    entries = described(texts, cuts)
    check_held_out(
        [
            (f"{document['name']} of the kind {kind!r}", document["sha256"])
            for kind, entry in entries.items()
            for document in entry["documents"]
        ],
        {"--train": training_text, **{f"the routers {name}": entry["trained_on"] for name, entry in routers.items()}},
        "--kinds",
    )
    report = {
        "schema": SCHEMA,
        "model": loaded.info.identity,
        "settings": {
            "window": settings.window,
            "sink_tokens": settings.sink_tokens,
            "seed": settings.seed,
            "learned_tokens": settings.learned_tokens,
            "tuned": settings.tuned,
        },
        "training_text": training_text,
    }
    ours: dict[str, Any] = {"method": methods[0].name, "top_k": methods[0].top_k}
    if methods[0].share is not None:
        ours["share"] = methods[0].share
    record = resumed(out, report, {"kinds": entries, "routers": routers, "ours": ours})
    points = [point_of(point) for point in record["points"]]
    fit_length = min(LONG, positions_of(loaded.model) or LONG)
    pool = training_pool(loaded.tokenizer, train_files, fit_length, settings.seed)
    rivals = Rivals(
        loaded,
        train_files,
        out.with_name(f"{out.stem}-learned"),
        tokens=settings.learned_tokens,
        window=settings.window,
        sinks=settings.sink_tokens,
        seed=settings.seed,
        progress=progress,
    )
    budget = {"window": settings.window, "sinks": settings.sink_tokens, "seed": settings.seed}
    tuning = Tuning(pool, record["tuning"], on=settings.tuned, progress=progress, **budget)
    run = _Run(loaded, settings, cuts, pool.blocks, methods, rivals, tuning)
    cells = run.cells(lengths, [text.name for text in texts])
    missing = run.missing(cells, points)
    clock = Clock([(cell.key[0], cell.length, len(cuts[cell.text, cell.length].blocks)) for cell in missing], points)
    found = points_of(run.wanted(missing), cluster=cluster, model=model, progress=progress)
    for done, point in enumerate(run.points(found), 1):
        points = [each for each in points if each.key != point.key] + [point]
        added = {"learned": record["learned"] | rivals.report, "tuning": tuning.entries}
        added |= {"settings": contained(record["settings"], points), "points": [asdict(each) for each in points]}
        record = record_run(out, {**record, **added}, device=loaded.model.device.type)
        write_beside(out, kinds_markdown(record, speeds), kinds_figure(record))
        left = clock.after(point)
        at = f"{point.label}, {point.text}, T = {point.length:,}"
        progress(f"{at} ({done} of {len(missing)}; {left})", done / len(missing))
    if not missing:
        record["settings"] = contained(record["settings"], points)
        write_atomic(out, to_json(record) + "\n")  # older versions wrote the settings of one call
        write_beside(out, kinds_markdown(record, speeds), kinds_figure(record))
    return record


def wanted_lengths(loaded: LoadedModel, lengths: Sequence[int] | None) -> list[int]:
    """Context lengths in ascending order: those given, or those of `LENGTHS` that the model has positions for.

    Raises:
        FocusError: a length is past the model's positions.
    """
    if lengths is None:
        positions = positions_of(loaded.model)
        fitting = [length for length in LENGTHS if positions is None or length <= positions]
        return fitting or [positions or LENGTHS[0]]
    check_positions(loaded, *lengths)
    return sorted(set(lengths))


class _Run:
    """The cells of a run in order, and their measurement. Untouched states are kept for one length at a time."""

    def __init__(
        self,
        loaded: LoadedModel,
        settings: ProtocolSettings,
        cuts: dict[tuple[str, int], Cut],
        pool: Tensor,
        routed: list[Method],
        rivals: Rivals,
        tuning: Tuning,
    ) -> None:
        self.loaded, self.settings, self.cuts, self.pool, self.routed = loaded, settings, cuts, pool, routed
        self.rivals, self.tuning = rivals, tuning

    def cells(self, lengths: Sequence[int], texts: Sequence[str]) -> list[Cell]:
        """All cells that have a block."""
        return [
            Cell(method, text, length)
            for length in lengths
            for method in self._methods(length)
            for text in texts
            if len(self.cuts[text, length].blocks)
        ]

    def missing(self, cells: Sequence[Cell], points: Sequence[Point]) -> list[Cell]:
        """Those without a point over as many blocks."""
        held = {point.key: len(point.block_nll) for point in points}
        return [cell for cell in cells if held.get(cell.key, 0) != len(self.cuts[cell.text, cell.length].blocks)]

    def wanted(self, cells: Sequence[Cell]) -> Iterator[Wanted]:
        """What to measure for cells, in their order."""
        for length, group in groupby(cells, key=lambda cell: cell.length):
            states = {text: Untouched(part.blocks) for (text, each), part in self.cuts.items() if each == length}
            for method, same in groupby(group, key=lambda cell: cell.method):
                with self._attached(method) as focus:
                    attention = self._attention(focus, method)
                    for cell in same:
                        yield Wanted(focus, attention, states[cell.text], cell)

    def points(self, found: Generator[Found]) -> Iterator[Point]:
        """The points of cells that were measured."""
        with closing(found):
            for each in found:
                where = {"text": each.place.text, "length": each.place.length}
                yield replace(each.point, **where, seconds=each.seconds, made=self._made() | each.machine)

    def _made(self) -> dict[str, Any]:
        """Date and machine of a point that was just measured."""
        made = made_now(self.loaded.model.device.type)
        return {name: made[name] for name in ("date", "device", "processor", "threads")}

    def _methods(self, length: int) -> list[Method]:
        first, shares = self.routed[0].routers, self.settings.shares
        baselines = [
            Method(name, "baseline", first, share=share)
            for name in self.settings.baselines_at(length)
            for share in (shares if METHODS[name].tunable else (None,))
        ]
        return [Method("untouched", "untouched", first), *self.routed, *baselines]

    @contextmanager
    def _attached(self, method: Method) -> Iterator[FocusModel]:
        focus = attach(self.loaded, method.routers, untrained=False)
        try:
            yield focus
        finally:
            focus.detach()

    def _given(self, focus: FocusModel, method: Method) -> dict[str, Any]:
        """What a baseline has from training text: its setting, and what was fitted or learned."""
        learned = self.rivals.layers(focus, method.name)
        if learned is not None:
            return {"fitted": learned, "setting": None}
        return self.tuning.of(focus, method.name, method.share)

    def _attention(self, focus: FocusModel, method: Method) -> Attention:
        settings = self.settings
        if method.kind == "untouched":
            return Routers.untouched(focus)
        if method.kind == "baseline":
            own: dict[str, Any] = {"window": settings.window, "sinks": settings.sink_tokens, "seed": settings.seed}
            own |= {"top_k": self.routed[0].top_k}
            return Replaced(method.name, method.share or 0.0, **self._given(focus, method), budget=own)
        budget = focus.config.budget if method.top_k is None else f"k={method.top_k}"
        label = method.name if method.share is not None else f"{method.name}, {budget}"
        sizes: dict[str, Any] = {"window": settings.window, "sink_tokens": settings.sink_tokens}
        return Routers.of(focus, method.name, label, "trained", method.top_k, share=method.share, **sizes)
