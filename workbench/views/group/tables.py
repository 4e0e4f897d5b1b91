"""Tables of one group: its tokens, contexts, neighbours, partners in the layers beside it, and who reads it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from focus_core.analysis import Trace
from focus_core.analysis.reading import kept_keys
from focus_core.analysis.statistics.agreement import contingency
from focus_core.analysis.statistics.matching import match_groups, overlap
from focus_core.report.build import share_intervals
from focus_core.report.model import Card, Example
from focus_core.report.visible import visible, visible_token

MAX_QUERIES = 1024
"""Queries whose reading is counted; of a longer text they are evenly spaced."""
MIN_PAIRS = 200
"""Groups with fewer distant pairs are left out of the tables of reading."""
NEIGHBOURS = 6
STRETCHES, STRETCH = 16, 32
"""Stretches of the text that intervals rest on, at most, and the tokens of each, at least."""
SHIFTS = 19
"""Places that the groups of a layer are moved to, to see what matching finds by chance."""


TOKEN_COLUMNS = {
    "by": ("by", 104),
    "token": ("token", 70),
    "here": ("here", 48),
    "in the text": ("text", 50),
    "PMI (bits)": ("PMI", 58),
}
"""Headers and widths beside the chart of parts of speech."""


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

    Columns layer, group, shared (tokens in both), of this group (their share of it), low and high (its interval over
    stretches of the text, None in a short one), by chance (the share of a partner where the other layer is moved along
    the text and matched anew, mean of `SHIFTS`).
    """
    own = trace.groups[row]
    inside = own == group
    stretch = _stretch_of(len(own))
    rows = []
    for other in (row - 1, row + 1):
        if not 0 <= other < len(trace.layers):
            continue
        partner = int(match_groups(overlap(trace, other, trace, row))[group])
        both = np.bincount(stretch, inside & (trace.groups[other] == partner))
        share = share_intervals(both[:, None], np.bincount(stretch, inside))[0]
        chance = _matched_by_chance(trace.groups[other], own, group, trace.config.num_groups)
        rows.append((trace.layers[other], partner, int(both.sum()), share.value, share.low, share.high, chance))
    return pd.DataFrame(rows, columns=["layer", "group", "shared", "of this group", "low", "high", "by chance"])


def _matched_by_chance(other: np.ndarray, own: np.ndarray, group: int, num_groups: int) -> float:
    """The mean share of a group that its partner holds, with the other layer moved along the text."""
    shares = []
    for shift in len(own) * np.arange(1, SHIFTS + 1) // (SHIFTS + 1):
        table = contingency(np.roll(other, shift), own, num_groups, num_groups)
        shares.append(table[match_groups(table)[group], group] / max(1, table[:, group].sum()))
    return float(np.mean(shares))


def _stretch_of(length: int) -> np.ndarray:
    """(length,) int64 number of the stretch of each place; stretches are about equally long, and few."""
    return np.arange(length) * max(1, min(STRETCHES, length // STRETCH)) // max(1, length)


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
    """(S, K, K) distant pairs that are read, and all of them, by stretch and group of queries, and group of keys."""
    length, config = len(trace.tokens), trace.config
    queries = np.unique(np.linspace(0, length - 1, min(length, MAX_QUERIES)).astype(np.int64))
    keys = np.arange(length)
    distant = (queries[:, None] - keys > config.window) & (keys >= config.sink_tokens)
    own = trace.sliding_window(row)
    if own is not None:
        distant &= queries[:, None] - keys < own
    one_hot = np.eye(config.num_groups, dtype=np.float32)[trace.groups[row]]
    stretch = _stretch_of(len(queries))
    readers = one_hot[queries].T * (stretch == np.arange(stretch[-1] + 1)[:, None, None])
    read = kept_keys(trace, row, queries) & distant
    return readers @ (read.astype(np.float32) @ one_hot), readers @ (distant.astype(np.float32) @ one_hot)


def reading_rows(read: np.ndarray, pairs: np.ndarray, group: int, *, of: str, count: int = NEIGHBOURS) -> pd.DataFrame:
    """The groups that read a group most (of="readers"), or that it reads most (of="read").

    Args:
        read: from `reading_counts`; the intervals are over its stretches.
        pairs: likewise.
        group: index of the group.
        of: see above.
        count: rows, at most.
    """
    by_stretch = (slice(None), slice(None), group) if of == "readers" else (slice(None), group)
    reads, possible = read[by_stretch], pairs[by_stretch].sum(0)
    usual = reads.sum() / max(1.0, possible.sum())
    shares = share_intervals(reads, pairs[by_stretch])
    share = np.array([each.value for each in shares])
    order = [int(g) for g in np.argsort(-share, kind="stable") if possible[g] >= MIN_PAIRS][:count]
    return pd.DataFrame(
        {
            "group": order,
            "distant pairs": possible[order].astype(int),
            "read": share[order],
            "low": [shares[g].low for g in order],
            "high": [shares[g].high for g in order],
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
