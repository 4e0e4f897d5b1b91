"""The frontier of a model: routers set the budgets, baselines are measured at the same share of pairs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from focus_core.baselines import BASELINES
from focus_core.cluster import Cluster
from focus_core.errors import FocusError
from focus_core.evaluation.exposure import check_exposed
from focus_core.evaluation.retention import Untouched
from focus_core.frontier.figure import figure
from focus_core.frontier.files import check_beside, write_beside
from focus_core.frontier.measure import POINT, SCHEMA, Point, check_names, point_of
from focus_core.frontier.speeds import Speeds, recorded_speeds
from focus_core.frontier.table import markdown
from focus_core.frontier.texts import check_held_out, cut, training_texts
from focus_core.frontier.tuning import Tuning, training_pool
from focus_core.frontier.work import Attention, Replaced, Routers, Wanted, points_of
from focus_core.io.locks import claims_file
from focus_core.io.reading import read_json
from focus_core.io.schema import array, table, text
from focus_core.models import LoadedModel, check_positions, load_model
from focus_core.progress import Progress, silent
from focus_core.results import record_run, resume_record, text_records
from focus_core.routing.attach import attach
from focus_core.routing.config import FocusConfig
from focus_core.routing.model import FocusModel, retrofit
from focus_core.routing.routers import ROUTERS
from focus_core.routing.storage import routers_hash
from focus_core.text import find_texts
from focus_core.training.calibrate import calibrate


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
    cluster: Cluster | None = None,
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
        cluster: workers of Ray that measure blocks, with the model by name; None for this process. Fitting, tuning and
            calibration stay here.
        progress: told of each finished point.

    Returns:
        The record: ``schema``, ``made``, ``model``, ``settings``, ``data``, ``training_text``, ``documents`` (that of
        each block), ``routers`` (their hashes), ``tuning`` (the settings tried of each baseline) and ``points``.

    Raises:
        FocusError: a text, a model or routers are missing, a held-out text is one of training, or the file holds a
            measurement of other settings.
        OSError: a file cannot be written.
    """
    check_beside(out)
    settings = settings or FrontierSettings()
    held_files, train_files = find_texts(data), find_texts(train)
    loaded, length = load_model(model, progress=progress), settings.length
    speeds = recorded_speeds(loaded.info.name) if speeds is None else speeds
    check_positions(loaded, length)
    check_exposed(length, FocusConfig(window=settings.window))
    sample = cut(loaded.tokenizer, held_files, length, settings.blocks)
    held = sample.blocks
    if not len(held):
        raise FocusError(f"No held-out text has {length:,} tokens: give a longer text or a shorter --length.")
    pool = training_pool(loaded.tokenizer, train_files, length, settings.seed)
    sizes = {name: getattr(settings, name) for name in ("length", "window", "sink_tokens", "seed")}
    report = {
        "schema": SCHEMA,
        "model": loaded.info.identity,
        "settings": sizes | {"blocks": len(held), "tuned": settings.tuned},
        "data": text_records(held_files),
        "training_text": text_records(train_files),
    }
    routers, trained_on = identified(loaded, settings.routers)
    check_held_out(
        [(each["name"], each["sha256"]) for each in report["data"]],
        {"--train": report["training_text"], **trained_on},
        "--data",
    )
    record: dict[str, Any] = resume_record(out, report, older={"tuned": False}, point=POINT) | {
        "documents": list(sample.documents)
    }
    record |= stored_beside(out, routers)
    points = [point_of(point) for point in record["points"]]
    budget = {"window": settings.window, "sinks": settings.sink_tokens, "seed": settings.seed}
    tuning = Tuning(pool, record["tuning"], on=settings.tuned, progress=progress, **budget)
    plan = _Plan(loaded, held, pool.blocks, settings, points, tuning)
    plan.where = {"cluster": cluster, "model": model, "progress": progress}
    for done, point in enumerate(plan.run(), 1):
        points.append(point)
        record = record_run(out, {**record, "tuning": tuning.entries, "points": [asdict(each) for each in points]})
        progress(f"{point.label} ({done} of {plan.total})", done / plan.total)
    write_beside(out, markdown(record, speeds), figure(record, speeds))
    return record


