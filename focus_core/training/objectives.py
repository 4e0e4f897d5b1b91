"""Training objectives. Each is a function of (focus, input_ids) that returns a loss, and a line in `OBJECTIVES`.

"mass" (ours): the share of the frozen model's distant attention that same-group pairs hold. Every layer has its own
loss, so nothing is back-propagated through the model and memory is that of one layer. "lm": the language-model loss
through the soft gate, as published.

The training loops call `backward` on the loss: the loop of this package on one machine, Trainer over processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from focus_core.attention import AttentionOutput
from focus_core.routing.layer import LayerRouting
from focus_core.routing.model import FocusModel
from focus_core.routing.rules import AttentionCall, Rule
from focus_core.routing.soft import pair_masks


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


KeptMass = Callable[[Tensor, LayerRouting], Tensor]
"""Maps mass (N, T, T) and the routing of its layer to kept mass (N,) or (n, N)."""


def attention_mass(focus: FocusModel, input_ids: Tensor) -> Tensor:
    """Minus the log share of distant attention that soft affinity a_ij = g_i . g_j keeps, mean over layers.

    The loss of a layer is -log(sum A_ij a_ij / sum A_ij). A is its attention weights (mean over the heads of a router);
    sums are over distant pairs without sinks as keys. Sinks hold most of the distant attention and are in every group.

    Args:
        focus: model with routers.
        input_ids: (B, T) int64.

    Returns:
        The loss in nats, mean over layers. Each router descends on its own layer's loss, so the gradient is that of the
        sum. It is computed layer by layer during the forward pass, and the returned loss only passes it on. The (T, T)
        arrays of one layer exist at a time.
    """
    return distant_mass(focus, input_ids, soft_kept)


def soft_kept(mass: Tensor, routing: LayerRouting) -> Tensor:
    """A `KeptMass`: sum_ij A_ij (r_i . g_j), without the (T, T) affinities."""
    return (routing.query_weights * (mass @ routing.key_weights)).sum((1, 2))


def distant_mass(focus: FocusModel, input_ids: Tensor, kept_mass: KeptMass) -> Tensor:
    """Minus the log share of distant attention that is kept, as `attention_mass`, for any definition of kept.

    Args:
        focus: model with routers.
        input_ids: (B, T) int64.
        kept_mass: sums the attention of the kept pairs.
    """

    def loss(call: AttentionCall) -> tuple[AttentionOutput, Tensor]:
        output, mass = _distant_mass(call)
        with torch.autocast(call.query.device.type, enabled=False):
            kept = kept_mass(mass, call.routing)
            return output, -(kept / mass.sum((1, 2)).clamp(min=1e-9)).clamp(min=1e-9).log().mean()

    return layer_by_layer(focus, input_ids, loss)


LayerLoss = Callable[[AttentionCall], tuple[AttentionOutput, Tensor]]
"""Maps an attention call to the result of the layer's attention, and the loss of its router."""


def layer_by_layer(focus: FocusModel, input_ids: Tensor, layer_loss: LayerLoss) -> Tensor:
    """One pass through the decoder in which every router descends on a loss of its own layer.

    Args:
        focus: model with routers.
        input_ids: (B, T) int64.
        layer_loss: should return the untouched attention, so that the next layer reads the untouched hidden states.

    Returns:
        A loss with the mean over layers as its value and the gradient of their sum. The gradient is computed layer by
        layer, so no array of a layer outlives it.
    """
    losses: list[Tensor] = []
    gradients: list[Tensor] = []

    def attend(call: AttentionCall) -> AttentionOutput:
        output, loss = layer_loss(call)
        if loss.requires_grad:
            parameters = list(focus.router(call.layer).parameters())
            steps = torch.autograd.grad(loss, parameters)
            gradients.extend(((p - p.detach()) * step).sum() for p, step in zip(parameters, steps))
        losses.append(loss.detach())
        return output

    with focus.routing("soft", balance="sequence", rule=Rule(attend)):
        focus.model.base_model(input_ids=input_ids, use_cache=False)
    return torch.stack(losses).mean() + sum(gradients)


@torch.no_grad()
def _distant_mass(call: AttentionCall) -> tuple[AttentionOutput, Tensor]:
    """Full attention, and its weights (N, T, T), mean over heads, of distant pairs without sinks as keys."""
    query, geometry = call.query, call.geometry
    repeats = query.shape[1] // call.key.shape[1]
    key, value = call.key.repeat_interleave(repeats, dim=1), call.value.repeat_interleave(repeats, dim=1)
    logits = (query @ key.transpose(-1, -2)).float() * geometry.scale
    if geometry.softcap is not None:
        logits = geometry.softcap * torch.tanh(logits / geometry.softcap)
    visible, is_open = pair_masks(call.positions, query.shape[2], call.config, geometry.sliding_window)
    logits.masked_fill_(~visible[:, None], float("-inf"))
    weights = logits.softmax(-1)
    # Of the largest weight e^(l - lse), which spares a pass of exponentials.
    logsumexp = logits.amax(-1) - weights.amax(-1).log()
    output = AttentionOutput((weights.to(value.dtype) @ value).to(query.dtype), logsumexp)
    return output, weights.mean(1).masked_fill(is_open | ~visible, 0.0)


@dataclass(frozen=True)
class Objective:
    """One thing to train routers for.

    Attributes:
        loss: from a model with routers and token ids (B, T) to a loss in nats to differentiate.
        label: its name where people choose.
        measures: the loss in words, for the title of its curve.
        hint: one sentence on the behaviour that it rewards.
    """

    loss: Callable[[FocusModel, Tensor], Tensor]
    label: str
    measures: str
    hint: str


OBJECTIVES: dict[str, Objective] = {
    "mass": Objective(
        attention_mass,
        "attention mass",
        "−log of the distant attention kept",
        "Attention mass: keep the pairs that the untouched model attends to; no gradient through the model, so fast.",
    ),
    "lm": Objective(
        language_model,
        "language model",
        "language model",
        "Language model: the loss of the published method, through the soft gate.",
    ),
}
"""Objectives by the name that training settings and `focus train --objective` give them."""

DEFAULT_OBJECTIVE = "mass"
"""The objective of the recipe that trained the shipped routers."""

PUBLISHED_OBJECTIVE = "lm"
"""The objective of arXiv 2604.03260, which also trains all weights where a mode does."""
