"""Log-likelihood of every token, in memory that never holds the logits of a whole long text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.modeling_outputs import MoeModelOutputWithPast

from focus_core.routing.model import FocusModel

CHUNK = 512
"""Tokens of all texts whose logits exist at a time: 100 MB at a vocabulary of 49,152."""

Head = Callable[[Tensor], Tensor]
"""Final states (B, n, d) to logits (B * n, V), float32 and contiguous."""


@contextmanager
def decoded(focus: FocusModel, input_ids: Tensor) -> Iterator[tuple[Tensor, Head]]:
    """Run the decoder once, under the routing in force, and turn states into logits as often as needed.

    The model's own forward makes the logits, with the decoder answering from the states: whatever a family does to its
    logits (Gemma 2 caps them, others scale them) is done here as well.

    Args:
        focus: model with routers.
        input_ids: (B, T) int64.

    Yields:
        The final states (B, T, d), and a function that makes logits of these or of other states of the same model.
    """
    decoder: Any = focus.model.base_model
    output = decoder(input_ids=input_ids, use_cache=False)
    states = output.last_hidden_state
    with _answering(focus.model, input_ids, output) as head:
        yield states, head


@contextmanager
def _answering(model: Any, input_ids: Tensor, output: Any) -> Iterator[Head]:
    """Let the decoder of a model answer with states that are known; yields what makes logits of them."""
    decoder = model.base_model

    def answer(*args: Any, **kwargs: Any) -> Any:
        return output

    def head(part: Tensor) -> Tensor:
        output.last_hidden_state = part
        logits = model(input_ids=input_ids[:, : part.shape[1]], use_cache=False).logits
        return logits.float().flatten(0, 1).contiguous()

    decoder.forward = answer  # shadows the class's method on this object until it is deleted below
    try:
        yield head
    finally:
        del decoder.forward


def chunks(input_ids: Tensor) -> Iterator[slice]:
    """The places of all tokens but the last, so many at a time that their logits can be held."""
    step, last = max(1, CHUNK // input_ids.shape[0]), input_ids.shape[1] - 1
    for start in range(0, last, step):
        yield slice(start, min(start + step, last))


def next_token_losses(logits: Tensor, input_ids: Tensor, part: slice) -> Tensor:
    """Negative log-likelihood (B, n) of the tokens that follow a chunk.

    Each sum of exponentials runs over a contiguous row. Over transposed logits, float32 sums of a large vocabulary are
    off by 1e-4 nats.

    Args:
        logits: (B * n, V) float32 of the chunk.
        input_ids: (B, T) int64, the whole texts.
        part: places of the chunk.
    """
    targets = input_ids[:, part.start + 1 : part.stop + 1]
    return F.cross_entropy(logits, targets.flatten(), reduction="none").view(targets.shape)


@torch.inference_mode()
def token_losses(focus: FocusModel, input_ids: Tensor, *, on_states: Callable[[Tensor], None] | None = None) -> Tensor:
    """Negative log-likelihood of each token given those before it, under the routing in force.

    Args:
        focus: model with routers.
        input_ids: (B, T) int64, T at least 2.
        on_states: handed the final states (B, T, d).

    Returns:
        (B, T - 1) float32 in nats; entry t is the loss of token t + 1.
    """
    with decoded(focus, input_ids) as (states, head):
        if on_states is not None:
            on_states(states)
        return torch.cat(
            [next_token_losses(head(states[:, part]), input_ids, part) for part in chunks(input_ids)], dim=1
        )


@torch.inference_mode()
def losses_of_states(model: Any, input_ids: Tensor, states: Tensor) -> Tensor:
    """As `token_losses`, from final states of a pass that was made before; the decoder does not run.

    Args:
        model: the causal language model that made the states.
        input_ids: (B, T) int64, T at least 2.
        states: (B, T, d).

    Returns:
        (B, T - 1) float32 in nats.
    """
    known = MoeModelOutputWithPast(last_hidden_state=states)  # it has every field that any family looks for
    with _answering(model, input_ids, known) as head:
        return torch.cat(
            [next_token_losses(head(states[:, part]), input_ids, part) for part in chunks(input_ids)], dim=1
        )
