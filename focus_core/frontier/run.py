"""The frontier of a model: routers set the budgets, baselines are measured at the same share of pairs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from focus_core.baselines import BASELINES
from focus_core.errors import FocusError
from focus_core.evaluation import evaluate
from focus_core.evaluation.exposure import check_exposed
from focus_core.evaluation.retention import Untouched
from focus_core.frontier.figure import figure
from focus_core.frontier.files import write_beside
from focus_core.frontier.measure import POINT, SCHEMA, Point, baseline_point, check_names, point_of, routed_point
from focus_core.frontier.speeds import Speeds, recorded_speeds
from focus_core.frontier.table import markdown
from focus_core.frontier.texts import cut
from focus_core.frontier.tuning import Tuning
from focus_core.locks import claims_file
from focus_core.models import LoadedModel, load_model
from focus_core.progress import Progress, silent
from focus_core.reading import read_json
from focus_core.results import record_run, resume_record, text_records
from focus_core.routing.attach import attach
from focus_core.routing.config import FocusConfig
from focus_core.routing.model import FocusModel, retrofit
from focus_core.routing.routers import ROUTERS
from focus_core.routing.storage import routers_hash
from focus_core.schema import array, table, text
from focus_core.text import find_texts, read_text, token_blocks
from focus_core.training.calibrate import calibrate
from focus_core.training.loop import calibration_blocks


@dataclass(frozen=True)
class FrontierSettings:
    """Methods and sizes of a frontier.

    Attributes:
        routers: folders or shipped names; None for those shipped for the model.
        top_k: k of the routers.
        baselines: keys of `focus_core.baselines.BASELINES`.
        length: T in tokens.
        window: w, for all methods.
        sink_tokens: first tokens that all methods keep.
        blocks: evenly spaced blocks of the held-out text.
        shares: of distant pairs, for the baselines; None for those that the first routers keep.
        seed: of untrained routers and random baselines.
        tuned: whether settings of baselines are chosen on training text; their defaults otherwise.
    """

    routers: tuple[str | None, ...] = (None,)
    top_k: tuple[int, ...] = (1, 2)
    baselines: tuple[str, ...] = tuple(BASELINES)
    length: int = 2048
    window: int = 128
    sink_tokens: int = 4
    blocks: int = 16
    shares: tuple[float, ...] | None = None
    seed: int = 0
    tuned: bool = True

    def __post_init__(self) -> None:
        check_names(self.baselines, self.shares or (), BASELINES)


@claims_file()
def measure_frontier(
    data: Sequence[Path],
    train: Sequence[Path],
    out: Path,
    settings: FrontierSettings | None = None,
    *,
    model: str = "default",
    speeds: Speeds | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Measure every point that the file does not hold yet, and write the table and the figure beside it.

    Args:
        data: held-out text files or folders.
        train: training text, to calibrate untrained routers and to fit baselines.
        out: the JSON file, replaced atomically after every point; table and figure end in .md and .svg.
        settings: methods and sizes; the defaults when None.
        model: as in `load_model`.
        speeds: measured speeds for table and figure; those that are shipped when None.
        progress: told of each finished point.

    Returns:
        The record: ``schema``, ``made``, ``model``, ``settings``, ``data``, ``training_text``, ``documents`` (that of
        each block), ``routers`` (their hashes), ``tuning`` (the settings tried of each baseline) and ``points``.

    Raises:
        FocusError: a text, a model or routers are missing, or the file holds a measurement of other settings.
        OSError: a file cannot be written.
    """
    if out.suffix in (".md", ".svg"):
        raise FocusError(f"The table and the figure are written beside {out}: give --out a name that ends in .json.")
    settings = settings or FrontierSettings()
    speeds = recorded_speeds() if speeds is None else speeds
    held_files, train_files = find_texts(data), find_texts(train)
    loaded, length = load_model(model, progress=progress), settings.length
    check_exposed(length, FocusConfig(window=settings.window))
    sample = cut(loaded.tokenizer, held_files, length, settings.blocks)
    held = sample.blocks
    if not len(held):
        raise FocusError(f"No held-out text has {length:,} tokens: give a longer text or a shorter --length.")
    pool = token_blocks(loaded.tokenizer, map(read_text, train_files), length)
    sizes = {name: getattr(settings, name) for name in ("length", "window", "sink_tokens", "seed")}
    report = {
        "schema": SCHEMA,
        "model": {"name": loaded.info.name, "revision": loaded.info.revision},
        "settings": sizes | {"blocks": len(held), "tuned": settings.tuned},
        "data": text_records(held_files),
        "training_text": text_records(train_files),
    }
    routers = identified(loaded, settings.routers)
    record: dict[str, Any] = resume_record(out, report, older={"tuned": False}, point=POINT) | {
        "documents": list(sample.documents)
    }
    record |= stored_beside(out, routers)
    points = [point_of(point) for point in record["points"]]
    pool = calibration_blocks(pool, settings.seed)
    budget = {"window": settings.window, "sinks": settings.sink_tokens, "seed": settings.seed}
    tuning = Tuning(pool, record["tuning"], on=settings.tuned, progress=progress, **budget)
    plan = _Plan(loaded, held, pool, settings, points, tuning)
    for done, point in enumerate(plan.run(), 1):
        points.append(point)
        record = record_run(out, {**record, "tuning": tuning.entries, "points": [asdict(each) for each in points]})
        progress(f"{point.label} ({done} of {plan.total})", done / plan.total)
    write_beside(out, markdown(record, speeds), figure(record, speeds))
    return record


