"""`focus frontier`: perplexity against kept pairs, for routers and for published baselines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from focus_core.commands.options import JsonOption, ModelOption, print_json


def frontier(
    data: Annotated[list[Path], typer.Option("--data", "-d", help="Held-out text file or folder; repeat for more.")],
    train: Annotated[
        list[Path],
        typer.Option("--train", help="Training text: untrained routers are calibrated on it, baselines fitted."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write; repeat the command to resume.")],
    model: ModelOption = "default",
    routers: Annotated[
        list[str] | None,
        typer.Option("--routers", "-r", metavar="FOLDER", help="Routers; repeat. Default: those shipped."),
    ] = None,
    top_k: Annotated[list[int] | None, typer.Option("--top-k", "-k", min=1, help="k; repeat. Default: 1, 2.")] = None,
    baseline: Annotated[
        list[str] | None, typer.Option(help="Baseline; repeat. Default: all. none for no baseline.")
    ] = None,
    length: Annotated[int, typer.Option(min=1, help="Context length T in tokens.")] = 2048,
    window: Annotated[int, typer.Option("--window", "-w", min=0, help="Window w, for all.")] = 128,
    sinks: Annotated[int, typer.Option(min=0, help="First tokens that all methods keep.")] = 4,
    blocks: Annotated[int, typer.Option(min=1, help="Evenly spaced blocks of the held-out text.")] = 8,
    seed: Annotated[int, typer.Option(help="Seed of untrained routers and random baselines.")] = 0,
    speeds: Annotated[
        list[Path] | None, typer.Option(help="Record of focus bench; repeat. Default: those that are shipped.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Compare routers with published sparse attentions at the same kept share.

    The first routers, at each k, set the budgets. Every baseline gets the
    same window and sinks and the same budget of distant pairs; the share
    that it keeps is counted. All routing is causal. Routers with a plan (a
    k for every layer, from focus plan) are measured at that plan.

    A table (.md) and a figure (.svg) beside --out show the results, with
    the speeds of one attention call from focus bench.

    Example: focus frontier -d held-out.txt --train books/ --out f.json
    """
    import rich

    from focus_core.baselines import BASELINES
    from focus_core.commands.tables.frontier import frontier_table
    from focus_core.frontier.run import FrontierSettings, measure_frontier
    from focus_core.frontier.speeds import read_speeds, recorded_speeds
    from focus_core.frontier.table import frontier_rows, worth
    from focus_core.progress import terminal_progress

    settings = FrontierSettings(
        routers=tuple(routers or [None]),
        top_k=tuple(top_k or (1, 2)),
        baselines=() if baseline == ["none"] else tuple(baseline or BASELINES),
        length=length,
        window=window,
        sink_tokens=sinks,
        blocks=blocks,
        seed=seed,
    )
    known = recorded_speeds() if speeds is None else read_speeds(speeds)
    with terminal_progress() as progress:
        record = measure_frontier(data, train, out, settings, model=model, speeds=known, progress=progress)
    if json_output:
        print_json(record)
    else:
        title = f"{record['model']['name']}, T={length}, w={window}, {sinks} sinks"
        rich.print(frontier_table(frontier_rows(record, known), title))
        rich.print(worth(record["settings"]["blocks"]))
        rich.print(f"Written to {out}, {out.with_suffix('.md').name} and {out.with_suffix('.svg').name}.")
