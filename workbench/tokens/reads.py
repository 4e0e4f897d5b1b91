"""The tokens that a token reads: its relation to every other one, its far partners, and the shares of all pairs."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from focus_core.analysis import Trace
from focus_core.analysis.reading import kept_keys, pair_counts
from focus_core.analysis.sparsity import CLASSES
from focus_core.analysis.tokens import context, token_text

LATER, SELF, LOCAL, SINK, SAME_GROUP, DROPPED, BEYOND = range(7)
RELATIONS = ("later", "self", "local", "sink", "same group", "dropped", "beyond the model's own window")
"""Names of the relations of a token to the others, in the order of their codes."""
NARROW_RELATIONS = {
    SAME_GROUP: "in a page that it reads, or just beyond its window",
    DROPPED: "in the summary of a page that it does not read",
}
"""Names of the relations that are others where groups are narrow."""

_MIN_LETTERS = 4


@dataclass(frozen=True)
class PairShares:
    """Shares of the causal pairs of a text in one layer, inside the model's own window; the four add up to 1.

    Attributes:
        local: at most `window` apart.
        sink: further apart, and the key is a sink token.
        same_group: further apart, kept because the two tokens share a group, or the query reads the key's page.
        dropped: never computed; in summaries, where groups are narrow.
        distant_sharing: the share kept of the distant pairs whose key is no sink; None if there are none.
    """

    local: float
    sink: float
    same_group: float
    dropped: float
    distant_sharing: float | None


def class_names(trace: Trace) -> dict[str, str]:
    """What the classes of pairs are called on the pages, by their names in `focus_core.analysis.sparsity.CLASSES`."""
    names = {name: name for name in CLASSES}
    return names if trace.parts is None else names | {"same group": "read", "dropped": "in summaries"}


def relation_name(trace: Trace, code: int) -> str:
    """The name of one relation, as the routers of a trace have it."""
    if trace.parts is not None and code in NARROW_RELATIONS:
        return NARROW_RELATIONS[code]
    return RELATIONS[code]


def pair_shares(trace: Trace, layer: int) -> PairShares:
    """Shares of causal pairs in one traced layer (row of the trace)."""
    counts = pair_counts(trace, layer)
    causal, local, distant, kept, sink = (int(count[0]) for count in counts)
    free = distant - sink
    return PairShares(
        local=local / causal,
        sink=sink / causal,
        same_group=(kept - sink) / causal,
        dropped=(distant - kept) / causal,
        distant_sharing=(kept - sink) / free if free else None,
    )


def relations(trace: Trace, layer: int, token: int) -> np.ndarray:
    """(T,) int8 codes into `RELATIONS`: how the token may read every other token in one traced layer."""
    position = np.arange(len(trace.tokens))
    codes = np.where(kept_keys(trace, layer, np.array([token]))[0], SAME_GROUP, DROPPED)
    codes[position < trace.config.sink_tokens] = SINK
    codes[token - position <= trace.config.window] = LOCAL
    own = trace.sliding_window(layer)
    if own is not None:
        codes[token - position >= own] = BEYOND
    codes[position > token] = LATER
    codes[token] = SELF
    return codes.astype(np.int8)


def partners(trace: Trace, layer: int, token: int, count: int = 5) -> pd.DataFrame:
    """Same-group tokens beyond the window that a token reads: the farthest and the nearest ones.

    Affinity is the dot product of the token's query weights and the other's soft assignment, 0 to 1. That is a_ij of
    the paper's eq. 2 where both are assignments. Queries of narrow groups have no weights, and no affinity.

    Returns:
        Columns which, token, text, distance, affinity, shared groups, in context; empty if there are none. The shared
        group of narrow groups is that of the key; none for keys just beyond the window, which are always read.
    """
    reachable = np.flatnonzero(relations(trace, layer, token) == SAME_GROUP)
    far, near = reachable[:count], reachable[::-1][:count]
    near = near[~np.isin(near, far)]
    chosen = np.concatenate([far, near])
    shared = trace.membership[layer, chosen] & trace.groups_read(layer)[token]
    parts = trace.parts[layer] if trace.parts is not None else None
    if parts is not None:
        shared = shared & (chosen < parts.borders(np.array([token])))[:, None]
    affinity = _affinity(trace, layer, chosen, np.full(len(chosen), token))
    return pd.DataFrame(
        {
            "which": ["farthest"] * len(far) + ["nearest"] * len(near),
            "token": chosen,
            "text": [token_text(trace, int(i)) for i in chosen],
            "distance": token - chosen,
            **({} if affinity is None else {"affinity": affinity}),
            "shared groups": [" ".join(map(str, np.flatnonzero(row))) for row in shared],
            "in context": [context(trace, int(i), 12) for i in chosen],
        }
    )


def repeated_words(trace: Trace, layer: int) -> pd.DataFrame:
    """First and last mention of every word that returns beyond the window, and whether the last reads the first.

    A word has four letters or more, compared without case. Its token is the last one that ends inside it, because only
    that one has read the whole word. Words whose first mention is a sink token are left out. Words that are never
    written in lower case, mostly names, come first.

    Returns:
        Columns word, name, mentions, first, last, distance, affinity (if queries have weights), kept; names first,
        then the farthest.
    """
    ends, own = trace.offsets[:, 1], trace.sliding_window(layer)
    mentions: dict[str, list[int]] = {}
    lower: set[str] = set()
    for match in re.finditer(rf"[^\W\d_]{{{_MIN_LETTERS},}}", trace.text):
        token = int(np.searchsorted(ends, match.end(), side="right")) - 1
        word = match.group().casefold()
        if token >= 0 and ends[token] > match.start():
            mentions.setdefault(word, []).append(token)
        if match.group()[0].islower():
            lower.add(word)
    rows = []
    for word, tokens in mentions.items():
        first, last = tokens[0], tokens[-1]
        if last - first <= trace.config.window or first < trace.config.sink_tokens:
            continue
        name = word not in lower and word[0].upper() != word[0]
        rows.append((word.title() if name else word, name, len(tokens), first, last, last - first))
    table = pd.DataFrame(rows, columns=["word", "name", "mentions", "first", "last", "distance"])
    starts, lasts = (table[name].to_numpy(dtype=np.int64) for name in ("first", "last"))
    affinity = _affinity(trace, layer, starts, lasts)
    if affinity is not None:
        table["affinity"] = affinity
    kept = kept_keys(trace, layer, lasts)[np.arange(len(table)), starts]
    table["kept"] = kept & (True if own is None else lasts - starts < own)
    return table.sort_values(["name", "distance"], ascending=False, ignore_index=True)


def _affinity(trace: Trace, layer: int, keys: np.ndarray, queries: np.ndarray) -> np.ndarray | None:
    """(n,) affinities of pairs; None where queries have no weights."""
    if trace.query_weights is None:
        return None
    return (trace.assignment[layer, keys] * trace.query_weights[layer, queries]).sum(-1)
