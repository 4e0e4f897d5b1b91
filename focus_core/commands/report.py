"""`focus report`: a card for every group, over a text or a corpus of any length."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from focus_core.commands.options import (
    MAX_COUNT,
    MAX_GROUPS,
    MAX_SEED,
    MAX_TOKENS,
    HeadOption,
    JsonOption,
    ModelOption,
    RoutersOption,
    UntrainedOption,
    print_json,
)


def report(
    data: Annotated[list[Path], typer.Argument(metavar="TEXT-OR-FOLDER...", help="Text files, or folders of them.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for the report; repeat the command to resume there.")
    ],
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
            help="Groups per token, k. Default: the routers' own, or their plan.",
        ),
    ] = None,
    head: HeadOption = 0,
    states: Annotated[
        str,
        typer.Option(
            help="Hidden states to route. untouched: the model's own, the same at every k. "
            "routed: those of the model under hard routing at this k."
        ),
    ] = "untouched",
    layers: Annotated[
        list[int] | None,
        typer.Option("--layer", "-l", min=0, max=MAX_COUNT, help="Layer to report; repeat for more. Default: all."),
    ] = None,
    block: Annotated[
        int, typer.Option(min=1, max=MAX_TOKENS, help="Tokens routed at once; no token sees an earlier block.")
    ] = 2048,
    batch_size: Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="Blocks in one forward pass.")] = 1,
    examples: Annotated[int, typer.Option(min=0, max=MAX_COUNT, help="Random and strongest examples per group.")] = 5,
    tags: Annotated[bool, typer.Option("--tags/--no-tags", help="Tag parts of speech with spaCy.")] = True,
    bfloat16: Annotated[
        bool, typer.Option("--bfloat16", help="Load the model in bfloat16: half the memory, and a few groups differ.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of random examples and intervals.")] = 0,
    title: Annotated[str | None, typer.Option(help="Title of the report.")] = None,
    json_output: JsonOption = False,
) -> None:
    """Write a report with a card for every group of every layer.

    A card shows a group's size, confidence, tokens, parts of speech, examples
    in context, and persistence. The folder gets report.html (opens without a
    network), report.json, tables as CSV and Parquet, and session.zip for the
    Report page of the app.

    Memory does not grow with the corpus. Stop with Ctrl-C and repeat the
    command to resume.

    Example: focus report books/ --out runs/books-report
    """
    import torch

    from focus_core.progress import terminal_progress
    from focus_core.report.html import summary
    from focus_core.report.run import write_report
    from focus_core.report.stream import StreamSettings

    settings = StreamSettings(
        top_k=top_k,
        head=head,
        states=states,
        block_length=block,
        batch_size=batch_size,
        layers=tuple(layers) if layers else None,
        examples=examples,
        seed=seed,
    )
    with terminal_progress() as progress:
        written = write_report(
            data,
            out,
            model=model,
            routers=routers,
            untrained=untrained,
            settings=settings,
            tags=tags,
            dtype=torch.bfloat16 if bfloat16 else torch.float32,
            title=title,
            progress=progress,
        )
    if json_output:
        print_json(written.record)
    else:
        print(f"{summary(written.report)}\n{len(written.files)} files in {out}; open {out / 'report.html'}")
