"""Builds a report from accumulated sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

from focus_core.evaluation.compare import LEVEL, MIN_BLOCKS
from focus_core.report.corpora.statistics import Occurrence, Statistics
from focus_core.report.model import (
    DROPPED,
    Card,
    Document,
    Example,
    Interval,
    Report,
    TagShare,
    Together,
    TokenCount,
    Unread,
)
from focus_core.results import made_now

MIN_UNITS = 10
"""Fewest stretches or documents for an interval; ten stretches are about 200 words."""
TOP_TOKENS = 10

Spell = Callable[[Sequence[int]], list[str]]
"""Maps token ids to the texts they stand for."""


def build_report(
    statistics: Statistics,
    spell: Spell,
    *,
    layers: Sequence[int],
    heads: Sequence[int | None] = (None,),
    documents: Sequence[Document],
    unread: Sequence[Unread] = (),
    origin: dict[str, Any],
    title: str,
    block_length: int,
    tag_names: Sequence[str] = (),
    tagger: str = "no parts of speech",
    top_tokens: int = TOP_TOKENS,
) -> Report:
    """Make the cards of every group.

    Shares get 95% intervals by Student's t over documents, if there are at least 10. With fewer, stretches of text are
    the units; such intervals hold within this text and not for others. Intervals over fewer than 16 units are marked.

    Args:
        statistics: sums over all blocks.
        spell: names of token types.
        layers: (L,) numbers of the layers in the model.
        heads: (H,) key/value heads whose groups were counted; None where all heads of a layer share the groups.
        documents: the texts.
        unread: documents that could not be read.
        origin: see `focus_core.analysis.tables.described`.
        title: of the report.
        block_length: tokens that were routed at once.
        tag_names: (G,) names of the parts of speech; empty to leave them out.
        tagger: source of the parts of speech, or the reason why there are none.
        top_tokens: token types listed per card.
    """
    num_tokens = int(statistics.counts[0].sum())
    min_count = max(2, min(20, num_tokens // 2000))
    totals = statistics.counts[0].sum(0)
    ids = np.flatnonzero(totals)
    texts = dict(zip(ids.tolist(), spell(ids.tolist())))
    words = statistics.unit_tags[:, 0].sum((0, 1)) if len(tag_names) else np.zeros(0, np.int64)
    used = _units(statistics)
    loads = statistics.counts.sum(-1)
    by_chance = _pair_rate(loads.astype(float)).reshape(len(layers), len(heads))
    names = [document.name for document in documents]
    dropped = [
        Unread(name, statistics.failed.get(index, DROPPED))
        for index, (name, count) in enumerate(zip(names, statistics.documents))
        if not count
    ]
    cards: list[Card] = []
    for row, (layer, head) in enumerate(product(layers, heads)):
        sizes = share_intervals(statistics.units[used, row], statistics.units[used, row].sum(-1))
        tags = _tag_shares(statistics.unit_tags[used, row], words, tag_names)
        for group, count in enumerate(loads[row].tolist()):
            place = row * len(sizes) + group
            frequent, typical = _top(statistics.counts[row, group], totals, texts, min_count, top_tokens)
            cards.append(
                Card(
                    layer=layer,
                    group=group,
                    count=count,
                    share=sizes[group],
                    members=int(statistics.members[row, group]),
                    confidence=float(statistics.weight[row, group]) / count if count else None,
                    frequent=frequent,
                    typical=typical,
                    random=tuple(_example(found, names) for found in statistics.random[place]),
                    strongest=tuple(_example(found, names) for found in statistics.strongest[place]),
                    tags=tags[group],
                    persistence=_together(statistics, row, group, layers, by_chance[:, row % len(heads)]),
                    head=head,
                )
            )
    return Report(
        title=title,
        origin=dict(origin),
        documents=tuple(each for each, count in zip(documents, statistics.documents) if count),
        num_tokens=num_tokens,
        num_words=int(words.sum()),
        seed=statistics.seed,
        block_length=block_length,
        intervals=_about_intervals(statistics, len(used)),
        tagger=tagger,
        min_count=min_count,
        cards=tuple(cards),
        made=made_now(),
        failed=(*unread, *dropped),
    )


def _units(statistics: Statistics) -> np.ndarray:
    """Indices of the documents or stretches that hold tokens."""
    return np.flatnonzero(statistics.units[:, 0].sum(-1))


def _about_intervals(statistics: Statistics, units: int) -> str:
    if units < MIN_UNITS:
        return "none: the text is too short for them (descriptive only)"
    how = f"95%, Student's t over {units:,}"
    few = f"; fewer than {MIN_BLOCKS}, so nothing is established" if units < MIN_BLOCKS else ""
    if statistics.by_document:
        return f"{how} documents{few}"
    return f"{how} stretches of text: within this text, not for others{few}"


def share_intervals(units: np.ndarray, totals: np.ndarray) -> list[Interval]:
    """The share of each column in the totals, with its 95% interval by Student's t over units.

    A share is a ratio of two sums over units. Its interval is that of the mean of its first-order terms (delta method),
    cut to 0 and 1.

    Args:
        units: (U, C) counts.
        totals: (U,) or (U, C) counts that they are shares of.

    Returns:
        C shares; without ends under `MIN_UNITS` units.
    """
    totals = totals.reshape(len(totals), -1)
    sums = np.maximum(totals.sum(0), 1)
    whole = units.sum(0) / sums
    count = len(units)
    if count < MIN_UNITS:
        return [Interval(float(value)) for value in whole]
    from scipy import stats  # as in `mean_difference`

    terms = (units - whole * totals) * count / sums
    reach = stats.t.ppf((1 + LEVEL) / 2, count - 1) * terms.std(0, ddof=1) / count**0.5
    ends = np.clip(whole - reach, 0, 1), np.clip(whole + reach, 0, 1)
    return [Interval(*map(float, values)) for values in zip(whole, *ends)]


def _tag_shares(counts: np.ndarray, words: np.ndarray, names: Sequence[str]) -> list[tuple[TagShare, ...]]:
    """Parts of speech in each group, from (U, K, G) counts; intervals only where a group has 20 words or more."""
    if not len(names):
        return [()] * counts.shape[1]
    cards = []
    for group in range(counts.shape[1]):
        inside = counts[:, group]
        total = int(inside.sum())
        shares = share_intervals(inside, inside.sum(-1))
        if total < 20:
            shares = [Interval(share.value) for share in shares]
        found = [
            TagShare(names[tag], count, shares[tag], float(words[tag] / max(1, words.sum())))
            for tag, count in enumerate(inside.sum(0).tolist())
            if count
        ]
        cards.append(tuple(sorted(found, key=lambda share: -share.count)))
    return cards


def _top(
    counts: np.ndarray, totals: np.ndarray, texts: dict[int, str], min_count: int, top: int
) -> tuple[tuple[TokenCount, ...], tuple[TokenCount, ...]]:
    """The commonest token types of a group, and those most typical of it."""
    ids = np.flatnonzero(counts)
    here, size, everything = counts[ids].astype(float), max(1, counts.sum()), max(1, totals.sum())
    pmi = np.log2(here * everything / (size * totals[ids].astype(float)))

    def listed(order: np.ndarray) -> tuple[TokenCount, ...]:
        return tuple(
            TokenCount(texts[int(ids[i])], int(ids[i]), int(here[i]), int(totals[ids[i]]), float(pmi[i]))
            for i in order[:top]
        )

    typical = np.lexsort((ids, -here, -pmi))
    return listed(np.lexsort((ids, -here))), listed(typical[here[typical] >= min_count])


def _together(
    statistics: Statistics, row: int, group: int, layers: Sequence[int], chance: np.ndarray
) -> tuple[Together, ...]:
    """Probability that two tokens of a group share a group in each other layer, and (L,) that of any two tokens."""
    num_groups = statistics.members.shape[1]
    own, head = divmod(row, len(statistics.joint))
    flows = statistics.joint[head, own * num_groups + group].reshape(len(layers), num_groups).astype(float)
    observed = _pair_rate(flows)
    return tuple(
        Together(layer, float(observed[other]), float(chance[other]))
        for other, layer in enumerate(layers)
        if other != own and flows[other].sum() >= 2
    )


def _pair_rate(counts: np.ndarray) -> np.ndarray:
    """(...) probability that two different tokens, drawn from (..., K) counts, are in one group."""
    total = counts.sum(-1)
    return (counts * (counts - 1)).sum(-1) / np.maximum(total * (total - 1), 1)


def _example(found: Occurrence, names: Sequence[str]) -> Example:
    return Example(names[found.document], found.start, found.before, found.token, found.after, found.weight)
