"""Tensor parallelism: the key/value heads that each process of a run holds, as Transformers divides them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch.distributed as dist

from focus_core.errors import FocusError
from focus_core.routing.config import FocusConfig
from focus_core.routing.routers import ROUTERS


class OwnHeads(NamedTuple):
    """A run of neighbouring key/value heads."""

    first: int
    num_heads: int


def own_heads(model: Any, config: FocusConfig, num_kv_heads: int) -> OwnHeads | None:
    """The key/value heads of this process, where routers are per head and the model is divided by heads; else None.

    Args:
        model: loaded with a `tp_plan`, or whole.
        config: of the routers.
        num_kv_heads: of the whole model.

    Raises:
        FocusError: the processes cannot share the heads evenly.
    """
    processes = getattr(model, "tp_size", None) or 1
    if processes == 1 or not ROUTERS[config.router].per_head:
        return None
    count, left = divmod(num_kv_heads, processes)
    if left:
        raise FocusError(
            f"{processes} processes cannot share {num_kv_heads} key/value heads evenly: use router='layer', or another "
            "number of processes."
        )
    return OwnHeads(dist.get_rank() % processes * count, count)  # tensor parallelism is the innermost dimension
