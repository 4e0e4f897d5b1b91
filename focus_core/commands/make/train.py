"""`focus train`: train routers on the user's own text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from focus_core.commands.options import (
    MAX_COUNT,
    MAX_GROUPS,
    MAX_SEED,
    MAX_TOKENS,
    JsonOption,
    ModelOption,
    finite,
    given,
    print_json,
    refuse_given,
    show,
)
from focus_core.errors import FocusError

if TYPE_CHECKING:
    from focus_core.routing.config import FocusConfig
    from focus_core.training.modes import Phase
    from focus_core.training.run import TrainedRun

_PLANNED = {"plan", "gpus", "json_output", "model", "shard", "trainer"}
"""Options that the command line of a plan has in another form."""
_OF_TRAINER = ("micro_batch", "save_every", "precision", "dtype")
_OF_BASE = ("full_steps", "base_learning_rate")
"""Options of the phase that trains all weights."""
_OF_ROUTERS = ("recipe", "router", "groups", "top_k", "window", "sinks")
"""Options of new routers."""
_TRAINED = ("layer", "head")
"""Kinds of routers that are trained."""


def train(
    context: typer.Context,
    data: Annotated[
        list[Path] | None,
        typer.Option("--data", "-d", help="Text, JSON Lines or Parquet file, or folder; repeat for more."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for the routers; repeat the command to resume there.")
    ] = Path("runs/routers"),
    model: ModelOption = "default",
    held_out: Annotated[
        list[Path] | None,
        typer.Option(help="Text to evaluate on. Default: the last 5% of the blocks, which are not trained on."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="Optimiser steps.")] = 300,
    length: Annotated[int, typer.Option(min=2, max=MAX_TOKENS, help="Tokens per block, T.")] = 512,
    batch_size: Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="Blocks per step.")] = 2,
    groups: Annotated[int, typer.Option("--groups", "-K", min=2, max=MAX_GROUPS, help="Number of groups, K.")] = 8,
    top_k: Annotated[
        int, typer.Option("--top-k", "-k", min=1, max=MAX_GROUPS, help="Groups per token in hard routing, k.")
    ] = 2,
    router: Annotated[
        str,
        typer.Option(help="layer: one router per layer, as published. head: one per key/value head; queries choose."),
    ] = "layer",
    window: Annotated[int, typer.Option("--window", "-w", min=0, max=MAX_TOKENS, help="Local window, w.")] = 64,
    sinks: Annotated[
        int, typer.Option(min=0, max=MAX_TOKENS, help="First tokens that every later token attends to.")
    ] = 4,
    objective: Annotated[
        str | None,
        typer.Option(help="mass (attention mass) or lm (the model's loss). Default: mass; with --recipe paper, lm."),
    ] = None,
    recipe: Annotated[
        str, typer.Option(help="focus, or paper for the published scores, gate, balance and objective.")
    ] = "focus",
    start_from: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER-OR-NAME",
            help="Continue with these routers: a folder or a shipped name. Their own K, k, window and sinks hold.",
        ),
    ] = None,
    learning_rate: Annotated[
        float, typer.Option(parser=finite(above=0, high=1e6), help="Peak learning rate of the routers.")
    ] = 0.01,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of routers and block order.")] = 0,
    eval_blocks: Annotated[
        int, typer.Option(min=0, max=MAX_COUNT, help="Held-out blocks to evaluate; 0 for none.")
    ] = 8,
    eval_top_k: Annotated[
        list[int] | None,
        typer.Option(
            min=1, max=MAX_GROUPS, help="k to evaluate; repeat for more. Default: 1 to K; with Trainer, 1 and 2."
        ),
    ] = None,
    mode: Annotated[
        str, typer.Option(help="centroid-only, two-phase (then all weights) or scratch (all weights, random start).")
    ] = "centroid-only",
    trainer: Annotated[
        bool, typer.Option("--trainer", help="Use Trainer. Other modes and several processes always do.")
    ] = False,
    architecture: Annotated[
        Path | None, typer.Option(help="scratch: folder or JSON file with a Transformers configuration.")
    ] = None,
    full_steps: Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="Steps with all weights.")] = 300,
    base_learning_rate: Annotated[
        float, typer.Option(parser=finite(above=0, high=1e6), help="Peak learning rate of the model's own weights.")
    ] = 1e-5,
    micro_batch: Annotated[
        int | None, typer.Option(min=1, max=MAX_COUNT, help="Trainer: blocks per process and pass.")
    ] = None,
    save_every: Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="Trainer: steps between checkpoints.")] = 100,
    dtype: Annotated[str, typer.Option(help="Trainer: dtype of loaded weights, float32 or bfloat16.")] = "float32",
    precision: Annotated[str, typer.Option(help="Trainer: fp32, or bf16 for autocast.")] = "fp32",
    shard: Annotated[
        bool, typer.Option("--shard", help="Trainer: divide the weights among the processes (FSDP2).")
    ] = False,
    plan: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Train nothing: print the command line for this model (default, folder, JSON file or hub id) and the "
            "memory of each GPU, from its configuration alone.",
        ),
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, max=4096, help="With --plan: GPUs, one process each.")] = 8,
    json_output: JsonOption = False,
) -> None:
    """Train routers on your text; the model's own weights do not change.

    They have the published form. The default form, narrow groups, stays
    closer to the model and needs no training: focus fit makes it.

    Stop with Ctrl-C and repeat the command to resume. At the end held-out
    text is evaluated: untouched, soft, and hard at each k, and with untrained
    routers calibrated on the same text. The output folder holds the routers,
    training.json, and progress.jsonl with one line for every step.

    With --trainer, under torchrun or accelerate launch, and in other modes,
    training uses Transformers' Trainer. It then streams text, JSONL and
    Parquet files, folders, or hf:NAME, a data set of the hub.

    --plan MODEL --gpus 8 takes the same options, and starts nothing.

    Example: focus train --data book.txt --data more/ --out runs/mine
    """
    from focus_core.training.parallel.processes import world_size
    from focus_core.training.phases import train_phases
    from focus_core.training.run import train_routers
    from focus_core.training.trainer import TrainerSettings

    routing = {"router": router, "num_groups": groups, "top_k": top_k, "window": window, "sink_tokens": sinks}
    config, objective = _chosen(recipe, objective, routing)
    if start_from is not None:
        refuse_given(context, _OF_ROUTERS, "leave --start-from out, whose routers keep their settings")
    if plan is not None:
        refuse_given(context, ["model"], "--plan names the model")
        refuse_given(context, ["start_from"], "a plan is of Trainer, which trains new routers")
        phase = _phase(mode, objective, steps, full_steps)
        _refuse_of_phases(context, mode, sharded=gpus > 1)
        _show_plan(context, plan, gpus, phase, config, {"length": length, "micro_batch": micro_batch or 1}, json_output)
        return
    refuse_given(context, ["gpus"], "give --plan")
    if not data:
        raise FocusError("There is no text to train on: name files or folders with --data.")
    both: dict[str, Any] = {"model": model, "held_out": held_out or None, "length": length, "steps": steps}
    both |= {"objective": objective, "eval_blocks": eval_blocks}
    phased = trainer or shard or mode != "centroid-only" or architecture is not None or world_size() > 1
    if phased and start_from is not None:
        raise FocusError("--start-from is for training of the routers alone, without --trainer: leave one out.")
    if not eval_blocks:
        refuse_given(context, ["eval_top_k"], "give --eval-blocks above 0")
    if phased:
        _refuse_of_phases(context, mode, sharded=shard)
        settings = TrainerSettings(
            batch_size=batch_size,
            micro_batch=micro_batch,
            learning_rate=learning_rate,
            base_learning_rate=base_learning_rate,
            seed=seed,
            save_every=save_every,
            precision=precision,
        )
        both |= {"config": config, "settings": settings, "eval_top_k": eval_top_k or (1, 2), "sharded": shard}
        run = train_phases(data, out, mode=mode, architecture=architecture, full_steps=full_steps, dtype=dtype, **both)
    else:
        refuse_given(context, _OF_TRAINER, "give --trainer")
        refuse_given(context, _OF_BASE, "give --mode two-phase")
        both |= {"config": config if start_from is None else None, "start_from": start_from, "eval_top_k": eval_top_k}
        run = train_routers(data, out, batch_size=batch_size, learning_rate=learning_rate, seed=seed, **both)
    if run is not None and json_output:
        print_json(run.record)
    elif run is not None:
        _show(run, phased=phased, everything=mode != "centroid-only")


def _refuse_of_phases(context: typer.Context, mode: str, *, sharded: bool) -> None:
    """Refuse options of phases that a mode does not have, and of an evaluation where there is none."""
    blocks = context.params["eval_blocks"]
    of_evaluation = ["held_out", "eval_top_k", *(["eval_blocks"] if blocks else [])]  # 0 asks for none
    if mode == "centroid-only":
        refuse_given(context, _OF_BASE, "give --mode two-phase")
    if mode == "scratch":
        refuse_given(context, ["steps", "objective"], "--full-steps counts the steps of --mode scratch")
    if sharded:
        refuse_given(context, of_evaluation, "sharded runs are evaluated with focus eval")
    if not context.params["held_out"]:
        refuse_given(context, of_evaluation, "give --held-out")
    if not blocks:
        refuse_given(context, of_evaluation, "give --eval-blocks above 0")


def _phase(mode: str, objective: str, steps: int, full_steps: int) -> Phase:
    """The one phase of a plan."""
    from focus_core.training.modes import phases

    if mode == "two-phase":
        raise FocusError("A plan has one phase: plan centroid-only or scratch.")
    return phases(mode, objective, steps, full_steps)[0]


def _show_plan(
    context: typer.Context,
    model: str,
    gpus: int,
    phase: Phase,
    config: FocusConfig,
    sizes: dict[str, int],
    json_output: bool,
) -> None:
    """Print the command line of a run in bfloat16, and the memory of each GPU."""
    from focus_core.training.modes import DTYPES
    from focus_core.training.parallel.plan import plan_training

    usual = {
        "dtype": "bfloat16",
        "precision": "bf16",
        "micro_batch": sizes["micro_batch"],
        "batch_size": gpus * sizes["micro_batch"],
        "data": "texts/",
        "out": "runs/routers",
    }
    own = {name: value for name, value in context.params.items() if given(context, name) and name not in _PLANNED}
    chosen = {**usual, **own}
    if chosen["dtype"] not in DTYPES:
        raise FocusError(f"dtype is {chosen['dtype']!r}: choose one of {', '.join(DTYPES)}.")
    made = plan_training(
        model,
        gpus,
        phase,
        config,
        **sizes,
        dtype=DTYPES[chosen["dtype"]],
        precision=chosen["precision"],
        options=[word for name, value in chosen.items() for word in _spelt(context, name, value)],
    )
    if json_output:
        print_json({"command": made.command, "host_bytes": made.host, "memory": vars(made.memory)})
        return
    print(made.command)
    print(made.memory.sentence())
    print(f"Each process first loads the whole model on its CPU: {made.host / 2**30:.1f} GiB.")


def _spelt(context: typer.Context, name: str, value: Any) -> list[str]:
    """An option as it is written on the command line."""
    flag = next(each.opts[0] for each in context.command.params if each.name == name)
    values = value if isinstance(value, (list, tuple)) else [value]
    return [word for each in values for word in ([flag] if each is True else [flag, str(each)])]


def _chosen(recipe: str, objective: str | None, routing: dict[str, Any]) -> tuple[FocusConfig, str]:
    """Settings and objective of a recipe, changed by the user's options."""
    from focus_core.routing.config import FocusConfig
    from focus_core.training.objectives import DEFAULT_OBJECTIVE, PUBLISHED_OBJECTIVE

    if routing["router"] not in _TRAINED:
        fitted = ": narrow groups are fitted by focus fit" if routing["router"] == "narrow" else ""
        raise FocusError(f"--router is {routing['router']!r}, and {' and '.join(_TRAINED)} are trained{fitted}.")
    recipes = {"focus": (FocusConfig, DEFAULT_OBJECTIVE), "paper": (FocusConfig.paper, PUBLISHED_OBJECTIVE)}
    if recipe not in recipes:
        raise FocusError(f"recipe is {recipe!r}: choose {' or '.join(recipes)}.")
    settings, usual = recipes[recipe]
    return settings(**routing), objective or usual


def _show(run: TrainedRun, *, phased: bool, everything: bool) -> None:
    from focus_core.commands.tables import evaluation_table

    title = f"Held-out text, T={run.record['settings']['length']}, w={run.focus.config.window}"
    if phased:
        if run.results:
            show(evaluation_table(run.results, title))
        print(f"{'Model and routers' if everything else 'Routers'} written to {run.folder}.")
        return
    show(evaluation_table(run.results, title))
    show(evaluation_table(run.untrained, "The same with untrained routers, calibrated on the training text"))
    print(
        f"Routers written to {run.folder}. Look at them with: focus app, or measure: focus eval --routers {run.folder}"
    )
