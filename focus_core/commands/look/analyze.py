"""`focus analyze`: the groups of every token of a text, or of a whole corpus as a Parquet data set."""

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
    RayOption,
    RoutersOption,
    UntrainedOption,
    WorkersOption,
    cluster_of,
    print_json,
    results_alone,
    show,
    show_failed,
)
from focus_core.errors import FocusError

if TYPE_CHECKING:
    import numpy as np
    from rich.table import Table

    from focus_core.analysis import Trace

_MOST_COLUMNS, _LISTED = 16, 5


def analyze(
    path: Annotated[
        str,
        typer.Argument(metavar="PATH", help="A UTF-8 text file; with --out also a folder of them, or s3:// and gs://."),
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
            help="Groups per token, k. Default: the routers' own k, plan or share of the pairs.",
        ),
    ] = None,
    head: Annotated[
        int | None,
        typer.Option(
            min=0, max=MAX_COUNT, help="Key/value head, where each has a router. Default: 0; with --out, every one."
        ),
    ] = None,
    query_head: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MAX_COUNT,
            help="Query head of the key/value head, where every query head chooses what it reads. Default: 0.",
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR.parquet",
            help="Write every token of the corpus to this Parquet data set; s3:// and gs:// too.",
        ),
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(min=2, max=MAX_TOKENS, help="With --out: tokens routed at once. Default: 2048."),
    ] = None,
    states: Annotated[
        str | None,
        typer.Option(
            help="With --out: hidden states to route, routed (the default) or untouched, as focus report takes them."
        ),
    ] = None,
    ray: RayOption = None,
    workers: WorkersOption = None,
    json_output: JsonOption = False,
) -> None:
    """Route a text and show the size of every group in every layer.

    Of more than 16 groups it shows the largest, and the pairs kept.
    --json prints every token's groups in every layer.

    With --out the text, or every text of a folder, becomes one Parquet
    data set: a row for each layer, head and token. Repeat the command to
    resume. Documents that cannot be read are listed.

    Example: focus analyze books/ --out books.parquet
    """
    if out is not None:
        if query_head is not None:
            raise FocusError("The data set holds the groups that tokens are in, for all readers: omit --query-head.")
        heads = None if head is None else (head,)
        chosen = {"block_length": length, "states": states, "top_k": top_k, "heads": heads}
        given = {"model": model, "routers": routers, "untrained": untrained, "cluster": cluster_of(ray, workers)}
        _write(path, out, given, chosen, json_output)
        return
    if any(each is not None for each in (length, states, ray, workers)):
        raise FocusError("--length, --states and --ray belong to a data set: name one with --out, or omit them.")
    from focus_core.analysis.run import analyze_text
    from focus_core.io.remote import is_remote
    from focus_core.progress import terminal_progress
    from focus_core.text import read_text

    if is_remote(path):
        raise FocusError(f"{path} is in a store: name a data set with --out, or give a file of this machine.")
    if Path(path).is_dir():
        raise FocusError(f"{path} is a folder: name a data set with --out to analyze all of it, or give a file.")
    text = read_text(path)
    with terminal_progress() as progress:
        found = analyze_text(
            text,
            model=model,
            routers=routers,
            untrained=untrained,
            top_k=top_k,
            head=head or 0,
            query_head=query_head or 0,
            progress=progress,
        )
    if json_output:
        print_json(found.record)
    else:
        show(_table(found.trace))


def _write(path: str, out: str, given: dict[str, Any], chosen: dict[str, Any], json_output: bool) -> None:
    """Write a data set, and say how large it is and which documents failed."""
    from focus_core.progress import terminal_progress
    from focus_core.report.corpora.traces import TraceSettings, write_traces

    settings = TraceSettings(**{name: value for name, value in chosen.items() if value is not None})
    with results_alone(given["cluster"]), terminal_progress() as progress:
        record = write_traces(path, out, **given, settings=settings, progress=progress).record
    if json_output:
        print_json(record)
        return
    documents = len(record["documents"])
    print(f"{record['rows']:,} rows of {record['tokens']:,} tokens in {documents:,} documents written to {out}.")
    show_failed(record["failed"])


def _table(trace: Trace) -> Table:
    """One line per layer with the share of tokens in each group; of many groups the largest and the pairs kept."""
    import numpy as np
    from rich.table import Table

    from focus_core.analysis.routed_text import how_made

    made = how_made(trace.config.router, trained=trace.provenance.trained)
    table = Table(title=f"{len(trace.tokens)} tokens, routers {trace.provenance.routers} ({made})")
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
    import numpy as np

    from focus_core.analysis.reading import pair_counts

    largest = sorted(np.flatnonzero(shares), key=lambda group: -shares[group])[:_LISTED]
    pairs = pair_counts(trace, row)
    distant = f"{int(pairs.distant_kept) / int(pairs.distant):.1%}" if int(pairs.distant) else "none"
    return [
        "  ".join(f"{group}: {shares[group]:.1%}" for group in largest),
        f"{shares.min():.1%}",
        distant,
        f"{float(pairs.kept_share):.1%}",
    ]
