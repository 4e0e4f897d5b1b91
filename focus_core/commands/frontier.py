"""`focus frontier`: perplexity against kept pairs, for routers and for published baselines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from focus_core.commands.options import JsonOption, ModelOption, print_json

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from focus_core.frontier.measure import Point
    from focus_core.models import LoadedModel


def frontier(
    data: Annotated[list[Path], typer.Option("--data", "-d", help="Held-out text file or folder; repeat for more.")],
    train: Annotated[
        list[Path],
        typer.Option("--train", help="Training text: untrained routers are calibrated on it, baselines fitted."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write; repeat the command to go on.")],
    model: ModelOption = "default",
    routers: Annotated[
        list[str] | None,
        typer.Option("--routers", "-r", metavar="FOLDER", help="Routers; repeat. Default: those shipped."),
    ] = None,
    top_k: Annotated[list[int] | None, typer.Option("--top-k", "-k", help="k; repeat. Default: 1 and 2.")] = None,
    baseline: Annotated[
        list[str] | None, typer.Option(help="Baseline; repeat. Default: all. none for no baseline.")
    ] = None,
    length: Annotated[int, typer.Option(help="Context length T in tokens.")] = 2048,
    window: Annotated[int, typer.Option("--window", "-w", help="Window w, for all.")] = 128,
    sinks: Annotated[int, typer.Option(help="First tokens that all methods keep.")] = 4,
    blocks: Annotated[int, typer.Option(help="Evenly spaced blocks of the held-out text.")] = 8,
    seed: Annotated[int, typer.Option(help="Seed of untrained routers and random baselines.")] = 0,
    speeds: Annotated[
        list[Path] | None, typer.Option(help="Record of focus bench; repeat. Default: those that are shipped.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Compare routers with published sparse attentions at the same kept share.

    The first routers, at each k, set the budgets. Every baseline gets the
    same window and sinks and is asked for the same share of distant
    pairs; what it really kept is counted. All routing is causal. Routers
    with a k for every layer (focus plan) are measured at that.

    Beside --out, a table (.md) and a figure (.svg) say the same, with the
    speeds of one attention call that focus bench measured.

    Example: focus frontier -d held-out.txt --train books/ --out f.json
    """
    import rich

    from focus_core.baselines import BASELINES
    from focus_core.commands.tables import frontier_table
    from focus_core.errors import FocusError
    from focus_core.frontier.files import write_beside
    from focus_core.frontier.measure import SCHEMA, Point
    from focus_core.frontier.speeds import read_speeds, recorded_speeds
    from focus_core.frontier.table import frontier_rows
    from focus_core.models import load_model
    from focus_core.progress import terminal_progress
    from focus_core.results import record_run, text_records
    from focus_core.text import find_texts, read_text, token_blocks
    from focus_core.training.loop import calibration_blocks

    names = [] if baseline == ["none"] else baseline or list(BASELINES)
    if out.suffix in (".md", ".svg"):
        raise FocusError(f"The table and the figure are written beside {out}: give --out a name that ends in .json.")
    unknown = sorted(set(names) - set(BASELINES))
    if unknown:
        raise FocusError(f"There is no baseline {unknown[0]!r}: choose from {', '.join(BASELINES)}.")
    known = recorded_speeds() if speeds is None else read_speeds(speeds)
    held_files, train_files = find_texts(data), find_texts(train)
    settings = {"length": length, "window": window, "sink_tokens": sinks, "seed": seed}
    with terminal_progress() as progress:
        loaded = load_model(model, progress=progress)
        held = token_blocks(loaded.tokenizer, [read_text(path) for path in held_files], length, max_blocks=blocks)
        pool = calibration_blocks(token_blocks(loaded.tokenizer, [read_text(p) for p in train_files], length), seed)
        record = {
            "schema": SCHEMA,
            "model": {"name": loaded.info.name, "revision": loaded.info.revision},
            "settings": settings | {"blocks": len(held)},
            "data": text_records(held_files),
            "training_text": text_records(train_files),
        }
        points = [Point(**{**point, "block_nll": tuple(point["block_nll"])}) for point in _earlier(out, record)]
        plan = _Plan(loaded, held, pool, settings, routers or [None], tuple(top_k or (1, 2)), names, points)
        for done, point in enumerate(plan.run(), 1):
            points.append(point)
            record_run(out, record | {"points": points})
            progress(f"{point.label} ({done} of {plan.total})", done / plan.total)
    written = json.loads(out.read_text(encoding="utf-8"))
    write_beside(out, written, known)
    if json_output:
        print_json(written)
    else:
        title = f"{loaded.info.name}, T={length}, w={window}, {sinks} sinks"
        rich.print(frontier_table(frontier_rows(written, known), title))
        rich.print(f"Written to {out}, {out.with_suffix('.md').name} and {out.with_suffix('.svg').name}.")


