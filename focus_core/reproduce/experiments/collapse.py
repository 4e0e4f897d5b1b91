"""The stability study as cells: every remedy against collapse, with curves."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import torch

from focus_core.evaluation import evaluate
from focus_core.reproduce.context import Context, row
from focus_core.reproduce.experiments.retrofits import Plan
from focus_core.reproduce.studies.stability import Point, StudySettings, train_variant
from focus_core.reproduce.studies.variants import variants
from focus_core.routing.config import FocusConfig
from focus_core.routing.model import retrofit

COLUMNS = (
    *("variant", "phase", "steps", "largest", "worst", "stability"),
    *("routing", "top_k", "balance", "perplexity", "difference", "kept_share", "largest_group_share"),
)
GROUPS, TOP_K = 8, 2
PROBE_TOKENS, LOOKS = 512, 5
"""Tokens of the probe, and number of measurements on it in each phase."""


def cells(context: Context) -> dict[str, dict[str, Any]]:
    """The untouched model, and one cell per variant with its training settings."""
    settings = _settings(context)
    base = FocusConfig.paper(num_groups=GROUPS, top_k=TOP_K, window=context.scale.window)
    every = _recluster_every(context)
    return {"untouched": {}} | {
        name: {"config": base.replace(**variant.settings), "training": settings, "recluster_every": every}
        for name, variant in variants(every).items()
    }


def run(context: Context, cell: str, values: dict[str, Any]) -> dict[str, Any]:
    """Train one variant in both phases; perplexity and balance after each phase, curves during both."""
    if cell == "untouched":
        return {"rows": [row(context.untouched, None)]}
    scale, variant = context.scale, variants(values["recluster_every"])[cell]
    settings: StudySettings = values["training"]
    untouched = context.untouched
    focus = retrofit(context.load().model, values["config"], seed=context.seed)
    total = settings.steps + settings.full_steps
    curve: list[Point] = []
    rows: list[dict[str, Any]] = []

    def look(point: Point) -> None:
        curve.append(point)
        context.progress(f"{cell}: step {point.step} of {total}, largest {point.largest:.0%}", point.step / total)

    def end(phase: str) -> None:
        balance = values["config"].balance
        plan: Plan = [("soft", None, balance), ("hard", TOP_K, balance)]
        for mode, k, _ in plan:
            found = evaluate(focus, context.held, routing=mode, top_k=k, balance=balance)
            rows.append({"variant": variant.label, "phase": phase, **row(found, untouched)})

    probe = torch.from_numpy(context.held[: max(1, PROBE_TOKENS // scale.length)])
    train_variant(focus, context.blocks, probe, variant, settings, look, end)
    for each in rows:
        last = [point for point in curve if point.phase == each["phase"]][-1]
        each |= {"steps": last.step, **{name: getattr(last, name) for name in ("largest", "worst", "stability")}}
    return {"rows": rows, "curve": [asdict(point) for point in curve]}


def _settings(context: Context) -> StudySettings:
    scale = context.scale
    return replace(
        StudySettings(),
        steps=scale.steps,
        full_steps=scale.full_steps,
        batch_size=scale.batch_size,
        probe_every=max(1, scale.steps // LOOKS),
        seed=context.seed,
    )


def _recluster_every(context: Context) -> int:
    """Every 100 steps as published, or a fifth of a phase where phases are shorter than 500."""
    return min(100, max(1, context.scale.steps // 5))
