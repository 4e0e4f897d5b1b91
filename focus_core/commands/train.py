"""`focus train`: train routers on the user's own text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from focus_core.commands.options import JsonOption, ModelOption, print_json

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from focus_core.evaluation import Evaluation
    from focus_core.routing.model import FocusModel, Mode
    from focus_core.training import TrainSettings
    from focus_core.training.log import RunLog
    from focus_core.training.loop import Step


def train(  # noqa: PLR0915 (one line per option)
    data: Annotated[list[Path], typer.Option("--data", "-d", help="Text file or folder; may be given several times.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the routers.")] = Path("runs/routers"),
    model: ModelOption = "default",
    held_out: Annotated[
        list[Path] | None,
        typer.Option(help="Text to evaluate on. Without it, the last 5% of the blocks are held out."),
    ] = None,
    steps: Annotated[int, typer.Option(help="Optimiser steps.")] = 300,
    length: Annotated[int, typer.Option(help="Tokens per block, T.")] = 512,
    batch_size: Annotated[int, typer.Option(help="Blocks per step.")] = 2,
    groups: Annotated[int, typer.Option("--groups", "-K", help="Number of groups, K.")] = 8,
    top_k: Annotated[int, typer.Option("--top-k", "-k", help="Groups per token in hard routing.")] = 2,
    router: Annotated[
        str, typer.Option(help="layer (as published) or head: groups per key/value head, and queries choose theirs.")
    ] = "layer",
    window: Annotated[int, typer.Option("--window", "-w", help="Local window, w.")] = 64,
    sinks: Annotated[int, typer.Option(help="First tokens that every later one sees.")] = 4,
    objective: Annotated[
        str | None,
        typer.Option(help="mass (attention mass), lm (the model's loss). Default: mass; paper: lm."),
    ] = None,
    recipe: Annotated[str, typer.Option(help="focus, or paper for the published settings.")] = "focus",
    start_from: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Go on with these routers, whose own K, k, window and sinks then hold."),
    ] = None,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 0.01,
    seed: Annotated[int, typer.Option(help="Seed of routers and block order.")] = 0,
    eval_blocks: Annotated[int, typer.Option(help="Held-out blocks to evaluate; 0 for none.")] = 8,
    eval_top_k: Annotated[
        list[int] | None, typer.Option(help="k to evaluate at; may be repeated. Default: 1 to K.")
    ] = None,
    mode: Annotated[
        str, typer.Option(help="centroid-only, two-phase (then all weights) or scratch (all weights, random start).")
    ] = "centroid-only",
    trainer: Annotated[
        bool, typer.Option("--trainer", help="Use Trainer; other modes and several processes always do.")
    ] = False,
    architecture: Annotated[
        Path | None, typer.Option(help="scratch: folder or JSON file with a Transformers configuration.")
    ] = None,
    full_steps: Annotated[int, typer.Option(help="Steps with all weights.")] = 300,
    base_learning_rate: Annotated[float, typer.Option(help="Peak rate of the model's own weights.")] = 1e-5,
    micro_batch: Annotated[int | None, typer.Option(help="Trainer: blocks per process and pass.")] = None,
    save_every: Annotated[int, typer.Option(help="Trainer: steps between checkpoints.")] = 100,
    dtype: Annotated[str, typer.Option(help="Trainer: dtype of loaded weights, float32 or bfloat16.")] = "float32",
    precision: Annotated[str, typer.Option(help="Trainer: fp32, or bf16 for autocast.")] = "fp32",
    json_output: JsonOption = False,
) -> None:
    """Train routers on your text; the model's own weights stay as they are.

    Stop with Ctrl-C and repeat the command to go on where it stopped. At
    the end the routers are evaluated on held-out text, untouched, soft and
    hard at each k, beside untrained ones that were calibrated alike.
    Everything is written to the output folder: routers, training.json, and
    progress.jsonl, a line for every step, while the run goes on.

    With --trainer, under torchrun or accelerate launch, and in other modes,
    training goes through Transformers' Trainer and data is streamed: text,
    JSONL and Parquet files, folders, or hf:NAME for a hub data set.

    Example: focus train --data book.txt --data more/ --out runs/mine
    """
    import rich

    from focus_core.commands.tables import evaluation_table
    from focus_core.commands.train_modes import TrainerSettings, phases, run, world_size
    from focus_core.errors import FocusError
    from focus_core.evaluation import standard_settings
    from focus_core.models import load_model
    from focus_core.progress import terminal_progress
    from focus_core.results import record_run, text_records
    from focus_core.routing.config import FocusConfig
    from focus_core.routing.model import FocusModel, retrofit
    from focus_core.routing.storage import routers_hash
    from focus_core.text import find_texts, read_text, token_blocks
    from focus_core.training import TrainSettings
    from focus_core.training.log import RunLog, read_log
    from focus_core.training.loop import CHECKPOINT, calibration_blocks

    if recipe not in ("focus", "paper"):
        raise FocusError(f"recipe is {recipe!r}: choose focus or paper.")
    make = FocusConfig if recipe == "focus" else FocusConfig.paper
    objective = objective or ("mass" if recipe == "focus" else "lm")
    config = make(router=router, num_groups=groups, top_k=top_k, window=window, sink_tokens=sinks)
    if trainer or mode != "centroid-only" or architecture is not None or world_size() > 1:
        if start_from is not None:
            raise FocusError("--start-from is for training of the routers alone, without --trainer: leave one out.")
        run(
            data,
            out,
            model,
            architecture,
            config,
            phases(mode, objective, steps, full_steps),
            TrainerSettings(
                batch_size=batch_size,
                micro_batch=micro_batch,
                learning_rate=learning_rate,
                base_learning_rate=base_learning_rate,
                seed=seed,
                save_every=save_every,
                precision=precision,
            ),
            held_out=held_out or [],
            length=length,
            dtype=dtype,
            eval_blocks=eval_blocks,
            eval_top_k=eval_top_k or [1, 2],
            json_output=json_output,
        )
        return
    settings = TrainSettings(
        steps=steps, batch_size=batch_size, learning_rate=learning_rate, objective=objective, seed=seed
    )
    files = find_texts(data)
    held_files = find_texts(held_out) if held_out else []
    texts = [read_text(path) for path in files]
    log = RunLog(out, fresh=not (out / CHECKPOINT).is_file())
    log.phase("loading")
    with terminal_progress() as progress:
        loaded = load_model(model, progress=progress)
    blocks = token_blocks(loaded.tokenizer, texts, length)
    if held_files:
        held = token_blocks(loaded.tokenizer, [read_text(path) for path in held_files], length)
    else:
        cut = max(1, len(blocks) // 20)
        blocks, held = blocks[:-cut], blocks[-cut:]
    if start_from is None:
        focus, started_from = retrofit(loaded.model, config, seed=seed), None
    else:
        focus = FocusModel.from_pretrained(loaded.model, start_from)
        config, started_from = focus.config, {"routers": routers_hash(focus.routers), **_stage(Path(start_from))}
    _train(focus, blocks, settings, out, log)
    rows, untrained = [], []
    if eval_blocks > 0:
        stride = max(1, len(held) // eval_blocks)
        sample = held[::stride][:eval_blocks]
        plan = standard_settings(config.num_groups, tuple(eval_top_k or range(1, config.num_groups + 1)))
        rows, untrained = _measure(focus, sample, plan, calibration_blocks(blocks, seed), log, seed)
    steps_done = read_log(out).steps
    report = {
        "model": {"name": loaded.info.name, "revision": loaded.info.revision},
        "settings": {"config": config, "training": settings, "length": length, "stride": length},
        "started_from": started_from,
        "data": text_records(files),
        "held_out": text_records(held_files),
        "held_out_blocks": min(len(held), eval_blocks),
        "final_loss": steps_done[-1].loss,
        "step_seconds": _seconds(steps_done, batch_size * length),
        "results": rows,
        "untrained": untrained,
    }
    record = record_run(out / "training.json", report)
    (out / CHECKPOINT).unlink(missing_ok=True)
    log.phase("finished")
    if json_output:
        print_json(record)
    else:
        rich.print(evaluation_table(rows, f"Held-out text, T={length}, w={config.window}"))
        rich.print(evaluation_table(untrained, "The same with untrained routers, calibrated on the training text"))
        rich.print(f"Routers written to {out}. Look at them with: focus app, or measure: focus eval --routers {out}")


def _seconds(steps: Sequence[Step], tokens: int) -> float:
    """Time of the steps themselves, those before an interruption included."""
    return sum(tokens / step.tokens_per_second for step in steps)


def _stage(folder: Path) -> dict[str, Any]:
    """How routers that are trained on were trained before: settings, texts, loss and time; none if nobody wrote it."""
    try:
        record = json.loads((folder / "training.json").read_text(encoding="utf-8"))
        return {
            key: record.get(key) for key in ("settings", "data", "final_loss", "step_seconds", "started_from", "made")
        }
    except (OSError, ValueError, AttributeError):
        return {}


def _train(focus: FocusModel, blocks: np.ndarray, settings: TrainSettings, out: Path, log: RunLog) -> None:
    """Train with a bar in the terminal and every step in the log."""
    from tqdm import tqdm

    from focus_core.training import train

    with tqdm(total=settings.steps, unit="step", desc="Training") as bar:

        def show(step: Step) -> None:
            bar.n = step.step
            bar.set_postfix_str(
                f"loss {step.loss:.4f}, largest group {step.largest_group_share:.1%}, "
                f"{step.tokens_per_second:,.0f} tokens/s"
            )
            log.step(step)

        def phase(name: str) -> None:
            log.phase(name, 0, settings.steps)

        train(focus, blocks, settings, out, show, on_phase=phase, keep_checkpoint=True)


def _measure(
    focus: FocusModel,
    sample: np.ndarray,
    plan: list[tuple[Mode, int | None, str | None]],
    pool: Tensor,
    log: RunLog,
    seed: int,
) -> tuple[list[Evaluation], list[Evaluation]]:
    """The plan's rows with the trained routers, and its hard ones with untrained routers calibrated on the same pool.

    The untrained rows say what balanced groups are worth without training.
    """
    from tqdm import tqdm

    from focus_core.evaluation import evaluate
    from focus_core.routing.model import retrofit
    from focus_core.training.calibrate import calibrate

    hard = [row for row in plan if row[0] == "hard"]
    results: list[Evaluation] = []
    with tqdm(total=len(plan) + len(hard), desc="Evaluating", unit="setting") as bar:
        for number, (mode, k, balance) in enumerate(plan + hard):
            log.phase("evaluating", number, len(plan) + len(hard))
            if number == len(plan):
                focus = retrofit(focus.detach(), focus.config, seed=seed)
                calibrate(focus, pool)
            results.append(evaluate(focus, sample, routing=mode, top_k=k, balance=balance))
            bar.update()
    return results[: len(plan)], results[len(plan) :]
