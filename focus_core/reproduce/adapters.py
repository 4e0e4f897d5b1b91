"""Experiments that need the harness or PEFT: routers beside LoRA, in perplexity and benchmarks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from focus_core.errors import require
from focus_core.reproduce.context import Context, row
from focus_core.reproduce.retrofits import HARD
from focus_core.resources import data_dir
from focus_core.text import read_text

RANKS, RATES = (4, 16), (1e-5, 5e-5, 1e-4)
ALIGNMENT_TASKS = ("truthfulqa_mc1", "hellaswag")
LORA_TASKS = ("hellaswag", "arc_easy", "piqa", "lambada_openai")
COLUMNS = ("parameters", "perplexity", "difference", "low", "high", "kept_share", "largest_group_share")


def lora_cells(context: Context) -> dict[str, dict[str, Any]]:
    """The untouched model, routers at each k, and every rank and rate."""
    tasks = LORA_TASKS if context.bench is not None else ()
    return _cells(tasks, RANKS)


def alignment_cells(context: Context) -> dict[str, dict[str, Any]]:
    """TruthfulQA and HellaSwag: the untouched model, routers, and LoRA of rank 4 at three rates."""
    return _cells(ALIGNMENT_TASKS, RANKS[:1])


def _cells(tasks: Sequence[str], ranks: tuple[int, ...]) -> dict[str, dict[str, Any]]:
    cells: dict[str, dict[str, Any]] = {"untouched": {"tasks": tasks}}
    cells |= {f"routers k={k}": {"tasks": tasks, "top_k": k} for _, k, _ in HARD}
    for rank in ranks:
        cells |= {f"LoRA r{rank} lr {rate:g}": {"tasks": tasks, "rank": rank, "rate": rate} for rate in RATES}
    return cells


def run(context: Context, cell: str, values: dict[str, Any]) -> dict[str, Any]:
    """One model, judged by perplexity and tasks, with paired differences from the untouched model."""
    require("lm_eval", "eval")
    require("peft", "eval")
    from focus_core.evaluation.lora_grid import Yardstick, run_grid

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    filler = read_text(data_dir() / "samples" / "story.txt")
    yardstick = Yardstick(context.held, values["tasks"], context.bench, context.scale.limit, filler, context.seed)
    folder, inputs = context.folder / "grid", {**context.inputs(), "tasks": values["tasks"]}
    if "rank" in values:
        from focus_core.evaluation.lora import LoraSettings

        scale = context.scale
        settings = LoraSettings(values["rank"], values["rate"], scale.steps, scale.batch_size, context.seed)
        found = run_grid(
            context.load, context.stream, [settings], yardstick, inputs, folder, progress=context.progress
        )["results"][0]
        gap = found["perplexity_difference"]
        more = {"difference": gap.difference, "low": gap.low, "high": gap.high, "benchmarks": found["benchmarks"]}
        shares = {"kept_share": 1.0, "largest_group_share": None, "parameters": found["trainable_parameters"]}
        return {"rows": [{"perplexity": found["perplexity"], **shares, **more}]}
    grid = run_grid(context.load, context.stream, [], yardstick, inputs, folder, progress=context.progress)
    if cell == "untouched":
        rows = {name: {"metrics": found} for name, found in grid["untouched"]["benchmarks"].items()}
        return {"rows": [{"parameters": 0, **row(context.untouched, None), "benchmarks": rows}]}
    return {"rows": [_routed(context, values)]}


def _routed(context: Context, values: dict[str, Any]) -> dict[str, Any]:
    """Routers at one k, with the exposure of every task beside its score."""
    import json

    from focus_core.evaluation.benchmark import compare, run_task
    from focus_core.evaluation.harness import FocusLM
    from focus_core.evaluation.harness_tasks import load_task

    stored = json.loads((context.folder / "grid" / "untouched.json").read_text(encoding="utf-8"))["benchmarks"]
    focus = context.attached()
    try:
        (measured,) = context.measure(focus, [("hard", values["top_k"], "calibrated")])
        lm = FocusLM(focus, tokenizer=context.loaded.tokenizer, mode="hard", top_k=values["top_k"])
        benchmarks = {}
        for name in values["tasks"]:
            context.progress(f"routers k={values['top_k']}: {name}", 0.0)
            task = load_task(name, context.loaded.tokenizer, data=context.bench, filler="", seed=context.seed)
            result = run_task(lm, task, context.scale.limit, context.seed)
            benchmarks[name] = {key: result[key] for key in ("metrics", "headline", "items_scored", "exposure")}
            benchmarks[name]["differences"] = compare(stored[name], result, seed=context.seed)
        parameters = sum(parameter.numel() for parameter in focus.trainable_parameters())
    finally:
        focus.detach()
    return {"parameters": parameters, **measured, "benchmarks": benchmarks}
