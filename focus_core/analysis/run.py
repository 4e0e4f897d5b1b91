"""The groups of every token of a text as a record. `focus analyze` and notebooks call the same function."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from focus_core.analysis.reading import pair_counts
from focus_core.analysis.trace import Trace, analyze
from focus_core.errors import FocusError
from focus_core.models import LoadedModel
from focus_core.progress import Progress
from focus_core.results import stamp
from focus_core.routing.attach import attached
from focus_core.routing.model import FocusModel
from focus_core.routing.routers import ROUTERS

SCHEMA = "focus-analyze/1"


@dataclass(frozen=True)
class AnalyzedText:
    """Groups of a text.

    Attributes:
        trace: scores, assignments and memberships as arrays.
        record: every token's groups in every layer as plain values, with model and settings.
    """

    trace: Trace
    record: dict[str, Any]


def analyze_text(
    text: str,
    *,
    model: str | Path | LoadedModel = "default",
    routers: str | Path | FocusModel | None = None,
    untrained: bool = False,
    top_k: int | None = None,
    head: int = 0,
    query_head: int = 0,
    progress: Progress | None = None,
) -> AnalyzedText:
    """Route a text and record the groups of its tokens.

    Args:
        text: the text itself.
        model: a loaded model, or a name that `load_model` accepts.
        routers: a folder, a shipped name, or a `FocusModel` of the loaded model; None for those shipped for the model.
        untrained: use untrained routers instead.
        top_k: k of every layer; the routers' own, or their plan, when None.
        head: key/value head to analyze, where each has a router.
        query_head: its query head whose reading is recorded, where groups are narrow.
        progress: see `load_model`.

    Raises:
        FocusError: a text, routers or settings that cannot be used.
    """
    changes: dict[str, Any] = {} if top_k is None else {"top_k": top_k}
    with attached(model, routers, untrained=untrained, progress=progress) as (loaded, focus):
        if query_head and not ROUTERS[focus.config.router].from_keys:
            raise FocusError("Query heads read alike with these routers: leave --query-head out.")
        with focus.routing("hard", **changes):
            trace = analyze(focus, loaded.tokenizer, text, head=head, query_head=query_head)
        report = {
            "schema": SCHEMA,
            "model": loaded.info.identity,
            "settings": {"config": trace.config, "provenance": trace.provenance},
            "layers": list(trace.layers),
            "head": trace.head,
            **({} if trace.query_head is None else {"query_head": trace.query_head}),
            "pairs": _pairs(trace),
            "tokens": [_token(trace, index) for index in range(len(trace.tokens))],
        }
    return AnalyzedText(trace, stamp(report))


def _pairs(trace: Trace) -> list[dict[str, Any]]:
    """Pairs that each layer keeps: of this head alone, where each has a router."""
    counts = [pair_counts(trace, row) for row in range(len(trace.layers))]
    return [
        {
            "layer": layer,
            "causal": int(each.causal),
            "kept": int(each.kept),
            "distant": int(each.distant),
            "distant_kept": int(each.distant_kept),
        }
        for layer, each in zip(trace.layers, counts)
    ]


def _token(trace: Trace, index: int) -> dict[str, Any]:
    """One token with the groups it is in and those it reads, layer by layer."""
    start, end = trace.offsets[index]
    return {
        "token": trace.tokens[index],
        "id": int(trace.input_ids[index]),
        "span": [int(start), int(end)],
        "groups": [np.flatnonzero(row).tolist() for row in trace.membership[:, index]],
        "reads": [np.flatnonzero(row).tolist() for row in trace.query_membership[:, index]],
    }
