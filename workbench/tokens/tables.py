"""Tables of tokens: close calls, groups over the layers, and the whole text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from focus_core.analysis import Trace
from focus_core.analysis.tokens import context, group_order, margin_of, margins, numbers, token_text


def ambiguous(trace: Trace, layer: int, count: int = 50) -> pd.DataFrame:
    """Tokens whose groups were decided by the smallest margins in a layer, the closest call first."""
    k, order, margin = trace.config.key_top_k_of(layer), group_order(trace, layer), margins(trace, layer)
    if not 0 < k < order.shape[1]:
        return pd.DataFrame(columns=["token", "text", "in context", "groups", "runner-up", "margin"])
    chosen = np.argsort(margin, kind="stable")[:count]
    return pd.DataFrame(
        {
            "token": chosen,
            "text": [token_text(trace, int(i)) for i in chosen],
            "in context": [context(trace, int(i)) for i in chosen],
            "groups": [numbers(order[i, :k]) for i in chosen],
            "runner-up": order[chosen, k],
            "margin": margin[chosen],
        }
    )


def groups_by_layer(trace: Trace, token: int) -> pd.DataFrame:
    """The groups of one token in every layer, with the weight of the first and the margin.

    Narrow groups have no weight: their best score decides, and the margin is one of scores.
    """
    rows = []
    for row, layer in enumerate(trace.layers):
        k = trace.config.key_top_k_of(row)
        order = group_order(trace, row)[token]
        weight = float(trace.assignment[row, token, order[0]])
        rows.append((layer, numbers(order[:k]), weight, float(margins(trace, row)[token])))
    table = pd.DataFrame(rows, columns=["layer", "groups", "weight of the first", "margin"])
    return table if margin_of(trace) == "weight" else table.drop(columns="weight of the first")


def token_table(trace: Trace, token_bytes: Sequence[bytes], rows: Sequence[int] | None = None) -> pd.DataFrame:
    """One row per token: spelling, text, id and span, then its groups, weight and margin in every layer.

    Args:
        trace: the routing.
        token_bytes: the bytes of each token.
        rows: rows of the trace to list, all by default.
    """
    columns: dict[str, object] = {
        "token": np.arange(len(trace.tokens)),
        "spelling": list(trace.tokens),
        "text": [trace.text[start:end] for start, end in trace.offsets.tolist()],
        "id": trace.input_ids,
        "bytes": [raw.hex(" ") for raw in token_bytes],
        "start": trace.offsets[:, 0],
        "end": trace.offsets[:, 1],
    }
    for row in range(len(trace.layers)) if rows is None else rows:
        layer = trace.layers[row]
        order = group_order(trace, row)
        columns[f"layer_{layer}_groups"] = [numbers(groups) for groups in order[:, : trace.config.key_top_k_of(row)]]
        first = np.take_along_axis(trace.assignment[row], order[:, :1], axis=1)[:, 0]
        if margin_of(trace) == "weight":
            columns[f"layer_{layer}_weight"] = np.round(first, 4)
        columns[f"layer_{layer}_margin"] = np.round(margins(trace, row), 4)
    return pd.DataFrame(columns)
