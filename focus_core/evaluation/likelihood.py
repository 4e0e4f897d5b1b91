"""Log-likelihood of every token, without ever holding the logits of a long text."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from focus_core.routing.model import FocusModel

CHUNK = 512
"""Tokens whose logits exist at a time: 100 MB at a vocabulary of 49,152."""


@torch.inference_mode()
def token_losses(focus: FocusModel, input_ids: Tensor) -> Tensor:
    """Negative log-likelihood of each token given those before it, under the routing in force.

    The decoder runs once. Then the model's own forward turns its states into logits, a chunk at a time, with the
    decoder answering from those states: whatever a family does to its logits (Gemma 2 caps them, others scale them)
    is done here as well.

    Args:
        focus: model with routers.
        input_ids: (B, T) int64, T at least 2.

    Returns:
        (B, T - 1) float32 in nats; entry t is the loss of token t + 1.
    """
    decoder: Any = focus.model.base_model
    output = decoder(input_ids=input_ids, use_cache=False)
    states = output.last_hidden_state
    losses = input_ids.new_empty(input_ids.shape[0], input_ids.shape[1] - 1, dtype=torch.float32)

    def answer(*args: Any, **kwargs: Any) -> Any:
        return output

    decoder.forward = answer  # shadows the class's method on this object until it is deleted below
    try:
        for start in range(0, losses.shape[1], CHUNK):
            stop = min(start + CHUNK, losses.shape[1])
            output.last_hidden_state = states[:, start:stop]
            logits = focus.model(input_ids=input_ids[:, start:stop], use_cache=False).logits
            targets = input_ids[:, start + 1 : stop + 1]
            losses[:, start:stop] = F.cross_entropy(logits.float().transpose(1, 2), targets, reduction="none")
    finally:
        del decoder.forward
    return losses
