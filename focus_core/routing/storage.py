"""Routers on disk: `routers.safetensors` beside `focus_config.json`, nothing of the base model."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from focus_core.errors import FocusError
from focus_core.io.files import atomic_path, to_json, write_atomic
from focus_core.io.reading import read_json, read_tensors, regular
from focus_core.io.schema import Wrong, flag, table
from focus_core.io.schema import whole as whole_number
from focus_core.models.configuration import model_configuration
from focus_core.routing.config import FocusConfig
from focus_core.routing.routers import ROUTERS
from focus_core.shipped import CONFIG

WEIGHTS = "routers.safetensors"
FORMAT = 1


class OtherModelError(FocusError):
    """Routers of a model of another architecture."""


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The full tensor of one that FSDP has sharded, in all processes together; any other tensor unchanged."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def weights_fingerprint(module: nn.Module) -> str:
    """Short hash that identifies a module's weights, the same on every device and in float32 or bfloat16.

    Hashes name, shape and 64 evenly spaced values of every parameter, rounded to bfloat16. Cheap on any model, and
    different after any training.
    """
    digest = hashlib.sha256()
    for name, parameter in sorted(module.named_parameters()):
        flat = whole(parameter.detach()).reshape(-1)
        step = max(1, flat.numel() // 64)
        sample = flat[::step][:64].to("cpu", torch.bfloat16).view(torch.int16).numpy()
        digest.update(f"{name}{tuple(parameter.shape)}".encode())
        digest.update(sample.tobytes())
    return digest.hexdigest()[:12]


def weights_hash(module: nn.Module) -> str:
    """SHA-256 over all values of a module's parameters and buffers; the part of FSDP in all processes together."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        if not tensor.is_meta:  # another process of a sharded model holds the values
            digest.update(whole(tensor.detach()).cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def model_hash(model: PreTrainedModel) -> str:
    """SHA-256 over a model's weights and configuration, which together decide what it computes."""
    return hashlib.sha256(f"{weights_hash(model)} {model_configuration(model)}".encode()).hexdigest()


def routers_hash(routers: nn.Module) -> str:
    """Short hash over all values of the routers, potentials included."""
    digest = hashlib.sha256()
    for name, tensor in sorted(routers.state_dict().items()):
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


@dataclass(frozen=True)
class SavedRouters:
    """The contents of a folder of routers, checked against the model that they will be attached to.

    Attributes:
        folder: where they were read.
        config: their settings.
        tensors: their values by name.
        trained: False for routers that were only initialised.
        base_matches: False if they were trained on other weights of the same architecture.
    """

    folder: Path
    config: FocusConfig
    tensors: dict[str, torch.Tensor]
    trained: bool
    base_matches: bool

    def fill(self, routers: nn.Module) -> None:
        """Copy the values into routers made with the same settings.

        Raises:
            FocusError: names or shapes differ, or a value is not finite.
        """
        expected = {name: tuple(tensor.shape) for name, tensor in routers.state_dict().items()}
        found = {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}
        if found != expected:
            differing = sorted(name for name in expected | found if expected.get(name) != found.get(name))[0]
            raise FocusError(
                f"The routers in {self.folder} do not fit their own configuration at '{differing}' "
                f"({found.get(differing, 'missing')} instead of {expected.get(differing, 'nothing')}): copy them again."
            )
        if not all(bool(torch.isfinite(tensor).all()) for tensor in self.tensors.values()):
            raise FocusError(f"The routers in {self.folder} contain values that are not finite: train them again.")
        routers.load_state_dict(self.tensors)


def write_routers(
    folder: Path, model: PreTrainedModel, config: FocusConfig, routers: nn.Module, *, trained: bool, write: bool = True
) -> None:
    """Write routers to a folder; each file is written atomically.

    Args:
        folder: created if needed.
        model: the base model they belong to.
        config: their settings.
        routers: one module per routed layer.
        trained: whether they were trained; stored with them.
        write: False in all processes but one of a sharded model; they call this only to give their shards.

    Raises:
        FocusError: a value is not finite.
        OSError: the folder cannot be written.
    """
    record = {
        "format": FORMAT,
        "trained": trained,
        "base": {**_architecture(model), "fingerprint": weights_fingerprint(model)},
        "routing": dataclasses.asdict(config),
    }
    dtype = ROUTERS[config.router].stored_dtype
    tensors = {
        name: whole(tensor.detach()).to("cpu", dtype).contiguous() for name, tensor in routers.state_dict().items()
    }
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
        raise FocusError(
            f"The routers hold values that are not finite, so they are not written to {folder}: train again with a "
            "lower learning rate."
        )
    if not write:
        return
    with atomic_path(folder / WEIGHTS) as temporary:
        save_file(tensors, temporary, metadata={"format": "pt"})
    write_atomic(folder / CONFIG, to_json(record) + "\n")


def check_elsewhere(out: Path, routers: Any = None) -> None:
    """Refuse to write new routers over those that they are made from, or into the folder of a model.

    Args:
        out: folder of the new ones.
        routers: a folder, or anything else, which is no place.

    Raises:
        FocusError: it is the same folder, or that of a model without routers.
    """
    if (out / "config.json").is_file() and not (out / CONFIG).is_file():
        raise FocusError(f"{out} holds a model, which stays as it is: name another --out.")
    if isinstance(routers, str | Path) and Path(routers).expanduser().resolve() == out.resolve():
        raise FocusError(f"{out} holds the routers to begin with, which stay as they are: name another --out.")


def read_routers(folder: Path, model: PreTrainedModel) -> SavedRouters:
    """Read saved routers for a model.

    Raises:
        OtherModelError: routers of another model.
        FocusError: no such folder, or damaged files.
    """
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise FocusError(f"{folder} has no {name}: give the folder that training wrote its routers to.")
    record = _read_record(folder)
    config = saved_config(folder)
    here, there = _architecture(model), record["base"]
    for key, what in (("class", "a"), ("hidden_size", "width"), ("num_layers", "layers:")):
        if here[key] != there.get(key):
            raise OtherModelError(
                f"The routers in {folder} belong to another model ({what} {there.get(key)}, this one is "
                f"{what} {here[key]}): load the model they were trained on, or train new ones."
            )
    tensors = read_tensors(folder / WEIGHTS)[1]
    matches = there.get("fingerprint") == weights_fingerprint(model)
    return SavedRouters(folder, config, tensors, bool(record.get("trained")), matches)


def saved_config(folder: Path) -> FocusConfig:
    """The settings of saved routers, without loading them.

    Raises:
        FocusError: the configuration is damaged.
    """
    return FocusConfig.from_values(_read_record(folder)["routing"], f"{folder / CONFIG}")


def saved_heads(folder: Path) -> int:
    """Key/value heads that saved routers per head were made for, read without the weights.

    Raises:
        FocusError: the file is damaged.
    """
    try:
        with safe_open(regular(folder / WEIGHTS), "pt") as file:
            return min(file.get_slice(name).get_shape()[0] for name in file.keys() if name.endswith(".centroids"))  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise FocusError(f"{folder / WEIGHTS} is damaged or no safetensors file: copy it again.") from error


_RECORD = table({"routing": table(), "base": table(), "format": whole_number(0)}, {"trained": flag})


def _read_record(folder: Path) -> dict[str, Any]:
    record = read_json(folder / CONFIG, table())
    try:
        _RECORD(record, "")
    except Wrong as error:
        raise FocusError(
            f"{folder / CONFIG} does not describe routers ({error}): give a folder that training wrote."
        ) from error
    if record["format"] != FORMAT:
        raise FocusError(f"{folder / CONFIG} has format {record['format']}: this version reads format {FORMAT}.")
    return record
