"""`focus report`: a card for every group, over a text or a corpus of any length."""

from __future__ import annotations

from typing import Annotated

import typer

from focus_core.commands.options import (
    MAX_COUNT,
    MAX_GROUPS,
    MAX_SEED,
    MAX_TOKENS,
    JsonOption,
    ModelOption,
    RayOption,
    RoutersOption,
    UntrainedOption,
    WorkersOption,
    cluster_of,
    print_json,
    results_alone,
    show_failed,
)


def report(
    data: Annotated[
        list[str],
        typer.Argument(
            metavar="TEXT-OR-FOLDER...", help="Text or JSON Lines files, or folders of texts; s3:// and gs:// too."
        ),
    ],
    out: Annotated[
        str,
        typer.Option(
            "--out",
            "-o",
            metavar="FOLDER",
            help="Folder for the report, or an s3:// or gs:// address; repeat the command to resume there.",
        ),
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
    head: Annotated[
        list[int] | None,
        typer.Option(
            "--head",
            min=0,
            max=MAX_COUNT,
            help="Key/value head to report, where each has a router of its own; repeat for more. Default: 0.",
        ),
    ] = None,
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
    ray: RayOption = None,
    workers: WorkersOption = None,
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
    from focus_core.report.corpora.stream import StreamSettings
    from focus_core.report.html import summary
    from focus_core.report.run import write_report

    settings = StreamSettings(
        top_k=top_k,
        heads=tuple(head) if head else (0,),
        states=states,
        block_length=block,
        batch_size=batch_size,
        layers=tuple(layers) if layers else None,
        examples=examples,
        seed=seed,
    )
    cluster = cluster_of(ray, workers)
    with results_alone(cluster), terminal_progress() as progress:
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
            cluster=cluster,
            progress=progress,
        )
    if json_output:
        print_json(written.record)
    else:
        page = next(str(file) for file in written.files if file.name == "report.html")
        print(f"{summary(written.report)}\n{len(written.files)} files in {out}; open {page}")
        show_failed(written.record["failed"])
