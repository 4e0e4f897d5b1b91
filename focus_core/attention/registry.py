"""The backends by name, their abilities, and the choice of `auto`. A new one is a file and a line in `BACKENDS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from focus_core.attention.chunked import chunked
from focus_core.attention.cpu.backend import cpu, cpu_obstacle
from focus_core.attention.decode import decode, decode_obstacle
from focus_core.attention.flex import flex, flex_obstacle
from focus_core.attention.inputs import AttentionInputs, AttentionOutput
from focus_core.attention.packed.flash import flash, flash_obstacle
from focus_core.attention.packed.published import flash_merge, flash_merge_obstacle
from focus_core.attention.packed.varlen import cuda_obstacle, varlen
from focus_core.attention.reference import dense
from focus_core.errors import FocusError


def _never(inputs: AttentionInputs) -> str | None:
    return None


@dataclass(frozen=True)
class Backend:
    """One way to compute the attention.

    Attributes:
        run: computes it, exactly.
        differentiable: whether gradients flow through `run`.
        obstacle: gives the reason why `run` does not support inputs ("needs a CUDA device"); None if it does.
        devices: types of device on which `auto` considers it, before the backends that run everywhere.
    """

    run: Callable[[AttentionInputs], AttentionOutput]
    differentiable: bool = False
    obstacle: Callable[[AttentionInputs], str | None] = _never
    devices: tuple[str, ...] = ()


BACKENDS: dict[str, Backend] = {
    "dense": Backend(dense, differentiable=True),
    "chunked": Backend(chunked, differentiable=True),
    "decode": Backend(decode, differentiable=True, obstacle=decode_obstacle),
    "cpu": Backend(cpu, obstacle=cpu_obstacle, devices=("cpu",)),
    "flash": Backend(flash, obstacle=flash_obstacle, devices=("cuda",)),
    "varlen": Backend(varlen, obstacle=cuda_obstacle, devices=("cuda",)),
    "flex": Backend(flex, obstacle=flex_obstacle, devices=("cuda",)),
    "flash_merge": Backend(flash_merge, obstacle=flash_merge_obstacle),
}
"""Backends by name. Of those for one device, `auto` takes the first that can run."""

DENSE_LIMIT = 1 << 22
"""Largest number of logits (batch x heads x Tq x T) for which `auto` chooses the dense reference."""

DECODE_QUERIES = 8
"""Largest number of queries at the end of a longer cache for which `auto` gathers their keys."""


def resolve(name: str, inputs: AttentionInputs) -> tuple[str, Backend]:
    """The backend to run: the named one, or the fastest that supports the inputs for "auto".

    Raises:
        FocusError: unknown name, or a named backend that does not support these inputs.
    """
    if name == "auto":
        name = _quickest(inputs)
        return name, BACKENDS[name]
    if name not in BACKENDS:
        raise FocusError(f"backend is {name!r}: choose auto or one of {', '.join(BACKENDS)}.")
    backend = BACKENDS[name]
    if inputs.needs_grad and not backend.differentiable:
        able = ", ".join(other for other, entry in BACKENDS.items() if entry.differentiable)
        raise FocusError(f"The backend '{name}' has no gradients: use torch.no_grad(), or one of {able}.")
    obstacle = backend.obstacle(inputs)
    if obstacle is not None:
        raise FocusError(f"The backend '{name}' cannot run here: it {obstacle}; 'auto' picks one that can.")
    return name, backend


def _quickest(inputs: AttentionInputs) -> str:
    few = inputs.num_queries <= DECODE_QUERIES < inputs.num_keys
    if few:
        return "decode"
    for name, backend in BACKENDS.items():
        able = backend.differentiable or not inputs.needs_grad
        if able and inputs.query.device.type in backend.devices and backend.obstacle(inputs) is None:
            return name
    logits = inputs.query.shape[0] * inputs.query.shape[1] * inputs.num_queries * inputs.num_keys
    return "dense" if logits <= DENSE_LIMIT else "chunked"
