"""`focus export` and `focus serve`: a folder with routers, and a server over it that OpenAI clients talk to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from focus_core.commands.options import (
    CacheBitsOption,
    FullBelowOption,
    JsonOption,
    device_name,
    full_below_of,
    print_json,
)


def export(
    model: Annotated[str, typer.Argument(help='"default", a folder, a .gguf file, or a hub id.')],
    routers: Annotated[str, typer.Argument(help="A folder that focus train wrote, or the name of shipped routers.")],
    folder: Annotated[Path, typer.Argument(help="A new folder to write.")],
    copy: Annotated[bool, typer.Option("--copy", help="Copy the base model's weights instead of naming it.")] = False,
    full_below: FullBelowOption = "measured",
    cache_bits: CacheBitsOption = None,
    json_output: JsonOption = False,
) -> None:
    """Write a folder that focus serve runs: routers, tokenizer, base model.

    The base model stands there by name and by hashes, which are checked when
    the folder is loaded, as all its files are; --copy takes the weights along.
    Nothing in the folder is code.

    Example: focus export default smollm2-135m-narrow64 served
    """
    from focus_core.progress import terminal_progress
    from focus_core.serving.folder import export_model

    with terminal_progress() as progress:
        record = export_model(
            model,
            routers,
            folder,
            copy=copy,
            full_below=full_below_of(full_below),
            cache_bits=cache_bits,
            progress=progress,
        )
    if json_output:
        print_json(record)
        return
    print(f"Written to {folder}. Serve it with: focus serve {folder}")


def serve(
    folder: Annotated[
        Path, typer.Argument(help="A folder that focus export wrote; also the model's name in requests.")
    ],
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "localhost",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen at.")] = 8000,
    dtype: Annotated[str, typer.Option(help="Of the weights: float32, bfloat16 or float16.")] = "float32",
    device: Annotated[str, typer.Option(parser=device_name, help="auto, cpu, cuda, or one GPU.")] = "auto",
) -> None:
    """Serve an exported folder with the server of Transformers.

    OpenAI clients talk to http://HOST:PORT/v1. Requests are answered one
    after another. There is no password: keep it on this machine, or put a
    proxy before it.

    Example: focus serve served --port 8000
    """
    from focus_core.serving.server import serve as run

    run(folder, host=host, port=port, dtype=dtype, device=device)
