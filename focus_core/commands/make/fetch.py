"""`focus fetch`: get a model onto this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from focus_core.commands.options import JsonOption, ModelOption, print_json, refuse_given


def fetch(
    context: typer.Context,
    model: ModelOption = "default",
    verify: Annotated[
        bool, typer.Option("--verify", help="Also check the SHA-256 of weights that are there already.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Download a model once, so that all other commands work without a network.

    The default model is 93 MB to download and takes 542 MB on the disk. It
    goes to the user's cache folder, or to the folder in the environment
    variable FOCUS_CACHE. A model that is there is not downloaded again.
    """
    from focus_core.models import default_model
    from focus_core.progress import terminal_progress

    if model in ("default", default_model.NAME):
        with terminal_progress() as progress:
            folder = default_model.fetch_default_model(progress, thorough=verify)
        found = {
            "model": default_model.NAME,
            "source": "default",
            "revision": default_model.REVISION,
            "folder": str(folder),
            "bytes": folder_bytes(folder),
        }
    else:
        refuse_given(context, ["verify"], "the hashes of the default model alone are known")
        from focus_core.models import load_model

        info = load_model(model).info  # loading is the check: a decoder, complete, with a tokenizer
        place = Path(model).expanduser()
        found = {
            "model": info.name,
            "source": info.source,
            "revision": info.revision,
            "folder": str(place) if place.exists() else None,
            "bytes": folder_bytes(place) if place.exists() else None,
        }
    if as_json:
        print_json(found)
    elif found["folder"] is None:
        print(f"{found['model']} ({found['revision']}): ready, in the Hugging Face cache")
    else:
        size = found["bytes"] / 1e6
        print(f"{found['model']} ({found['revision']}): ready, {size:,.0f} MB in {found['folder']}")


def folder_bytes(path: Path) -> int:
    """Bytes in a file, or in the files of a folder."""
    files = [path] if path.is_file() else [entry for entry in path.rglob("*") if entry.is_file()]
    return sum(file.stat().st_size for file in files)
