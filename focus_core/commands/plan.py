"""`focus plan`: a k for every layer under one budget of pairs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from focus_core.commands.options import JsonOption, ModelOption, RoutersOption, print_json

RECORD = "plan.json"


def plan(
    data: Annotated[
        list[Path], typer.Option("--data", "-d", help="Text to measure on, such as the training text; repeat for more.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the planned routers; repeat to go on.")],
    budget: Annotated[float, typer.Option(help="Share of distant pairs to keep, mean over layers, between 0 and 1.")],
    model: ModelOption = "default",
    routers: RoutersOption = None,
    length: Annotated[int, typer.Option(help="Context length T in tokens.")] = 1024,
    blocks: Annotated[int, typer.Option(help="Evenly spaced blocks to measure on.")] = 4,
    window: Annotated[int | None, typer.Option("--window", "-w", help="Window; the routers' own if not given.")] = None,
    top_k: Annotated[
        list[int] | None,
        typer.Option(
            "--top-k", "-k", help="k a layer may take beside K, which is all pairs; repeat. Default: 1 and 2."
        ),
    ] = None,
    costs: Annotated[
        Path | None, typer.Option(help="A plan.json whose measured layers to use, for another budget.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Choose each layer's k by what it costs to route that layer alone.

    Layers that hardly mind keep few pairs, those that do attend fully. The
    folder holds the same routers with the plan as their setting, to be
    used like any others, and plan.json with every measurement.

    Example: focus plan -d books/ --budget 0.45 --out runs/planned
    """
    import rich
    from rich.table import Table

    from focus_core.errors import FocusError
    from focus_core.evaluation.plan import LayerCost, layer_costs, plan_layers
    from focus_core.models import load_model
    from focus_core.progress import terminal_progress
    from focus_core.results import record_run, text_records
    from focus_core.routing.attach import attach
    from focus_core.text import find_texts, read_text, token_blocks

    if not 0 < budget <= 1:
        raise FocusError(f"The budget is {budget}: give a share of pairs between 0 and 1.")
    files = find_texts(data)
    top_ks = sorted(set(top_k or (1, 2)))
    with terminal_progress() as progress:
        loaded = load_model(model, progress=progress)
        sample = token_blocks(loaded.tokenizer, [read_text(path) for path in files], length, max_blocks=blocks)
        focus = attach(loaded, routers, untrained=False)
        fixed: dict[str, Any] = {
            "model": {"name": loaded.info.name, "revision": loaded.info.revision},
            "settings": {
                "routers": focus.name,
                "length": length,
                "blocks": len(sample),
                "window": focus.config.window if window is None else window,
                "sink_tokens": focus.config.sink_tokens,
                "top_ks": top_ks,
            },
            "data": text_records(files),
        }
        measured = [LayerCost(**row) for row in _earlier(costs or out / RECORD, fixed, needed=costs is not None)]
        total = len(focus.layers) * len(top_ks)
        for row in layer_costs(focus, sample, top_ks=top_ks, window=window, done=measured):
            measured.append(row)
            record_run(out / RECORD, fixed | {"costs": measured})
            progress(f"Layer {row.layer} at k={row.top_k}", len(measured) / total)
    chosen = plan_layers(measured, budget, focus.config.num_groups)
    table = {(row.layer, row.top_k): row for row in measured}
    picked = [table.get((layer, k)) for layer, k in zip(focus.layers, chosen)]
    expected = {
        "budget": budget,
        "layer_top_k": chosen,
        "kept_share": sum(1.0 if row is None else row.kept_share for row in picked) / len(picked),
        "loss": sum(0.0 if row is None else row.loss for row in picked),
    }
    focus.config = focus.config.replace(layer_top_k=chosen, window=fixed["settings"]["window"])
    focus.save_pretrained(out)
    record = record_run(out / RECORD, fixed | {"costs": measured, "plan": expected})
    if json_output:
        print_json(record)
        return
    shown = Table(title=f"Plan for {budget:.0%} of distant pairs, expected {expected['kept_share']:.1%}")
    for name in ("k", "layers"):
        shown.add_column(name, justify="left")
    for k in sorted(set(chosen)):
        name = "all pairs" if k == focus.config.num_groups else "window and sinks" if k == 0 else str(k)
        shown.add_row(name, ", ".join(str(layer) for layer, own in zip(focus.layers, chosen) if own == k))
    rich.print(shown)
    rich.print(f"Expected loss, if layers add up: {expected['loss']:+.4f} nats. Written to {out}.")


def _earlier(path: Path, fixed: dict[str, Any], *, needed: bool) -> list[dict[str, Any]]:
    """Measured layers of the same settings; a named file must fit, one of an interrupted run at the output too."""
    from focus_core.errors import FocusError

    if not path.is_file() and not needed:
        return []
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        rows, same = record["costs"], all(record[name] == json.loads(json.dumps(fixed[name])) for name in fixed)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FocusError(f"{path} is no record of a plan: give another folder or file.") from error
    if not same:
        raise FocusError(f"{path} was measured with other routers, settings or texts: give another folder.")
    return rows
