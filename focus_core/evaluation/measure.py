"""What a routing does to blocks of text: sums and losses of parts of a text, which join to those of the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from focus_core.errors import FocusError
from focus_core.evaluation.likelihood import token_losses
from focus_core.evaluation.retention import (
    Compared,
    Retention,
    Untouched,
    compare_tokens,
    joined_retention,
    retention_of,
)
from focus_core.progress import Progress, silent
from focus_core.routing.layer import LayerRouting
from focus_core.routing.model import FocusModel, Mode

BATCH = 4
"""Blocks in a forward pass."""

MAX_TOKENS = 4096
"""Largest number of tokens in a forward pass, unless one block has more."""


class Pairs(NamedTuple):
    """Pairs of all layers and heads, see `focus_core.attention.PairCounts`."""

    distant_kept: int = 0
    distant: int = 0
    causal: int = 0
    kept: int = 0


@dataclass(frozen=True, eq=False)
class Measured:
    """One routing on N blocks of T tokens.

    Attributes:
        length: T.
        scored: tokens of each block that are scored.
        block_nll: (N,) mean negative log-likelihood of the scored tokens, in nats.
        pairs: counted under hard routing.
        sizes: (H, K) tokens of each group, by layer and head; empty for the untouched model.
        retention: see `Retention`; None where it was not asked for.
        losses: (N, T - 1) float32 of every token; None where they were not asked for.
    """

    length: int
    scored: int
    block_nll: tuple[float, ...]
    pairs: Pairs
    sizes: dict[int, np.ndarray]
    retention: Retention | None = None
    losses: np.ndarray | None = None

    def largest_group(self) -> tuple[float, int]:
        """Share of the tokens in the largest group, worst layer and head, and that layer."""
        shares = {layer: float((sizes.max(1) / sizes.sum(1)).max()) for layer, sizes in self.sizes.items()}
        layer = max(shares, key=lambda name: shares[name])
        return shares[layer], layer


class _Counts:
    """Counts pairs and group sizes while blocks pass through the layers."""

    def __init__(self, *, count_pairs: bool) -> None:
        self.count_pairs = count_pairs
        self.sizes: dict[int, np.ndarray] = {}
        self.pairs = Pairs()

    def __call__(self, routing: LayerRouting) -> None:
        self.sizes[routing.layer] = self.sizes.get(routing.layer, 0) + routing.group_sizes().cpu().numpy()
        if self.count_pairs:
            counts = routing.pair_counts()
            found = (counts.distant_kept, counts.distant, counts.causal, counts.kept)
            self.pairs = Pairs(*(total + int(count.sum()) for total, count in zip(self.pairs, found)))


@torch.inference_mode()
def measure(
    focus: FocusModel,
    blocks: np.ndarray,
    routing: Mode,
    settings: Mapping[str, Any],
    *,
    batch_size: int = BATCH,
    stride: int | None = None,
    untouched: Untouched | None = None,
    losses: bool = False,
    progress: Progress = silent,
) -> Measured:
    """Run the model over blocks of T tokens.

    Args:
        focus: model with routers.
        blocks: (N, T) int64 token ids.
        routing: "off", "soft" or "hard".
        settings: changes of `FocusConfig`.
        batch_size: rows per forward pass, see `rows_at_once`.
        stride: as in `focus_core.evaluation.evaluate`.
        untouched: likewise.
        losses: whether to keep the loss of every token.
        progress: called with the share done.

    Raises:
        FocusError: settings that do not fit the routers, or predictions that are not finite.
    """
    length = blocks.shape[1]
    scored = min(stride or length, length - 1)
    block_nll: list[float] = []
    compared: list[Compared] = []
    every: list[np.ndarray] = []
    batch_size = rows_at_once(length, batch_size)
    counts = _Counts(count_pairs=routing == "hard")
    with focus.routing(routing, **settings), focus.observe(counts):
        for start in range(0, len(blocks), batch_size):
            rows = torch.from_numpy(blocks[start : start + batch_size]).to(focus.model.device)
            if untouched is None:
                found = token_losses(focus, rows)
            elif routing == "off":
                found = token_losses(focus, rows, on_states=partial(untouched.keep, start))
            else:
                compared.append(compare_tokens(focus, rows, untouched.states(focus, start, start + len(rows))))
                found = compared[-1].losses
            block_nll += found[:, -scored:].double().mean(1).tolist()
            if losses:
                every.append(found.cpu().numpy())
            progress(f"Evaluating {routing}", min(1.0, (start + batch_size) / len(blocks)))
    if not np.isfinite(block_nll).all():
        raise FocusError(
            f"The predictions with routing {routing} are not finite: the weights of the model are damaged or too large "
            f"for {focus.model.dtype}, so get it again."
        )
    return Measured(
        length,
        scored,
        tuple(block_nll),
        counts.pairs,
        counts.sizes,
        retention_of(compared, length, scored) if compared else None,
        np.concatenate(every) if losses else None,
    )


def rows_at_once(length: int, batch_size: int = BATCH) -> int:
    """Blocks of T tokens in a forward pass; long ones are evaluated one by one."""
    return max(1, min(batch_size, MAX_TOKENS // length))


def joined(parts: Sequence[Measured]) -> Measured:
    """What was measured on all blocks of several parts, under the same routing."""
    first = parts[0]
    retained = [part.retention for part in parts if part.retention is not None]
    losses = [part.losses for part in parts if part.losses is not None]
    return Measured(
        first.length,
        first.scored,
        tuple(value for part in parts for value in part.block_nll),
        Pairs(*map(sum, zip(*(part.pairs for part in parts)))),
        {layer: np.sum([part.sizes[layer] for part in parts], axis=0) for layer in first.sizes},
        joined_retention(retained) if retained else None,
        np.concatenate(losses) if losses else None,
    )
