"""`focus analyze`: the groups of every token of a text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from focus_core.commands.options import (
    MAX_COUNT,
    MAX_GROUPS,
    HeadOption,
    JsonOption,
    ModelOption,
    RoutersOption,
    UntrainedOption,
    print_json,
    show,
)

if TYPE_CHECKING:
    import numpy as np
    from rich.table import Table

    from focus_core.analysis import Trace

_MOST_COLUMNS, _LISTED = 16, 5


def analyze(
    text_file: Annotated[Path, typer.Argument(help="A UTF-8 text file.")],
    model: ModelOption = "default",
    routers: RoutersOption = None,
    untrained: UntrainedOption = False,
    top_k: Annotated[
        int | None,
        typer.Option(
            "--top-k",
            "-k",
            min=1,
            max=MAX_GROUPS,
            help="Groups per token, k. Default: the routers' own k, plan or share of the pairs.",
        ),
    ] = None,
    head: HeadOption = 0,
    query_head: Annotated[
        int,
        typer.Option(
            min=0, max=MAX_COUNT, help="Query head of the key/value head, where every query head chooses what it reads."
        ),
    ] = 0,
    json_output: JsonOption = False,
) -> None:
    """Route a text and show the size of every group in every layer.

    Of more than 16 groups it shows the largest, and the pairs kept.
    --json prints every token's groups in every layer.

    Example: focus analyze story.txt --json > groups.json
    """
    from focus_core.analysis.run import analyze_text
    from focus_core.progress import terminal_progress
    from focus_core.text import read_text

    text = read_text(text_file)
    with terminal_progress() as progress:
        found = analyze_text(
            text,
            model=model,
            routers=routers,
            untrained=untrained,
            top_k=top_k,
            head=head,
            query_head=query_head,
            progress=progress,
        )
    if json_output:
        print_json(found.record)
    else:
        show(_table(found.trace))


def _table(trace: Trace) -> Table:
    """One line per layer with the share of tokens in each group; of many groups the largest and the pairs kept."""
    import numpy as np
    from rich.table import Table

    trained = "trained" if trace.provenance.trained else "UNTRAINED"
    table = Table(title=f"{len(trace.tokens)} tokens, routers {trace.provenance.routers} ({trained})")
    table.add_column("layer", justify="right")
    num_groups = trace.config.num_groups
    many = num_groups > _MOST_COLUMNS
    if many:
        of_head = "" if trace.head is None else f"; {trace.reader or f'key/value head {trace.head}'}"
        table.caption = f"{num_groups} groups{of_head}; an even split is {1 / num_groups:.1%}. --json has every token."
        table.add_column("largest groups, share of tokens")
        for name in ("smallest", "distant pairs kept", "all pairs kept"):
            table.add_column(name, justify="right")
    else:
        for group in range(num_groups):
            table.add_column(f"group {group}", justify="right")
    for row, (layer, groups) in enumerate(zip(trace.layers, trace.groups)):
        shares = np.bincount(groups, minlength=num_groups) / len(groups)
        cells = _of_many(trace, row, shares) if many else [f"{share:.0%}" for share in shares]
        table.add_row(str(layer), *cells)
    return table


def _of_many(trace: Trace, row: int, shares: np.ndarray) -> list[str]:
    """The largest groups of a layer, the share of the smallest, and the pairs kept."""
    from focus_core.analysis.reading import pair_counts

    largest = sorted(range(len(shares)), key=lambda group: -shares[group])[:_LISTED]
    pairs = pair_counts(trace, row)
    distant = f"{int(pairs.distant_kept) / int(pairs.distant):.1%}" if int(pairs.distant) else "none"
    return [
        "  ".join(f"{group}: {shares[group]:.1%}" for group in largest),
        f"{shares.min():.1%}",
        distant,
        f"{float(pairs.kept_share):.1%}",
    ]
