"""Options that several commands share, with one name and one help text each."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from focus_core.files import to_json
from focus_core.schema import Wrong, number, whole

if TYPE_CHECKING:
    from rich.console import RenderableType

MAX_SEED = 2**32 - 1
"""Largest seed that every generator takes."""
MAX_TOKENS = 2**24
"""Longest text, window or length of a benchmark, in tokens."""
MAX_COUNT = 10**9
"""Largest number of steps, blocks or repetitions."""
MAX_GROUPS = 4096
"""Largest K, as in `FocusConfig`."""


def finite(
    low: float | None = None, high: float | None = None, *, above: float | None = None
) -> Callable[[str | float], float]:
    """A parser of an option: a finite number in a range. Ranges of typer let NaN through."""
    check = number(low, high, above=above)

    def parse(given: str | float) -> float:
        try:
            value = float(given)
            check(value, "it")
        except Wrong as error:
            raise typer.BadParameter(f"{error}.") from error
        except ValueError as error:
            raise typer.BadParameter(f"{given!r} is no number.") from error
        return value

    parse.__name__ = "FLOAT"  # shown in the help
    return parse


def device_name(given: str) -> str:
    """A parser of an option: auto, cpu, cuda, or one GPU such as cuda:1."""
    if given not in ("auto", "cpu", "cuda") and not re.fullmatch(r"cuda:\d{1,3}", given):
        raise typer.BadParameter(f"{given!r} is none: choose cpu or cuda.")
    return given


device_name.__name__ = "DEVICE"

ModelOption = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        metavar="MODEL",
        help='"default" (SmolLM2-135M-Instruct), a folder, a .gguf file, or a hub id such as gpt2.',
    ),
]
RoutersOption = Annotated[
    str | None,
    typer.Option(
        "--routers",
        "-r",
        metavar="FOLDER-OR-NAME",
        help="Trained routers: a folder that focus train wrote, or the name of shipped ones, such as smollm2-135m-k8. "
        "Default: those shipped for the model.",
    ),
]
UntrainedOption = Annotated[bool, typer.Option("--untrained", help="Use untrained routers (seed 0).")]
HeadOption = Annotated[
    int,
    typer.Option("--head", min=0, max=MAX_COUNT, help="Key/value head to analyze, where each has a router of its own."),
]
FullBelowOption = Annotated[
    str,
    typer.Option(
        "--full-below",
        metavar="TOKENS",
        help='Earlier tokens attend to everything: a number, or "measured", once on each machine. Narrow groups only.',
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else there.")
]


def full_below_of(given: str) -> int | None:
    """The number that `--full-below` gives; None for the measured one."""
    if given == "measured":
        return None
    try:
        value = int(given)
        whole(0, MAX_TOKENS)(value, "it")
    except Wrong as error:
        raise typer.BadParameter(f"{error}.", param_hint="--full-below") from error
    except ValueError as error:
        hint = f"{given!r} is no number of tokens: give one, or measured."
        raise typer.BadParameter(hint, param_hint="--full-below") from error
    return value


def print_json(value: Any) -> None:
    """Write one JSON object to standard output."""
    text = to_json(value)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(json.loads(text), indent=2)
    sys.stdout.write(text + "\n")


def show(*tables: RenderableType) -> None:
    """Print tables. Names and paths in them are text: brackets are no markup."""
    from rich.console import Console

    console = Console(markup=False, emoji=False)
    for table in tables:
        console.print(table)
