"""`focus train`: train routers on the user's own text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from focus_core.commands.options import JsonOption, ModelOption, print_json


def train(
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
    window: Annotated[int, typer.Option("--window", "-w", help="Local window, w.")] = 64,
    sinks: Annotated[int, typer.Option(help="First tokens that every later one sees.")] = 4,
    objective: Annotated[str, typer.Option(help="mass (attention mass) or lm (as published).")] = "mass",
    recipe: Annotated[str, typer.Option(help="focus, or paper for the published settings.")] = "focus",
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 0.01,
    seed: Annotated[int, typer.Option(help="Seed of routers and block order.")] = 0,
    eval_blocks: Annotated[int, typer.Option(help="Held-out blocks to evaluate; 0 for none.")] = 8,
    json_output: JsonOption = False,
) -> None:
    """Train routers on your text; the model's own weights stay as they are.

    Stop with Ctrl-C and repeat the command to go on where it stopped. At
    the end the routers are evaluated on held-out text, untouched, soft and
    hard at each k, and everything is written to the output folder.

    Example: focus train --data book.txt --data more/ --out runs/mine
    """
    import rich
    from tqdm import tqdm

    from focus_core.commands.table import evaluation_table
    from focus_core.config import FocusConfig
    from focus_core.errors import FocusError
    from focus_core.evaluation import evaluate, standard_settings
    from focus_core.models import load_model
    from focus_core.progress import terminal_progress
    from focus_core.results import record_run, text_records
    from focus_core.retrofitting import retrofit
    from focus_core.text import find_texts, read_text, token_blocks
    from focus_core.training import TrainSettings
    from focus_core.training import train as run_training
    from focus_core.training.loop import Step

    if recipe not in ("focus", "paper"):
        raise FocusError(f"recipe is {recipe!r}: choose focus or paper.")
    make = FocusConfig if recipe == "focus" else FocusConfig.paper
    config = make(num_groups=groups, top_k=top_k, window=window, sink_tokens=sinks)
    settings = TrainSettings(
        steps=steps, batch_size=batch_size, learning_rate=learning_rate, objective=objective, seed=seed
    )
    files = find_texts(data)
    held_files = find_texts(held_out) if held_out else []
    texts = [read_text(path) for path in files]
    with terminal_progress() as progress:
        loaded = load_model(model, progress=progress)
    blocks = token_blocks(loaded.tokenizer, texts, length)
    if held_files:
        held = token_blocks(loaded.tokenizer, [read_text(path) for path in held_files], length)
    else:
        cut = max(1, len(blocks) // 20)
        blocks, held = blocks[:-cut], blocks[-cut:]
    focus = retrofit(loaded.model, config, seed=seed)
    with tqdm(total=steps, unit="step", desc="Training") as bar:

        def show(step: Step) -> None:
            bar.n = step.step
            bar.set_postfix_str(
                f"loss {step.loss:.4f}, largest group {step.largest_group_share:.1%}, "
                f"{step.tokens_per_second:,.0f} tokens/s"
            )

        history = run_training(focus, blocks, settings, out, show)
    rows = []
    if eval_blocks > 0:
        stride = max(1, len(held) // eval_blocks)
        sample = held[::stride][:eval_blocks]
        plan = standard_settings(groups, tuple(range(1, groups + 1)))
        for mode, k, balance in tqdm(plan, desc="Evaluating", unit="setting"):
            rows.append(evaluate(focus, sample, routing=mode, top_k=k, balance=balance))
    report = {
        "model": {"name": loaded.info.name, "revision": loaded.info.revision},
        "settings": {"config": config, "training": settings, "length": length, "stride": length},
        "data": text_records(files),
        "held_out": text_records(held_files),
        "held_out_blocks": min(len(held), eval_blocks),
        "final_loss": history[-1].loss if history else None,
        "results": rows,
    }
    record = record_run(out / "training.json", report)
    if json_output:
        print_json(record)
    else:
        rich.print(evaluation_table(rows, f"Held-out text, T={length}, w={config.window}"))
        rich.print(f"Routers written to {out}. Look at them with: focus app, or measure: focus eval --routers {out}")
