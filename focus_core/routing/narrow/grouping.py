"""The groups of keys under narrow groups, from keys as attention gets them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from focus_core.routing.balance import BALANCES, groups_of
from focus_core.routing.narrow.rotary import before_rotation, rotated_pairs

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from focus_core.routing.config import FocusConfig
    from focus_core.routing.routers import Router


def groups_of_keys(
    router: Router,
    key: Float[Tensor, "B Hkv T D"],
    position_embeddings: tuple[Tensor, Tensor] | None,
    config: FocusConfig,
) -> Int[Tensor, "B Hkv T"]:
    """The group of each key: where the weight of its `assign`, before rotary embedding, is largest.

    On a CPU compiled code does all steps for a few keys at a time, so none is written to memory in between. The group
    of a key then depends on no other key, not even in the last bit.

    Args:
        router: of narrow groups.
        key: position-encoded.
        position_embeddings: see `before_rotation`.
        config: settings in force.
    """
    if BALANCES[config.balance].logits is None or key.device.type != "cpu" or key.dtype == torch.float64:
        found = groups_of(router, router(before_rotation(key, position_embeddings)), config)
        return found.unflatten(0, (-1, router.num_heads))
    # It needs Numba, which takes a second to import.
    from focus_core.routing.narrow.compiled.grouping import group_keys

    pairs = None if position_embeddings is None else rotated_pairs(position_embeddings)
    return group_keys(
        key.detach(),
        position_embeddings,
        pairs,
        router.centroids.detach(),
        router.potential.detach(),
        1 / config.temperature,
        cosine=router.cosine,
    )