def _earlier(out: Path, record: dict[str, Any]) -> list[dict[str, Any]]:
    """Points of an interrupted run of the same settings, model and texts."""
    from focus_core.errors import FocusError

    if not out.exists():
        return []
    try:
        earlier = json.loads(out.read_text(encoding="utf-8"))
        same = all(earlier[name] == value for name, value in record.items())
        points = earlier["points"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FocusError(f"{out} is no record of a frontier: give another --out, or delete it.") from error
    if not same:
        raise FocusError(f"{out} was measured with other settings, model or texts: give another --out.")
    return points


class _Plan:
    """The points still to measure, routers first, because they set the budgets of the baselines."""

    def __init__(
        self,
        loaded: LoadedModel,
        held: np.ndarray,
        pool: Tensor,
        settings: dict[str, int],
        routers: Sequence[str | None],
        top_ks: tuple[int, ...],
        baselines: list[str],
        points: list[Point],
    ) -> None:
        self.loaded, self.held, self.pool, self.settings = loaded, held, pool, settings
        self.routers, self.top_ks, self.baselines, self.points = routers, top_ks, baselines, points
        self.total = 1 + (len(routers) + 1 + len(baselines)) * len(top_ks)

    def _missing(self, *key: Any) -> bool:
        return all(point.key != key for point in self.points)

    def run(self) -> Iterator[Point]:
        """Measure what is missing, one point at a time; each is in `points` before the next begins."""
        from focus_core.baselines import BASELINES
        from focus_core.frontier.measure import baseline_point
        from focus_core.routing.attach import attach
        from focus_core.routing.config import FocusConfig
        from focus_core.routing.model import retrofit
        from focus_core.training.calibrate import calibrate

        first, kinds = None, []
        for folder in self.routers:
            focus = attach(self.loaded, folder, untrained=False)
            name = Path(focus.name).name
            first = first or name
            kind = FocusConfig(router=focus.config.router, num_groups=focus.config.num_groups)
            kinds += [kind] if kind not in kinds else []
            yield from self._routed(focus, name, "trained")
            focus.detach()
        for kind in kinds:
            focus = retrofit(self.loaded.model, kind, seed=self.settings["seed"])
            name = "untrained" if kind.router == "layer" else "untrained, per head"
            name += "" if kind.num_groups == FocusConfig.num_groups else f", K={kind.num_groups}"
            if any(self._missing(name, top_k, None) for top_k in self.top_ks):
                calibrate(focus, self.pool)
                yield from self._routed(focus, name, "random, calibrated on the training text")
            focus.detach()
        focus = retrofit(self.loaded.model, FocusConfig(), seed=self.settings["seed"])
        own = (None, *self.top_ks)
        budgets = [point.kept_share for point in self.points if point.method == first and point.top_k in own]
        for share in budgets:
            for name in self.baselines:
                wanted = share if BASELINES[name].tunable else None
                if self._missing(name, None, wanted):
                    yield baseline_point(
                        focus,
                        name,
                        self.held,
                        share=share or 0.0,
                        window=self.settings["window"],
                        sinks=self.settings["sink_tokens"],
                        training_text=self.pool[:2],
                        seed=self.settings["seed"],
                    )

    def _routed(self, focus: Any, name: str, source: str) -> Iterator[Point]:
        from focus_core.evaluation import evaluate
        from focus_core.frontier.measure import routed_point

        if self._missing("untouched", None, None):
            yield routed_point("untouched", "untouched model", "", evaluate(focus, self.held, routing="off"))
        changes: dict[str, Any] = {"window": self.settings["window"], "sink_tokens": self.settings["sink_tokens"]}
        planned = bool(focus.config.layer_top_k)
        for top_k in (None,) if planned else self.top_ks:
            if self._missing(name, top_k, None):
                row = evaluate(focus, self.held, routing="hard", top_k=top_k, balance="calibrated", **changes)
                label = f"{name}, as planned" if top_k is None else f"{name}, k={top_k}"
                config = focus.config
                yield routed_point(
                    name, label, source, row, config.router, config.num_groups, config.layer_top_k if planned else None
                )
