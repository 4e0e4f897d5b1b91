"""`focus effects`: does a group change the predictions, more than chance?"""

from __future__ import annotations

from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from focus_core.commands.options import (
    MAX_COUNT,
    MAX_SEED,
    HeadOption,
    JsonOption,
    ModelOption,
    RoutersOption,
    UntrainedOption,
    print_json,
    show,
)

if TYPE_CHECKING:
    from rich.table import Table

    from focus_core.analysis.interventions.run import TextEffects

_MOST_TOKENS = 1024  # focus_core.analysis.interventions.experiment.MAX_TOKENS, whose module brings torch


def effects(
    text_file: Annotated[Path, typer.Argument(help="A UTF-8 text file.")],
    layer: Annotated[int, typer.Option(min=0, max=MAX_COUNT, help="Layer of the groups.")],
    head: HeadOption = 0,
    groups: Annotated[
        list[int] | None,
        typer.Option("--group", "-g", min=0, max=MAX_COUNT, help="A group; repeat for more. Default: the 8 largest."),
    ] = None,
    model: ModelOption = "default",
    routers: RoutersOption = None,
    untrained: UntrainedOption = False,
    kind: Annotated[
        str, typer.Option(help="knock-out (distant links removed) or force (every query reads the group).")
    ] = "knock-out",
    chance: Annotated[
        str, typer.Option(help="Compare with as many random keys, or as many random links (for a knock-out).")
    ] = "keys",
    draws: Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="Random sets per group, at most.")] = 199,
    tokens: Annotated[int, typer.Option(min=2, max=_MOST_TOKENS, help="Tokens from the beginning of the text.")] = 512,
    target: Annotated[
        list[int] | None,
        typer.Option(min=1, max=MAX_COUNT, help="Place of a token whose prediction to follow; repeat for more."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of the random sets.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the record to this JSON file; resume it if it exists.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Remove or force a group's distant links and measure the predictions.

    KL and loss are compared with the same run without the intervention.
    Chance is as many random keys of the same layer and head.
    p-values are of permutations, by Holm's method over the groups.

    Example: focus effects story.txt --layer 15 --head 1 --out effects.json
    """
    from focus_core.analysis.interventions.groups import EffectSettings
    from focus_core.analysis.interventions.run import effects_of_text
    from focus_core.progress import terminal_progress
    from focus_core.text import read_text

    settings = EffectSettings(kind=kind, chance=chance, draws=draws, seed=seed, targets=tuple(target or ()))
    with terminal_progress() as progress:
        found = effects_of_text(
            read_text(text_file),
            layer=layer,
            head=head,
            groups=groups or (),
            model=model,
            routers=routers,
            untrained=untrained,
            settings=settings,
            tokens=tokens,
            out=out,
            progress=progress,
        )
    if json_output:
        print_json(found.record)
    else:
        show(_table(found))


def _table(found: TextEffects) -> Table:
    """One line per group: its keys, the effect on KL and loss, the range of chance, and p-values."""
    from rich.box import SIMPLE
    from rich.table import Table

    from focus_core.analysis.routed_text import how_made

    settings = found.record["settings"]
    made = how_made(settings["config"]["router"], trained=settings["trained"])
    table = Table(
        title=f"{settings['kind']} in layer {settings['layer']}, head {settings['head']}: {settings['tokens']} tokens, "
        f"routers {settings['routers']} ({made})",
        caption="KL and loss in thousandths of a nat per token. Chance: the middle 95% of random sets. p by Holm.",
        box=SIMPLE,
        padding=(0, 0, 0, 1),  # so that figures fit into 80 columns
    )
    for name in ("group", "keys", "KL", "chance", "p", "loss", "chance", "p"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in found.table.to_dict("records"):
        cells = []
        for name in ("kl", "loss"):
            effect, low, high, p = (row[each] for each in (name, f"{name} low", f"{name} high", f"{name} p (Holm)"))
            # A group without keys has no links to remove, so nothing to compare with.
            unknown = any(each is None or isnan(each) for each in (low, high, p))
            chance = ["–", "–"] if unknown else [f"{1000 * low:.1g} to {1000 * high:.1g}", f"{p:.3f}"]
            cells += [f"{1000 * effect:.2g}", *chance]
        table.add_row(str(row["group"]), str(row["keys"]), *cells)
    return table
