"""`focus reproduce`: every published table and figure as one command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from focus_core.commands.options import (
    MAX_COUNT,
    MAX_SEED,
    MAX_TOKENS,
    JsonOption,
    RoutersOption,
    device_name,
    finite,
    print_json,
    show,
)
from focus_core.errors import FocusError

if TYPE_CHECKING:
    from focus_core.reproduce.runner import Experiment

EVERYTHING = "all"
RATE = "--learning-rate"


def reproduce(
    name: Annotated[str | None, typer.Argument(help="An experiment, or all; --list names them.")] = None,
    list_only: Annotated[bool, typer.Option("--list", help="Name every experiment and its inputs.")] = False,
    data: Annotated[
        list[Path] | None, typer.Option("--data", "-d", help="Training text, file or folder; repeat for more.")
    ] = None,
    held_out: Annotated[list[Path] | None, typer.Option(help="Text for perplexity, never trained on; repeat.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", help="As in other commands; repeat for scale alone."),
    ] = None,
    routers: RoutersOption = None,
    bench: Annotated[Path | None, typer.Option(help="Folder with benchmark files, see docs/benchmarks.md.")] = None,
    task: Annotated[
        list[str] | None, typer.Option("--task", "-t", help="Harness task of lora; repeat, or all.")
    ] = None,
    rank: Annotated[
        list[int] | None,
        typer.Option(min=1, max=MAX_COUNT, help="Rank of adapters of lora; repeat. Default: 4 and 16."),
    ] = None,
    rate: Annotated[
        list[float] | None,
        typer.Option(
            RATE,
            parser=finite(above=0, high=1e6),
            help="Start of the grid of adapters' learning rates, lora and adapted; repeat.",
        ),
    ] = None,
    choose: Annotated[
        list[Path] | None, typer.Option(help="Text to choose learning rates by. Default: the training text; repeat.")
    ] = None,
    treebank: Annotated[Path | None, typer.Option(help="CoNLL-U file with gold tags, for the groups.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, max=MAX_COUNT, help="Steps of routers or adapters.")] = None,
    full_steps: Annotated[int | None, typer.Option(min=1, max=MAX_COUNT, help="Steps with all weights.")] = None,
    length: Annotated[
        int | None, typer.Option(min=2, max=MAX_TOKENS, help="Tokens of a block; the longest one for lengths.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, max=MAX_COUNT, help="Blocks a step.")] = None,
    blocks: Annotated[int | None, typer.Option(min=1, max=MAX_COUNT, help="Held-out blocks, evenly spaced.")] = None,
    window: Annotated[
        int | None, typer.Option("--window", "-w", min=1, max=MAX_TOKENS, help="Window of trained routers.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, max=MAX_COUNT, help="Items per benchmark task.")] = None,
    cell: Annotated[list[str] | None, typer.Option(help="Only this cell of the table; repeat for more.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of everything random.")] = 0,
    device: Annotated[str, typer.Option(parser=device_name, help="cpu or cuda.")] = "cpu",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder. Default: one among the app's runs.")] = None,
    record: Annotated[Path | None, typer.Option(help="Also write the result to this file.")] = None,
    json_output: JsonOption = False,
) -> None:
    """Measure one of the paper's tables or figures at a scale of your choice.

    Defaults are small: about 15 minutes at most on 2 cores, lora and
    adapted about an hour, recipes over an hour and a half. Stop with Ctrl-C and repeat the command to resume;
    finished cells are not measured again. docs/reproduction.md compares
    published figures with ours.

    Example: focus reproduce k-sweep --held-out book.txt
    Example: focus reproduce stability --data books/ --held-out other.txt
    """
    from focus_core.reproduce.registry import EXPERIMENTS

    if list_only or name is None:
        _list(EXPERIMENTS, json_output)
        return
    names = list(EXPERIMENTS) if name == EVERYTHING else [name]
    _check(name, {"--cell": cell, "--out": out, "--record": record})
    if name in EXPERIMENTS and len(model or ()) > (most := EXPERIMENTS[name].most_models):
        raise FocusError(f"{name} measures {'one model' if most else 'no model'}: leave out any other --model.")
    sizes = {"steps": steps, "full_steps": full_steps, "length": length, "batch_size": batch_size}
    sizes |= {"blocks": blocks, "window": window, "limit": limit}
    scale = {size: value for size, value in sizes.items() if value is not None}
    inputs: dict[str, Any] = {
        "data": data or (),
        "held_out": held_out or (),
        **({"models": model} if model else {}),
        "routers": routers,
        "bench": bench,
        "tasks": task or (),
        "ranks": rank or (),
        "rates": rate or (),
        "choose": choose or (),
        "treebank": treebank,
        "device": device,
        "seed": seed,
    }
    records, left_out = _run(names, scale, inputs, {"out": out, "only": cell, "copy": record})
    if json_output:
        print_json(records if name == EVERYTHING else records[name])
    else:
        _print(records, left_out)


def _check(name: str, of_one: dict[str, Any]) -> None:
    """Refuse options of one experiment where all are run."""
    if name == EVERYTHING and any(of_one.values()):
        raise FocusError("--cell, --out and --record belong to one experiment: give its name instead of all.")


def _run(
    names: list[str], scale: dict[str, int], inputs: dict[str, Any], places: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Records by name, and the reason for each of several experiments that could not run."""
    from focus_core.progress import terminal_progress
    from focus_core.reproduce.run import of_experiment
    from focus_core.reproduce.run import reproduce as measure

    records: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    with terminal_progress() as progress:
        for name in names:
            own = (scale, inputs) if len(names) == 1 else of_experiment(name, scale, inputs)
            try:
                records[name] = measure(name, scale=own[0], **places, progress=progress, **own[1])
            except FocusError as error:
                if len(names) == 1:
                    raise
                left_out[name] = str(error)
    return records, left_out


def _list(experiments: dict[str, Experiment], json_output: bool) -> None:
    if json_output:
        print_json({name: {"title": each.title, "needs": each.needs} for name, each in experiments.items()})
        return
    from focus_core.commands.tables.reproduce import experiments_table

    show(experiments_table(experiments))


def _print(records: dict[str, Any], left_out: dict[str, str]) -> None:
    from focus_core.commands.tables.reproduce import experiment_table
    from focus_core.reproduce.studies.rates import rate_remark

    for record in records.values():
        show(experiment_table(record))
        if remark := rate_remark(record):
            print(remark)
        if record["missing"]:
            print(f"Not measured yet: {', '.join(record['missing'])}.")
    for name, reason in left_out.items():
        print(f"{name} was not run: {reason}")
