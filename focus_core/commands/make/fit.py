"""`focus fit`: narrow routers for a model, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from focus_core.commands.options import (
    MAX_COUNT,
    MAX_DIRECTIONS,
    MAX_GROUPS,
    MAX_SEED,
    MAX_TOKENS,
    JsonOption,
    ModelOption,
    finite,
    print_json,
    refuse_given,
)


def fit(
    context: typer.Context,
    data: Annotated[
        list[Path], typer.Option("--data", "-d", help="Text, JSON Lines or Parquet file, or folder; repeat for more.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the routers.")] = Path("runs/narrow"),
    model: ModelOption = "default",
    groups: Annotated[
        int | None,
        typer.Option(
            "--groups",
            "-K",
            min=2,
            max=MAX_GROUPS,
            help="Groups per key/value head, K. Left out: as many as a key has dimensions, from 64 to 256.",
        ),
    ] = None,
    page: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_TOKENS,
            help="Keys of a page. Left out: 16, or 8 where a KL above 0.0005 is expected with 16.",
        ),
    ] = None,
    share: Annotated[
        float,
        typer.Option(
            parser=finite(0, 1),
            help="Share of the pairs beyond the window that queries read, of a whole text.",
        ),
    ] = 0.15,
    one_share: Annotated[
        bool,
        typer.Option("--one-share", help="The same share for every query; else the pages that summaries miss most."),
    ] = False,
    one_threshold: Annotated[
        bool, typer.Option("--one-threshold", help="The same threshold for every head; else each its own.")
    ] = False,
    recall: Annotated[
        bool,
        typer.Option(
            "--recall/--no-recall",
            help="Heads that look for one earlier token read everything, for a tenth of the share at most. Never with "
            "--one-share or --one-threshold.",
        ),
    ] = True,
    no_spread: Annotated[
        bool, typer.Option("--no-spread", help="Summaries do not count how far the keys of a page are spread.")
    ] = False,
    directions: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MAX_DIRECTIONS,
            help="Directions in which the spread of the keys of a page is told apart; 0 counts it as alike in all. "
            "Left out: 5, or 0 with --no-spread.",
        ),
    ] = None,
    query_power: Annotated[
        float,
        typer.Option(
            parser=finite(0, 0.5),
            help="How far keys are compared as queries see them, for groups: 0 not at all, 0.5 by their logits alone.",
        ),
    ] = 0.25,
    window: Annotated[int, typer.Option("--window", "-w", min=0, max=MAX_TOKENS, help="Local window, w.")] = 128,
    sinks: Annotated[
        int, typer.Option(min=0, max=MAX_TOKENS, help="First tokens that every later token attends to.")
    ] = 4,
    tokens: Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="Tokens to fit on, about.")] = 24576,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of k-means.")] = 0,
    json_output: JsonOption = False,
) -> None:
    """Fit narrow groups, the default form, to a model; nothing is trained.

    The model's keys on a sample of the text are grouped by k-means, as its
    queries see them, in one pass. Queries then read pages of these groups,
    and a summary stands for each page that is not read. Take broad text of
    several kinds.

    A second pass over one block of each text finds the directions in which
    the keys of a page are spread, and another how much this counts in its
    summary, for every query head. One more measures what every head loses
    where it reads the pages whose summaries err by more than several
    thresholds, and gives each head its own. A backward pass says how much
    an error of each layer counts, and a pass over tokens in random order
    finds heads that look for one earlier token. In blocks of 8,192 tokens,
    and of 16,384 and 32,768 where the model has as many positions, pages
    are counted, so that longer texts keep the same share of their pairs.
    Texts shorter than a fourth of the positions, or 8,192 tokens where that
    is less, keep more.

    The KL to expect is printed; focus eval measures it. Where it is above
    0.0005, smaller pages are tried. They are closer, and choosing from them
    takes more time.

    Stop with Ctrl-C and repeat the command to resume.

    Example: focus fit --data texts/ --out runs/narrow
    """
    from focus_core.models import load_model
    from focus_core.progress import terminal_progress
    from focus_core.text import CORPUS_SUFFIXES, find_texts
    from focus_core.training.fit import PAGE_SIZES, fit_routers, narrow_config, usual_groups

    settings = {
        "page_size": page or PAGE_SIZES[0], "read_share": share, "window": window,
        "sink_tokens": sinks, "by_error": not one_share, "count_spread": not no_spread,
    }  # fmt: skip
    if directions is not None:
        settings["spread_directions"] = directions
    if one_share:
        refuse_given(context, ["one_threshold", "recall"], "leave --one-share out")
    if one_threshold:
        refuse_given(context, ["recall"], "leave --one-threshold out")
    if one_share and no_spread:
        refuse_given(context, ["directions"], "leave --one-share or --no-spread out")
    find_texts(data, suffixes=CORPUS_SUFFIXES)  # what is wrong with them is said before the model is loaded
    with terminal_progress() as progress:
        loaded = load_model(model, progress=progress)
        settings["num_groups"] = groups or usual_groups(loaded.model)
        how = {
            "config": narrow_config(**settings),
            "tokens": tokens,
            "one_threshold": one_threshold,
            "query_power": query_power,
        }
        if not one_share and not one_threshold:
            how |= {"recall": recall, "page_sizes": PAGE_SIZES if page is None else ()}
        record = fit_routers(data, out, model=loaded, **how, seed=seed, progress=progress)
    if json_output:
        print_json(record)
    else:
        print(f"{settings['num_groups']} groups per key/value head, fitted on {record['settings']['blocks']} blocks.")
        for tried in record.get("expected", ()):
            print(expected(tried["page_size"], tried["kl"], share))
        print(f"Written to {out}")


def expected(page_size: int | None, kl: list[list[float]], share: float) -> str:
    """One sentence on the KL to expect with pages of a size at a share."""
    from focus_core.routing.narrow.fitting.fit import at_share

    nats = at_share({share: nats for share, nats in kl}, share)
    pages = f" with pages of {page_size} keys" if page_size else ""
    return f"Expected KL to the untouched model at {share:.0%} of the pairs{pages}: {nats:.4f} nats per token."
