"""Experiments that need the harness or PEFT: routers beside LoRA, in perplexity and benchmarks.

Both train in the run, on the same text, steps and tokens. In `lora` each method has a learning rate of its own, from a
grid that brackets its best; `alignment` has the three published rates.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from focus_core.errors import FocusError, require
from focus_core.io.reading import read_json
from focus_core.io.schema import table
from focus_core.reproduce.context import Context, row
from focus_core.reproduce.experiments.retrofits import HARD, OUR_RECIPE, OURS, PAPER, train_routers
from focus_core.reproduce.experiments.tuning import (
    ADAPTER_RATES,
    ROUTER_RATES,
    chosen_on,
    full_attention_loss,
    of_search,
    tuned,
    tuned_routers,
)
from focus_core.reproduce.studies.rates import RateSearch
from focus_core.resources import data_dir
from focus_core.routing.config import FocusConfig
from focus_core.routing.model import FocusModel
from focus_core.text import read_text

if TYPE_CHECKING:
    from focus_core.reproduce.studies.lora import LoraSettings

RANKS, PUBLISHED_RATES = (4, 16), (1e-5, 5e-5, 1e-4)
ALIGNMENT_TASKS = ("truthfulqa_mc1", "hellaswag")
LORA_TASKS = (
    *("truthfulqa_mc1", "hellaswag", "arc_easy", "piqa", "lambada_openai", "gsm8k"),
    *("truthfulqa_mc1_long", "lambada_openai_after_1024", "needle_1024"),
)
"""The published tasks, and versions with items beyond the window."""
LONGER_TASKS = (
    *("hellaswag_long", "arc_easy_long", "piqa_long"),
    *("lambada_openai_after_2048", "lambada_openai_after_4096", "needle_2048"),
)
"""More long versions, which the small default scale leaves out."""
EVERY_TASK = "all"
MOST = {"gsm8k": 5, "needle_1024": 9, "needle_2048": 9}
"""Largest number of items of tasks where one item costs as much as dozens elsewhere."""
COLUMNS = (
    *("parameters", "routing", "top_k", "balance", "perplexity", "difference", "low", "high"),
    *("kept_share", "largest_group_share"),
)
TUNED_COLUMNS = ("parameters", "learning_rate", "rate_grid", *COLUMNS[1:])
"""Of rows whose learning rate was searched for."""


def lora_cells(context: Context) -> dict[str, dict[str, Any]]:
    """The untouched model, both recipes of routers, and adapters of every rank, each with the start of its grid."""
    cells = _cells(context, _chosen(context.tasks) if context.bench is not None else ())
    limits = cells["untouched"]["tasks"]
    for values in cells.values():
        if "config" in values:
            values["rates"] = ROUTER_RATES
    for rank in context.ranks or RANKS:
        cells[f"LoRA r{rank}"] = {"tasks": limits, "rank": rank, "rates": tuple(context.rates or ADAPTER_RATES)}
    return cells


def alignment_cells(context: Context) -> dict[str, dict[str, Any]]:
    """TruthfulQA and HellaSwag: the untouched model, both recipes of routers, and LoRA of rank 4 at three rates."""
    cells, rank = _cells(context, ALIGNMENT_TASKS), RANKS[0]
    limits = cells["untouched"]["tasks"]
    for rate in PUBLISHED_RATES:
        cells[f"LoRA r{rank} lr {rate:g}"] = {"tasks": limits, "rank": rank, "rate": rate}
    return cells


def _chosen(names: Sequence[str]) -> tuple[str, ...]:
    """The chosen tasks, in the order of the tables; `LORA_TASKS` if none."""
    known = (*LORA_TASKS, *LONGER_TASKS)
    unknown = sorted(set(names) - {*known, EVERY_TASK})
    if unknown:
        raise FocusError(f"There is no task {unknown[0]!r} here: choose {EVERY_TASK} or of {', '.join(known)}.")
    if not names:
        return LORA_TASKS
    return known if EVERY_TASK in names else tuple(name for name in known if name in names)


def _cells(context: Context, tasks: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The untouched model and both recipes of routers."""
    limits = {name: min(context.scale.limit, MOST.get(name, context.scale.limit)) for name in tasks}
    if "gsm8k" in limits:  # an answer of hundreds of tokens costs as much as choosing three times
        limits["gsm8k"] = min(limits["gsm8k"], max(1, context.scale.limit // 3))
    window = context.scale.window
    return {
        "untouched": {"tasks": limits},
        "published recipe": {"tasks": limits, "config": FocusConfig.paper(window=window), "objective": PAPER},
        OUR_RECIPE: {"tasks": limits, "config": FocusConfig(window=window), "objective": OURS},
    }


def run(context: Context, cell: str, values: dict[str, Any]) -> dict[str, Any]:
    """Perplexity and task scores of one model, with paired differences from the untouched model."""
    require("lm_eval", "eval")
    require("peft", "eval")
    from focus_core.reproduce.studies.lora_grid import Yardstick, run_grid

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    tasks = values["tasks"]
    yardstick = Yardstick(context.held, tasks, context.bench, tasks, _filler(), context.seed)
    folder, inputs = context.folder / "grid", {**context.inputs(), "tasks": tasks}
    if "rank" in values:
        search = _searched_adapter(context, cell, values, folder) if "rates" in values else None
        settings = _settings(context, values["rank"], values["rate"] if search is None else search.best)
        found = run_grid(
            context.load, context.stream, [settings], yardstick, inputs, folder, progress=context.progress
        )["results"][0]
        gap = found["perplexity_difference"]
        more = {**gap.to_dict(), "benchmarks": found["benchmarks"]}
        shares = {"kept_share": 1.0, "largest_group_share": None, "parameters": found["trainable_parameters"]}
        return _with_search(context, [{"perplexity": found["perplexity"], **shares, **more}], search)
    grid = run_grid(context.load, context.stream, [], yardstick, inputs, folder, progress=context.progress)
    if cell == "untouched":
        rows = {name: {"metrics": found} for name, found in grid["untouched"]["benchmarks"].items()}
        return {"rows": [{"parameters": 0, **row(context.untouched, None), "benchmarks": rows}]}
    search = None
    if "rates" in values:
        focus, search = tuned_routers(context, cell, values)
    else:
        focus = train_routers(context, cell, values["config"], values["objective"])
    try:
        return _with_search(context, _routed(context, cell, focus, tasks), search)
    finally:
        focus.detach()


def _with_search(context: Context, rows: list[dict[str, Any]], search: RateSearch | None) -> dict[str, Any]:
    """The result of a cell, with the learning rates that were tried."""
    if search is None:
        return {"rows": rows}
    found = {**search.to_dict(), "chosen_on": chosen_on(context)}
    return {"rows": [{**row, **of_search(search)} for row in rows], "rates": found}


def _settings(context: Context, rank: int, rate: float) -> LoraSettings:
    from focus_core.reproduce.studies.lora import LoraSettings

    return LoraSettings(rank, rate, context.scale.steps, context.scale.batch_size, context.seed)


def _searched_adapter(context: Context, cell: str, values: dict[str, Any], folder: Path) -> RateSearch:
    """The best rate of adapters of a rank; `run_grid` then finds the best one trained."""
    from focus_core.reproduce.studies.lora import train_lora

    def train(rate: float, _: Path) -> float:
        settings, loaded = _settings(context, values["rank"], rate), context.load()

        def show(step: int, loss: float) -> None:
            name = f"{cell}, rate {rate:g}: step {step} of {settings.steps}, loss {loss:.3f}"
            context.progress(name, step / settings.steps)

        found = train_lora(loaded.model, context.stream(), settings, folder / settings.name, on_step=show)
        merged: Any = found[0].merge_and_unload()  # type: ignore[operator]
        return full_attention_loss(loaded._replace(model=merged), context.choosing)

    return tuned(context, cell, values, train)


def _filler() -> str:
    return read_text(data_dir() / "samples" / "story.txt")


def _routed(context: Context, cell: str, focus: FocusModel, tasks: dict[str, int]) -> list[dict[str, Any]]:
    """Perplexity under the gate as published; perplexity and tasks under hard, causal routing at each k."""
    from focus_core.harness.model import FocusLM
    from focus_core.harness.scores import compare, run_task
    from focus_core.harness.tasks import load_task

    stored = read_json(context.folder / "grid" / "untouched.json", table({"benchmarks": table(values=table())}))
    stored = stored["benchmarks"]
    tokenizer, filler = context.loaded.tokenizer, _filler()
    rows = context.measure(focus, [("soft", None, "sequence"), *HARD])
    for measured, (_, top_k, balance) in zip(rows[1:], HARD):
        lm = FocusLM(focus, tokenizer=tokenizer, mode="hard", top_k=top_k, balance=balance)
        measured["benchmarks"] = benchmarks = {}
        for name, limit in tasks.items():
            context.progress(f"{cell}, k={top_k}: {name}", 0.0)
            task = load_task(name, tokenizer, data=context.bench, filler=filler, seed=context.seed)
            result = run_task(lm, task, limit, context.seed)
            benchmarks[name] = {key: result[key] for key in ("metrics", "headline", "items_scored", "exposure")}
            benchmarks[name]["differences"] = compare(stored[name], result)
    parameters = sum(parameter.numel() for parameter in focus.trainable_parameters())
    return [{"parameters": parameters, **each} for each in rows]
