"""Tables of one group: its tokens, contexts, neighbours, partners in the layers beside it, and who reads it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from focus_core.analysis import Trace
from focus_core.analysis.matching import match_groups, overlap
from focus_core.analysis.reading import kept_keys
from focus_core.report.model import Card, Example
from focus_core.report.visible import visible, visible_token

MAX_QUERIES = 1024
"""Queries whose reading is counted; of a longer text they are evenly spaced."""
MIN_PAIRS = 200
"""Groups with fewer distant pairs are left out of the tables of reading."""
NEIGHBOURS = 6


def token_rows(card: Card) -> pd.DataFrame:
    """The group's commonest tokens and those that are most typical of it."""
    rows = [
        (by, visible_token(token.text), token.count, token.total, token.pmi)
        for by, tokens in (("most frequent", card.frequent), ("most typical", card.typical))
        for token in tokens
    ]
    return pd.DataFrame(rows, columns=["by", "token", "here", "in the text", "PMI (bits)"])


def context_rows(examples: Sequence[Example]) -> pd.DataFrame:
    """Occurrences with the text around them."""
    rows = [(visible(each.before), visible_token(each.token), visible(each.after), each.start) for each in examples]
    return pd.DataFrame(rows, columns=["before", "token", "after", "character"])


def tag_rows(card: Card) -> pd.DataFrame:
    """Parts of speech of the group's words, with intervals, beside their share of all words."""
    rows = [(tag.tag, tag.count, tag.share.value, tag.share.low, tag.share.high, tag.overall) for tag in card.tags]
    return pd.DataFrame(rows, columns=["tag", "words", "share", "low", "high", "in the text"])


def matched_rows(trace: Trace, row: int, group: int) -> pd.DataFrame:
    """The group's partners in the layers beside it: Hungarian matching of all groups of both layers.

    Columns layer, group, shared (tokens in both), of this group (their share of it), by chance (the share that a group
    of that size would hold of any tokens).
    """
    size = int((trace.groups[row] == group).sum())
    rows = []
    for other in (row - 1, row + 1):
        if not 0 <= other < len(trace.layers):
            continue
        table = overlap(trace, other, trace, row)
        partner = int(match_groups(table)[group])
        shared = int(table[partner, group])
        chance = table[partner].sum() / len(trace.tokens)
        rows.append((trace.layers[other], partner, shared, shared / max(1, size), float(chance)))
    return pd.DataFrame(rows, columns=["layer", "group", "shared", "of this group", "by chance"])


def neighbour_rows(centroids: np.ndarray, group: int, count: int = NEIGHBOURS) -> pd.DataFrame:
    """The groups of the layer whose centroids are nearest by cosine.

    Args:
        centroids: (K, D).
        group: whose neighbours.
        count: at most.
    """
    units = centroids / np.maximum(np.linalg.norm(centroids, axis=1, keepdims=True), 1e-12)
    cosine = units @ units[group]
    order = [int(other) for other in np.argsort(-cosine, kind="stable") if other != group][:count]
    return pd.DataFrame({"group": order, "cosine of centroids": cosine[order]})


def reading_counts(trace: Trace, row: int) -> tuple[np.ndarray, np.ndarray]:
    """(K, K) distant pairs that are read, and all of them, by group of the reader and group of the token read."""
    length, config = len(trace.tokens), trace.config
    queries = np.unique(np.linspace(0, length - 1, min(length, MAX_QUERIES)).astype(np.int64))
    keys = np.arange(length)
    distant = (queries[:, None] - keys > config.window) & (keys >= config.sink_tokens)
    own = trace.sliding_window(row)
    if own is not None:
        distant &= queries[:, None] - keys < own
    one_hot = np.eye(config.num_groups, dtype=np.float32)[trace.groups[row]]
    readers = one_hot[queries].T
    read = kept_keys(trace, row, queries) & distant
    return readers @ read.astype(np.float32) @ one_hot, readers @ distant.astype(np.float32) @ one_hot


def reading_rows(read: np.ndarray, pairs: np.ndarray, group: int, *, of: str, count: int = NEIGHBOURS) -> pd.DataFrame:
    """The groups that read a group most (of="readers"), or that it reads most (of="read").

    Args:
        read: from `reading_counts`.
        pairs: likewise.
        group: index of the group.
        of: see above.
        count: rows, at most.
    """
    reads, possible = (read[:, group], pairs[:, group]) if of == "readers" else (read[group], pairs[group])
    usual = reads.sum() / max(1.0, possible.sum())
    share = reads / np.maximum(possible, 1)
    order = [int(g) for g in np.argsort(-share, kind="stable") if possible[g] >= MIN_PAIRS][:count]
    return pd.DataFrame(
        {
            "group": order,
            "distant pairs": possible[order].astype(int),
            "read": share[order],
            "times the mean": share[order] / usual if usual else np.zeros(len(order)),
        }
    )


def size_sentence(card: Card, num_groups: int) -> str:
    """Size and persistence in two sentences."""
    share = card.share
    interval = "" if share.low is None or share.high is None else f" (95% interval {share.low:.1%} to {share.high:.1%})"
    even = 1 / num_groups
    said = f"It holds {card.count:,} tokens, {share.value:.1%} of the text{interval}; an even split is {even:.1%}."
    later = [other for other in card.persistence if other.layer > card.layer] or list(card.persistence[-1:])
    if card.count > 1 and later:
        other = later[0]
        said += (
            f" Two of its tokens share a group in layer {other.layer} in {other.observed:.0%} of cases; any two tokens "
            f"do in {other.chance:.0%}."
        )
    return said
