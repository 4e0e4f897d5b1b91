"""`focus reproduce`: every published table and figure as one command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from focus_core.commands.options import JsonOption, RoutersOption, print_json

if TYPE_CHECKING:
    from focus_core.reproduce.context import Context
    from focus_core.reproduce.runner import Experiment

EVERYTHING = "all"
SHARES = ("largest", "worst", "stability", "purity", "recall", "attainable")
FOLDED = ("variant", "low", "high", "top_k", "balance", "causal_kept_share", "exposure", "tokens")
"""Columns that the terminal leaves out or joins."""


def reproduce(
    name: Annotated[str | None, typer.Argument(help="An experiment, or all; --list names them.")] = None,
    list_only: Annotated[bool, typer.Option("--list", help="Name every experiment and what it needs.")] = False,
    data: Annotated[
        list[Path] | None, typer.Option("--data", "-d", help="Training text, file or folder; may be repeated.")
    ] = None,
    held_out: Annotated[
        list[Path] | None, typer.Option(help="Text for perplexity, never trained on; may be repeated.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", help="As in other commands; repeated for the experiment scale alone."),
    ] = None,
    routers: RoutersOption = None,
    bench: Annotated[Path | None, typer.Option(help="Folder with benchmark files, see docs/benchmarks.md.")] = None,
    task: Annotated[
        list[str] | None, typer.Option("--task", "-t", help="Benchmark of lora; may be repeated, all for every one.")
    ] = None,
    treebank: Annotated[Path | None, typer.Option(help="CoNLL-U file with gold tags, for the groups.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of routers or adapters.")] = None,
    full_steps: Annotated[int | None, typer.Option(help="Steps with all weights.")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens of a block; the longest one for lengths.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Blocks a step.")] = None,
    blocks: Annotated[int | None, typer.Option(help="Held-out blocks, evenly spaced.")] = None,
    window: Annotated[int | None, typer.Option("--window", "-w", help="Window of routers that are trained.")] = None,
    limit: Annotated[int | None, typer.Option(help="Items per benchmark task.")] = None,
    cell: Annotated[list[str] | None, typer.Option(help="Only this cell of the table; may be repeated.")] = None,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder; default: one among the app's runs.")] = None,
    record: Annotated[Path | None, typer.Option(help="Also write the result to this file.")] = None,
    json_output: JsonOption = False,
) -> None:
    """Measure one of the paper's tables or figures at a scale of your choice.

    Defaults are small: about 15 minutes at most on 2 cores, recipes over
    an hour and a half. Stop with Ctrl-C and repeat the command to go on;
    finished cells are not measured again. Published figures stand beside
    ours in docs/reproduction.md.

    Example: focus reproduce k-sweep --held-out book.txt
    Example: focus reproduce stability --data books/ --held-out other.txt
    """
    from focus_core.errors import FocusError
    from focus_core.progress import terminal_progress
    from focus_core.reproduce.registry import EXPERIMENTS
    from focus_core.reproduce.runner import run_experiment
    from focus_core.results import record_run

    if list_only or name is None:
        _list(EXPERIMENTS, json_output)
        return
    if name != EVERYTHING and name not in EXPERIMENTS:
        raise FocusError(f"There is no experiment {name!r}: choose one of {', '.join(EXPERIMENTS)}, {EVERYTHING}.")
    if name == EVERYTHING and (cell or out or record):
        raise FocusError("--cell, --out and --record belong to one experiment: name it instead of all.")
    if task and name != "lora":
        raise FocusError("--task chooses the benchmarks of lora: leave it out elsewhere.")
    scale = {
        "steps": steps,
        "full_steps": full_steps,
        "length": length,
        "batch_size": batch_size,
        "blocks": blocks,
        "window": window,
        "limit": limit,
    }
    inputs: dict[str, Any] = {
        "data": data or (),
        "held_out": held_out or (),
        "models": model or ("default",),
        "routers": routers,
        "bench": bench,
        "tasks": task or (),
        "treebank": treebank,
        "device": device,
        "seed": seed,
    }
    records, left_out = {}, {}
    with terminal_progress() as progress:
        for each in EXPERIMENTS if name == EVERYTHING else (name,):
            experiment = EXPERIMENTS[each]
            context = _context(experiment, scale, {**inputs, "progress": progress})
            try:
                records[each] = run_experiment(each, experiment, context, out=out, only=cell)
            except FocusError as error:
                if name != EVERYTHING:
                    raise
                left_out[each] = str(error)
                continue
            if not json_output:
                progress(f"{each}: written to {context.folder}", 1.0)
    if record is not None:
        record_run(record, {key: value for key, value in records[name].items() if key != "made"})
    if json_output:
        print_json(records if name == EVERYTHING else records[name])
        return
    for each in records.values():
        _show(each)
    for each, reason in left_out.items():
        print(f"{each} was not run: {reason}")


def _context(experiment: Experiment, scale: dict[str, int | None], inputs: dict[str, Any]) -> Context:
    from dataclasses import replace

    from focus_core.reproduce.context import Context

    chosen: dict[str, Any] = {name: value for name, value in scale.items() if value is not None}
    return Context(scale=replace(experiment.scale, **chosen), folder=Path(), **inputs)


def _list(experiments: dict[str, Experiment], json_output: bool) -> None:
    import rich
    from rich.table import Table

    from focus_core.reproduce.runner import NEEDS

    if json_output:
        print_json({name: {"title": each.title, "needs": each.needs} for name, each in experiments.items()})
        return
    table = Table(title="focus reproduce NAME")
    for title in ("name", "what it shows", "needs"):
        table.add_column(title)
    for name, each in experiments.items():
        needs = "; ".join(NEEDS[need].partition(":")[0] for need in each.needs)
        table.add_row(name, each.title, needs)
    rich.print(table)


def _show(record: dict[str, Any]) -> None:
    """The table, narrow enough for a terminal; the record has every column."""
    import rich

    from focus_core.commands.tables import plain_table

    columns = ["setting" if name == "routing" else name for name in record["columns"] if name not in FOLDED]
    rows = [{**row, "setting": _setting(row)} for row in record["results"]]
    shown = [name for name in columns if any(row.get(name) is not None for row in rows)]
    names = [name.replace("_", " ") for name in shown]
    left = [name for name, key in zip(names, shown) if any(isinstance(row.get(key), str) for row in rows)]
    table = plain_table(record["title"], *names, left=left)
    for row in rows:
        table.add_row(*(_text(name, row.get(name)) for name in shown))
    rich.print(table)
    if record["missing"]:
        print(f"Not measured yet: {', '.join(record['missing'])}.")


def _setting(row: dict[str, Any]) -> str | None:
    parts = [row.get("routing"), f"k={row['top_k']}" if row.get("top_k") else None]
    balance = row.get("balance")
    return " ".join(filter(None, [*parts, balance if balance != "none" else None])) or None


def _text(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.1%}" if name.endswith("share") or name in SHARES else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
