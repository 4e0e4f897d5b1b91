"""Correspondence of the groups of two routings of the same tokens.

Group numbers mean nothing across layers, routers or texts. The Hungarian method pairs the groups of both routings so
that as many tokens as possible lie in paired groups.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from focus_core.analysis.statistics.agreement import ami, contingency, grouped_contingency
from focus_core.analysis.statistics.intervals import Interval, bootstrap_ami, bootstrap_weights, interval
from focus_core.analysis.trace import Trace


def match_groups(table: np.ndarray) -> np.ndarray:
    """Pair the columns of a contingency table with its rows, so that the paired cells hold the most tokens.

    Args:
        table: (R, C) counts of tokens in group r of one routing and group c of the other.

    Returns:
        (C,) int64: the row paired with each column. Columns without a partner (C > R) get numbers from R on.
    """
    rows, columns = linear_sum_assignment(table, maximize=True)
    partner = np.full(table.shape[1], -1, dtype=np.int64)
    partner[columns] = rows
    alone = partner < 0
    partner[alone] = table.shape[0] + np.arange(alone.sum())
    return partner


def matched_share(table: np.ndarray) -> float:
    """Share of tokens in paired cells: 1 where the routings are the same up to the numbering."""
    rows, columns = linear_sum_assignment(table, maximize=True)
    return float(table[rows, columns].sum() / max(1, table.sum()))


def overlap(first: Trace, first_row: int, second: Trace, second_row: int) -> np.ndarray:
    """(K_first, K_second) counts of the tokens of one text by first group in a layer of each of two traces.

    Args:
        first: a trace.
        first_row: row of its traced layers.
        second: another trace of the same tokens, or the same one.
        second_row: row of its traced layers.
    """
    sizes = first.config.num_groups, second.config.num_groups
    return contingency(first.groups[first_row], second.groups[second_row], *sizes)


def renumbered(trace: Trace, row: int, numbers: np.ndarray) -> Trace:
    """One layer of a trace with its groups under other numbers.

    Args:
        trace: the routing, K groups.
        row: row of its traced layers; the result has this layer alone.
        numbers: (K,) distinct new number of each group, such as `match_groups` gives.

    Returns:
        A trace of one layer. Numbers that no group got are groups with no weight and no members.
    """
    num_groups = max(int(numbers.max()) + 1, 2)
    own = None if trace.config.layer_top_k is None else (trace.config.top_k_of(row),)

    def moved(array: np.ndarray, fill: float) -> np.ndarray:
        result = np.full((1, *array.shape[1:-1], num_groups), fill, dtype=array.dtype)
        result[0][..., numbers] = array[row]
        return result

    return dataclasses.replace(
        trace,
        layers=(trace.layers[row],),
        scores=moved(trace.scores, -np.inf),
        assignment=moved(trace.assignment, 0.0),
        membership=moved(trace.membership, False),
        query_weights=None if trace.query_weights is None else moved(trace.query_weights, 0.0),
        sliding_windows=trace.sliding_windows[row : row + 1],
        parts=None if trace.parts is None else trace.parts[row : row + 1],
        potentials=None if trace.potentials is None else moved(trace.potentials, 0.0),
        families=None if trace.families is None else moved(trace.families, 0),
        config=trace.config.replace(num_groups=num_groups, layers=None, layer_top_k=own),
    )


class WithinText(NamedTuple):
    """Agreement of two routings of one text, with the spread over its parts.

    Attributes:
        ami: adjusted mutual information of the first groups.
        interval: 95% bootstrap interval over blocks of this text; says nothing about other texts.
        num_blocks: blocks resampled.
        block_tokens: tokens in each (the last may hold fewer).
    """

    ami: float
    interval: Interval
    num_blocks: int
    block_tokens: int


def agreement_within(
    first: np.ndarray, second: np.ndarray, num_first: int, num_second: int, *, repeats: int = 1000, seed: int = 0
) -> WithinText:
    """Adjusted mutual information of two groupings of the same tokens, bootstrapped over contiguous blocks.

    Neighbouring tokens are alike, so whole blocks are drawn: about 50 of them, of 16 tokens or more.

    Args:
        first: (T,) int64 groups.
        second: (T,) int64 groups.
        num_first: number of groups of the first.
        num_second: of the second.
        repeats: B, resamples.
        seed: of the resamples.
    """
    num_tokens = len(first)
    block_tokens = max(16, -(-num_tokens // 50))
    blocks = np.arange(num_tokens) // block_tokens
    num_blocks = int(blocks[-1]) + 1
    tables = grouped_contingency(first, second, blocks, num_first, num_second, num_blocks)
    score = ami(tables.sum(0))
    weights = bootstrap_weights(num_blocks, repeats, np.random.default_rng(seed))
    return WithinText(score, interval(score, bootstrap_ami(tables, weights)), num_blocks, block_tokens)
