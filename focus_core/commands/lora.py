"""`focus lora`: adapters trained on the routers' data and steps, judged by the same perplexity and benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from focus_core.commands.options import JsonOption, ModelOption, print_json


def lora(
    data: Annotated[list[Path], typer.Option("--data", "-d", help="Training text; may be given several times.")],
    held_out: Annotated[list[Path], typer.Option("--held-out", help="Text for perplexity; never trained on.")],
    model: ModelOption = "default",
    rank: Annotated[list[int] | None, typer.Option(help="May be repeated. Default: 4 and 16.")] = None,
    learning_rate: Annotated[
        list[float] | None, typer.Option("--learning-rate", help="May be repeated. Default: 1e-5, 5e-5 and 1e-4.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Optimiser steps; the shipped routers took 200.")] = 200,
    batch_size: Annotated[int, typer.Option(help="Blocks per step.")] = 2,
    length: Annotated[int, typer.Option(help="Tokens per block.")] = 512,
    blocks: Annotated[int, typer.Option(help="Held-out blocks for perplexity, evenly spaced.")] = 16,
    bench: Annotated[
        Path | None, typer.Option("--bench", help="Folder with task files; without it, perplexity alone.")
    ] = None,
    task: Annotated[list[str] | None, typer.Option("--task", "-t", help="Default: truthfulqa_mc1.")] = None,
    limit: Annotated[int, typer.Option(help="Items per task; 0 for all.")] = 100,
    seed: Annotated[int, typer.Option(help="Of adapters, order of text and bootstrap.")] = 0,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder; finished and begun cells are not redone.")] = Path(
        "runs/lora"
    ),
    record: Annotated[Path | None, typer.Option(help="Also write the summary to this file.")] = None,
    json_output: JsonOption = False,
) -> None:
    """LoRA beside routers: ranks and learning rates on the same text and steps.

    Each cell trains adapters and then measures perplexity on held-out text
    and benchmark scores, with paired differences from the untouched model.

    Example: focus lora --data books/ --held-out other.txt --bench bench/ --rank 4 --learning-rate 1e-4
    """
    import logging

    from focus_core.errors import require

    require("lm_eval", "eval")
    require("peft", "eval")
    from focus_core.models import load_model
    from focus_core.progress import terminal_progress
    from focus_core.reproduce.studies.lora import LoraSettings
    from focus_core.reproduce.studies.lora_grid import Yardstick, run_grid
    from focus_core.resources import data_dir
    from focus_core.results import record_run, text_records
    from focus_core.text import find_texts, read_text, token_blocks
    from focus_core.training.stream import TokenStream, find_sources

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    trained_on, tested_on = find_texts(data), find_texts(held_out)
    names = (task or ["truthfulqa_mc1"]) if bench is not None else []
    rates = learning_rate or (1e-5, 5e-5, 1e-4)
    cells = [LoraSettings(r, rate, steps, batch_size, seed) for r in rank or (4, 16) for rate in rates]
    with terminal_progress() as progress:
        loaded = load_model(model, progress=progress)
        held = token_blocks(loaded.tokenizer, (read_text(path) for path in tested_on), length, max_blocks=blocks)
        common: dict[str, Any] = {
            "model": loaded.info.name,
            "revision": loaded.info.revision,
            "length": length,
            "blocks": len(held),
            "tasks": names,
            "limit": limit or None,
            "training_text": text_records(trained_on),
            "held_out": text_records(tested_on),
        }
        found = run_grid(
            lambda: load_model(model),
            lambda: TokenStream(find_sources(trained_on), loaded.tokenizer, length, seed=seed),
            cells,
            Yardstick(held, names, bench, limit or None, read_text(data_dir() / "samples" / "story.txt"), seed),
            common,
            out,
            progress=progress,
        )
    report = {
        "model": {"name": loaded.info.name, "revision": loaded.info.revision},
        "settings": {**common, "steps": steps, "batch_size": batch_size, "seed": seed},
        **found,
    }
    written = record_run(out / "summary.json", report)
    if record is not None:
        record_run(record, report)
    if json_output:
        print_json(written)
    else:
        _show(written)


def _show(record: dict[str, Any]) -> None:
    import rich

    from focus_core.commands.tables import plain_table
    from focus_core.harness.tasks import headline

    settings, untouched = record["settings"], record["untouched"]
    title = f"LoRA after {settings['steps']} steps of {settings['batch_size'] * settings['length']} tokens"
    names = ("adapters", "parameters", "perplexity", "difference", *settings["tasks"])
    table = plain_table(title, *names, left=("adapters",))
    scores = [f"{untouched['benchmarks'][name][headline(name)]:.3f}" for name in settings["tasks"]]
    table.add_row("none (untouched)", "0", f"{untouched['perplexity']:.2f}", "", *scores)
    for row in record["results"]:
        cells = []
        for name in settings["tasks"]:
            found = row["benchmarks"][name]
            gap = found["differences"][found["headline"]]
            score = found["metrics"][found["headline"]]
            cells.append(f"{score:.3f} ({gap['difference']:+.3f} [{gap['low']:+.3f}, {gap['high']:+.3f}])")
        gap = row["perplexity_difference"]
        interval = "" if gap["low"] is None else f" [{gap['low']:+.2f}, {gap['high']:+.2f}]"
        shown = f"{gap['difference']:+.2f}{interval}"
        table.add_row(row["name"], f"{row['trainable_parameters']:,}", f"{row['perplexity']:.2f}", shown, *cells)
    rich.print(table)
