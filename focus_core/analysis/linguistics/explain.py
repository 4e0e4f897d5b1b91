"""How much of the groups do known properties of words explain? Drops of the log-loss on words held out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from focus_core.analysis.linguistics.corpus.sample import WordSample
from focus_core.analysis.linguistics.features import sentence_blocks, word_features
from focus_core.errors import FocusError
from focus_core.evaluation.compare import Difference, holm, mean_difference
from focus_core.progress import Progress, silent

FOLDS = 8
MIN_BLOCKS = 8
"""Blocks of sentences that a text must have."""
FIT_WORDS = 1024
"""Words that the weights of the features are fitted on, evenly spaced; tables of counts use all words."""
PRIORS = (1.0, 4.0, 16.0, 64.0)
"""Words with the usual shares of groups that are added to the counts of each value; the best for each column."""
LEVEL = 0.05
_RIDGE = 2.0
_STEPS = 12
_SIZES = -1  # the owner of the column that every model has


@dataclass(frozen=True)
class FeatureShare:
    """One feature. A share is established above 0, after Holm's correction over the shares of a layer.

    Attributes:
        feature: its name.
        alone: share of the log-loss that the feature explains by itself.
        unique: share that is lost where all other features are known and this one is not.
    """

    feature: str
    alone: Difference
    unique: Difference


@dataclass(frozen=True)
class Explained:
    """The assignment of one layer and head. Shares are of the log-loss of words held out; 0 is no better than chance.

    Attributes:
        layer: index in the model.
        all_features: share that all features explain together.
        features: each feature, the largest share alone first.
        nats: log-loss of a word's group where only the sizes of groups are known.
        words: number of words.
        blocks: stretches of consecutive sentences that the intervals are over.
    """

    layer: int
    all_features: Difference
    features: tuple[FeatureShare, ...]
    nats: float
    words: int
    blocks: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a record."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Explained:
        """The same from a record."""
        features = tuple(
            FeatureShare(each["feature"], Difference(**each["alone"]), Difference(**each["unique"]))
            for each in values["features"]
        )
        return cls(**{**values, "all_features": Difference(**values["all_features"]), "features": features})


def explain_layers(
    sample: WordSample, rows: Sequence[int] | None = None, *, progress: Progress = silent
) -> tuple[Explained, ...]:
    """Explain the first groups of words by the features of `word_features`.

    Args:
        sample: the words, with relations and entities where these are known.
        rows: of the layers in the sample; all layers when None.
        progress: told of every layer.

    Raises:
        FocusError: fewer than `MIN_BLOCKS` sentences.
    """
    features, blocks = word_features(sample), sentence_blocks(sample)
    rows = range(len(sample.layers)) if rows is None else rows
    found = []
    for done, row in enumerate(rows):
        progress("Explaining layers", done / len(rows))
        found.append(explain(sample.groups[row], features, blocks, layer=sample.layers[row]))
    return tuple(found)


def explain(groups: np.ndarray, features: Mapping[str, np.ndarray], blocks: np.ndarray, *, layer: int = 0) -> Explained:
    """How much of the groups each feature explains on words held out, alone and beyond all others.

    Every column of a feature predicts the group of a word by the groups of the other words with its value, shrunk
    towards the sizes of the groups. A conditional logit model joins these predictions with one weight for each column,
    so a column that tells nothing gets a weight of about 0. Tables and weights of a fold are learnt without it, and
    weights on predictions for words that were not in the tables either. The sizes of the groups have a weight in every
    model, so that no feature gains by correcting them.

    Args:
        groups: (n,) int64 group of each word.
        features: (n, C) int64 codes of each feature, C columns of its own.
        blocks: (n,) int64 block of consecutive sentences of each word; a block is held out as a whole.
        layer: kept in the result.

    Raises:
        FocusError: fewer than `MIN_BLOCKS` blocks.
    """
    num_blocks = int(blocks.max(initial=-1)) + 1
    if num_blocks < MIN_BLOCKS:
        raise FocusError(
            f"Shares need {MIN_BLOCKS} stretches of sentences, and this text has {num_blocks}: take a longer text."
        )
    used, groups = np.unique(groups, return_inverse=True)
    owner = np.repeat(np.arange(len(features)), [codes.shape[1] for codes in features.values()])
    owner = np.concatenate(([_SIZES], owner))
    columns = np.concatenate(list(features.values()), axis=1)
    kept = {"": np.ones(len(owner), dtype=bool), "usual": owner == _SIZES}
    for index, name in enumerate(features):
        kept[f"only {name}"], kept[f"not {name}"] = (owner == index) | (owner == _SIZES), owner != index
    losses = {name: np.zeros(len(groups)) for name in kept}
    folds = blocks % FOLDS
    tables = _Tables(groups, columns, folds, len(used))
    for fold in range(FOLDS):
        held = np.flatnonzero(folds == fold)
        fitted = _evenly(np.flatnonzero(folds != fold), FIT_WORDS)
        priors = tables.priors(fitted, fold)
        usual, lifts = tables.predictions(fitted, fold, priors)
        held_usual, held_lifts = tables.predictions(held, fold, priors)
        start = np.zeros(len(owner))
        for name, chosen in kept.items():
            weights = _fit(usual, lifts[..., chosen], groups[fitted], start[chosen])
            if not name:
                start = weights
            losses[name][held] = _losses(held_usual, held_lifts[..., chosen], groups[held], weights)
    whole = losses["usual"]

    def share(more: np.ndarray, less: np.ndarray) -> Difference:
        return _share(more - less, whole, blocks)

    together, *corrected = _corrected(
        [
            share(whole, losses[""]),
            *(share(whole, losses[f"only {name}"]) for name in features),
            *(share(losses[f"not {name}"], losses[""]) for name in features),
        ]
    )
    shares = [
        FeatureShare(name, alone, unique)
        for name, alone, unique in zip(features, corrected, corrected[len(features) :], strict=False)
    ]
    return Explained(
        layer=layer,
        all_features=together,
        features=tuple(sorted(shares, key=lambda each: -each.alone.difference)),
        nats=float(whole.mean()),
        words=len(groups),
        blocks=num_blocks,
    )


class _Tables:
    """Counts of groups for each value of each column, by fold."""

    def __init__(self, groups: np.ndarray, columns: np.ndarray, folds: np.ndarray, num_groups: int) -> None:
        self.groups, self.columns, self.folds, self.num_groups = groups, columns, folds, num_groups
        self.sizes = self._counts(np.zeros_like(groups), groups)
        self.counts = [self._counts(codes, groups) for codes in columns.T]

    def _counts(self, codes: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """(F, V, K) float32."""
        shape = FOLDS, int(codes.max()) + 1, self.num_groups
        flat = np.ravel_multi_index((self.folds, codes, groups), shape)
        return np.bincount(flat, minlength=int(np.prod(shape))).reshape(shape).astype(np.float32)

    def priors(self, rows: np.ndarray, fold: int) -> list[float]:
        """The prior of each column that predicts the groups of some words best, without their own fold and one more."""
        scores = np.zeros((len(self.counts), len(PRIORS)))
        for places, shares, left in self._parts(rows, fold):
            groups = self.groups[rows[places]]
            for column, counts in enumerate(self.counts):
                values = self.columns[rows[places], column]
                own, whole = counts[left][:, values, groups].sum(0), counts[left].sum((0, 2))[values]
                for index, prior in enumerate(PRIORS):
                    scores[column, index] += np.log((own + prior * shares[groups]) / (whole + prior)).sum()
        return [PRIORS[index] for index in scores.argmax(1)]

    def predictions(self, rows: np.ndarray, fold: int, priors: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
        """Predictions of some words without their own fold and one more.

        Returns:
            (n, K) log shares of the groups, and (n, K, 1 + C) these again and what each column adds to them.
        """
        usual = np.empty((len(rows), self.num_groups), dtype=np.float32)
        lifts = np.zeros((len(rows), self.num_groups, 1 + len(self.counts)), dtype=np.float32)
        for places, shares, left in self._parts(rows, fold):
            usual[places] = lifts[places, :, 0] = np.log(shares)
            for column, (counts, prior) in enumerate(zip(self.counts, priors), 1):
                values, inverse = np.unique(self.columns[rows[places], column - 1], return_inverse=True)
                found = counts[left][:, values].sum(0)
                expected = shares * (found.sum(1, keepdims=True) + prior)
                lifts[places, :, column] = np.log((found + prior * shares) / expected)[inverse]
        return usual, lifts

    def _parts(self, rows: np.ndarray, fold: int) -> Iterator[tuple[np.ndarray, np.ndarray, list[int]]]:
        """The places of words of one fold each, the shares of groups without it and one more, and the folds left."""
        for own in np.unique(self.folds[rows]):
            left = [each for each in range(FOLDS) if each not in (own, fold)]
            sizes = self.sizes[left].sum((0, 1)) + 0.5
            yield np.flatnonzero(self.folds[rows] == own), sizes / sizes.sum(), left


def _fit(usual: np.ndarray, lifts: np.ndarray, groups: np.ndarray, start: np.ndarray) -> np.ndarray:
    """(C,) weights of the columns: maximum likelihood with a small ridge, by Newton's method with halved steps."""
    flat, target = lifts.reshape(-1, lifts.shape[-1]), lifts[np.arange(len(groups)), groups].sum(0)

    def cost(weights: np.ndarray) -> tuple[float, np.ndarray]:
        logs = _log_chances(usual, lifts, weights)
        return -float(logs[np.arange(len(groups)), groups].sum()) + _RIDGE * float(weights @ weights) / 2, logs

    weights = start.copy()
    now, logs = cost(weights)
    enough = 1e-5 * now  # far below the rounding of an interval, above that of float32
    for _ in range(_STEPS):
        chances = np.exp(logs)
        means = np.einsum("nk,nkc->nc", chances, lifts)
        slope = target - means.sum(0) - _RIDGE * weights
        curve = flat.T @ (flat * chances.reshape(-1, 1)) - means.T @ means + _RIDGE * np.eye(len(weights))
        step = np.linalg.solve(curve, slope)
        size, before = 1.0, now
        now, logs = cost(weights + step)
        while now > before + enough and size > 1e-2:
            size /= 2
            now, logs = cost(weights + size * step)
        weights += size * step
        if before - now < enough:
            break
    return weights


