"""`focus frontier`: quality against kept pairs, for routers and for published baselines."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Annotated, Any

import typer

from focus_core.commands.options import (
    MAX_COUNT,
    MAX_GROUPS,
    MAX_SEED,
    MAX_TOKENS,
    JsonOption,
    ModelOption,
    RayOption,
    WorkersOption,
    cluster_of,
    finite,
    print_json,
    refuse_given,
    results_alone,
    show,
)


def frontier(
    context: typer.Context,
    train: Annotated[
        list[str],
        typer.Option(
            "--train",
            metavar="TEXT-OR-FOLDER",
            help="Training text; baselines are fitted on it. This and all below: s3:// and gs:// too.",
        ),
    ],
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="FILE", help="File to write; repeat the command to resume.")
    ],
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data", "-d", metavar="TEXT-OR-FOLDER", help="Held-out text of one kind: file or folder; repeat."
        ),
    ] = None,
    kinds: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Folder of held-out text: each file or subfolder in it is one kind."),
    ] = None,
    model: ModelOption = "default",
    routers: Annotated[
        list[str] | None,
        typer.Option("--routers", "-r", metavar="FOLDER", help="Routers; repeat. Default: those shipped."),
    ] = None,
    top_k: Annotated[
        list[int] | None,
        typer.Option("--top-k", "-k", min=1, max=MAX_GROUPS, help="k; repeat. Default: 1, and 2 with --data."),
    ] = None,
    baseline: Annotated[
        list[str] | None,
        typer.Option(help="Baseline; repeat. Default: all, with --kinds a few above 2,048 tokens. none for none."),
    ] = None,
    share: Annotated[
        list[float] | None,
        typer.Option(
            parser=finite(0, 1),
            help="Share of distant pairs for baselines; repeat. Default: 0.15; the routers' with --data.",
        ),
    ] = None,
    length: Annotated[
        list[int] | None,
        typer.Option(
            min=2,
            max=MAX_TOKENS,
            help="Context length T; repeat with --kinds. Default: 2048; 512, 2048, 8192 with --kinds.",
        ),
    ] = None,
    window: Annotated[int, typer.Option("--window", "-w", min=0, max=MAX_TOKENS, help="Window w, for all.")] = 128,
    sinks: Annotated[int, typer.Option(min=0, max=MAX_TOKENS, help="First tokens that all methods keep.")] = 4,
    blocks: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_COUNT,
            help="Evenly spaced blocks. Default: 16; with --kinds 3 of each kind, 1 above 2,048 tokens.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of untrained routers and random baselines.")] = 0,
    untuned: Annotated[
        bool, typer.Option("--untuned", help="Default settings for baselines, not those best on the training text.")
    ] = False,
    learned_tokens: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_COUNT, help="Training text of learned baselines, with --kinds. Default: 307,200."),
    ] = None,
    speeds: Annotated[
        list[Path] | None, typer.Option(help="Record of focus bench; repeat. Default: those that are shipped.")
    ] = None,
    ray: RayOption = None,
    workers: WorkersOption = None,
    json_output: JsonOption = False,
) -> None:
    """Compare routers with published sparse attentions at the same share.

    Retention comes first: the divergence (KL) of next-token distributions
    from the untouched model's. All methods have the same window and sinks.
    The share of distant pairs that each keeps is counted. Routing is causal.
    Settings of baselines are chosen on the training text, as many for each.

    With --kinds: several kinds of text and lengths, with the mean over
    kinds. Repeat the command with more kinds, lengths, blocks or methods to
    add them to the file. Short lengths and important methods come first.
    The defaults take hours on two cores. Each message tells the time left,
    and the table what points, tuning and training took.

    With --data: one kind of text. The first routers, at each k, set the
    shares of the baselines, unless --share does.

    With --ray workers measure blocks. This process fits and tunes baselines,
    trains the learned ones, and sends them.

    A table (.md) and a figure (.svg) beside --out show the results.

    Example: focus frontier --kinds held-out/ --train books/ --out f.json
    """
    from focus_core.errors import FocusError
    from focus_core.frontier.speeds import read_speeds

    if (data is None) == (kinds is None):
        raise FocusError("Give held-out text of one kind with --data, or a folder of several kinds with --kinds.")
    if kinds is None:
        refuse_given(context, ["learned_tokens"], "give --kinds")
        if baseline == ["none"]:
            refuse_given(context, ["share"], "give a --baseline")
    if kinds is None and length is not None and len(length) > 1:
        raise FocusError("Several lengths need --kinds: with --data give one --length.")
    sizes: dict[str, Any] = {"window": window, "sink_tokens": sinks, "seed": seed, "routers": tuple(routers or [None])}
    sizes["tuned"] = not untuned
    sizes |= {} if blocks is None else {"blocks": blocks}
    sizes |= {} if top_k is None else {"top_k": tuple(top_k)}
    sizes |= {} if share is None else {"shares": tuple(share)}
    sizes |= {} if baseline is None else {"baselines": () if baseline == ["none"] else tuple(baseline)}
    how: dict[str, Any] = {"model": model, "cluster": cluster_of(ray, workers)}
    how["speeds"] = None if speeds is None else read_speeds(speeds, named=True)
    if kinds is not None:
        sizes |= {} if length is None else {"lengths": tuple(length)}
        sizes |= {} if learned_tokens is None else {"learned_tokens": learned_tokens}
        record = _kinds(kinds, train, out, sizes, how, quiet=json_output)
    else:
        sizes |= {} if length is None else {"length": length[0]}
        record = _single(data or [], train, out, sizes, how, quiet=json_output)
    if json_output:
        print_json(record)
    else:
        name = PurePath(out).stem
        print(f"Written to {out}, {name}.md and {name}.svg.")


def _single(
    data: list[str], train: list[str], out: str, sizes: dict[str, Any], how: dict[str, Any], *, quiet: bool
) -> dict[str, Any]:
    from focus_core.commands.tables.frontier import frontier_table
    from focus_core.frontier.run import FrontierSettings, measure_frontier
    from focus_core.frontier.speeds import recorded_speeds
    from focus_core.frontier.stores import on_this_machine
    from focus_core.frontier.table import frontier_rows, worth
    from focus_core.progress import terminal_progress

    settings = FrontierSettings(**sizes)
    with (
        results_alone(how["cluster"]),
        terminal_progress() as progress,
        on_this_machine(out, data, train) as (path, (held_out, training)),
    ):
        record = measure_frontier(held_out, training, path, settings, **how, progress=progress)
    if not quiet:
        used = record["settings"]
        title = f"{record['model']['name']}, T={used['length']}, w={used['window']}, {used['sink_tokens']} sinks"
        speeds = how["speeds"] or recorded_speeds(record["model"]["name"])
        show(frontier_table(frontier_rows(record, speeds), title))
        print(worth(used["blocks"], record["documents"]))
    return record


def _kinds(
    kinds: str, train: list[str], out: str, sizes: dict[str, Any], how: dict[str, Any], *, quiet: bool
) -> dict[str, Any]:
    from focus_core.commands.tables.frontier import by_kind_table, means_table
    from focus_core.frontier.kinds.means import lengths_of
    from focus_core.frontier.kinds.protocol import ProtocolSettings, measure_protocol
    from focus_core.frontier.kinds.table import notes, verdict
    from focus_core.frontier.stores import on_this_machine
    from focus_core.progress import terminal_progress

    settings = ProtocolSettings(**sizes)
    with (
        results_alone(how["cluster"]),
        terminal_progress() as progress,
        on_this_machine(out, [kinds], train) as (path, ((held_out,), training)),
    ):
        record = measure_protocol(held_out, training, path, settings, **how, progress=progress)
    if not quiet:
        for length in lengths_of(record):
            show(means_table(record, length))
            show(by_kind_table(record, length))
            print(verdict(record, length))
        print(*notes(record), sep="\n")
    return record
