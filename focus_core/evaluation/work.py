"""Evaluations in pieces: blocks of text, each measured under every setting at once, here or on a cluster."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from focus_core.cluster import Cluster
from focus_core.evaluation.measure import Measured, Pairs, joined, measure, rows_at_once
from focus_core.evaluation.perplexity import Evaluation, evaluation_of, overrides
from focus_core.evaluation.retention import Retention, Untouched
from focus_core.io.reading import read_json
from focus_core.io.schema import array, table
from focus_core.io.unfinished import resumed
from focus_core.progress import Progress
from focus_core.routing.model import FocusModel, Mode
from focus_core.routing.portable import PortableModel, done_on, pass_key

Setting = tuple[Mode, int | None, str | None]
"""Routing, k and balance, as in `standard_settings`."""


@dataclass(frozen=True, eq=False)
class Asked:
    """Blocks of a text, and what is asked about them.

    Attributes:
        blocks: (N, T) int64 token ids.
        settings: every routing to measure, the untouched model first.
        stride: tokens scored per block, see `evaluate`.
        changes: other settings of `FocusConfig`.
        retention: whether to compare with the untouched model.
        losses: whether to keep the loss of every token.
    """

    blocks: np.ndarray
    settings: Sequence[Setting]
    stride: int | None = None
    changes: dict[str, Any] = field(default_factory=dict)
    retention: bool = False
    losses: bool = False

    def pieces(self) -> Iterator[Asked]:
        """The same of as many blocks as a forward pass takes."""
        step = rows_at_once(self.blocks.shape[1])
        for start in range(0, len(self.blocks), step):
            yield replace(self, blocks=self.blocks[start : start + step])

    def measured(self, focus: FocusModel) -> list[Measured]:
        """Every setting in turn."""
        untouched = Untouched(self.blocks) if self.retention else None
        more: dict[str, Any] = {"stride": self.stride, "untouched": untouched, "losses": self.losses}
        return [
            measure(focus, self.blocks, mode, overrides(top_k, balance, self.changes), **more)
            for mode, top_k, balance in self.settings
        ]

    def evaluations(self, focus: FocusModel, found: Sequence[Measured]) -> list[Evaluation]:
        """The rows of what was measured."""
        return [
            evaluation_of(focus, each, mode, overrides(top_k, balance, self.changes))
            for each, (mode, top_k, balance) in zip(found, self.settings, strict=True)
        ]


class EvalJob:
    """Measures blocks, see `focus_core.routing.portable.Job`."""

    def work(self, focus: FocusModel, tokenizer: Any, piece: Asked) -> list[Measured]:
        """Every setting of one piece."""
        return piece.measured(focus)


def measurement_key(focus: FocusModel, asked: Sequence[Asked]) -> str:
    """A hash of everything that decides what `measured` finds."""
    return pass_key(focus, asked=asked)


def measured(
    focus: FocusModel,
    asked: Sequence[Asked],
    *,
    folder: Path | None = None,
    cluster: Cluster | None = None,
    model: Any = None,
    progress: Progress,
) -> list[list[Measured]]:
    """What is asked about some texts, each setting over all blocks.

    Memory holds the states of one piece at a time.

    Args:
        focus: model with routers.
        asked: the texts.
        folder: of `unfinished`, for a run that resumes; None for one that does not.
        cluster: workers that measure; None for this process.
        model: what a cluster loads, by name.
        progress: called with the share of the tokens that is done.

    Raises:
        FocusError: settings that do not fit the routers, or a cluster that cannot be used.
    """

    def work(pieces: Sequence[Asked]) -> Generator[list[Measured]]:
        if cluster is None:
            yield from (piece.measured(focus) for piece in pieces)
            return
        with closing(done_on(cluster, PortableModel.of(focus, model), EvalJob(), pieces, progress=progress)) as found:
            yield from (result for _, result in found)

    pieces = [piece for each in asked for piece in each.pieces()]
    how = work if folder is None else partial(resumed, folder, work=work, save=_save, load=_load)
    every, done = [], 0
    whole = sum(each.blocks.size * len(each.settings) for each in asked)
    with closing(how(pieces)) as results:
        rest = zip(pieces, results, strict=True)
        for each in asked:
            parts, (left, length) = [], each.blocks.shape
            while left:
                piece, found = next(rest)
                parts.append(found)
                left -= len(piece.blocks)
                done += piece.blocks.size * len(piece.settings)
                progress(f"Evaluating blocks of {length:,} tokens, {left} left", done / whole)
            every.append([joined(column) for column in zip(*parts)])
    return every


_MEASURED = array(table())


def _save(found: Sequence[Measured], path: Path) -> None:
    """Write what was measured on a piece as JSON, which has every number exactly."""
    path.write_text(json.dumps([asdict(each) for each in found], default=lambda value: value.tolist()), "utf-8")


def _load(path: Path) -> list[Measured]:
    """Read it."""
    return [_measured(**each) for each in read_json(path, _MEASURED, finite=False)]


def _measured(
    *, block_nll: Any, pairs: Any, sizes: Any, retention: Any, losses: Any, length: int, scored: int
) -> Measured:
    return Measured(
        length,
        scored,
        tuple(block_nll),
        Pairs(*pairs),
        {int(layer): np.asarray(counts) for layer, counts in sizes.items()},
        None if retention is None else Retention(**{name: _tuple(value) for name, value in retention.items()}),
        None if losses is None else np.asarray(losses, dtype=np.float32),
    )


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
