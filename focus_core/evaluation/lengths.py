"""Length transfer: the same text at several context lengths, with the loss by position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np

from focus_core.errors import FocusError
from focus_core.evaluation.compare import Difference, perplexity_difference
from focus_core.evaluation.measure import Measured
from focus_core.evaluation.perplexity import Evaluation
from focus_core.evaluation.work import Asked, Setting, measured
from focus_core.progress import Progress, silent
from focus_core.routing.model import FocusModel

FIRST_BIN = 64


@dataclass(frozen=True)
class PositionBin:
    """Loss at a range of positions in the block.

    Attributes:
        start: first predicted position.
        stop: one past the last.
        nll: mean negative log-likelihood in nats.
    """

    start: int
    stop: int
    nll: float


@dataclass(frozen=True)
class LengthRow:
    """One setting at one length.

    Attributes:
        length: T.
        evaluation: perplexity with kept share, exposure and largest group.
        positions: loss by position, bins that double.
        above_untouched: perplexity minus that of the untouched model at the same length; None for the untouched model.
    """

    length: int
    evaluation: Evaluation
    positions: tuple[PositionBin, ...]
    above_untouched: Difference | None


def position_bins(losses: np.ndarray) -> tuple[PositionBin, ...]:
    """Mean loss over positions 1 to 63, 64 to 127, 128 to 255 and so on.

    Args:
        losses: (N, T - 1), entry t is the loss of token t + 1.
    """
    length = losses.shape[1] + 1
    edges = [1]
    while max(edges[-1], FIRST_BIN) < length:
        edges.append(min(length, FIRST_BIN if edges[-1] == 1 else edges[-1] * 2))
    if edges[-1] != length:
        edges.append(length)
    return tuple(
        PositionBin(start, stop, float(losses[:, start - 1 : stop - 1].mean())) for start, stop in pairwise(edges)
    )


def length_transfer(
    focus: FocusModel,
    blocks: np.ndarray,
    lengths: Sequence[int],
    settings: Sequence[Setting],
    *,
    piece: int | None = None,
    opening: Sequence[int] = (),
    progress: Progress = silent,
) -> list[LengthRow]:
    """Evaluate settings at several lengths on the same tokens: shorter blocks are parts of the longest.

    Args:
        focus: model with routers.
        blocks: (N, T) int64, T the longest length.
        lengths: context lengths, each a divisor of T.
        settings: (routing, k, balance) as in `standard_settings`. Soft routing is refused: its memory grows with T^2.
        piece: length in tokens of the pieces that intervals are paired over; the shortest length when None.
        opening: tokens before every text (`focus_core.text.opening_tokens`); they replace the first tokens of every
            shorter block.
        progress: called with the share done.

    Returns:
        One row per length and setting. Intervals against the untouched model are paired over the pieces.

    Raises:
        FocusError: a length that does not divide T, or soft routing.
    """
    asked = at_lengths(blocks, lengths, settings, piece=piece, opening=opening)
    return length_rows(focus, asked, measured(focus, asked, progress=progress), piece or min(lengths))


def at_lengths(
    blocks: np.ndarray,
    lengths: Sequence[int],
    settings: Sequence[Setting],
    *,
    piece: int | None = None,
    opening: Sequence[int] = (),
    changes: Mapping[str, Any] = MappingProxyType({}),
) -> list[Asked]:
    """What `length_transfer` asks at each length, with other settings of `FocusConfig` where there are changes."""
    longest, shortest = blocks.shape[1], piece or min(lengths)
    for length in lengths:
        if length < 2 or longest % length or length % shortest:
            raise FocusError(f"Length {length} does not divide {longest}: choose lengths that divide one another.")
    if any(mode == "soft" for mode, _, _ in settings):
        raise FocusError("Soft routing is not evaluated at long lengths: its memory grows with their square.")
    asked = []
    for length in lengths:
        cut = blocks.reshape(-1, length).copy()
        cut[:, : len(opening)] = opening
        asked.append(Asked(cut, settings, changes=dict(changes), losses=True))
    return asked


def length_rows(
    focus: FocusModel, asked: Sequence[Asked], found: Sequence[Sequence[Measured]], shortest: int
) -> list[LengthRow]:
    """The rows of what was measured at each length, with intervals over pieces of the shortest."""
    rows: list[LengthRow] = []
    for each, ours in zip(asked, found, strict=True):
        untouched: np.ndarray | None = None
        for (mode, _, _), row, part in zip(each.settings, each.evaluations(focus, ours), ours, strict=True):
            assert part.losses is not None
            pieces = _piece_means(part.losses, shortest)
            untouched = pieces if mode == "off" else untouched
            gap = None if mode == "off" or untouched is None else perplexity_difference(pieces, untouched)
            rows.append(LengthRow(part.length, row, position_bins(part.losses), gap))
    return rows


def _piece_means(losses: np.ndarray, piece: int) -> np.ndarray:
    """Mean loss of each piece of the text; the first token of a block has none."""
    padded = np.concatenate([np.full((len(losses), 1), np.nan), losses], axis=1)
    return np.nanmean(padded.reshape(-1, piece), axis=1)
