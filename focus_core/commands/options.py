"""Options that several commands share, with one name and one help text each."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

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
    int, typer.Option("--head", min=0, help="Key/value head to analyze, where each has a router of its own.")
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else there.")
]


def print_json(value: Any) -> None:
    """Write one JSON object to standard output."""
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")
