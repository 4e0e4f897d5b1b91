"""Tables for export: safe in a spreadsheet, and with the origin of their numbers."""

from __future__ import annotations

import csv
import hashlib
import io
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from focus_core.analysis.tokens import group_order, margins, numbers
from focus_core.routing.config import FocusConfig
from focus_core.routing.routers import ROUTERS

if TYPE_CHECKING:
    from focus_core.analysis.routed_text import Provenance, RoutedText

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")


def origin(trace: RoutedText, states: str) -> dict[str, Any]:
    """The origin of a table: model, routers, settings and text, as plain values.

    Args:
        trace: the routing.
        states: the model that made the hidden states, "untouched model" or "routed model".
    """
    found = described(trace.provenance, trace.config, states, text_hash(trace.text))
    found |= {} if trace.head is None else {"head": trace.head}
    return found if trace.query_head is None else found | {"query_head": trace.query_head}


def described(provenance: Provenance, config: FocusConfig, states: str, text_sha256: str) -> dict[str, Any]:
    """`origin` from its parts, where there is no trace of the whole text.

    `top_k` lists a plan layer by layer, and names the share of the pairs where narrow groups are read by one.
    """
    return {
        "model": provenance.model,
        "model_revision": provenance.model_revision,
        "routers": provenance.routers,
        "routers_hash": provenance.routers_hash,
        "routers_trained": provenance.trained,
        "num_groups": config.num_groups,
        "top_k": _top_k(config),
        "window": config.window,
        "sink_tokens": config.sink_tokens,
        "balance": config.balance,
        "states": states,
        "text_sha256": text_sha256,
        **({"router": config.router} if ROUTERS[config.router].from_keys else {}),
    }


def _top_k(config: FocusConfig) -> int | str:
    if config.one_top_k is not None:
        return config.one_top_k
    if config.layer_top_k is not None and config.read_share is None:
        return f"planned: {' '.join(map(str, config.layer_top_k))}"
    return config.budget


def token_rows(trace: RoutedText) -> pd.DataFrame:
    """One row per layer and token: its groups, with the weight and score of the first, and its margin.

    Args:
        trace: the routing, of L layers and T tokens.

    Returns:
        L * T rows, layer by layer. Columns:

        - layer: number of the layer in the model.
        - head: the traced key/value head; only where routers are per head.
        - token, text, id, start, end: index, characters, id and span of the token.
        - group, weight, score: its first group, the weight in the balanced assignment, and the router's score.
        - margin: weight of the last group joined minus that of the first one not joined; infinite if there is none.
          With narrow groups the best balanced score minus the second best.
        - groups, reads: numbers of the groups that it is in, and that it reads as a query, as "3 5". Of narrow groups
          those of which it reads a page or more.
        - is_sink: whether every later token reads it.
    """
    count, tokens = len(trace.tokens), np.arange(len(trace.tokens))
    fixed = {
        "token": tokens,
        "text": [trace.text[start:end] for start, end in trace.offsets.tolist()],
        "id": trace.input_ids,
        "start": trace.offsets[:, 0],
        "end": trace.offsets[:, 1],
    }
    parts = []
    for row, layer in enumerate(trace.layers):
        order = group_order(trace, row)
        first = order[:, 0]
        parts.append(
            pd.DataFrame(
                {
                    "layer": np.full(count, layer),
                    **({} if trace.head is None else {"head": np.full(count, trace.head)}),
                    **fixed,
                    "group": first,
                    "weight": trace.assignment[row, tokens, first],
                    "score": trace.scores[row, tokens, first],
                    "margin": margins(trace, row),
                    "groups": [numbers(joined) for joined in order[:, : trace.config.key_top_k_of(row)]],
                    "reads": [numbers(np.flatnonzero(read)) for read in trace.groups_read(row)],
                    "is_sink": tokens < trace.config.sink_tokens,
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def text_hash(text: str) -> str:
    """SHA-256 of a text's UTF-8 bytes, in hex."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def stamped(table: pd.DataFrame, made_from: dict[str, Any]) -> pd.DataFrame:
    """The table with its origin as constant columns at the right; columns of its own keep their names."""
    return table.assign(**{name if name not in table else f"origin_{name}": value for name, value in made_from.items()})


def to_csv(table: pd.DataFrame) -> bytes:
    """A table as CSV that spreadsheets open safely: UTF-8 with a mark, no cell that would run as a formula.

    Strings that start with =, +, -, @ or a control character get a leading apostrophe (OWASP, CSV injection).
    """
    safe = table.copy()
    for name in safe.columns:
        if not pd.api.types.is_numeric_dtype(safe[name]) and not pd.api.types.is_bool_dtype(safe[name]):
            safe[name] = [_defused(value) for value in safe[name]]
    return safe.to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC).encode("utf-8-sig")


def to_parquet(table: pd.DataFrame) -> bytes:
    """A table as Parquet, values as they are."""
    buffer = io.BytesIO()
    table.to_parquet(buffer, index=False)
    return buffer.getvalue()


def _defused(value: object) -> object:
    if isinstance(value, str):
        value = value.replace("\x00", "␀")
        if value.lstrip(" ").startswith(_FORMULA_STARTS):
            return "'" + value
    return value
