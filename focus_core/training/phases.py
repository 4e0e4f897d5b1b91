"""A whole run through Transformers' Trainer: every training mode, several processes, streamed corpora."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from focus_core.errors import FocusError
from focus_core.evaluation import Evaluation, evaluate, standard_settings
from focus_core.evaluation.exposure import check_exposed
from focus_core.io.files import to_json, write_atomic
from focus_core.io.locks import claims_folder
from focus_core.models import LoadedModel, check_positions, load_model
from focus_core.progress import silent
from focus_core.results import record_run, text_records
from focus_core.routing.config import FocusConfig
from focus_core.routing.model import FocusModel, retrofit
from focus_core.routing.storage import CONFIG, check_elsewhere
from focus_core.shipped import RECORD
from focus_core.text import token_blocks
from focus_core.training import trainer as training
from focus_core.training.checkpoints import CHECKPOINTS, RUN, check_belongs, phase_key, remove_checkpoints
from focus_core.training.log import RunLog
from focus_core.training.modes import DTYPES, Phase, check_trainable, phases, scratch_model
from focus_core.training.objectives import DEFAULT_OBJECTIVE
from focus_core.training.parallel.memory import estimate_memory
from focus_core.training.parallel.processes import is_main_process, world_size
from focus_core.training.run import SCHEMA, TrainedRun, check_unlike
from focus_core.training.stream import Source, TokenStream, documents, find_sources
from focus_core.training.trainer import FocusTrainer, TrainerSettings
from focus_core.training.watch import Watch, watched


@claims_folder(when=is_main_process)
def train_phases(
    data: str | Path | Iterable[str | Path],
    out: str | Path = "runs/routers",
    *,
    mode: str = "two-phase",
    model: str | Path = "default",
    architecture: str | Path | None = None,
    config: FocusConfig | None = None,
    objective: str = DEFAULT_OBJECTIVE,
    steps: int = 300,
    full_steps: int = 300,
    settings: TrainerSettings | None = None,
    held_out: str | Path | Iterable[str | Path] | None = None,
    length: int = 512,
    dtype: str = "float32",
    eval_blocks: int = 8,
    eval_top_k: Sequence[int] = (1, 2),
    sharded: bool = False,
    watch: Watch | None = None,
) -> TrainedRun | None:
    """Train the phases of a mode, in every process of the run; the main process records it.

    A run that was interrupted resumes from its last checkpoint when it is called again with the same arguments. A
    folder with finished routers of other settings, texts or models is refused.

    Args:
        data: text, JSONL and Parquet files, folders, or `hf:NAME` for a data set of the hub.
        out: folder for the routers, the model where it was trained, `training.json` and `progress.jsonl`.
        mode: one of `focus_core.training.modes.MODES`.
        model: a name that `load_model` accepts; training from scratch uses its tokenizer alone.
        architecture: for training from scratch: a folder or JSON file with a Transformers configuration.
        config: settings of the routers; the defaults of `FocusConfig` when None.
        objective: of the routers' phase.
        steps: of the routers' phase.
        full_steps: with all weights.
        settings: see `TrainerSettings`.
        held_out: files and folders to evaluate on; no evaluation when None.
        length: T, tokens per block.
        dtype: of the loaded weights, float32 or bfloat16.
        eval_blocks: held-out blocks to evaluate, evenly spaced; 0 for no evaluation.
        eval_top_k: k to evaluate at.
        sharded: divide the weights among the processes (FSDP2); for modes of one phase, and without an evaluation.
        watch: told of every phase and step; bars on standard error when None.

    Returns:
        The run; None in processes other than the main one.

    Raises:
        FocusError: settings or data that cannot be used.
    """
    if eval_blocks < 0:
        raise FocusError(f"eval_blocks is {eval_blocks}: give a number of held-out blocks, or 0 for no evaluation.")
    plan = phases(mode, objective, steps, full_steps)
    if (plan[0].name == "everything") != (architecture is not None):
        raise FocusError("Training from scratch needs mode scratch and an architecture: give both, or neither.")
    if sharded and mode == "two-phase":
        raise FocusError("A run of two phases cannot be sharded: train the routers, then start from them.")
    if dtype not in DTYPES:
        raise FocusError(f"dtype is {dtype!r}: choose one of {', '.join(DTYPES)}.")
    config, settings, out = config or FocusConfig(), settings or TrainerSettings(), Path(out)
    check_trainable(config)
    if not (out / CHECKPOINTS).is_dir():
        check_elsewhere(out)
    sources, held = find_sources(data), [] if held_out is None else find_sources(held_out)
    # Joins the other processes first, which sharded loading of weights needs.
    training.training_arguments(plan[0], settings, out)
    main = is_main_process()
    loaded = load_model(model, dtype=DTYPES[dtype], progress=None if main else silent)
    if architecture is not None:
        base = scratch_model(architecture, len(loaded.tokenizer), seed=settings.seed, dtype=DTYPES[dtype])
        loaded = loaded._replace(model=base)
    check_positions(loaded, length)
    report: dict[str, Any] = {
        "schema": SCHEMA,
        "model": {"name": str(architecture or loaded.info.name), "revision": loaded.info.revision},
        "settings": {
            "config": config,
            "phases": [asdict(phase) for phase in plan],
            "training": settings,
            "length": length,
            "stride": length,
            "processes": world_size(),
        },
        "data": text_records(source.path for source in sources if source.path is not None),
        "datasets": [source.dataset for source in sources if source.dataset],
        "held_out": text_records(source.path for source in held if source.path is not None),
    }
    unfinished = (out / CHECKPOINTS).is_dir()
    if main and not unfinished:
        check_unlike(out, report, free=("processes",))
    log = RunLog(out, fresh=not unfinished) if main else None
    with watched(log, watch) as told:
        for phase in plan:
            told.note(f"{phase.name}: {_estimate(loaded, config, phase, settings, length, DTYPES[dtype], sharded)}")
        stream = TokenStream(sources, loaded.tokenizer, length, seed=settings.seed)
        focus = retrofit(loaded.model, config, seed=settings.seed)
        check_exposed(length, config, focus.sliding_windows)
        standard_settings(config.num_groups, tuple(eval_top_k) if held and eval_blocks else ())
        trainer = _train(focus, stream, plan, settings, out, told, sharded)
        training.save(trainer, out, loaded.tokenizer)
        if not main:
            return None
        rows = []
        if held and eval_blocks and not sharded:
            rows = _measure(trainer, loaded, held, length, eval_blocks, eval_top_k)
        record = record_run(out / RECORD, {**report, "results": rows}, device=str(trainer.args.device))
        remove_checkpoints(out)
    return TrainedRun(out, loaded, trainer.task.focus, tuple(rows), (), record)


def _train(
    focus: FocusModel,
    stream: TokenStream,
    plan: tuple[Phase, ...],
    settings: TrainerSettings,
    out: Path,
    told: Watch,
    sharded: bool,
) -> FocusTrainer:
    """Train all phases of the plan; load those that an earlier run finished."""
    for phase in plan[:-1]:
        done, key = out / phase.name, phase_key(focus, stream, phase, settings)
        if (done / CONFIG).is_file():
            if is_main_process():
                check_belongs(done, key)
            focus = FocusModel.from_pretrained(focus.detach(), done)
            continue
        told.phase(phase.name, 0, phase.steps)
        training.save(training.train_phase(focus, stream, phase, settings, out, told.step), done)
        if is_main_process():
            write_atomic(done / RUN, to_json(key) + "\n")
    told.phase(plan[-1].name, 0, plan[-1].steps)
    return training.train_phase(focus, stream, plan[-1], settings, out, told.step, sharded=sharded)


def _measure(
    trainer: FocusTrainer, loaded: LoadedModel, held: list[Source], length: int, eval_blocks: int, top_k: Sequence[int]
) -> list[Evaluation]:
    focus = trainer.task.focus
    texts = documents(source for source in held if source.path is not None)
    blocks = token_blocks(loaded.tokenizer, texts, length, max_blocks=eval_blocks)
    focus.eval()
    plan = standard_settings(focus.config.num_groups, tuple(top_k))
    return [evaluate(focus, blocks, routing=mode, top_k=k, balance=balance) for mode, k, balance in plan]


def _estimate(
    loaded: LoadedModel,
    config: FocusConfig,
    phase: Phase,
    settings: TrainerSettings,
    length: int,
    dtype: torch.dtype,
    sharded: bool,
) -> str:
    processes = world_size()
    model_config: Any = loaded.model.config
    return estimate_memory(
        model_config,
        config,
        phase,
        length=length,
        micro_batch=settings.micro_batch or settings.batch_size // processes,
        world_size=processes,
        sharded=sharded,
        dtype=dtype,
        precision=settings.precision,
    ).sentence()
