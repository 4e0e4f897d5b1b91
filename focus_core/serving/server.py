"""Transformers' server over an exported folder.

`transformers serve` cannot do this alone: it imports no package but its own before it loads a model, its option
`--attn-implementation` refuses names that it does not list, and it takes model classes from its own namespace.
`register` puts three entries into registries of Transformers; `serve` calls it, and then Transformers' own server.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from focus_core.errors import FocusError, require
from focus_core.serving.folder import CLASS, TYPE, load_export, read_export

DTYPES = ("float32", "bfloat16", "float16")


class FocusExportConfig(PretrainedConfig):
    """The `config.json` of an exported folder."""

    model_type = TYPE


class FocusForCausalLM:
    """Loads an exported folder for Transformers' auto classes: the base model's own class, with routers attached."""

    config_class = FocusExportConfig

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, *, dtype: Any = "auto", device_map: Any = "cpu", **_: Any
    ) -> PreTrainedModel:
        """The base model with its routers.

        Args:
            folder: that `export_model` wrote.
            dtype: of the weights; "auto" and None are float32, as in all of this package.
            device_map: one device; "auto" is the first GPU where there is one.

        Raises:
            FocusError: see `load_export`; or several devices.
        """
        if isinstance(device_map, dict):
            raise FocusError("A model with routers is served on one device: name it, such as cuda:0.")
        if device_map in ("auto", None):
            device_map = "cuda:0" if torch.cuda.is_available() else "cpu"
        device = f"cuda:{device_map}" if isinstance(device_map, int) else str(device_map)
        wanted = dtype if isinstance(dtype, torch.dtype) else torch.float32
        return load_export(Path(folder), dtype=wanted, device=device)[1].model


def _check_free(host: str, port: int) -> None:
    """Refuse an address that cannot be listened at, before the model is loaded."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
    except OSError as error:
        raise FocusError(
            f"Nothing can listen at {host}, port {port} ({error}): name another --host or --port."
        ) from error


def register() -> None:
    """Let Transformers load exported folders: `AutoModelForCausalLM.from_pretrained(folder)`, and its server."""
    AutoConfig.register(TYPE, FocusExportConfig, exist_ok=True)
    AutoModelForCausalLM.register(FocusExportConfig, FocusForCausalLM, exist_ok=True)  # pyright: ignore[reportArgumentType]
    setattr(transformers, CLASS, FocusForCausalLM)  # where its server looks for the class of a configuration


def serve(
    folder: Path, *, host: str = "localhost", port: int = 8000, dtype: str = "float32", device: str = "cpu"
) -> None:
    """Serve an exported folder with an OpenAI-compatible interface, until interrupted.

    Requests are answered one after another, in the order in which they came.

    Args:
        folder: that `export_model` wrote; also the name of the model in requests.
        host: to listen at.
        port: to listen at.
        dtype: of the weights, such as "bfloat16".
        device: such as "cpu", "cuda" or "cuda:1".

    Raises:
        FocusError: no exported folder, a name that the server cannot take, or a package that is missing.
    """
    for package in ("fastapi", "uvicorn", "openai"):
        require(package, "serve")
    if "@" in str(folder):
        raise FocusError(f"The server takes what follows @ in {folder} for a revision: rename the folder.")
    read_export(folder)
    if dtype not in DTYPES:
        raise FocusError(f"The dtype is {dtype}: choose {', '.join(DTYPES)}.")
    _check_free(host, port)
    from transformers.cli.serve import Serve

    register()
    Serve(force_model=str(folder), host=host, port=port, dtype=dtype, device=device)