def identified(loaded: LoadedModel, folders: Iterable[str | None]) -> dict[str, str]:
    """The hash of each of these routers, by name.

    Raises:
        FocusError: they do not fit the model, or two folders have one name and other routers.
    """
    found: dict[str, str] = {}
    for folder in folders:
        focus = attach(loaded, folder, untrained=False)
        try:
            name, own = Path(focus.name).name, routers_hash(focus.routers)
        finally:
            focus.detach()
        if found.setdefault(name, own) != own:
            raise FocusError(f"Two folders of routers are called {name}: rename one of them.")
    return found


def stored_beside(out: Path, routers: dict[str, str]) -> dict[str, Any]:
    """Hashes of routers and tuning of a record that `resume_record` accepts, with the routers of this call.

    Raises:
        FocusError: the file has points of other routers of a name, or does not tell which routers it has.
    """
    if not out.exists():
        return {"routers": routers, "tuning": []}
    record = read_json(out, _BESIDE)
    known = record.get("routers", {})
    for point in record["points"]:
        name = point["method"]
        if point["kind"] != "routers" or name not in routers:
            continue
        if name not in known and point["source"] == "trained":
            raise FocusError(f"{out} is of an older version, which did not store which routers {name} were: {_ELSE}")
        if name in known and known[name] != routers[name]:
            raise FocusError(f"{out} holds other routers of the name {name}: {_ELSE}")
    return {"routers": known | routers, "tuning": record.get("tuning", [])}


_ELSE = "name another file with --out."
_POINT = table({"method": text(), "kind": text(), "source": text()})
_BESIDE = table({"points": array(_POINT)}, {"routers": table(values=text()), "tuning": array(table())})


class _Plan:
    """The points still to measure, routers first, because they set the budgets of the baselines."""

    def __init__(
        self,
        loaded: LoadedModel,
        held: np.ndarray,
        pool: Tensor,
        settings: FrontierSettings,
        points: list[Point],
        tuning: Tuning,
    ) -> None:
        self.tuning = tuning
        self.loaded, self.held, self.pool, self.settings, self.points = loaded, held, pool, settings, points
        self.untouched = Untouched(held)
        budgets = len(settings.top_k if settings.shares is None else settings.shares)
        self.total = 1 + (len(settings.routers) + 1) * len(settings.top_k) + len(settings.baselines) * budgets

    def _missing(self, *key: Any) -> bool:
        return all(point.key[:3] != key for point in self.points)

    def run(self) -> Iterator[Point]:
        """Measure missing points one at a time; each is in `points` before the next begins."""
        first, kinds = None, []
        for folder in self.settings.routers:
            focus = attach(self.loaded, folder, untrained=False)
            name = Path(focus.name).name
            first = first or name
            kind = FocusConfig(router=focus.config.router, num_groups=focus.config.num_groups)
            kinds += [kind] if kind not in kinds else []
            yield from self._routed(focus, name, "trained")
            focus.detach()
        for kind in kinds:
            yield from self._untrained(kind)
        own = (None, *self.settings.top_k)
        budgets = [point.kept_share for point in self.points if point.method == first and point.top_k in own]
        yield from self._baselines(budgets if self.settings.shares is None else list(self.settings.shares))

    def _untrained(self, kind: FocusConfig) -> Iterator[Point]:
        focus = retrofit(self.loaded.model, kind, seed=self.settings.seed)
        name = "untrained" if kind.router == FocusConfig.router else f"untrained, {ROUTERS[kind.router].label}"
        name += "" if kind.num_groups == FocusConfig.num_groups else f", K={kind.num_groups}"
        if any(self._missing(name, top_k, None) for top_k in self.settings.top_k):
            calibrate(focus, self.pool)
            yield from self._routed(focus, name, "random, calibrated on the training text")
        focus.detach()

    def _baselines(self, budgets: list[float | None]) -> Iterator[Point]:
        focus = retrofit(self.loaded.model, FocusConfig(), seed=self.settings.seed)
        for share in budgets:
            for name in self.settings.baselines:
                if self._missing(name, None, share if BASELINES[name].tunable else None):
                    yield baseline_point(
                        focus,
                        name,
                        self.held,
                        share=share or 0.0,
                        window=self.settings.window,
                        sinks=self.settings.sink_tokens,
                        training_text=self.pool,
                        seed=self.settings.seed,
                        untouched=self.untouched,
                        **self.tuning.of(focus, name, share),
                    )
        focus.detach()

    def _routed(self, focus: FocusModel, name: str, source: str) -> Iterator[Point]:
        if self._missing("untouched", None, None):
            row = evaluate(focus, self.held, routing="off", untouched=self.untouched)
            yield routed_point("untouched", "untouched model", "", row)
        sizes = {"window": self.settings.window, "sink_tokens": self.settings.sink_tokens}
        changes: dict[str, Any] = {**sizes, "balance": "calibrated", "untouched": self.untouched}
        config = focus.config
        planned = config.layer_top_k or None
        for top_k in (None,) if config.one_top_k is None else self.settings.top_k:
            if self._missing(name, top_k, None):
                row = evaluate(focus, self.held, routing="hard", top_k=top_k, **changes)
                label = f"{name}, {config.budget if top_k is None else f'k={top_k}'}"
                yield routed_point(name, label, source, row, config.router, config.num_groups, planned)
