"""The command `focus`. Each command is one file in `focus_core.commands` and one line here."""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from focus_core.commands.evidence.bench import bench
from focus_core.commands.evidence.evaluate import evaluate
from focus_core.commands.evidence.frontier import frontier
from focus_core.commands.evidence.harness import harness
from focus_core.commands.evidence.plan import plan
from focus_core.commands.evidence.reproduce import reproduce
from focus_core.commands.evidence.scale import scale
from focus_core.commands.look.align import align
from focus_core.commands.look.analyze import analyze
from focus_core.commands.look.effects import effects
from focus_core.commands.look.report import report
from focus_core.commands.make.app import app as app_command
from focus_core.commands.make.fetch import fetch
from focus_core.commands.make.fit import fit
from focus_core.commands.make.generate import generate
from focus_core.commands.make.serve import export, serve
from focus_core.commands.make.train import train
from focus_core.commands.options import FocusCommand, RayCommand, UsageError, print_json, usage_sentence
from focus_core.errors import FocusError

USER_ERROR = 2
INTERRUPTED = 130
MOVED = {
    "benchmark": "focus benchmark is now: focus harness, with the same options.",
    "lora": "focus lora is now: focus reproduce lora, with the same options; see focus reproduce --help.",
}
"""Old names of commands, and the sentence that answers them."""
SPINS = "2000"
"""Turns of a loop for which a thread of GNU OpenMP waits for work before it sleeps; PyTorch alone: 300,000."""
NO_MEMORY = "There is not enough memory for this: choose shorter lengths, less text at once, or a smaller model."


class _OneSentencePerError(TyperGroup):
    """Turns errors that a user can cause into one sentence on stderr; programming errors show a traceback."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in MOVED:
            raise FocusError(MOVED[args[0]])
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is None:  # closed by a shell
                setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - stays open
            elif isinstance(stream, io.TextIOWrapper):  # a terminal of latin-1 shows ? for what it lacks
                stream.reconfigure(errors="replace")
        return super().main(*args, **kwargs)

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().make_context(*args, **kwargs)
        except UsageError as error:
            if _asks_for_help(error):
                raise
            print(one_line(usage_sentence(error)), file=sys.stderr)
            raise typer.Exit(USER_ERROR) from error

    def invoke(self, ctx: Any) -> Any:
        try:
            found = super().invoke(ctx)
            _flush()
            return found
        except BrokenPipeError:
            raise  # typer ends quietly when the reader of a pipe has gone
        except KeyboardInterrupt as error:
            cause, code, sentence = error, INTERRUPTED, "Stopped."
        except UsageError as error:
            if _asks_for_help(error):
                raise
            cause, code, sentence = error, USER_ERROR, usage_sentence(error)
        except FocusError as error:
            cause, code, sentence = error, USER_ERROR, str(error)
        except OSError as error:
            cause, code, sentence = error, USER_ERROR, os_sentence(error)
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            cause, code, sentence = error, USER_ERROR, NO_MEMORY
        if record := getattr(cause, "record", None):  # of an UnwrittenError, whose module brings torch
            print_json(record)
            sentence += " The record is on standard output instead."
        if ctx.params.get("verbose"):
            traceback.print_exception(cause)
        print(one_line(sentence), file=sys.stderr)
        raise typer.Exit(code)


def wait_briefly(command: str | None) -> None:
    """Have the threads of PyTorch wait for each other briefly, so that another busy process does not hold them up.

    Only where nothing was set and PyTorch is not imported yet. The app has its own rule, and `focus bench` measures
    what a program gets that sets nothing.
    https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html

    Args:
        command: the one that is called.
    """
    if command not in ("app", "bench") and "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)


def _asks_for_help(error: Exception) -> bool:
    """Whether a group of commands was called without one, which shows its help."""
    return type(error).__name__ == "NoArgsIsHelpError"


def _flush() -> None:
    """Write what was printed, so that a full disk is told of and no success is claimed."""
    try:
        sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - Python would try again at its end
        raise


def one_line(sentence: str) -> str:
    """A sentence whose names cannot break the line or steer the terminal."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in sentence)


def out_of_memory(error: MemoryError | RuntimeError) -> bool:
    """Whether Python, NumPy or PyTorch could not get memory. PyTorch raises `RuntimeError` for that of the CPU."""
    words = ("allocate memory", "out of memory", "not enough memory")
    return isinstance(error, MemoryError) or any(each in str(error) for each in words)


def os_sentence(error: OSError) -> str:
    """An error of the operating system in one sentence."""
    where = f" {error.filename}" if error.filename else ""
    if error.errno == errno.ENOMEM:
        return NO_MEMORY
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"The disk is full{' at' + where if where else ''}: free some space and try again."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"No permission for{where or ' a file'}: choose a place where you may read and write."
    return f"The system refused{where or ' a file'}: {error.strerror or error}."


app = typer.Typer(
    name="focus",
    cls=_OneSentencePerError,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def main(
    ctx: typer.Context,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show where in the code an error arose.")] = False,
) -> None:
    """Learned sparse attention for pretrained language models.

    A router in every layer sorts tokens into groups; a token attends to its
    neighbours and to the groups it reads. Start with "focus app" to see the groups
    in the browser, or "focus fetch" to get the default model first.

    Exit status: 0 done, 2 wrong input (one sentence names it), 130 stopped.
    """
    wait_briefly(ctx.invoked_subcommand)


app.command("fetch", cls=FocusCommand)(fetch)
app.command("fit", cls=FocusCommand)(fit)
app.command("train", cls=FocusCommand)(train)
app.command("eval", cls=RayCommand)(evaluate)
app.command("generate", cls=FocusCommand)(generate)
app.command("export", cls=FocusCommand)(export)
app.command("serve", cls=FocusCommand)(serve)
app.command("analyze", cls=RayCommand)(analyze)
app.command("align", cls=RayCommand)(align)
app.command("effects", cls=FocusCommand)(effects)
app.add_typer(bench, name="bench")
app.command("harness", cls=FocusCommand)(harness)
app.command("plan", cls=FocusCommand)(plan)
app.command("scale", cls=FocusCommand)(scale)
app.command("frontier", cls=RayCommand)(frontier)
app.command("report", cls=RayCommand)(report)
app.command("reproduce", cls=FocusCommand)(reproduce)
app.command("app", cls=FocusCommand)(app_command)

if __name__ == "__main__":
    app()
