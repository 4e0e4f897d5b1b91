"""The rule of narrow groups: an attention call of a routed layer, padding included."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from focus_core.attention import AttentionOutput
from focus_core.routing.narrow.attention import narrow_attention

if TYPE_CHECKING:
    from focus_core.routing.rules import AttentionCall


def attend_narrow(call: AttentionCall) -> AttentionOutput:
    """Attention over narrow groups for whole texts; rows with padding one by one, as if it were not there.

    The backend is that of the call, see `narrow_attention`.
    """
    reading, geometry = call.routing.reading(), call.geometry
    settings = {"scale": geometry.scale, "softcap": geometry.softcap, "backend": call.backend}
    # Groups take time, and are not asked for where all queries attend to everything.
    groups = None if reading.attends_all(call.query.shape[2]) else call.routing.key_groups[:, None]
    num_groups, tensors = call.config.num_groups, (call.query, call.key, call.value)
    real = call.positions >= 0
    if call.routing.valid is None or bool(real.all()):
        heads = call.routing.router.num_heads
        groups = None if groups is None else groups[:, 0].unflatten(0, (-1, heads))
        found = narrow_attention(*call.together(), groups, num_groups, reading, **settings)
        # With one text this copies nothing: the results lie as the layer takes them.
        return AttentionOutput(*(part.unflatten(1, (heads, -1)).flatten(0, 1) for part in found[:2]))
    output = call.value.new_zeros(*call.query.shape[:3], call.value.shape[-1])
    compute = torch.promote_types(call.query.dtype, torch.float32)
    logsumexp = output.new_full(call.query.shape[:3], float("-inf"), dtype=compute)
    for row, places in enumerate(real):
        if bool(places.any()):
            query, key, value = (part[row : row + 1, :, places] for part in tensors)
            group = None if groups is None else groups[row : row + 1, :, places]
            own = reading.of_row(row, query.shape[1] // key.shape[1])
            found = narrow_attention(query, key, value, group, num_groups, own, **settings)
            output[row][:, places], logsumexp[row][:, places] = found.output[0], found.logsumexp[0]
    return AttentionOutput(output, logsumexp)
