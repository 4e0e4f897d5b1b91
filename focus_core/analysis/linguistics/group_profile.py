"""The contents of a group: its words by count and by association, and the published categories."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd

from focus_core.analysis.linguistics.corpus.sample import WordSample
from focus_core.analysis.statistics.agreement import contingency, grouped_contingency
from focus_core.analysis.statistics.intervals import bootstrap_weights, interval, resample

CATEGORIES = {
    "punctuation": ("PUNCT",),
    "determiners": ("DET",),
    "prepositions": ("ADP",),
    "connectives": ("CCONJ", "SCONJ"),
    "verbs and pronouns": ("VERB", "AUX", "PRON"),
    "content nouns": ("NOUN", "PROPN"),
}
"""The groups that the paper reports for K = 8 (arXiv 2604.03260), as universal tags."""

MIN_COUNT = 3
"""Rarer words are left out of the order by association: a word that occurs once has the highest PMI."""


def top_words(sample: WordSample, row: int, limit: int = 10) -> pd.DataFrame:
    """The words of each group of a layer, most frequent first and most associated first.

    PMI is log2 of a word's frequency in the group over its frequency in the sample. Spellings are folded to lower
    case.

    Args:
        sample: the words.
        row: of the layer.
        limit: words per group and order.

    Returns:
        Columns group, by ("count" or "PMI"), rank, word, count, in sample, PMI (bits).
    """
    words = [word.casefold() for word in sample.words]
    total = Counter(words)
    groups = sample.groups[row].tolist()
    rows = []
    for group in range(sample.num_groups):
        inside = Counter(word for word, own in zip(words, groups) if own == group)
        size = inside.total()
        pmi = {word: float(np.log2(count / size * len(words) / total[word])) for word, count in inside.items()}
        by_count = sorted(inside, key=lambda word: (-inside[word], word))
        frequent = [word for word in inside if inside[word] >= MIN_COUNT]
        by_pmi = sorted(frequent, key=lambda word: (-pmi[word], -inside[word], word))
        for name, order in (("count", by_count), ("PMI", by_pmi)):
            rows += [
                (group, name, rank, word, inside[word], total[word], pmi[word])
                for rank, word in enumerate(order[:limit], 1)
            ]
    return pd.DataFrame(rows, columns=["group", "by", "rank", "word", "count", "in sample", "PMI (bits)"])


def category_codes(sample: WordSample) -> np.ndarray:
    """(n,) int64 index into `CATEGORIES`; its length for words of no published category."""
    index = {tag: code for code, tags in enumerate(CATEGORIES.values()) for tag in tags}
    return np.asarray([index.get(tag, len(CATEGORIES)) for tag in sample.tags], dtype=np.int64)


def group_purity(
    sample: WordSample, row: int, *, blocks: np.ndarray | None, repeats: int = 1000, seed: int = 0
) -> pd.DataFrame:
    """Each group of a layer with its largest published category and the purity of that, with 95% intervals.

    Args:
        sample: the words.
        row: of the layer.
        blocks: (n,) int64 block of each word, the unit of the bootstrap; None for no intervals.
        repeats: B.
        seed: of the bootstrap.

    Returns:
        Columns group, words, category, purity, low, high, share of all words (the category's base rate).
    """
    codes, size = category_codes(sample), len(CATEGORIES) + 1
    table = contingency(codes, sample.groups[row], size, sample.num_groups)
    names = [*CATEGORIES, "none of these"]
    drawn = None
    if blocks is not None:
        drawn = _purities(_resampled(codes, sample.groups[row], blocks, size, sample.num_groups, repeats, seed))
    purity = _purities(table)
    rows = []
    for group in range(sample.num_groups):
        best = int(table[:-1, group].argmax())
        score = float(purity[best, group])
        low, high = (np.nan, np.nan) if drawn is None else interval(score, drawn[:, best, group])
        base = float(table[best].sum() / table.sum())
        rows.append((group, int(table[:, group].sum()), names[best], score, max(0.0, low), min(1.0, high), base))
    columns = ["group", "words", "category", "purity", "low", "high", "base rate"]
    return pd.DataFrame(rows, columns=columns)


def published_table(sample: WordSample, *, repeats: int = 1000, seed: int = 0) -> list[dict[str, Any]]:
    """The counterpart of the published group table: the purest group of any layer for each category.

    Layer and group are chosen on every other document and measured on the rest. The choice among L x K groups therefore
    adds no bias. Intervals are over the measured documents.

    Args:
        sample: words of at least four documents.
        repeats: B.
        seed: of the bootstrap.

    Returns:
        One entry per category: layer, group, purity and recall with intervals, base rate, the group's share of the
        words, and the words of both halves. `attainable` bounds purity: base rate over the group's share.
    """
    codes, size = category_codes(sample), len(CATEGORIES) + 1
    documents = np.unique(sample.documents, return_inverse=True)[1].reshape(-1)
    chosen_on = documents % 2 == 0
    rest = ~chosen_on
    first = contingency(codes[chosen_on], sample.groups[:, chosen_on], size, sample.num_groups)
    big = first.sum(1) >= first.sum((1, 2))[:, None] / (4 * sample.num_groups)  # no purity of a handful of words
    rows = []
    for category, name in enumerate(CATEGORIES):
        score = np.where(big, _purities(first)[:, category], -1.0)
        layer, group = np.unravel_index(int(score.argmax()), score.shape)
        groups = sample.groups[layer, rest]
        table = contingency(codes[rest], groups, size, sample.num_groups)
        drawn = _resampled(codes[rest], groups, documents[rest] // 2, size, sample.num_groups, repeats, seed)
        purity, recall = float(_purities(table)[category, group]), float(_recalls(table)[category, group])
        base, share = float(table[category].sum() / table.sum()), float(table[:, group].sum() / table.sum())
        rows.append(
            {
                "category": name,
                "tags": list(CATEGORIES[name]),
                "layer": sample.layers[int(layer)],
                "group": int(group),
                "purity": purity,
                "purity_interval": interval(purity, _purities(drawn)[:, category, group]),
                "recall": recall,
                "recall_interval": interval(recall, _recalls(drawn)[:, category, group]),
                "base_rate": base,
                "group_share": share,
                "attainable": min(1.0, base / share) if share else float("nan"),
                "purity_chosen_on": float(score.max()),
                "words_chosen_on": int(chosen_on.sum()),
                "words": int(rest.sum()),
            }
        )
    return rows


def _resampled(
    codes: np.ndarray, groups: np.ndarray, blocks: np.ndarray, size: int, num_groups: int, repeats: int, seed: int
) -> np.ndarray:
    number = int(blocks.max()) + 1
    tables = grouped_contingency(codes, groups, blocks, size, num_groups, number)
    return resample(tables, bootstrap_weights(number, repeats, np.random.default_rng(seed)))


def _purities(tables: np.ndarray) -> np.ndarray:
    return tables / np.maximum(tables.sum(-2, keepdims=True), 1)


def _recalls(tables: np.ndarray) -> np.ndarray:
    return tables / np.maximum(tables.sum(-1, keepdims=True), 1)
