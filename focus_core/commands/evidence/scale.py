"""`focus scale`: what a model costs on paper."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from focus_core.commands.options import MAX_COUNT, MAX_TOKENS, JsonOption, finite, print_json, refuse_given, show
from focus_core.errors import FocusError

if TYPE_CHECKING:
    from rich.table import Table

Rate = finite(1e3, 1e30)  # focus_core.scale.rates.SLOWEST and FASTEST, whose module brings torch


def scale(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            metavar="MODEL",
            help='135m, 8b or 70b (Llama 3.1), "default", a folder or JSON file with a configuration, or a hub id.',
        ),
    ] = "8b",
    tokens: Annotated[
        list[int] | None,
        typer.Option(min=1, max=MAX_TOKENS, help="Tokens of a text; repeat. Default: 8192, 131072, 1048576."),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="Texts at once.")] = 1,
    share: Annotated[float, typer.Option(parser=finite(0, 1), help="Share of the distant keys that is read.")] = 0.15,
    gpus: Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="Devices that share each layer.")] = 1,
    size: Annotated[int, typer.Option("--bytes", min=1, max=8, help="Bytes of a number in weights and cache.")] = 2,
    sheet: Annotated[str, typer.Option(help="Data sheet of a device: h100. It is not measured.")] = "h100",
    record: Annotated[
        Path | None, typer.Option(help="Rates of a machine that focus bench scale measured, in place of a data sheet.")
    ] = None,
    flops: Annotated[float | None, typer.Option(parser=Rate, help="FLOP/s of a device.")] = None,
    bandwidth: Annotated[float | None, typer.Option(parser=Rate, help="Bytes/s from a device's memory.")] = None,
    network: Annotated[float | None, typer.Option(parser=Rate, help="Bytes/s that a device sends.")] = None,
    json_output: JsonOption = False,
) -> None:
    """Tell what a model of any size costs, without running it.

    FLOPs, bytes and seconds of prefill, decode, analysing and training, for
    the untouched model and for narrow groups, and where these stop paying. A
    data sheet gives bounds: all work at the device's best. docs/scale.md has
    the formulas and their errors.

    Example: focus scale --model 70b --gpus 8 --batch 16 --tokens 131072
    """
    from focus_core.io.reading import read_json
    from focus_core.scale.costs import costs
    from focus_core.scale.pays import limits
    from focus_core.scale.rates import RECORD, SHEETS, Rates
    from focus_core.scale.shapes import find_shape
    from focus_core.scale.times import Cluster, FitRates
    from focus_core.training.fit import narrow_config

    if sheet not in SHEETS:
        raise FocusError(f"There is no data sheet {sheet!r}: choose one of {', '.join(SHEETS)}, or set the rates.")
    rates, fit = SHEETS[sheet], FitRates()
    if record is not None or None not in (flops, bandwidth, network):
        refuse_given(context, ["sheet"], "all rates are given")
    if gpus == 1:
        refuse_given(context, ["network"], "give --gpus")
    elif record is not None and network is None:
        raise FocusError("A record is of one machine: give the --network between --gpus too.")
    if record is not None:
        measured = read_json(record, RECORD)
        rates, fit = Rates.of_record(measured), FitRates.of_record(measured)
    if flops is not None:
        if record is not None:
            raise FocusError("A record has a rate for each kind of work: give --flops or --record.")
        rates = Rates.of_sheet(flops, rates.bandwidth, rates.network)
    given = {"bandwidth": bandwidth, "network": network}
    rates = replace(rates, **{name: value for name, value in given.items() if value is not None})
    on, shape = Cluster(rates, size, gpus), find_shape(model)
    lengths = tokens or (8192, 131072, 1048576)
    config = narrow_config(read_share=share, spread_directions=0)
    found = [costs(shape, each, on, config, batch=batch, fit=fit) for each in lengths]
    pays = limits(shape, on, config, lengths, batch=batch)
    if json_output:
        print_json({"costs": found, "pays": pays})
        return
    show(_table(found), _other(found), _limits(pays))


def _table(found: list[dict[str, Any]]) -> Table:
    """Two lines for each length."""
    from focus_core.commands.tables.plain import plain_table

    first = found[0]
    title = f"{first['model']}, batch {first['batch']}, {first['devices']} devices, on paper"
    names = ("tokens", "attention", "prefill PFLOP", "prefill s", "cache GB", "step ms", "gain prefill", "gain decode")
    table = plain_table(title, *names, left=("attention",))
    for row in found:
        for name in ("untouched", "narrow"):
            own, gain = row[name], row["gain"]
            table.add_row(
                f"{row['tokens']:,}" if name == "untouched" else "",
                "full" if name == "untouched" else f"{row['share']:.0%}",
                f"{own['prefill_flops'] / 1e15:,.3g}",
                f"{own['prefill_s']:,.3g}",
                f"{own['cache_bytes'] / 1e9:,.3g}",
                f"{own['step_s'] * 1e3:,.3g}",
                *(("", "") if name == "untouched" else (f"{gain['prefill']:.2f}", f"{gain['decode']:.2f}")),
            )
    return table


def _other(found: list[dict[str, Any]]) -> Table:
    """Analysing and training, a line for each length."""
    from focus_core.commands.tables.plain import plain_table

    names = ("tokens", "trace s", "fit s", "mass s", "lm s", "layer's weights GB", "mass sends GB", "lm sends GB")
    table = plain_table("Analysing a text, and a step of training on one block", *names)
    for row in found:
        mass, lm = row["training"]["mass"], row["training"]["lm"]
        cells = (*row["analysing"].values(), mass["seconds"], lm["seconds"])
        sizes = (mass["attention_bytes"], mass["sent_bytes"], lm["sent_bytes"])
        table.add_row(
            f"{row['tokens']:,}", *(f"{each:,.3g}" for each in cells), *(f"{each / 1e9:,.3g}" for each in sizes)
        )
    return table


def _limits(pays: dict[str, Any]) -> Table:
    """Where narrow groups stop paying, a line for each length."""
    from focus_core.commands.tables.plain import plain_table

    def number(value: float | None, shown: str) -> str:
        return "none" if value is None else format(value, shown)

    prefill, decode = (number(pays[f"{name}_tokens"], ",") for name in ("prefill", "decode"))
    names = ("tokens", "prefill share up to", "decode share up to", "decode batch from", "decode TB/s up to")
    table = plain_table(f"They pay in prefill from {prefill} tokens, in decode from {decode}", *names)
    table.caption = f"In endless texts prefill pays up to a share of {pays['endless_share']:.0%}."
    for row in pays["at"]:
        table.add_row(
            f"{row['tokens']:,}",
            number(row["prefill_share"], ".0%"),
            number(row["decode_share"], ".0%"),
            number(row["decode_batch"], ","),
            f"{row['decode_bandwidth'] / 1e12:,.3g}",
        )
    return table