def _log_chances(usual: np.ndarray, lifts: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(n, K) log probabilities of the groups."""
    logits = usual + lifts @ weights.astype(np.float32)
    logits -= logits.max(1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def _losses(usual: np.ndarray, lifts: np.ndarray, groups: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(n,) log-loss of each word, in nats."""
    return -_log_chances(usual, lifts, weights)[np.arange(len(groups)), groups]


def _share(drop: np.ndarray, whole: np.ndarray, blocks: np.ndarray) -> Difference:
    """The drop as a share of the whole, its interval over blocks: to first order, the mean of its changes by block."""
    drops, wholes = np.bincount(blocks, drop), np.bincount(blocks, whole)
    if not wholes.sum():
        return mean_difference(np.zeros(len(wholes)))
    share = drops.sum() / wholes.sum()
    return mean_difference(share + (drops - share * wholes) / wholes.mean())


def _corrected(shares: Sequence[Difference]) -> list[Difference]:
    """Shares with p-values for their number, established only above 0."""
    adjusted = holm([share.p_value for share in shares])
    return [
        replace(
            share, p_value=p_value, established=share.established and share.difference > 0 and (p_value or 0) < LEVEL
        )
        for share, p_value in zip(shares, adjusted)
    ]


def _evenly(rows: np.ndarray, count: int) -> np.ndarray:
    return rows if len(rows) <= count else rows[np.arange(count) * len(rows) // count]
