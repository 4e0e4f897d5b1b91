"""`focus analyze`: the groups of every token of a text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from focus_core.commands.options import (
    HeadOption,
    JsonOption,
    ModelOption,
    RoutersOption,
    UntrainedOption,
    print_json,
)

if TYPE_CHECKING:
    from rich.table import Table

    from focus_core.analysis import Trace


def analyze(
    text_file: Annotated[Path, typer.Argument(help="A UTF-8 text file.")],
    model: ModelOption = "default",
    routers: RoutersOption = None,
    untrained: UntrainedOption = False,
    top_k: Annotated[
        int | None,
        typer.Option("--top-k", "-k", help="Groups per token, k. Default: the routers' own, or their plan."),
    ] = None,
    head: HeadOption = 0,
    json_output: JsonOption = False,
) -> None:
    """Route a text and show the size of every group in every layer.

    --json prints every token's groups in every layer.

    Example: focus analyze story.txt --json > groups.json
    """
    import rich

    from focus_core.analysis.run import analyze_text
    from focus_core.progress import terminal_progress
    from focus_core.text import read_text

    text = read_text(text_file)
    with terminal_progress() as progress:
        found = analyze_text(
            text, model=model, routers=routers, untrained=untrained, top_k=top_k, head=head, progress=progress
        )
    if json_output:
        print_json(found.record)
    else:
        rich.print(_table(found.trace))


def _table(trace: Trace) -> Table:
    """One line per layer with the share of tokens in each group."""
    import numpy as np
    from rich.table import Table

    trained = "trained" if trace.provenance.trained else "UNTRAINED"
    table = Table(title=f"{len(trace.tokens)} tokens, routers {trace.provenance.routers} ({trained})")
    table.add_column("layer", justify="right")
    for group in range(trace.config.num_groups):
        table.add_column(f"group {group}", justify="right")
    for layer, groups in zip(trace.layers, trace.groups):
        shares = np.bincount(groups, minlength=trace.config.num_groups) / len(groups)
        table.add_row(str(layer), *(f"{share:.0%}" for share in shares))
    return table
