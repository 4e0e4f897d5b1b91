"""Options that several commands share, with one name and one help text each."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from focus_core.errors import FocusError
from focus_core.io.files import to_json
from focus_core.io.schema import Wrong, number, whole

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from focus_core.cluster import Cluster

MAX_SEED = 2**32 - 1
"""Largest seed that every generator takes."""
MAX_TOKENS = 2**24
"""Longest text, window or length of a benchmark, in tokens."""
MAX_COUNT = 10**9
"""Largest number of steps, blocks or repetitions."""
MAX_GROUPS = 4096
"""Largest K, as in `FocusConfig`."""
MAX_DIRECTIONS = 16
"""Most directions of spread, as in `FocusConfig`."""


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


UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""What a wrong command line raises; typer has no public name for it."""


def usage_sentence(error: Any) -> str:
    """A `UsageError` in one sentence: the option, and what it may be."""
    parameter, message = getattr(error, "param", None), str(error.format_message()).rstrip(".")
    words = []
    context = error.ctx
    while context is not None and context.parent is not None:
        words.append(context.info_name)
        context = context.parent
    see = f"see {' '.join(['focus', *reversed(words)])} --help."
    if hint := getattr(error, "param_hint", None):
        return f"{hint}: {error.message}"
    if parameter is None or error.message == "":  # none is one that is missing
        return f"{message}: {see}"
    name = parameter.opts[0] if parameter.param_type_name == "option" else parameter.human_readable_name
    low, high = (getattr(parameter, end, None) for end in ("min", "max"))
    if low is not None and high is not None:
        return f"{name} must be {low}." if low == high else f"{name} must be a whole number from {low:,} to {high:,}."
    return f"{name}: {str(error.message).rstrip('.')}."


def given(context: typer.Context, name: str) -> bool:
    """Whether the user gave an option, in place of its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def refuse_given(context: typer.Context, names: Iterable[str], instead: str) -> None:
    """Refuse options that would change nothing in this call.

    Args:
        context: of the command.
        names: of their parameters.
        instead: what they need, such as "give --trainer".

    Raises:
        FocusError: the user gave one of them.
    """
    for name in names:
        if given(context, name):
            option = next(each.opts[0] for each in context.command.params if each.name == name)
            raise FocusError(f"{option} changes nothing here: {instead}, or leave it out.")


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
        help="A folder that focus fit or focus train wrote, or the name of shipped routers, such as "
        "smollm2-135m-narrow64. Default: those shipped for the model.",
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
        help="Earlier tokens attend to everything: a number, for all texts, or "
        '"measured" on this machine, for prompts with fewer tokens. Narrow groups only.',
    ),
]
BenchFullBelowOption = Annotated[
    str,
    typer.Option(
        "--full-below",
        metavar="TOKENS",
        help="Narrow groups only, of a further run in which earlier tokens of all texts attend to everything: a "
        'number, 0 for no such run, or "measured" on this machine.',
    ),
]
CacheBitsOption = Annotated[
    int | None,
    typer.Option("--cache-bits", min=8, max=8, help="8 keeps the distant text in less memory. Narrow groups only."),
]
DeviceOption = Annotated[str, typer.Option(parser=device_name, help="cpu or cuda; auto takes a GPU if there is one.")]
TextOption = Annotated[Path | None, typer.Option("--data", "-d", help="Text to read. Default: the sample story.")]
RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="[ADDRESS]",
        help="Route on a Ray cluster that this machine is a node of: the address of its head, host:6379, or auto. "
        "Without an address on one of this machine's own cores.",
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        min=1, max=MAX_COUNT, help="With --ray: workers. Default: one a core, or fewer where memory is short."
    ),
]
RecordOption = Annotated[
    str | None,
    typer.Option(
        "--out",
        "-o",
        metavar="FILE",
        help="Also write the record to this JSON file, or to an s3:// or gs:// address of one.",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else there.")
]


class FocusCommand(TyperCommand):
    """A command that refuses empty values, as of an unset variable of a shell: `-o ""` would be the current folder."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Check what is given, and parse it."""
        values = self.make_parser(ctx).parse_args(args=list(args))[0]
        for parameter in self.get_params(ctx):
            value = values.get(parameter.name)
            if "" in (value if isinstance(value, list | tuple) else [value]) and parameter.default != "":
                name = parameter.opts[0] if parameter.param_type_name == "option" else parameter.name
                raise FocusError(f"{name} is empty: give a value, or leave it out.")
        return super().parse_args(ctx, args)


class RayCommand(FocusCommand):
    """A command whose `--ray` may stand without an address."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give a `--ray` that no address follows that of a local cluster."""
        from focus_core.cluster import ADDRESS, LOCAL

        given: list[str] = []
        for arg in args:
            if arg and given[-1:] == ["--ray"] and "--" not in given and not ADDRESS.fullmatch(arg):
                given.append(LOCAL)
            given.append(arg)
        return super().parse_args(ctx, [*given, LOCAL] if given[-1:] == ["--ray"] else given)


def cluster_of(ray: str | None, workers: int | None) -> Cluster | None:
    """The cluster that `--ray` and `--workers` name."""
    from focus_core.cluster import Cluster

    if ray is None:
        if workers is not None:
            raise FocusError("--workers belongs to a cluster: add --ray, or omit it.")
        return None
    return Cluster(ray, workers)


@contextmanager
def results_alone(cluster: Cluster | None) -> Iterator[None]:
    """Send what others print to standard error while a cluster works: Ray writes of lost workers, whatever it is told.

    What the command prints comes after.
    """
    if cluster is None:
        yield
        return
    with redirect_stdout(sys.stderr):
        yield


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


def slashed(text: str, count: int, name: str, example: str) -> Any:
    """A tuple of `count` whole numbers, from text such as "8/2".

    Raises:
        FocusError: it is something else.
    """
    parts = text.split("/")
    if len(parts) != count or not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise FocusError(f"{name} is {text!r}: write it as {example}.")
    return tuple(int(part) for part in parts)


def print_json(value: Any) -> None:
    """Write one JSON object to standard output."""
    text = to_json(value)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(json.loads(text), indent=2)
    sys.stdout.write(text + "\n")


def show_failed(failed: list[dict[str, str]]) -> None:
    """Print the documents that failed, each with its reason; nothing if there are none."""
    if failed:
        print(f"{len(failed):,} {'document' if len(failed) == 1 else 'documents'} could not be read:")
    for each in failed:
        print(f"  {each['document']}: {each['reason']}")


def show(*tables: RenderableType) -> None:
    """Print tables. Names and paths in them are text: brackets are no markup."""
    from rich.console import Console

    console = Console(markup=False, emoji=False)
    for table in tables:
        console.print(table)


def chosen_device(name: str) -> str:
    """The name of a device; for "auto" that of a GPU if there is one."""
    import torch

    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name


def print_record(
    record: dict[str, Any], table: Callable[[dict[str, Any]], Table], out: Path, json_output: bool
) -> None:
    """Print a record that was written to a file, as JSON or as a table."""
    if json_output:
        return print_json(record)
    show(table(record))
    print(f"Written to {out}.")
