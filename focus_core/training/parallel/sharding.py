"""Weights divided among the processes of a run (FSDP2), and checkpoints that any number of processes can load.

PyTorch's `fully_shard` works on GPUs over NCCL and on CPUs over gloo. Trainer is told that the model manages its own
placement, and so wraps it in nothing. A checkpoint holds the trained weights and their moments alone: safetensors that
`torch.distributed.checkpoint` writes, every process its part.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from focus_core.errors import FocusError
from focus_core.training.modes import TrainingTask
from focus_core.training.parallel.processes import world_size

SHARDS = "shards"
"""Folder of weights and moments inside a checkpoint."""

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def shard(task: TrainingTask) -> None:
    """Divide every weight of a task among the processes, which have joined each other; nothing in a single one.

    Decoder layers are gathered one by one while they compute. Everything else is gathered for a whole step.
    """
    if world_size() == 1:
        return
    for layer in decoder_layers(task):
        fully_shard(layer)
    fully_shard(task)
    task.is_distributed_loading_by_transformers = True


def decoder_layers(task: TrainingTask) -> list[torch.nn.Module]:
    """The layers of the base model, as Transformers names the modules that are not to be split."""
    names = set(getattr(task.focus.model, "_no_split_modules", None) or ())
    return [module for module in task.focus.model.modules() if type(module).__name__ in names]


def save_shards(folder: Path, task: TrainingTask, optimizer: Any) -> None:
    """Write the trained weights and their moments; all processes call this."""
    state: dict[str, Tensor] = {}
    for name, parameter in _trained(task).items():
        state[f"weight.{name}"] = parameter.detach()
        moments = optimizer.state.get(parameter, {})
        state |= {f"{moment}.{name}": moments[moment] for moment in _MOMENTS if moment in moments}
    writer = HuggingFaceStorageWriter(str(folder / SHARDS), save_distributed=True)
    save(state, storage_writer=writer, no_dist=world_size() == 1)


def load_shards(folder: Path, task: TrainingTask, optimizer: Any = None) -> None:
    """Load what any number of processes wrote: the weights, or with an optimizer its moments; all processes call this.

    Raises:
        FocusError: the checkpoint is damaged or of another model.
    """
    try:
        stored = _reader(folder).read_metadata().state_dict_metadata
        wanted: dict[str, Tensor] = {}
        for name, parameter in _trained(task).items():
            if optimizer is None:
                wanted[f"weight.{name}"] = parameter.detach()
            elif f"exp_avg.{name}" in stored:
                moments = (torch.zeros(()), torch.zeros_like(parameter), torch.zeros_like(parameter))
                optimizer.state[parameter] = dict(zip(_MOMENTS, moments))
                wanted |= {f"{moment}.{name}": tensor.detach() for moment, tensor in zip(_MOMENTS, moments)}
        shapes = {name: getattr(stored.get(name), "size", None) for name in wanted}
        if shapes != {name: tensor.shape for name, tensor in wanted.items()}:
            raise ValueError("other weights")
        load(wanted, storage_reader=_reader(folder), no_dist=world_size() == 1)
        if not all(bool(tensor.isfinite().all()) for tensor in map(_local, wanted.values())):
            raise ValueError("values that are not finite")
    except (RuntimeError, ValueError, LookupError, TypeError, OSError, SafetensorError, CheckpointException) as error:
        raise FocusError(f"{folder} is damaged: delete it to train from the start.") from error


def _trained(task: TrainingTask) -> dict[str, torch.nn.Parameter]:
    return {name: parameter for name, parameter in task.named_parameters() if parameter.requires_grad}


def _reader(folder: Path) -> HuggingFaceStorageReader:
    return HuggingFaceStorageReader(str(folder / SHARDS))


def _local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
