"""A folder to serve: routers, tokenizer, and the base model by reference or as a copy.

Its `config.json` has the model type "focus", which only `focus_core.serving.register` knows. Transformers alone
refuses the folder; it cannot serve the base model without its routers by mistake.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from typing import Any

import torch
from torch import Tensor

from focus_core.bench.crossover import crossover
from focus_core.errors import FocusError
from focus_core.io.files import to_json, write_atomic
from focus_core.io.locks import claim_file
from focus_core.io.reading import file_sha256, read_json, regular
from focus_core.io.schema import anything, maybe, table, text, whole
from focus_core.models import LoadedModel, load_model
from focus_core.models.default_model import NAME
from focus_core.models.loading import weights_revision
from focus_core.progress import Progress, silent
from focus_core.routing.attach import attached
from focus_core.routing.config import MOST_TOKENS
from focus_core.routing.model import FocusModel
from focus_core.routing.narrow.compiling import compile_ahead

CONFIG = "config.json"
TYPE = "focus"
CLASS = "FocusForCausalLM"
FORMAT = 2
PARTIAL = ".partial"
ROUTERS = "routers"
BASE = "base"

_EXPORT = table(
    {
        "model_type": text(),
        "format": whole(1),
        "base": table({"model": maybe(text()), "revision": text(), "configuration": text()}),
        "files": table(values=text()),
    },
    {"full_below": maybe(whole(0, MOST_TOKENS)), "cache_bits": maybe(whole(8, 8)), "architectures": anything},
)


def export_model(
    model: str | Path | LoadedModel,
    routers: str | Path | None,
    folder: Path,
    *,
    copy: bool = False,
    full_below: int | None = None,
    cache_bits: int | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Write a folder that `focus serve` runs.

    Args:
        model: a loaded model of a known place, or a name that `load_model` accepts.
        routers: a folder or a shipped name; None for those shipped for the model.
        folder: must be new or empty.
        copy: write the base model's weights too; otherwise its name, and the hash of its weights.
        full_below: earlier tokens attend to everything; None for `full_below_for` each prompt, on the machine that
            serves.
        cache_bits: 8 keeps distant keys and values in 8 bits, with narrow groups; None as the routers say.
        progress: told of loading.

    Returns:
        What `config.json` holds.

    Raises:
        FocusError: the folder has files, the model or routers cannot be loaded or do not fit each other, or the
            model has no name to refer to.
        OSError: the folder cannot be written.
    """
    folder = folder.absolute()
    beside = folder.with_name(f".{folder.name}{PARTIAL}")
    # Held beside the folder, which must be empty; a run that was stopped leaves a partial folder that the next removes.
    with claim_file(beside):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise FocusError(f"{folder} is not empty: name a new folder.")
        partial = beside.with_name(f"{beside.name}.d")
        rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            record = _export(
                model, routers, partial, copy=copy, full_below=full_below, cache_bits=cache_bits, progress=progress
            )
            if folder.exists():
                folder.rmdir()
            partial.rename(folder)
        finally:
            rmtree(partial, ignore_errors=True)
    return record


def _export(
    model: str | Path | LoadedModel,
    routers: str | Path | None,
    folder: Path,
    *,
    copy: bool,
    full_below: int | None,
    cache_bits: int | None,
    progress: Progress,
) -> dict[str, Any]:
    """What `export_model` writes, in a folder of any name."""
    with attached(model, routers, progress=progress) as (loaded, focus):
        # Refuses what routers without narrow groups do not have.
        focus.config.replace(full_below=full_below or 0, cache_bits=cache_bits)
        name = None if copy else _reference(model, loaded)
        loaded.tokenizer.save_pretrained(folder)
        focus.save_pretrained(folder / ROUTERS)
    revision = loaded.info.revision
    if copy:  # without its routers, so that nothing of them gets into its configuration
        loaded.model.save_pretrained(folder / BASE)
        loaded.tokenizer.save_pretrained(folder / BASE)
        revision = weights_revision(folder / BASE)
    record = {
        "model_type": TYPE,
        "architectures": [CLASS],
        "format": FORMAT,
        "base": {"model": name, "revision": revision, "configuration": "" if copy else loaded.info.configuration},
        "full_below": full_below,
        "cache_bits": cache_bits,
        "files": _hashes(folder),
    }
    write_atomic(folder / CONFIG, to_json(record) + "\n")
    return record


