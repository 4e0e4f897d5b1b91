"""A whole training run: texts in, routers and a record out. `focus train` and notebooks call the same function."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from focus_core.errors import FocusError
from focus_core.evaluation import Evaluation, evaluate, standard_settings
from focus_core.evaluation.exposure import check_exposed
from focus_core.io.locks import claims_folder
from focus_core.io.reading import read_json
from focus_core.io.schema import table
from focus_core.models import LoadedModel, check_positions, load_model
from focus_core.results import check_replaceable, record_run, text_records
from focus_core.routing.config import FocusConfig
from focus_core.routing.model import FocusModel, Mode, retrofit
from focus_core.routing.storage import CONFIG, check_elsewhere, routers_hash, saved_config
from focus_core.shipped import RECORD, routers_folder
from focus_core.text import CORPUS_SUFFIXES, find_texts, token_blocks
from focus_core.training.calibrate import calibrate
from focus_core.training.log import RunLog, read_log
from focus_core.training.loop import CHECKPOINT, Step, TrainSettings, calibration_blocks, train
from focus_core.training.modes import check_trainable
from focus_core.training.objectives import DEFAULT_OBJECTIVE
from focus_core.training.stream import Source, documents
from focus_core.training.watch import Watch, watched

SCHEMA = "focus-train/1"
"""The schema of the record of a run, in its folder beside the routers."""

_STAGE = ("settings", "data", "final_loss", "step_seconds", "started_from", "made")


@dataclass(frozen=True)
class TrainedRun:
    """A finished run.

    Attributes:
        folder: with the routers, the record and the log.
        loaded: the model that was trained on, with its tokenizer.
        focus: that model with the trained routers attached.
        results: held-out text under the trained routers, one entry per setting.
        untrained: the same in hard routing, with untrained routers calibrated on the same text.
        record: everything as plain values, as in `training.json`.
    """

    folder: Path
    loaded: LoadedModel
    focus: FocusModel
    results: tuple[Evaluation, ...]
    untrained: tuple[Evaluation, ...]
    record: dict[str, Any]


@claims_folder()
def train_routers(
    texts: str | Path | Iterable[str | Path],
    out: str | Path = "runs/routers",
    *,
    model: str | Path | LoadedModel = "default",
    config: FocusConfig | None = None,
    start_from: str | Path | None = None,
    held_out: str | Path | Iterable[str | Path] | None = None,
    length: int = 512,
    steps: int = 300,
    batch_size: int = 2,
    learning_rate: float = 0.01,
    objective: str = DEFAULT_OBJECTIVE,
    seed: int = 0,
    eval_blocks: int = 8,
    eval_top_k: Sequence[int] | None = None,
    watch: Watch | None = None,
) -> TrainedRun:
    """Train routers on texts, calibrate them, evaluate them on held-out text, and record it all in a folder.

    The model's own weights do not change. A run that was interrupted resumes when it is called again with the same
    arguments. A folder with finished routers of other settings, texts or models is refused.

    Args:
        texts: files and folders, of plain text or of tables (JSON Lines, Parquet) with a text in each row.
        out: folder for the routers, `training.json` and `progress.jsonl`.
        model: a loaded model, or a name that `load_model` accepts.
        config: settings of new routers; the defaults of `FocusConfig` when None.
        start_from: continue with these routers instead, a folder or a shipped name; their own settings hold.
        held_out: files and folders to evaluate on; None to hold out the last 5% of the blocks.
        length: T, tokens per block.
        steps: optimiser steps.
        batch_size: blocks per step.
        learning_rate: peak rate.
        objective: a key of `focus_core.training.objectives.OBJECTIVES`.
        seed: of routers and block order.
        eval_blocks: held-out blocks to evaluate, evenly spaced; 0 for no evaluation.
        eval_top_k: k to evaluate at; 1 to K when None.
        watch: told of every phase and step; bars on standard error when None.

    Raises:
        FocusError: texts, settings or a folder that cannot be used.
        OSError: the folder cannot be written.
    """
    if start_from is not None and config is not None:
        raise FocusError("Routers to start from keep their own settings: leave out config or start_from.")
    if config is not None:
        check_trainable(config)
    elif start_from is not None and (routers_folder(start_from) / CONFIG).is_file():
        check_trainable(saved_config(routers_folder(start_from)))
    settings = TrainSettings(
        steps=steps, batch_size=batch_size, learning_rate=learning_rate, objective=objective, seed=seed
    )
    if eval_blocks < 0:
        raise FocusError(f"eval_blocks is {eval_blocks}: give a number of held-out blocks, or 0 for no evaluation.")
    out, files = Path(out), find_texts(texts, suffixes=CORPUS_SUFFIXES)
    check_elsewhere(out, start_from)
    held_files = [] if held_out is None else find_texts(held_out, suffixes=CORPUS_SUFFIXES)
    contents, held_contents = (list(documents(map(Source, group))) for group in (files, held_files))
    loaded = model if isinstance(model, LoadedModel) else load_model(model)
    check_positions(loaded, length)
    focus, started_from = _start(loaded.model, config, start_from, seed)
    report: dict[str, Any] = {
        "schema": SCHEMA,
        "model": loaded.info.identity,
        "settings": {"config": focus.config, "training": settings, "length": length, "stride": length},
        "started_from": started_from,
        "data": text_records(files),
        "held_out": text_records(held_files),
    }
    unfinished = (out / CHECKPOINT).is_file()
    try:
        if not unfinished:
            check_unlike(out, report)
        with watched(RunLog(out, fresh=not unfinished), watch) as told:
            told.phase("loading")
            blocks, held = _blocks(loaded, contents, held_contents, length)
            check_exposed(length, focus.config, focus.sliding_windows)
            if eval_blocks:
                standard_settings(focus.config.num_groups, tuple(eval_top_k or ()))
            train(
                focus,
                blocks,
                settings,
                out,
                told.step,
                on_phase=lambda name: told.phase(name, 0, steps),
                keep_checkpoint=True,
            )
            results, untrained = [], []
            if eval_blocks > 0:
                sample = held[:: max(1, len(held) // eval_blocks)][:eval_blocks]
                results, untrained = _measure(focus, sample, eval_top_k, calibration_blocks(blocks, seed), told, seed)
            done = read_log(out).steps
            report |= {
                "held_out_blocks": min(len(held), eval_blocks),
                "final_loss": done[-1].loss,
                "step_seconds": _seconds(done, batch_size * length),
                "results": results,
                "untrained": untrained,
            }
            record = record_run(out / RECORD, report)
            (out / CHECKPOINT).unlink(missing_ok=True)
            told.phase("finished")
    finally:
        focus.detach()
    focus = FocusModel.from_pretrained(loaded.model, out)
    return TrainedRun(out, loaded, focus, tuple(results), tuple(untrained), record)


def check_unlike(out: Path, report: dict[str, Any], *, free: Collection[str] = ()) -> None:
    """Refuse to write over finished routers of another run. The same run may be repeated.

    Args:
        out: folder to write.
        report: what is known of the new record before the work.
        free: names of settings that may differ.

    Raises:
        FocusError: the folder holds such routers, or some that no record tells the run of.
    """
    if (out / CONFIG).is_file() and not (out / RECORD).is_file():
        raise FocusError(f"{out} holds routers of an unknown run: name another folder, or remove it.")
    check_replaceable(out / RECORD, report, free=free, name=out)


def _blocks(loaded: LoadedModel, texts: list[str], held_out: list[str], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Blocks to train on and held-out ones, both (N, T) int64; without held-out texts these are the last 5%."""
    blocks = token_blocks(loaded.tokenizer, texts, length)
    if held_out:
        return blocks, token_blocks(loaded.tokenizer, held_out, length)
    cut = max(1, len(blocks) // 20)
    return blocks[:-cut], blocks[-cut:]


def _start(
    model: PreTrainedModel, config: FocusConfig | None, start_from: str | Path | None, seed: int
) -> tuple[FocusModel, dict[str, Any] | None]:
    """New routers, or those to start from with a record of how they were trained."""
    if start_from is None:
        return retrofit(model, config, seed=seed), None
    focus = FocusModel.from_pretrained(model, start_from)
    return focus, {"routers": routers_hash(focus.routers), **_stage(routers_folder(start_from))}


def _stage(folder: Path) -> dict[str, Any]:
    """Settings, texts, loss and time from the record of an earlier run; empty if it has none."""
    try:
        record = read_json(folder / RECORD, table())
    except (OSError, FocusError):
        return {}
    return {key: record.get(key) for key in _STAGE}


def _measure(
    focus: FocusModel, sample: np.ndarray, top_ks: Sequence[int] | None, pool: Tensor, told: Watch, seed: int
) -> tuple[list[Evaluation], list[Evaluation]]:
    """Every setting with the trained routers, then the hard ones with untrained routers calibrated on the same pool.

    The untrained rows measure balanced groups without training. All routers are detached at the end.
    """
    config = focus.config
    plan = standard_settings(config.num_groups, tuple(top_ks or range(1, config.num_groups + 1)))
    hard = [row for row in plan if row[0] == "hard"]

    def rows(focus: FocusModel, settings: list[tuple[Mode, int | None, str | None]], done: int) -> Iterator[Evaluation]:
        for number, (mode, k, balance) in enumerate(settings, done):
            told.phase("evaluating", number, len(plan) + len(hard))
            yield evaluate(focus, sample, routing=mode, top_k=k, balance=balance)

    results = list(rows(focus, plan, 0))
    untrained = retrofit(focus.detach(), config, seed=seed)
    try:
        calibrate(untrained, pool)
        return results, list(rows(untrained, hard, len(plan)))
    finally:
        untrained.detach()


def _seconds(steps: Sequence[Step], tokens: int) -> float:
    """Seconds of all training steps, those before an interruption included."""
    return sum(tokens / step.tokens_per_second for step in steps)
