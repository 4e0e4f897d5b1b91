"""`focus fit`: narrow routers for a model, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from focus_core.commands.options import (
    MAX_COUNT,
    MAX_GROUPS,
    MAX_SEED,
    MAX_TOKENS,
    JsonOption,
    ModelOption,
    finite,
    print_json,
)


def fit(
    data: Annotated[
        list[Path], typer.Option("--data", "-d", help="Text, JSON Lines or Parquet file, or folder; repeat for more.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the routers.")] = Path("runs/narrow"),
    model: ModelOption = "default",
    groups: Annotated[
        int, typer.Option("--groups", "-K", min=2, max=MAX_GROUPS, help="Groups per key/value head, K.")
    ] = 64,
    page: Annotated[int, typer.Option(min=1, max=MAX_TOKENS, help="Keys of a page.")] = 16,
    share: Annotated[
        float,
        typer.Option(
            parser=finite(0, 1),
            help="Share of the pairs beyond the window that queries read; by need, of a whole text.",
        ),
    ] = 0.15,
    one_share: Annotated[
        bool, typer.Option("--one-share", help="The same share for every query head; else each by its need.")
    ] = False,
    no_spread: Annotated[
        bool, typer.Option("--no-spread", help="Summaries do not count how far the keys of a page are spread.")
    ] = False,
    window: Annotated[int, typer.Option("--window", "-w", min=0, max=MAX_TOKENS, help="Local window, w.")] = 128,
    sinks: Annotated[
        int, typer.Option(min=0, max=MAX_TOKENS, help="First tokens that every later token attends to.")
    ] = 4,
    tokens: Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="Tokens to fit on, about.")] = 24576,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of k-means.")] = 0,
    json_output: JsonOption = False,
) -> None:
    """Fit narrow routers to a model; nothing is trained.

    The model's keys on a sample of the text are grouped by k-means, in one
    pass. Queries then read pages of these groups, and a summary stands for
    each page that is not read. Take broad text of several kinds.

    A second pass over one block of each text fits how much the spread of
    the keys of a page counts in its summary, for every query head. A third
    one measures what every head loses at several shares and places, and
    gives each the shares it needs; once in blocks of 2,048 tokens and once
    in blocks of 8,192, since heads need unlike shares of longer texts. A
    backward pass says how much an error of each layer counts.

    Example: focus fit --data texts/ --out runs/narrow
    """
    from focus_core.progress import terminal_progress
    from focus_core.training.fit import fit_routers, narrow_config

    settings = {
        "num_groups": groups, "page_size": page, "read_share": share, "window": window, "sink_tokens": sinks,
        "shares_by_need": not one_share, "count_spread": not no_spread,
    }  # fmt: skip
    with terminal_progress() as progress:
        config = narrow_config(**settings)
        record = fit_routers(data, out, model=model, config=config, tokens=tokens, seed=seed, progress=progress)
    if json_output:
        print_json(record)
    else:
        print(f"{groups} groups per key/value head, fitted on {record['settings']['blocks']} blocks.")
        print(f"Written to {out}")