def load_export(
    folder: Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu", progress: Progress = silent
) -> tuple[LoadedModel, FocusModel]:
    """The model of an exported folder with its routers attached, attending as the folder says.

    Args:
        folder: that `export_model` wrote.
        dtype: of the weights.
        device: of the model.
        progress: told of loading.

    Raises:
        FocusError: as `read_export`, or a base model that is missing or has changed.
    """
    record = read_export(folder)
    base = record["base"]
    place = base["model"] or str(folder / BASE)
    loaded = load_model(place, dtype=dtype, device=device, progress=progress)
    if loaded.info.revision != base["revision"]:
        raise FocusError(
            f"The base model {place} has revision {loaded.info.revision}, and {folder} was written for "
            f"{base['revision']}: export it again."
        )
    if base["configuration"] not in ("", loaded.info.configuration):
        raise FocusError(
            f"{place} has another configuration or tokenizer than {folder} was written for: export it again."
        )
    focus = FocusModel.from_pretrained(loaded.model, folder / ROUTERS)
    cache_bits = record.get("cache_bits") or focus.config.cache_bits
    if (full_below := record.get("full_below")) is None:
        full_below = crossover(focus, progress=progress)
        served: Any = focus.model
        served.generate = _by_prompt(focus)
    focus.attend(full_below=full_below, cache_bits=cache_bits)
    compile_ahead(focus, progress=progress)
    return loaded, focus


def _by_prompt(focus: FocusModel) -> Callable[..., Any]:
    """The model's `generate`, which routes prompts of `full_below` tokens or more from their first one.

    So `full_below_for` wants it. A cache that is given goes on as it began.
    """
    generate: Any = focus.model.generate

    def generate_by_prompt(inputs: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        ids = kwargs.get("input_ids") if inputs is None else inputs
        current = focus.current
        short = ids is None or ids.shape[-1] < current.config.full_below
        if short or current.mode != "hard" or kwargs.get("past_key_values") is not None:
            return generate(inputs, *args, **kwargs)
        changes = current.config.replace(full_below=0).changes_from(focus.config)
        with focus.routing("hard", backend=current.backend, rule=current.rule, **changes):
            return generate(inputs, *args, **kwargs)

    return generate_by_prompt


def read_export(folder: Path) -> dict[str, Any]:
    """What `config.json` of an exported folder holds, with every other file as it says.

    Raises:
        FocusError: no such folder, one of another version, or a file that is missing, new or changed.
    """
    if not (folder / CONFIG).is_file():
        raise FocusError(f"{folder} has no {CONFIG}: name a folder that focus export wrote.")
    record = read_json(folder / CONFIG, table(), finite=False)
    if record.get("model_type") != TYPE:
        raise FocusError(f"{folder} is not an exported folder: write one with focus export.")
    if (found := record.get("format")) != FORMAT:
        raise FocusError(f"{folder / CONFIG} has format {found!r}, and this version reads {FORMAT}: export it again.")
    record = read_json(folder / CONFIG, _EXPORT)
    if changed := _changed(record["files"], _hashes(folder)):
        raise FocusError(f"{folder / changed} is not the file that was exported: export the folder again.")
    return record


def _hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of the files of an exported folder by their place, without `config.json`, which holds them."""
    files = sorted(path for path in folder.rglob("*") if not path.is_dir() and not path.name.startswith("."))
    places = {path.relative_to(folder).as_posix(): path for path in files}
    return {place: file_sha256(regular(path)) for place, path in places.items() if place != CONFIG}


def _changed(stored: dict[str, str], found: dict[str, str]) -> str | None:
    """A file that is missing, new or changed; None if all are as stored."""
    return next((name for name in sorted({*stored, *found}) if stored.get(name) != found.get(name)), None)


def _reference(model: str | Path | LoadedModel, loaded: LoadedModel) -> str:
    """The spelling under which the base model is found again, from any working directory."""
    if loaded.info.source == "default":
        return NAME
    if isinstance(model, LoadedModel):
        raise FocusError("A model that is loaded already has no name to refer to: give its name, or copy it.")
    return str(model) if loaded.info.source == "hub" else str(Path(model).expanduser().resolve())
