"""`focus analyze`: the groups of every token of a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from focus_core.commands.options import HeadOption, JsonOption, ModelOption, RoutersOption, print_json


def analyze(
    text_file: Annotated[Path, typer.Argument(help="A UTF-8 text file.")],
    model: ModelOption = "default",
    routers: RoutersOption = None,
    untrained: Annotated[bool, typer.Option("--untrained", help="Use untrained routers (seed 0).")] = False,
    top_k: Annotated[int | None, typer.Option("--top-k", "-k", help="Groups per token.")] = None,
    head: HeadOption = 0,
    json_output: JsonOption = False,
) -> None:
    """Route a text and show how its tokens fall into groups, per layer.

    With --json, prints every token's groups in every layer.

    Example: focus analyze story.txt --json > groups.json
    """
    import numpy as np
    import rich
    from rich.table import Table

    from focus_core.analysis import analyze as run_analysis
    from focus_core.models import load_model
    from focus_core.progress import terminal_progress
    from focus_core.results import stamp
    from focus_core.routing.attach import attach
    from focus_core.text import read_text

    text = read_text(text_file)
    with terminal_progress() as progress:
        loaded = load_model(model, progress=progress)
    focus = attach(loaded, routers, untrained=untrained)
    # Without a k of the caller's own, routers with a plan keep it.
    changes: dict[str, Any] = {} if top_k is None else {"top_k": top_k}
    with focus.routing("hard", **changes):
        trace = run_analysis(focus, loaded.tokenizer, text, head=head)
    if json_output:
        report = {
            "model": {"name": loaded.info.name, "revision": loaded.info.revision},
            "settings": {"config": trace.config, "provenance": trace.provenance},
            "layers": list(trace.layers),
            "head": trace.head,
            "tokens": [
                {
                    "token": token,
                    "id": int(token_id),
                    "span": [int(start), int(end)],
                    "groups": [np.flatnonzero(row).tolist() for row in trace.membership[:, index]],
                    "reads": [np.flatnonzero(row).tolist() for row in trace.reads[:, index]],
                }
                for index, (token, token_id, (start, end)) in enumerate(
                    zip(trace.tokens, trace.input_ids, trace.offsets)
                )
            ],
        }
        print_json(stamp(report))
        return
    trained = "trained" if trace.provenance.trained else "UNTRAINED"
    table = Table(title=f"{len(trace.tokens)} tokens, routers {trace.provenance.routers} ({trained})")
    table.add_column("layer", justify="right")
    for group in range(trace.config.num_groups):
        table.add_column(f"group {group}", justify="right")
    for layer, groups in zip(trace.layers, trace.groups):
        shares = np.bincount(groups, minlength=trace.config.num_groups) / len(groups)
        table.add_row(str(layer), *(f"{share:.0%}" for share in shares))
    rich.print(table)
