"""Keys of one token with their weights, and sentences about them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from focus_core.analysis import Trace
from focus_core.analysis.interventions.attention import TokenAttention
from focus_core.analysis.tokens import context, token_text

WINDOW, SINK, READ, SUMMARY, DROPPED = "window", "sink", "read from afar", "in a summary", "dropped"
KINDS = (WINDOW, SINK, READ, SUMMARY, DROPPED)
"""How a key is read, in the order of colours."""
DRAWN = 300
"""Keys that a chart draws, those with the most weight: a browser takes seconds for thousands."""


def key_kinds(found: TokenAttention, head: int, *, window: int, sink_tokens: int) -> np.ndarray:
    """(n,) how one query head reads each key, a name of `KINDS`."""
    place = np.arange(len(found.groups))
    kinds = np.full(len(place), DROPPED, dtype=object)
    kinds[found.summarised[head]] = SUMMARY
    kinds[found.exact[head]] = READ
    kinds[(place < sink_tokens) & found.exact[head]] = SINK
    kinds[(len(place) - 1 - place <= window) & found.exact[head]] = WINDOW
    return kinds.astype(str)


KEY_COLUMNS = {
    "token": ("token", 56),
    "text": ("text", 70),
    "distance": ("distance", 72),
    "group": ("group", 106),
    "how": ("how", 78),
    "full": ("full", 60),
    "routed": ("routed", 64),
    "in context": ("in context", 194),
}
"""Header and width in pixels of the columns of a `key_table`."""


def key_table(trace: Trace, found: TokenAttention, head: int) -> pd.DataFrame:
    """One row per key, those with the most weight under full attention first.

    Columns token, text, distance, group, how, full, routed, in context.
    """
    kinds = key_kinds(found, head, window=trace.config.window, sink_tokens=trace.config.sink_tokens)
    order = np.argsort(-np.maximum(found.full[head], found.weights[head]), kind="stable")
    return pd.DataFrame(
        {
            "token": order,
            "text": [token_text(trace, int(key)) for key in order],
            "distance": len(kinds) - 1 - order,
            "group": found.groups[order],
            "how": kinds[order],
            "full": found.full[head, order],
            "routed": found.weights[head, order],
            "in context": [context(trace, int(key), 18) for key in order],
        }
    )


def pooled_sentence(table: pd.DataFrame) -> str:
    """The weight that the keys of a `key_table` beyond the first `DRAWN` hold together; empty where all are drawn."""
    rest = table.iloc[DRAWN:]
    if rest.empty:
        return ""
    return (
        f"The charts draw the {DRAWN} tokens with the most weight. The other {len(rest):,} hold "
        f"{rest['full'].sum():.2%} of full attention together, and {rest['routed'].sum():.2%} of what is really read."
    )


def start_token(trace: Trace) -> int:
    """The token that a page starts with: a word in the middle of the text, beyond the first window where it can be.

    A token in the middle takes half the time of the last one, which often ends a line and reads like no word.
    """
    last = len(trace.tokens) - 1
    middle = max(last // 2, min(last, 2 * trace.config.window))
    for place in sorted(range(last + 1), key=lambda place: abs(place - middle)):
        start, end = trace.offsets[place]
        word = trace.text[start:end]
        if word.strip().isalpha() and len(word.strip()) > 3 and (word[0].isspace() or start == 0):
            return place
    return middle


def head_table(found: TokenAttention) -> pd.DataFrame:
    """One row per query head: keys and weight that it reads, in summaries and dropped, and the change of its output."""
    return pd.DataFrame(
        {
            "query head": np.arange(len(found.change)),
            "keys read": found.exact.sum(1),
            "of keys": found.exact.shape[1],
            "weight read": found.kept,
            "in summaries": (found.full * found.summarised).sum(1),
            "dropped": found.dropped,
            "output changed": found.change,
        }
    )


def verdict(trace: Trace, found: TokenAttention, head: int, token: int) -> str:
    """What a token reads, in two sentences."""
    read, keys = int(found.exact[head].sum()), found.exact.shape[1]
    kept, change = float(found.kept[head]), float(found.change[head])
    name = token_text(trace, token)
    if read == keys:
        return f"“{name}” reads all {keys:,} tokens so far: this is full attention."
    rest = "It knows the others through summaries" if found.summarised[head].any() else "It drops the others"
    return (
        f"“{name}” reads {read:,} of {keys:,} tokens exactly; they hold {kept:.1%} of its full attention. {rest}, and "
        f"the head's output changes by {change:.1%}."
    )
