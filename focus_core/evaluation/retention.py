"""Retention: agreement of a sparse attention with the untouched model's next-token distributions.

Perplexity can fall because routers have learnt the text. The divergence from the untouched model cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from focus_core.errors import FocusError
from focus_core.evaluation.divergence import Compared, compare_logits
from focus_core.evaluation.likelihood import chunks, decoded
from focus_core.routing.model import FocusModel, Mode

RETENTION = ("kl", "kl_last_quarter", "top1_agreement", "block_kl", "block_kl_last_quarter")
"""Fields of `Retention` that the rows of evaluations and frontiers have, too."""


@dataclass(frozen=True)
class Retention:
    """Next-token distributions of a sparse attention beside those of the untouched model, over the predicted tokens.

    Attributes:
        kl: mean KL(untouched || sparse), nats per token; 0 where nothing is lost.
        kl_last_quarter: the same over the last quarter of positions, which have the most distant pairs.
        top1_agreement: share of tokens for which both predict the same most likely token.
        block_kl: `kl` of every block, for intervals.
        block_kl_last_quarter: `kl_last_quarter` of every block.
        block_top1_agreement: `top1_agreement` of every block.
    """

    kl: float
    kl_last_quarter: float
    top1_agreement: float
    block_kl: tuple[float, ...]
    block_kl_last_quarter: tuple[float, ...]
    block_top1_agreement: tuple[float, ...]


class Untouched:
    """Final states of the untouched model for blocks of text, each computed once, when it is first asked for.

    States are kept, not logits: T times the model width for each block. Logits are made of them a chunk at a time.

    Args:
        blocks: (N, T) int64 token ids.
    """

    def __init__(self, blocks: np.ndarray) -> None:
        self.blocks = blocks
        self._states: dict[int, Tensor] = {}

    def states(self, focus: FocusModel, start: int, stop: int) -> Tensor:
        """(stop - start, T, d) of consecutive blocks, on the model's device, whatever the routing in force."""
        for number in range(start, min(stop, len(self.blocks))):
            if number not in self._states:
                self.keep(number, self._run(focus, number))
        return torch.cat([self._states[number] for number in range(start, stop)]).to(focus.model.device)

    def keep(self, start: int, states: Tensor) -> None:
        """Remember final states (B, T, d) of blocks from `start` that an untouched run made anyway."""
        for offset, row in enumerate(states.split(1)):
            self._states[start + offset] = row.detach().cpu().clone()

    @torch.inference_mode()
    def _run(self, focus: FocusModel, number: int) -> Tensor:
        rows = torch.from_numpy(self.blocks[number : number + 1]).to(focus.model.device)
        decoder: Any = focus.model.base_model
        with focus.routing("off"):
            return decoder(input_ids=rows, use_cache=False).last_hidden_state


@torch.inference_mode()
def compare_tokens(focus: FocusModel, input_ids: Tensor, untouched: Tensor) -> Compared:
    """Losses and divergence of every token, under the routing in force.

    Args:
        focus: model with routers.
        input_ids: (B, T) int64, T at least 2.
        untouched: (B, T, d), final states of the untouched model for the same texts.
    """
    parts = []
    with decoded(focus, input_ids) as (states, head):
        for part in chunks(input_ids):
            targets = input_ids[:, part.start + 1 : part.stop + 1]
            compared = compare_logits(head(states[:, part]), head(untouched[:, part]), targets.flatten())
            parts.append(Compared(*(each.view(targets.shape) for each in compared)))
    return Compared(*(torch.cat(each, dim=1) for each in zip(*parts)))


def retention_of(blocks: Sequence[Compared], length: int, scored: int | None = None) -> Retention:
    """Means over blocks of T tokens, of which the last `scored` predictions count; all T - 1 when None."""
    scored = length - 1 if scored is None else scored
    last = max(1, min(scored, length // 4))

    def means(parts: Sequence[Tensor], tokens: int) -> tuple[float, ...]:
        return tuple(value for part in parts for value in part[:, -tokens:].double().mean(1).tolist())

    kl, agrees = [each.kl for each in blocks], [each.agrees for each in blocks]
    return _of_blocks(means(kl, scored), means(kl, last), means(agrees, scored))


def joined_retention(parts: Sequence[Retention]) -> Retention:
    """The retention over all blocks of several parts of a text."""
    names = ("block_kl", "block_kl_last_quarter", "block_top1_agreement")
    return _of_blocks(*(tuple(value for part in parts for value in getattr(part, name)) for name in names))


def _of_blocks(every: tuple[float, ...], late: tuple[float, ...], same: tuple[float, ...]) -> Retention:
    return Retention(float(np.mean(every)), float(np.mean(late)), float(np.mean(same)), every, late, same)


def retention(
    focus: FocusModel,
    blocks: np.ndarray,
    *,
    routing: Mode = "hard",
    untouched: Untouched | None = None,
    **settings: Any,
) -> Retention:
    """Measure the retention of a routing, one block at a time.

    Args:
        focus: model with routers.
        blocks: (N, T) int64 token ids, T at least 2.
        routing: "hard" or "soft"; "off" gives zero.
        untouched: states of the same blocks to use and to add to; fresh ones when None.
        settings: of `FocusModel.routing`: top_k, balance, window, a `rule`...

    Raises:
        FocusError: no block, or settings that do not fit the routers.
    """
    if not len(blocks):
        raise FocusError("Retention needs at least one block of text: give a longer text or shorter blocks.")
    untouched = Untouched(blocks) if untouched is None else untouched
    found = []
    with focus.routing(routing, **settings):
        for number in range(len(blocks)):
            rows = torch.from_numpy(blocks[number : number + 1]).to(focus.model.device)
            found.append(compare_tokens(focus, rows, untouched.states(focus, number, number + 1)))
    return retention_of(found, blocks.shape[1])
