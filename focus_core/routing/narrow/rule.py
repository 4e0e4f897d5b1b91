"""The rule of narrow groups: an attention call of a routed layer, padding included."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from focus_core.attention import AttentionOutput
from focus_core.routing.narrow.attention import narrow_attention

if TYPE_CHECKING:
    from focus_core.routing.rules import AttentionCall


def attend_narrow(call: AttentionCall) -> AttentionOutput:
    """Attention over narrow groups for whole texts; rows with padding one by one, as if it were not there."""
    groups, num_groups = call.routing.key_groups[:, None], call.config.num_groups
    reading, geometry = call.routing.reading(), call.geometry
    settings = {"scale": geometry.scale, "softcap": geometry.softcap}
    tensors = call.query, call.key, call.value, groups
    real = call.positions >= 0
    if bool(real.all()):
        return AttentionOutput(*narrow_attention(*tensors, num_groups, reading, **settings)[:2])
    output = call.value.new_zeros(*call.query.shape[:3], call.value.shape[-1])
    compute = torch.promote_types(call.query.dtype, torch.float32)
    logsumexp = output.new_full(call.query.shape[:3], float("-inf"), dtype=compute)
    for row, places in enumerate(real):
        if bool(places.any()):
            query, key, value, group = (part[row : row + 1, :, places] for part in tensors)
            own = reading.of_row(row, query.shape[1] // key.shape[1])
            found = narrow_attention(query, key, value, group, num_groups, own, **settings)
            output[row][:, places], logsumexp[row][:, places] = found.output[0], found.logsumexp[0]
    return AttentionOutput(output, logsumexp)
