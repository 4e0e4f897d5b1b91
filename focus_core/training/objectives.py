"""What the routers are trained for; each objective is one function of (focus, input_ids) to a loss to differentiate.

"mass" (ours): the frozen model's own attention says which distant pairs matter, and a router is rewarded for keeping
them together. Every layer has its own loss, so nothing is back-propagated through the model and memory is that of
one layer. "lm": the language-model loss through the soft gate, as published.

Their loops call `backward` on the result: the own loop for a laptop, Trainer where processes share the work.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from focus_core.attention import AttentionOutput
from focus_core.config import FocusConfig
from focus_core.gate import pair_masks
from focus_core.interface import AttentionCall, Geometry, Rule
from focus_core.retrofitting import FocusModel
from focus_core.router import affinity


def language_model(focus: FocusModel, input_ids: Tensor) -> Tensor:
    """Mean next-token cross-entropy under the soft gate and sequence Sinkhorn.

    Args:
        focus: model with routers.
        input_ids: (B, T) int64.

    Returns:
        The loss, in nats per token.
    """
    with focus.routing("soft", balance="sequence"):
        return focus(input_ids=input_ids, labels=input_ids, use_cache=False).loss


def attention_mass(focus: FocusModel, input_ids: Tensor) -> Tensor:
    """Minus the log share of distant attention that soft affinity keeps, mean over layers.

    For a layer with attention weights A (mean over heads), over distant pairs whose key is no sink:
    loss = -log(sum A_ij a_ij / sum A_ij), with affinity a_ij = g_i . g_j. Sinks are left out because they hold most of
    the distant attention and belong to every group anyway.

    Args:
        focus: model with routers.
        input_ids: (B, T) int64.

    Returns:
        The loss in nats, mean over layers. Each router descends on its own layer's loss, so the gradient is that of
        the sum. It is taken layer by layer during the forward pass, and what is returned only carries it on: of all
        the (T, T) arrays, those of one layer exist at a time.
    """
    losses: list[Tensor] = []
    gradients: list[Tensor] = []

    def attend(
        call: AttentionCall,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        assignment: Tensor,
        positions: Tensor,
        geometry: Geometry,
    ) -> AttentionOutput:
        output, share = _kept_share(call.config, query, key, value, assignment, positions, geometry)
        loss = -share.clamp(min=1e-9).log().mean()
        if loss.requires_grad:
            parameters = list(focus.router(call.layer).parameters())
            steps = torch.autograd.grad(loss, parameters)
            gradients.extend(((p - p.detach()) * step).sum() for p, step in zip(parameters, steps))
        losses.append(loss.detach())
        return output

    rule = Rule(lambda assignment, top_k: assignment, attend)
    with focus.routing("soft", balance="sequence", rule=rule):
        focus.model.base_model(input_ids=input_ids, use_cache=False)
    return torch.stack(losses).mean() + sum(gradients)


def _kept_share(
    config: FocusConfig,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    assignment: Tensor,
    positions: Tensor,
    geometry: Geometry,
) -> tuple[AttentionOutput, Tensor]:
    """Full attention, and per text the share of its distant non-sink mass that affinity keeps."""
    repeats = query.shape[1] // key.shape[1]
    with torch.no_grad():
        key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
        logits = (query @ key.transpose(-1, -2)).float() * geometry.scale
        if geometry.softcap is not None:
            logits = geometry.softcap * torch.tanh(logits / geometry.softcap)
        visible, is_open = pair_masks(positions, query.shape[2], config, geometry.sliding_window)
        logits = logits.masked_fill(~visible[:, None], float("-inf"))
        weights = logits.softmax(-1)
        output = AttentionOutput((weights.to(value.dtype) @ value).to(query.dtype), logits.logsumexp(-1))
        mass = weights.mean(1).masked_fill(is_open | ~visible, 0.0)
    with torch.autocast(query.device.type, enabled=False):
        kept = (mass * affinity(assignment, assignment)).sum((1, 2))
        return output, kept / mass.sum((1, 2)).clamp(min=1e-9)


OBJECTIVES: dict[str, Callable[[FocusModel, Tensor], Tensor]] = {"mass": attention_mass, "lm": language_model}
