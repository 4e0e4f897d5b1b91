"""Routers on disk: `routers.safetensors` beside `focus_config.json`, nothing of the base model."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from focus_core.config import FocusConfig
from focus_core.errors import FocusError

if TYPE_CHECKING:
    from focus_core.retrofitting import FocusModel

WEIGHTS = "routers.safetensors"
CONFIG = "focus_config.json"
FORMAT = 1


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The full tensor of one that FSDP has sharded; all processes must ask together. Any other as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def weights_fingerprint(module: nn.Module) -> str:
    """Short hash that identifies a module's weights, the same on every device and in float32 or bfloat16.

    Hashes name, shape and 64 evenly spaced values of every parameter, rounded to bfloat16: cheap on any model, and
    different for any two that were trained apart.
    """
    digest = hashlib.sha256()
    for name, parameter in sorted(module.named_parameters()):
        flat = whole(parameter.detach()).reshape(-1)
        step = max(1, flat.numel() // 64)
        sample = flat[::step][:64].to("cpu", torch.bfloat16).view(torch.int16).numpy()
        digest.update(f"{name}{tuple(parameter.shape)}".encode())
        digest.update(sample.tobytes())
    return digest.hexdigest()[:12]


def routers_hash(focus: FocusModel) -> str:
    """Short hash over all values of the routers, potentials included."""
    digest = hashlib.sha256()
    for name, tensor in sorted(focus.routers.state_dict().items()):
        digest.update(name.encode())
        digest.update(whole(tensor.detach()).to("cpu", torch.float32).numpy().tobytes())
    return digest.hexdigest()[:12]


def _architecture(model: PreTrainedModel) -> dict[str, Any]:
    text = model.config.get_text_config()
    return {
        "class": type(model).__name__,
        "hidden_size": text.hidden_size,
        "num_layers": text.num_hidden_layers,
    }


def save_routers(focus: FocusModel, folder: Path, *, write: bool = True) -> None:
    """Write a model's routers to a folder; each file appears whole or not at all.

    Args:
        focus: the model.
        folder: created if needed.
        write: False in all processes but one of a sharded model, which call this only to hand over their shards.

    Raises:
        OSError: the folder cannot be written.
    """
    record = {
        "format": FORMAT,
        "trained": focus.trained,
        "base": {**_architecture(focus.model), "fingerprint": weights_fingerprint(focus.model)},
        "routing": json.loads(focus.config.to_json()),
    }
    state = focus.routers.state_dict()
    tensors = {name: whole(tensor.detach()).cpu().contiguous() for name, tensor in state.items()}
    if not write:
        return
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{WEIGHTS}.partial"
    save_file(tensors, partial, metadata={"format": "pt"})
    partial.replace(folder / WEIGHTS)
    partial = folder / f"{CONFIG}.partial"
    partial.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    partial.replace(folder / CONFIG)


def load_routers(model: PreTrainedModel, folder: Path) -> FocusModel:
    """Attach saved routers to a model.

    Raises:
        FocusError: no such folder, damaged files, or routers of another model or shape.
    """
    from focus_core.retrofitting import FocusModel

    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise FocusError(f"{folder} has no {name}: give the folder that training wrote its routers to.")
    record = _read_record(folder)
    config = saved_config(folder)
    here, there = _architecture(model), record["base"]
    for key, what in (("class", "a"), ("hidden_size", "width"), ("num_layers", "layers:")):
        if here[key] != there.get(key):
            raise FocusError(
                f"The routers in {folder} belong to another model ({what} {there.get(key)}, this one is "
                f"{what} {here[key]}): load the model they were trained on, or train new ones."
            )
    try:
        tensors = load_file(folder / WEIGHTS)
    except (SafetensorError, OSError, ValueError) as error:
        raise FocusError(f"{folder / WEIGHTS} is damaged or no safetensors file: copy it again.") from error
    focus = FocusModel(model, config, seed=0)
    try:
        _fill(focus, tensors, folder)
    except FocusError:
        focus.detach()
        raise
    focus.trained = bool(record.get("trained"))
    focus.name = folder.resolve().name
    focus.base_matches = there.get("fingerprint") == weights_fingerprint(model)
    return focus


def saved_config(folder: Path) -> FocusConfig:
    """The settings of saved routers, without loading them.

    Raises:
        FocusError: the configuration is damaged.
    """
    return FocusConfig.from_json(json.dumps(_read_record(folder)["routing"]))


def saved_heads(folder: Path) -> int:
    """Key/value heads that saved routers per head were made for, read without the weights.

    Raises:
        FocusError: the file is damaged.
    """
    try:
        with safe_open(folder / WEIGHTS, "pt") as file:
            return min(file.get_slice(name).get_shape()[0] for name in file.keys() if name.endswith(".projection"))  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise FocusError(f"{folder / WEIGHTS} is damaged or no safetensors file: copy it again.") from error


def _read_record(folder: Path) -> dict[str, Any]:
    try:
        record = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FocusError(f"{folder / CONFIG} is not valid JSON: the file is damaged, copy it again.") from error
    if not isinstance(record, dict) or not all(isinstance(record.get(key), dict) for key in ("routing", "base")):
        raise FocusError(f"{folder / CONFIG} does not describe routers: give a folder that training wrote.")
    if record.get("format") != FORMAT:
        raise FocusError(f"{folder / CONFIG} has format {record.get('format')}: this version reads format {FORMAT}.")
    return record


def _fill(focus: FocusModel, tensors: dict[str, torch.Tensor], folder: Path) -> None:
    expected = {name: tuple(tensor.shape) for name, tensor in focus.routers.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if found != expected:
        differing = sorted(name for name in expected | found if expected.get(name) != found.get(name))[0]
        raise FocusError(
            f"The routers in {folder} do not fit their own configuration at '{differing}' "
            f"({found.get(differing, 'missing')} instead of {expected.get(differing, 'nothing')}): copy them again."
        )
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
        raise FocusError(f"The routers in {folder} contain values that are not finite: train them again.")
    focus.routers.load_state_dict(tensors)
