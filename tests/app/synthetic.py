"""Synthetic traces, for the tests of view models, charts and the strip."""

from __future__ import annotations

from typing import Any

import numpy as np

from focus_core.analysis import Trace
from focus_core.analysis.trace import Provenance
from focus_core.routing.config import FocusConfig


def synthetic_trace(
    text: str,
    offsets: list[tuple[int, int]] | None = None,
    *,
    num_layers: int = 3,
    assignment: np.ndarray | None = None,
    seed: int = 0,
    **settings: Any,
) -> Trace:
    """A trace of a text cut at its spaces (or at the given offsets), with random assignments."""
    if offsets is None:
        ends = [i for i, c in enumerate(text) if c == " " and i > 0] + [len(text)]
        offsets = list(zip([0, *ends[:-1]], ends))
    config = FocusConfig(**{"num_groups": 4, "top_k": 2, "window": 2, "sink_tokens": 1, **settings})
    rng = np.random.default_rng(seed)
    if assignment is None:
        raw = rng.random((num_layers, len(offsets), config.num_groups)).astype(np.float32)
        assignment = raw / raw.sum(-1, keepdims=True)
    rank = np.argsort(np.argsort(-assignment, axis=-1, kind="stable"), axis=-1)
    top_k = [config.key_top_k_of(row) for row in range(len(assignment))]
    membership = rank < np.array(top_k)[:, None, None]
    return Trace(
        text=text,
        input_ids=np.arange(len(offsets)),
        offsets=np.asarray(offsets, dtype=np.int64).reshape(-1, 2),
        tokens=tuple(text[start:end].replace(" ", "Ġ") for start, end in offsets),
        layers=tuple(range(assignment.shape[0])),
        scores=np.log(np.maximum(assignment, 1e-9)),
        assignment=assignment,
        membership=membership,
        config=config,
        provenance=Provenance("a model", "0123456789ab", "untrained", "ba9876543210", False),
    )
