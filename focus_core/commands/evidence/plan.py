"""`focus plan`: a k for every layer under one budget of pairs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from focus_core.commands.options import (
    MAX_COUNT,
    MAX_GROUPS,
    MAX_TOKENS,
    JsonOption,
    ModelOption,
    RoutersOption,
    finite,
    print_json,
    show,
)

if TYPE_CHECKING:
    from rich.table import Table


def plan(
    data: Annotated[
        list[Path], typer.Option("--data", "-d", help="Text to measure on, such as the training text; repeat for more.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for the planned routers; repeat the command to resume there.")
    ],
    budget: Annotated[
        float,
        typer.Option(parser=finite(0, 1), help="Share of distant pairs to keep, mean over layers, between 0 and 1."),
    ],
    model: ModelOption = "default",
    routers: RoutersOption = None,
    length: Annotated[int, typer.Option(min=2, max=MAX_TOKENS, help="Tokens per block, T.")] = 1024,
    blocks: Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="Evenly spaced blocks to measure on.")] = 4,
    window: Annotated[
        int | None,
        typer.Option("--window", "-w", min=0, max=MAX_TOKENS, help="Local window, w. Default: the routers' own."),
    ] = None,
    top_k: Annotated[
        list[int] | None,
        typer.Option(
            "--top-k",
            "-k",
            min=0,
            max=MAX_GROUPS,
            help="k a layer may take beside K, which keeps all pairs; repeat. Default: 1 and 2.",
        ),
    ] = None,
    costs: Annotated[
        Path | None, typer.Option(help="A plan.json with measurements to use, for another budget.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Choose each layer's k by the loss of routing that layer alone.

    Layers that lose little keep few pairs; layers that lose much attend
    fully. The folder holds the same routers with the plan as their setting,
    for use like any others, and plan.json with every measurement.

    Example: focus plan -r smollm2-135m-k8 -d books/ --budget 0.45 --out runs/planned
    """
    from focus_core.evaluation.plan import plan_routers
    from focus_core.progress import terminal_progress

    with terminal_progress() as progress:
        record = plan_routers(
            data,
            out,
            budget,
            model=model,
            routers=routers,
            length=length,
            blocks=blocks,
            window=window,
            top_ks=top_k or (1, 2),
            costs=costs,
            progress=progress,
        )
    if json_output:
        print_json(record)
        return
    show(_table(record))
    print(f"Expected loss, if layers add up: {record['plan']['loss']:+.4f} nats. Written to {out}.")


def _table(record: dict[str, Any]) -> Table:
    """One line per k with the layers that have it."""
    from rich.table import Table

    plan, layers = record["plan"], sorted({row["layer"] for row in record["costs"]})
    table = Table(title=f"Plan for {plan['budget']:.0%} of distant pairs, expected {plan['kept_share']:.1%}")
    for name in ("k", "layers"):
        table.add_column(name, justify="left")
    below = {row["top_k"] for row in record["costs"]}
    for k in sorted(set(plan["layer_top_k"])):
        name = "window and sinks" if k == 0 else str(k) if k in below else "all pairs"
        table.add_row(name, ", ".join(str(layer) for layer, own in zip(layers, plan["layer_top_k"]) if own == k))
    return table
