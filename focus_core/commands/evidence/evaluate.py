"""`focus eval`: perplexity under every routing, with kept share and balance."""

from __future__ import annotations

from typing import Annotated

import typer

from focus_core.commands.options import (
    MAX_COUNT,
    MAX_GROUPS,
    MAX_TOKENS,
    JsonOption,
    ModelOption,
    RayOption,
    RecordOption,
    RoutersOption,
    UntrainedOption,
    WorkersOption,
    cluster_of,
    print_json,
    refuse_given,
    results_alone,
    show,
    show_failed,
)


def evaluate(
    context: typer.Context,
    data: Annotated[
        list[str],
        typer.Option(
            "--data", "-d", metavar="TEXT-OR-FOLDER", help="Text file or folder, s3:// and gs:// too; repeat for more."
        ),
    ],
    model: ModelOption = "default",
    routers: RoutersOption = None,
    untrained: UntrainedOption = False,
    length: Annotated[int, typer.Option(min=2, max=MAX_TOKENS, help="Tokens per block, T.")] = 512,
    stride: Annotated[
        int | None,
        typer.Option(
            min=1, max=MAX_TOKENS, help="Tokens scored at the end of each block; blocks overlap. Default: the length."
        ),
    ] = None,
    lengths: Annotated[
        list[int] | None,
        typer.Option(
            min=2,
            max=MAX_TOKENS,
            help="Also compare causal routing at these lengths; repeat. Each must divide the longest.",
        ),
    ] = None,
    length_blocks: Annotated[
        int, typer.Option(min=1, max=MAX_COUNT, help="Blocks of the longest length that --lengths uses.")
    ] = 2,
    blocks: Annotated[int, typer.Option(min=0, max=MAX_COUNT, help="Evenly spaced blocks to use; 0 for all.")] = 32,
    top_k: Annotated[
        list[int] | None,
        typer.Option(
            "--top-k",
            "-k",
            min=1,
            max=MAX_GROUPS,
            help="k to evaluate; repeat for more. Default: 1 and 2, or the share that is read.",
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option("--window", "-w", min=0, max=MAX_TOKENS, help="Local window, w. Default: the routers' own."),
    ] = None,
    out: RecordOption = None,
    ray: RayOption = None,
    workers: WorkersOption = None,
    json_output: JsonOption = False,
) -> None:
    """Retention and perplexity of a text, with the share of pairs kept.

    KL is the divergence of next-token distributions from the untouched model,
    in nats per token. A router that learnt the text cannot lower it.

    Quote calibrated routing: it is causal. Sequence Sinkhorn, as published,
    sees the whole text. It is measured for comparison, with the difference
    (the leak) and its 95% interval over blocks.

    Example: focus eval --data book.txt -k 1 -k 2 -k 4 --json
    Example: focus eval --data book.txt --lengths 512 --lengths 2048
    """
    from focus_core.commands.tables import evaluation_table, leak_lines, length_table
    from focus_core.evaluation.run import evaluate_texts
    from focus_core.progress import terminal_progress

    if not lengths:
        refuse_given(context, ["length_blocks"], "give --lengths")
    cluster = cluster_of(ray, workers)
    with results_alone(cluster), terminal_progress() as progress:
        found = evaluate_texts(
            data,
            model=model,
            routers=routers,
            untrained=untrained,
            length=length,
            stride=stride,
            blocks=blocks or None,
            top_k=top_k,
            window=window,
            lengths=lengths or (),
            length_blocks=length_blocks,
            cluster=cluster,
            out=out,
            progress=progress,
        )
    if json_output:
        print_json(found.record)
        return
    name, settings = found.record["model"]["name"], found.record["settings"]
    title = f"{name}, routers {settings['routers']}, T={length}, stride {settings['stride']}"
    show(evaluation_table(found.results, f"{title}, w={settings['config']['window']}"))
    exposure = found.results[0].exposure
    print(f"Gate exposure: {exposure:.1%} of causal pairs are distant, so that routing can drop them.")
    for line in leak_lines(found.leaks):
        print(line)
    if found.lengths:
        show(length_table(found.lengths, f"Length transfer on the same {found.length_tokens:,} tokens"))
    show_failed(found.record["failed"])
