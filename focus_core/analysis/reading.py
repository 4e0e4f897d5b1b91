"""The pairs of one layer that hard routing keeps, whichever kind of router chose them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from focus_core.attention import PairCounts, kept_pairs
from focus_core.routing.config import FocusConfig
from focus_core.routing.narrow.reading import Reading
from focus_core.routing.routers import ROUTERS
from focus_core.routing.rules import UNTOUCHED

if TYPE_CHECKING:
    from focus_core.analysis.routed_text import RoutedText
    from focus_core.routing.layer import LayerRouting


@dataclass(frozen=True, eq=False)
class PartsRead:
    """The parts of narrow groups that the query heads of one key/value head read in one layer.

    Attributes:
        part_of: (T,) int64, the page of each key, or its group where groups are read whole.
        packed: (G, T, ceil(P / 8)) uint8, bit p says whether a query reads part p; as `numpy.packbits` gives it.
        reading: window, sinks, borders and budget.
    """

    part_of: np.ndarray
    packed: np.ndarray
    reading: Reading

    @classmethod
    def of(cls, part_of: torch.Tensor, reads: torch.Tensor, reading: Reading) -> PartsRead:
        """From `LayerRouting.narrow_reads`."""
        return cls(part_of.cpu().numpy(), np.packbits(reads.cpu().numpy(), axis=-1), reading)

    def parts_read(self, head: int, queries: np.ndarray | slice) -> np.ndarray:
        """(n, P) bool, the parts that some queries of one of the G heads read."""
        return np.unpackbits(self.packed[head, queries], axis=-1).astype(bool)

    def borders(self, queries: np.ndarray) -> np.ndarray:
        """(n,) first key of each query's extended window."""
        return self.reading.borders(torch.tensor(queries)).numpy()

    def keys_kept(self, head: int, queries: np.ndarray) -> np.ndarray:
        """(n, T) bool: keys in a part that the query reads, and those from its border on."""
        keys = np.arange(len(self.part_of))
        read = self.parts_read(head, queries)[:, self.part_of]
        return np.where(keys < self.borders(queries)[:, None], read, True)

    def pairs_read(self, head: int) -> int:
        """Pairs with keys of the parts that are read."""
        reading, length = self.reading, len(self.part_of)
        counts = np.zeros(8 * self.packed.shape[-1], dtype=np.int64)
        summed, total = reading.sink_tokens, 0
        for start in range(0, length, reading.chunk):
            border = reading.border(start)
            if border > summed:
                counts += np.bincount(self.part_of[summed:border], minlength=len(counts))
                summed = border
            total += int(self.parts_read(head, slice(start, start + reading.chunk)).sum(0) @ counts)
        return total

    def pair_counts(self, head: int) -> PairCounts:
        """Pairs of one of the G heads, each count (1,) int64."""
        length, reading = len(self.part_of), self.reading
        apart = torch.zeros(1, length, 1, dtype=torch.bool)
        counts = kept_pairs(apart, window=reading.window, sink_tokens=reading.sink_tokens)
        queries = np.arange(length)
        always = reading.already(torch.from_numpy(queries), torch.from_numpy(self.borders(queries))).sum()
        return counts._replace(distant_kept=always[None] + self.pairs_read(head))


def kept_keys(trace: RoutedText, row: int, queries: np.ndarray) -> np.ndarray:
    """(n, T) bool: keys that routing keeps for some queries of one layer; local pairs, sinks and later keys apart.

    Args:
        trace: the routing.
        row: row of its traced layers.
        queries: (n,) int64 tokens.
    """
    if trace.parts is None:
        sets = trace.query_membership[row][queries].astype(np.float32)
        return sets @ trace.membership[row].T.astype(np.float32) > 0
    parts = trace.parts[row]
    if parts is None:  # a layer with a window of its own attends to all of it
        return np.ones((len(queries), len(trace.tokens)), dtype=bool)
    return parts.keys_kept(trace.query_head or 0, queries)


def pair_counts(trace: RoutedText, row: int) -> PairCounts:
    """Pairs that one layer keeps, each count (1,) int64; of the shown query head with narrow groups."""
    parts = trace.parts[row] if trace.parts is not None else None
    if parts is not None:
        return parts.pair_counts(trace.query_head or 0)
    # A layer of narrow groups with a window of the model's own attends to all of it.
    member = trace.membership[row] if trace.parts is None else np.ones((len(trace.tokens), 1), dtype=bool)
    return kept_pairs(
        torch.tensor(member)[None],
        query_membership=torch.tensor(trace.query_membership[row])[None] if trace.parts is None else None,
        window=trace.config.window,
        sink_tokens=trace.config.sink_tokens,
        sliding_window=trace.sliding_window(row),
    )


def always_kept(trace: RoutedText, row: int) -> int:
    """Distant pairs that one layer keeps whatever queries read: sinks, and those up to the border of narrow groups."""
    counts = pair_counts(trace, row)
    if trace.parts is None:
        return int(counts.distant_sink)
    parts = trace.parts[row]
    return int(counts.distant_kept) - (0 if parts is None else parts.pairs_read(trace.query_head or 0))


def best_margins(routing: LayerRouting) -> torch.Tensor | None:
    """(N, T) float32, of narrow groups: each token's best balanced score minus its second best, as keys.

    None where groups are decided by weights, or balance depends on the text.
    """
    router, config = routing.router, routing.config
    if not router.from_keys or config.balance == "sequence":
        return None
    scores = routing.scores.float()
    if config.balance == "calibrated":
        potential = config.temperature * router.potential.float().reshape(router.num_heads, 1, -1)
        scores = scores + potential.repeat(len(scores) // router.num_heads, 1, 1)
    best = scores.topk(2, -1).values
    return best[..., 0] - best[..., 1]


def untouched(config: FocusConfig) -> dict[str, Any]:
    """Settings of `FocusModel.routing` under which hidden states are those of the untouched model.

    k = K without window and sinks is that model, see docs/method.md. Where queries choose by the text, the settings in
    force have to stay, and full attention is a rule of its own.
    """
    if ROUTERS[config.router].from_keys:
        return {"rule": UNTOUCHED}
    return {"top_k": config.num_groups, "window": 0, "sink_tokens": 0}
