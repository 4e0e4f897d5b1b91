"""`focus eval`: perplexity under every routing, with kept share and balance."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from focus_core.commands.options import JsonOption, ModelOption, RoutersOption, print_json


def evaluate(
    data: Annotated[list[Path], typer.Option("--data", "-d", help="Text file or folder; may be given several times.")],
    model: ModelOption = "default",
    routers: RoutersOption = None,
    untrained: Annotated[bool, typer.Option("--untrained", help="Use untrained routers (seed 0).")] = False,
    length: Annotated[int, typer.Option(help="Context length T in tokens.")] = 512,
    stride: Annotated[
        int | None, typer.Option(help="Tokens scored per block, the last ones; blocks overlap. Default: the length.")
    ] = None,
    lengths: Annotated[
        list[int] | None,
        typer.Option(help="Length transfer of causal routing: repeat per length, each a divisor of the longest."),
    ] = None,
    length_blocks: Annotated[int, typer.Option(help="Blocks of the longest length for length transfer.")] = 2,
    blocks: Annotated[int, typer.Option(help="Evenly spaced blocks to use; 0 for all.")] = 32,
    top_k: Annotated[
        list[int] | None,
        typer.Option("--top-k", "-k", help="k to evaluate; may be repeated. Default: 1 and 2."),
    ] = None,
    window: Annotated[int | None, typer.Option("--window", "-w", help="Window; the routers' own if not given.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Also write the JSON to this file.")] = None,
    json_output: JsonOption = False,
) -> None:
    """Perplexity of a text, untouched and routed, and what routing kept.

    Calibrated routing is causal and is what counts. Sequence Sinkhorn, as
    published, looks at the whole text; it is shown for comparison, with
    the difference, the leak, and its bootstrap interval over blocks.

    Example: focus eval --data book.txt -k 1 -k 2 -k 4 --json
    Example: focus eval --data book.txt --lengths 512 --lengths 2048
    """
    import rich

    from focus_core.commands.tables import evaluation_table, leak_lines, length_table
    from focus_core.errors import FocusError
    from focus_core.evaluation import evaluate as run_evaluation
    from focus_core.evaluation import leaks, length_transfer, standard_settings
    from focus_core.models import load_model
    from focus_core.progress import terminal_progress
    from focus_core.results import record_run, stamp, text_records
    from focus_core.routing.attach import attach
    from focus_core.text import find_texts, opening_tokens, read_text, token_blocks, token_windows

    files = find_texts(data)
    texts = [read_text(path) for path in files]
    with terminal_progress() as progress:
        loaded = load_model(model, progress=progress)
        rows_of_text = token_windows(loaded.tokenizer, texts, length, stride or length, max_blocks=blocks or None)
        if not len(rows_of_text):
            raise FocusError(
                f"The text is shorter than one block of {length} tokens: give more, or a smaller --length."
            )
        focus = attach(loaded, routers, untrained=untrained)
        changes: dict[str, Any] = {} if window is None else {"window": window}
        with focus.routing("hard", **changes):
            config = focus.current.config
        planned = config.layer_top_k is not None
        plan = standard_settings(config.num_groups, tuple(top_k or (1, 2)), planned=planned)
        rows = []
        for index, (mode, k, balance) in enumerate(plan):
            progress(f"Evaluating {mode}{f' k={k}' if k else ''} ({index + 1} of {len(plan)})", index / len(plan))
            rows.append(
                run_evaluation(focus, rows_of_text, routing=mode, top_k=k, balance=balance, stride=stride, **changes)
            )
        by_length, longest_tokens = [], 0
        if lengths:
            longest = token_blocks(loaded.tokenizer, texts, max(lengths), max_blocks=length_blocks)
            longest_tokens = longest.size
            causal = [row for row in plan if row[0] == "off" or row[2] == "calibrated"]
            opening = opening_tokens(loaded.tokenizer)
            by_length = length_transfer(
                focus, longest, sorted(set(lengths)), causal, opening=opening, progress=progress
            )
    report = {
        "model": {"name": loaded.info.name, "revision": loaded.info.revision},
        "settings": {
            "config": config,
            "routers": focus.name,
            "trained": focus.trained,
            "length": length,
            "stride": stride or length,
            "blocks": len(rows_of_text),
            "lengths": sorted(set(lengths or [])),
            "length_blocks": length_blocks if lengths else 0,
        },
        "data": text_records(files),
        "results": rows,
        "leak": leaks(rows),
        "length_transfer": by_length,
    }
    record = record_run(out, report) if out else stamp(report)
    if json_output:
        print_json(record)
    else:
        title = f"{loaded.info.name}, routers {focus.name}, T={length}, stride {stride or length}, w={config.window}"
        rich.print(evaluation_table(rows, title))
        rich.print(f"Gate exposure: {rows[0].exposure:.1%} of causal pairs are distant, so that routing can drop them.")
        for line in leak_lines(leaks(rows)):
            rich.print(line)
        if by_length:
            rich.print(length_table(by_length, f"Length transfer on the same {longest_tokens:,} tokens"))
