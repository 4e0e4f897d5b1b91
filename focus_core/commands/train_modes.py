"""The part of `focus train` that goes through Trainer: other modes, several processes, streamed corpora.

Imported only when it is needed, so that `focus --help` stays fast.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import rich
import torch
from tqdm import tqdm

from focus_core.commands.options import print_json
from focus_core.commands.tables import evaluation_table
from focus_core.errors import FocusError
from focus_core.evaluation import Evaluation, evaluate, standard_settings
from focus_core.models import LoadedModel, load_model
from focus_core.progress import silent, terminal_progress
from focus_core.results import record_run, text_records
from focus_core.routing.config import FocusConfig
from focus_core.routing.model import FocusModel, retrofit
from focus_core.routing.storage import CONFIG
from focus_core.text import read_text, token_blocks
from focus_core.training import trainer as training
from focus_core.training.log import RunLog
from focus_core.training.loop import Step
from focus_core.training.memory import estimate_memory
from focus_core.training.modes import Phase, phases, scratch_model
from focus_core.training.stream import Source, TokenStream, find_sources
from focus_core.training.trainer import FocusTrainer, TrainerSettings, world_size

__all__ = ["TrainerSettings", "phases", "run", "world_size"]


def run(
    data: list[Path],
    out: Path,
    model: str,
    architecture: Path | None,
    config: FocusConfig,
    plan: tuple[Phase, ...],
    settings: TrainerSettings,
    *,
    held_out: list[Path],
    length: int,
    dtype: str,
    eval_blocks: int,
    eval_top_k: list[int],
    json_output: bool,
) -> None:
    """Train the phases of a plan in this process and those started beside it; the main one reports.

    Raises:
        FocusError: settings or data that cannot be used.
    """
    if (plan[0].name == "everything") != (architecture is not None):
        raise FocusError("Training from scratch needs both --mode scratch and --architecture: give both.")
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    if dtype not in dtypes:
        raise FocusError(f"dtype is {dtype!r}: choose one of {', '.join(dtypes)}.")
    sources, held = find_sources(data), find_sources(held_out) if held_out else []
    # Joins the other processes first: sharded loading of weights depends on it.
    training.training_arguments(plan[0], settings, out)
    main = training.is_main_process()
    log = RunLog(out, fresh=not (out / training.CHECKPOINTS).is_dir()) if main else None
    with terminal_progress() as shown:
        loaded = load_model(model, dtype=dtypes[dtype], progress=shown if main else silent)
    base = loaded.model
    if architecture is not None:
        base = scratch_model(architecture, len(loaded.tokenizer), seed=settings.seed, dtype=dtypes[dtype])
    if main:
        for phase in plan:
            print(
                f"{phase.name}: {_estimate(base.config, config, phase, settings, length, dtypes[dtype])}",
                file=sys.stderr,
            )
    stream = TokenStream(sources, loaded.tokenizer, length, seed=settings.seed)
    focus = retrofit(base, config, seed=settings.seed)
    trainer = _train(focus, stream, plan, settings, out, log)
    training.save(trainer, out, loaded.tokenizer)
    if log is None:
        return
    rows = []
    if held and eval_blocks and not trainer.is_fsdp_enabled:
        rows = _measure(trainer, loaded, held, length, eval_blocks, eval_top_k)
    record = record_run(
        out / "training.json",
        {
            "model": {"name": str(architecture or loaded.info.name), "revision": loaded.info.revision},
            "settings": {
                "config": config,
                "phases": [asdict(phase) for phase in plan],
                "training": settings,
                "length": length,
                "stride": length,
                "processes": training.world_size(),
            },
            "data": text_records(source.path for source in sources if source.path is not None),
            "datasets": [source.dataset for source in sources if source.dataset],
            "held_out": text_records(source.path for source in held if source.path is not None),
            "results": rows,
        },
    )
    training.remove_checkpoints(out)
    if json_output:
        print_json(record)
    else:
        if rows:
            rich.print(evaluation_table(rows, f"Held-out text, T={length}, w={config.window}"))
        what = "Model and routers" if plan[-1].everything else "Routers"
        rich.print(f"{what} written to {out}.")


def _train(
    focus: FocusModel,
    stream: TokenStream,
    plan: tuple[Phase, ...],
    settings: TrainerSettings,
    out: Path,
    log: RunLog | None,
) -> FocusTrainer:
    """All phases of the plan; one that an earlier run finished is loaded instead."""
    for phase in plan[:-1]:
        done = out / phase.name
        if (done / CONFIG).is_file():
            focus = FocusModel.from_pretrained(focus.detach(), done)
            continue
        report = _Report(phase, log)
        training.save(training.train_phase(focus, stream, phase, settings, out, report), done)
        report.bar.close()
    report = _Report(plan[-1], log)
    trainer = training.train_phase(focus, stream, plan[-1], settings, out, report)
    report.bar.close()
    return trainer


def _measure(
    trainer: FocusTrainer, loaded: LoadedModel, held: list[Source], length: int, eval_blocks: int, top_k: list[int]
) -> list[Evaluation]:
    focus = trainer.task.focus
    texts = [read_text(source.path) for source in held if source.path is not None]
    blocks = token_blocks(loaded.tokenizer, texts, length, max_blocks=eval_blocks)
    focus.eval()
    plan = standard_settings(focus.config.num_groups, tuple(top_k))
    return [evaluate(focus, blocks, routing=mode, top_k=k, balance=balance) for mode, k, balance in plan]


def _estimate(
    model_config: Any, config: FocusConfig, phase: Phase, settings: TrainerSettings, length: int, dtype: torch.dtype
) -> str:
    processes = world_size()
    return estimate_memory(
        model_config,
        config,
        phase,
        length=length,
        micro_batch=settings.micro_batch or settings.batch_size // processes,
        world_size=processes,
        sharded=os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true",
        dtype=dtype,
        precision=settings.precision,
    ).sentence()


class _Report:
    """A bar in the terminal and a line in the log for every step of a phase."""

    def __init__(self, phase: Phase, log: RunLog | None) -> None:
        self.log = log
        self.bar = tqdm(total=phase.steps, unit="step", desc=phase.name.capitalize(), disable=log is None)
        if log is not None:
            log.phase(phase.name, 0, phase.steps)

    def __call__(self, step: Step) -> None:
        self.bar.n = step.step
        self.bar.set_postfix_str(f"loss {step.loss:.4f}, largest group {step.largest_group_share:.1%}")
        if self.log is not None:
            self.log.step(step)