def identified(
    loaded: LoadedModel, folders: Iterable[str | None]
) -> tuple[dict[str, str], dict[str, list[dict[str, Any]]]]:
    """The hash of each of these routers by name, and the texts that they were trained on.

    Raises:
        FocusError: they do not fit the model, or two folders have one name and other routers.
    """
    found: dict[str, str] = {}
    trained_on = {}
    for folder in folders:
        focus = attach(loaded, folder, untrained=False)
        try:
            name, own = Path(focus.name).name, routers_hash(focus.routers)
        finally:
            focus.detach()
        if found.setdefault(name, own) != own:
            raise FocusError(f"Two folders of routers are called {name}: rename one of them.")
        trained_on[f"the routers {name}"] = training_texts(focus.name if folder is None else folder)
    return found, trained_on


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
        self.where: dict[str, Any] = {}
        self.asked: set[tuple[Any, ...]] = set()
        self.first: str | None = None
        budgets = len(settings.top_k if settings.shares is None else settings.shares)
        self.total = 1 + (len(settings.routers) + 1) * len(settings.top_k) + len(settings.baselines) * budgets

    def _missing(self, *key: Any) -> bool:
        return key not in self.asked and all(point.key[:3] != key for point in self.points)

    def run(self) -> Iterator[Point]:
        """Measure missing points, those of routers before those of baselines begin."""
        yield from self._measured(self._with_routers())
        first, own = self.first, (None, *self.settings.top_k)
        budgets = [point.kept_share for point in self.points if point.method == first and point.top_k in own]
        yield from self._measured(self._baselines(budgets if self.settings.shares is None else [*self.settings.shares]))

    def _measured(self, wanted: Iterator[Wanted]) -> Iterator[Point]:
        with closing(points_of(wanted, **self.where)) as found:
            for each in found:
                yield each.point

    def _with_routers(self) -> Iterator[Wanted]:
        kinds = []
        for folder in self.settings.routers:
            focus = attach(self.loaded, folder, untrained=False)
            name = Path(focus.name).name
            self.first = self.first or name
            kind = FocusConfig(router=focus.config.router, num_groups=focus.config.num_groups)
            kinds += [kind] if kind not in kinds else []
            yield from self._routed(focus, name, "trained")
            focus.detach()
        for kind in kinds:
            yield from self._untrained(kind)

    def _untrained(self, kind: FocusConfig) -> Iterator[Wanted]:
        focus = retrofit(self.loaded.model, kind, seed=self.settings.seed)
        name = "untrained" if kind.router == FocusConfig.router else f"untrained, {ROUTERS[kind.router].label}"
        name += "" if kind.num_groups == FocusConfig.num_groups else f", K={kind.num_groups}"
        if any(self._missing(name, top_k, None) for top_k in self.settings.top_k):
            calibrate(focus, self.pool)
            yield from self._routed(focus, name, "random, calibrated on the training text")
        focus.detach()

    def _baselines(self, budgets: list[float | None]) -> Iterator[Wanted]:
        settings = self.settings
        budget = {"window": settings.window, "sinks": settings.sink_tokens, "seed": settings.seed}
        focus = retrofit(self.loaded.model, FocusConfig(), seed=settings.seed)
        for share in budgets:
            for name in self.settings.baselines:
                if self._missing(name, None, share if BASELINES[name].tunable else None):
                    given = self.tuning.of(focus, name, share)
                    own = share if BASELINES[name].tunable else None
                    attention = Replaced(name, share or 0.0, **given, budget=budget)
                    yield self._wanted(focus, name, attention, share=own)
        focus.detach()

    def _routed(self, focus: FocusModel, name: str, source: str) -> Iterator[Wanted]:
        if self._missing("untouched", None, None):
            yield self._wanted(focus, "untouched", Routers.untouched(focus))
        sizes: dict[str, Any] = {"window": self.settings.window, "sink_tokens": self.settings.sink_tokens}
        config = focus.config
        for top_k in (None,) if config.one_top_k is None else self.settings.top_k:
            if self._missing(name, top_k, None):
                label = f"{name}, {config.budget if top_k is None else f'k={top_k}'}"
                yield self._wanted(focus, name, Routers.of(focus, name, label, source, top_k, **sizes), top_k)

    def _wanted(
        self, focus: FocusModel, name: str, attention: Attention, top_k: int | None = None, share: float | None = None
    ) -> Wanted:
        self.asked.add((name, top_k, share))
        return Wanted(focus, attention, self.untouched)
