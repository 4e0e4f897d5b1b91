"""Estimate of the memory that a training run needs per process, before it starts and without its weights.

The model is built of PyTorch's fake tensors, which have shapes and no content. One real training step runs on them, and
every storage that it creates is counted while it is alive. Weights, gradients and optimiser state follow from the sizes
of the parameters. Where these are sharded, they are divided by the number of processes.
"""

from __future__ import annotations

import copy
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM

from focus_core.routing.config import FocusConfig
from focus_core.routing.model import retrofit
from focus_core.training.modes import Phase, TrainingTask
from focus_core.training.objectives import OBJECTIVES


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes per process.

    Attributes:
        weights: parameters held by a process.
        gathered: the largest decoder layer, twice (it and the next), and all that is in no layer, gathered while they
            compute; 0 if not sharded.
        gradients: of the trained parameters.
        optimizer: the two moments of AdamW.
        activations: peak of all other allocations of a step, for one micro-batch.
        trained: number of trained parameters of the whole model.
    """

    weights: int
    gathered: int
    gradients: int
    optimizer: int
    activations: int
    trained: int

    @property
    def total(self) -> int:
        """The sum, without the memory that CUDA and the allocator use themselves."""
        return self.weights + self.gathered + self.gradients + self.optimizer + self.activations

    def sentence(self) -> str:
        """The estimate in one line."""
        parts = ("weights", "gathered", "gradients", "optimizer", "activations")
        sizes = ", ".join(f"{name} {_size(getattr(self, name))}" for name in parts if getattr(self, name))
        return f"Memory per process, estimated: {_size(self.total)} ({sizes}); {self.trained:,} trained parameters."


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def estimate_memory(
    model_config: Any,
    focus_config: FocusConfig,
    phase: Phase,
    *,
    length: int,
    micro_batch: int,
    world_size: int = 1,
    sharded: bool = False,
    dtype: torch.dtype = torch.float32,
    precision: str = "fp32",
) -> MemoryEstimate:
    """Memory of one training phase per process; needs neither the weights nor a device.

    Args:
        model_config: Transformers configuration of the base model.
        focus_config: of the routers.
        phase: the trained weights and the objective.
        length: T, tokens per block.
        micro_batch: blocks per process and forward pass.
        world_size: processes.
        sharded: weights, gradients and optimiser state are divided among the processes (FSDP); else replicated.
        dtype: of the base model's weights.
        precision: "bf16" for autocast; trained weights are then kept in float32 under FSDP.

    Returns:
        The estimate. Activations are exact for the operations that PyTorch reports; private workspace of kernels is not
        included.
    """
    with FakeTensorMode():
        # "eager", because the configuration may be that of a model which has routers already.
        config = copy.deepcopy(model_config)
        base = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager")
        focus = retrofit(base, focus_config)
        task = TrainingTask(focus, OBJECTIVES[phase.objective].loss, everything=phase.everything).eval()
        parameters = list(task.parameters())
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        upcast = sharded and precision == "bf16"
        size = {id(p): p.numel() * (4 if upcast and p.requires_grad else p.element_size()) for p in parameters}
        weights, gradients = sum(size.values()), sum(size[id(p)] for p in trained)
        input_ids = torch.zeros(micro_batch, length, dtype=torch.int64)
        live = _LiveStorages(parameters)
        autocast = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")
        with live, autocast, focus.routing("soft", balance="sequence"):
            task.objective(focus, input_ids).backward()
    layers = [module for module in base.modules() if type(module).__name__ in (task._no_split_modules or ())]
    of_layers = [sum(size.get(id(p), 0) for p in layer.parameters()) for layer in layers]
    gathered = 2 * max(of_layers, default=0) + weights - sum(of_layers)
    shares = world_size if sharded else 1
    return MemoryEstimate(
        weights=weights // shares,
        gathered=gathered if sharded else 0,
        gradients=gradients // shares,
        optimizer=2 * gradients // shares,
        # Gradients that the step left behind are counted above.
        activations=max(0, live.peak - sum(p.grad.nbytes for p in trained if p.grad is not None)),
        trained=sum(parameter.numel() for parameter in trained),
    )


class _LiveStorages(TorchDispatchMode):
    """Counts the bytes of all storages that operations create while they are alive."""

    def __init__(self, known: list[Any]) -> None:
        super().__init__()
        self.bytes = self.peak = 0
        self._seen = weakref.WeakSet(tensor.untyped_storage() for tensor in known)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and count the storages that it returns."""
        if func is torch.ops.aten._local_scalar_dense.default:
            # Models ask whether all of a mask is set or all positions grow. Fake tensors have no values; blocks comply.
            return 1
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage not in self._seen:
                    self._seen.add(storage)
                    self.bytes += storage.nbytes()
                    weakref.finalize(storage, self._release, storage.nbytes())
        self.peak = max(self.peak, self.bytes)
        return result

    def _release(self, count: int) -> None:
        self.bytes -= count
