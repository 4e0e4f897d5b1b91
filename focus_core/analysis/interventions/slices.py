"""Kinds of predictions: part of speech, copied or new, and distance from the keys that were changed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from focus_core.analysis.interventions.chance import Trial, against_chance, corrected
from focus_core.analysis.linguistics.corpus.words import TaggedText, align_words

COPIED, SEEN, NEW = "copied", "seen before", "new"
MIN_TOKENS = 5
"""Kinds with fewer predictions are left out."""


@dataclass(frozen=True)
class Kinds:
    """A kind for every prediction.

    Attributes:
        name: what the kinds are, such as "part of speech".
        labels: (T - 1,) str, of the predicted token; empty for none.
        order: the kinds in the order of a table.
    """

    name: str
    labels: np.ndarray
    order: tuple[str, ...]


def copied_or_new(input_ids: np.ndarray) -> Kinds:
    """Whether a predicted token can be copied from the text before it.

    "copied": the same token followed the same token before, as induction copies it. "seen before": it occurred, after
    other tokens. "new": it did not occur.

    Args:
        input_ids: (T,) int64.
    """
    pairs, seen, labels = set(), {int(input_ids[0])}, []
    for previous, token in zip(input_ids[:-1].tolist(), input_ids[1:].tolist()):
        labels.append(COPIED if (previous, token) in pairs else SEEN if token in seen else NEW)
        pairs.add((previous, token))
        seen.add(token)
    return Kinds("copied or new", np.asarray(labels), (COPIED, SEEN, NEW))


def parts_of_speech(tagged: TaggedText, offsets: np.ndarray) -> Kinds:
    """The part of speech of the word that a predicted token belongs to.

    Args:
        tagged: the words.
        offsets: (T, 2) int64 characters of each token.
    """
    labels = np.full(len(offsets), "", dtype=object)
    found = align_words(tagged, offsets, rule="all")
    labels[found.tokens] = np.asarray(tagged.tags, dtype=object)[found.words]
    labels = labels[1:].astype(str)
    names, counts = np.unique(labels[labels != ""], return_counts=True)
    return Kinds("part of speech", labels, tuple(names[np.argsort(-counts, kind="stable")].tolist()))


def distances(keys: np.ndarray, length: int, window: int) -> Kinds:
    """How far before the query the nearest changed key lies that is beyond its window.

    Args:
        keys: places of the keys.
        length: T.
        window: w.
    """
    queries = np.arange(length - 1)
    apart = np.where(queries[:, None] - keys > window, queries[:, None] - keys, length)
    nearest = apart.min(1, initial=length)
    edges, names = [window + 1], []
    while edges[-1] < length:
        edges.append(2 * edges[-1] - 1)
        names.append(f"{edges[-2]}–{min(edges[-1] - 1, length - 1)} tokens")
    none = "no such key"
    labels = [names[np.searchsorted(edges, each, side="right") - 1] if each < length else none for each in nearest]
    return Kinds("distance", np.asarray(labels), (*names, none))


def by_kind(found: Trial, kinds: Kinds, *, measure: str = "kl") -> pd.DataFrame:
    """The mean effect on each kind of prediction against that of the random interventions.

    Args:
        found: the intervention and the random ones.
        kinds: of the predictions.
        measure: "kl" or "loss".

    Returns:
        Columns kind, tokens, effect, low, high (the middle 95% of the random ones), p, p (Holm over the kinds).
    """
    own = found.change.kl if measure == "kl" else found.change.loss
    random = found.random_kl if measure == "kl" else found.random_loss
    rows, values = [], []
    for kind in kinds.order:
        inside = kinds.labels == kind
        if inside.sum() < MIN_TOKENS:
            continue
        rows.append((kind, int(inside.sum())))
        values.append(
            against_chance(
                float(own[inside].mean()), random[:, inside].mean(1), two_sided=measure == "loss", stop_after=None
            )
        )
    return pd.DataFrame(
        [
            (*row, each.value, each.low, each.high, each.p_value, each.adjusted)
            for row, each in zip(rows, corrected(values))
        ],
        columns=["kind", "tokens", "effect", "low", "high", "p", "p (Holm)"],
    )
