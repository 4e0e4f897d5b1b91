"""Agreement of groups with parts of speech: every measure and reference, for all layers at the same n."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import false_discovery_control, norm

from focus_core.analysis.linguistics import references as ref
from focus_core.analysis.linguistics.corpus.sample import WordSample
from focus_core.analysis.linguistics.corpus.words import TAG_SETS
from focus_core.analysis.statistics.agreement import (
    Agreement,
    agreement,
    ami,
    contingency,
    grouped_contingency,
    membership_sets,
    sharing_lift,
)
from focus_core.analysis.statistics.intervals import Interval, bootstrap_ami, bootstrap_weights, interval
from focus_core.progress import Progress, silent

REPEATS = 1000
"""B, permutations and bootstrap resamples."""
CONTROLS = 20
"""Control tasks (one random tag per type) that a layer is scored on."""
MIN_WORDS = 200
"""Texts with fewer words get no intervals and no tests."""
MIN_BLOCKS = 5
"""Fewer documents than this are resampled by sentence."""
LEVEL = 0.05
_ROUNDING = 1e-9

IDENTITY, POSITION, FREQUENCY = "token identity", "position buckets", "frequency buckets"
UNTRAINED, KMEANS = "untrained routers", "balanced k-means"
BALANCED = (POSITION, FREQUENCY, UNTRAINED)
"""Balanced groupings without training; a layer is beyond balance if it beats all that were computed."""


class Band(NamedTuple):
    """Mean and central 95% of a reference that is drawn many times."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class LayerAlignment:
    """One layer. Intervals, bands of tests and q-values are None where the text is too short for them.

    Attributes:
        layer: index in the model.
        measures: agreement of first groups with tags.
        interval: of the AMI, from resampled documents or sentences.
        chance: AMI of groups shuffled over all words.
        chance_q: share of shuffles that reach the real score, adjusted over layers (Benjamini and Hochberg).
        within_type: AMI of tags shuffled within each type.
        within_type_q: as `chance_q`, for these.
        control: AMI with one random tag per type.
        selectivity: AMI less the mean of `control`.
        references: AMI of each reference grouping with the tags, by name.
        gaps: AMI less that of the reference, from the same resamples, by name.
        identity_q: p-value of no gap to the token-identity baseline, two-sided, adjusted over layers.
        balance_q: the largest such p-value for the balanced groupings that were never trained, adjusted likewise.
        sharing_lift: lift of same-tag pairs sharing a group; None at k = 1.
        sharing_band: the lift of shuffled groups.
    """

    layer: int
    measures: Agreement
    interval: Interval | None
    chance: Band | None
    chance_q: float | None
    within_type: Band | None
    within_type_q: float | None
    control: Band
    selectivity: float
    references: dict[str, float]
    gaps: dict[str, Interval] | None
    sharing_lift: float | None
    sharing_band: Band | None
    identity_q: float | None = None
    balance_q: float | None = None

    @property
    def beyond_chance(self) -> bool:
        """More than shuffled groups, at a false discovery rate of 5% over layers."""
        return self.chance_q is not None and self.chance_q < LEVEL

    @property
    def beyond_identity(self) -> bool:
        """More than the token-identity baseline, at a false discovery rate of 5% over layers."""
        return self.identity_q is not None and self.identity_q < LEVEL and self._above(IDENTITY)

    @property
    def beyond_context(self) -> bool:
        """More than tags shuffled within each type: contextual part of speech."""
        return self.within_type_q is not None and self.within_type_q < LEVEL

    @property
    def beyond_balance(self) -> bool:
        """More than every balanced grouping that was never trained, at a false discovery rate of 5% over layers."""
        return self.balance_q is not None and self.balance_q < LEVEL and all(map(self._above, self.balanced))

    @property
    def balanced(self) -> tuple[str, ...]:
        """The balanced groupings that were computed and never trained."""
        return tuple(name for name in BALANCED if name in self.references)

    def _above(self, name: str) -> bool:
        return self.gaps is not None and self.gaps[name].low > _ROUNDING


@dataclass(frozen=True)
class Alignment:
    """All layers of one sample and tag set.

    Attributes:
        tag_set: "upos" or "coarse".
        num_words: n, the same for every layer.
        num_documents: documents with words.
        num_tags: tags that occur.
        num_groups: K.
        top_k: k, groups a word joins.
        resampled: units that the bootstrap draws, "documents" or "sentences".
        num_blocks: number of these units.
        descriptive: True for texts too short for intervals and tests.
        ceiling: AMI of words sorted by tag and cut into K equal groups.
        unseen: share of words of a type that no other fold has; the token-identity baseline leaves them as they are.
        layers: one entry per layer.
    """

    tag_set: str
    num_words: int
    num_documents: int
    num_tags: int
    num_groups: int
    top_k: int
    resampled: str
    num_blocks: int
    descriptive: bool
    ceiling: float
    unseen: float
    layers: tuple[LayerAlignment, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a record; each layer with the outcomes of its tests."""
        tests = ("beyond_chance", "beyond_identity", "beyond_context", "beyond_balance")
        layers = [
            {**asdict(layer), **({} if self.descriptive else {name: getattr(layer, name) for name in tests})}
            for layer in self.layers
        ]
        return {**asdict(self), "layers": layers}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Alignment:
        """An alignment from a record, its verdicts on gaps as now: earlier records did not correct them over layers."""

        def layer(row: Mapping[str, Any]) -> LayerAlignment:
            known = {name: row[name] for name in LayerAlignment.__dataclass_fields__ if name in row}
            for name in ("chance", "within_type", "control", "sharing_band"):
                known[name] = None if row[name] is None else Band(*row[name])
            known["measures"] = Agreement(**row["measures"])
            known["interval"] = None if row["interval"] is None else Interval(*row["interval"])
            known["gaps"] = row["gaps"] and {name: Interval(*gap) for name, gap in row["gaps"].items()}
            return LayerAlignment(**known)

        layers = [layer(row) for row in values["layers"]]
        return cls(**{**values, "layers": tuple(layers if values["descriptive"] else _gaps_over_layers(layers))})


def align(
    sample: WordSample,
    *,
    tag_set: str = "upos",
    more: Mapping[str, np.ndarray] | None = None,
    sharing: bool = True,
    repeats: int = REPEATS,
    seed: int = 0,
    progress: Progress = silent,
) -> Alignment:
    """Score every layer against the tags, with all references.

    Args:
        sample: the words.
        tag_set: "upos" or "coarse".
        more: further reference groupings of the same words, (L, n); or (S, L, n), with S scores that are averaged. See
            `focus_core.analysis.states`.
        sharing: whether to compute the lift of pairs, the only part that depends on k.
        repeats: B, permutations and resamples.
        seed: of everything random.
        progress: told the share done.

    Raises:
        FocusError: no such tag set.
    """
    rng = np.random.default_rng(seed)
    tags, num_tags, num_groups = sample.codes(tag_set), len(TAG_SETS[tag_set]), sample.num_groups
    descriptive = len(sample) < MIN_WORDS
    resampled, blocks = _blocks(sample)
    num_blocks = int(blocks.max()) + 1
    folds = _folds(sample)
    progress("Learning the groups that spelling alone predicts", 0.0)
    groupings = {
        IDENTITY: ref.identity_groups(sample.groups, sample.types, folds, num_groups),
        POSITION: np.tile(ref.position_groups(sample.tokens, num_groups), (len(sample.layers), 1)),
        FREQUENCY: np.tile(ref.frequency_groups(sample.types, num_groups), (len(sample.layers), 1)),
        **(more or {}),
    }
    controls = np.stack([ref.control_tags(tags, sample.types, rng) for _ in range(CONTROLS)])
    weights = bootstrap_weights(num_blocks, repeats, rng).astype(float)  # once, for many products
    within = None
    if not descriptive:
        progress("Shuffling tags within types", 0.1)
        within = ref.within_type_scores(tags, sample.types, sample.groups, num_tags, num_groups, repeats, rng)
    layers = []
    for row, layer in enumerate(sample.layers):
        progress("Scoring layers", 0.3 + 0.7 * row / len(sample.layers))
        groups = sample.groups[row]
        table = contingency(tags, groups, num_tags, num_groups)
        measures = agreement(table)
        control = np.asarray([ami(each) for each in contingency(controls, groups, num_tags, num_groups)])
        given = {name: value[row][None] if value.ndim == 2 else value[:, row] for name, value in groupings.items()}
        scores = {
            name: float(np.mean([ami(contingency(tags, each, num_tags, num_groups)) for each in value]))
            for name, value in given.items()
        }
        lift, lift_band = pair_lift(sample, row, tag_set, repeats=repeats // 5, seed=seed) if sharing else (None, None)
        chance = own = gaps = None
        if not descriptive:
            chance = ref.permuted_scores(table, repeats, rng)

            def drawn(each: np.ndarray) -> np.ndarray:
                return bootstrap_ami(grouped_contingency(tags, each, blocks, num_tags, num_groups, num_blocks), weights)

            replicates = drawn(groups)
            own = interval(measures.ami, replicates)
            gaps = {
                name: interval(measures.ami - scores[name], replicates - np.mean([drawn(each) for each in value], 0))
                for name, value in given.items()
            }
        layers.append(
            LayerAlignment(
                layer=layer,
                measures=measures,
                interval=own,
                chance=None if chance is None else _band(chance),
                chance_q=None if chance is None else _p_value(measures.ami, chance),
                within_type=None if within is None else _band(within[row]),
                within_type_q=None if within is None else _p_value(measures.ami, within[row]),
                control=_band(control),
                selectivity=measures.ami - float(control.mean()),
                references=scores,
                gaps=gaps,
                sharing_lift=lift,
                sharing_band=lift_band,
            )
        )
    return Alignment(
        tag_set=tag_set,
        num_words=len(sample),
        num_documents=sample.num_documents,
        num_tags=len(np.unique(tags)),
        num_groups=num_groups,
        top_k=int(sample.membership[0, 0].sum()),
        resampled=resampled,
        num_blocks=num_blocks,
        descriptive=descriptive,
        ceiling=ref.balance_ceiling(tags, num_groups, rng),
        unseen=_unseen(sample.types, folds),
        layers=tuple(layers if descriptive else _over_layers(layers)),
    )


def _over_layers(layers: Sequence[LayerAlignment]) -> list[LayerAlignment]:
    """The layers with p-values of shuffles replaced by ones adjusted over all layers, and those of gaps added."""
    chance, within = (
        false_discovery_control([getattr(layer, name) for layer in layers]) for name in ("chance_q", "within_type_q")
    )
    return _gaps_over_layers(
        [replace(layer, chance_q=float(a), within_type_q=float(b)) for layer, a, b in zip(layers, chance, within)]
    )


def _gaps_over_layers(layers: Sequence[LayerAlignment]) -> list[LayerAlignment]:
    identity, balance = (
        false_discovery_control(column)
        for column in zip(
            *(
                (_gap_p_value(layer, IDENTITY), max(_gap_p_value(layer, name) for name in layer.balanced))
                for layer in layers
            )
        )
    )
    return [replace(layer, identity_q=float(a), balance_q=float(b)) for layer, a, b in zip(layers, identity, balance)]


def _gap_p_value(layer: LayerAlignment, name: str) -> float:
    """Two-sided, of no gap to a reference, before any correction.

    The end of the 95% interval towards 0 lies 1.96 standard errors from the gap. So the p-value is below 5% exactly
    where the interval leaves 0 out, and that of an earlier record follows from its intervals.
    """
    assert layer.gaps is not None
    gap = layer.measures.ami - layer.references[name]
    towards = abs(gap - (layer.gaps[name].low if gap > 0 else layer.gaps[name].high))
    if min(abs(gap), towards) <= _ROUNDING:
        return float(abs(gap) <= _ROUNDING)
    return float(2 * norm.sf(norm.ppf(0.975) * abs(gap) / towards))


def _blocks(sample: WordSample) -> tuple[str, np.ndarray]:
    """The units to resample: documents, or sentences where documents are too few."""
    if sample.num_documents >= MIN_BLOCKS:
        return "documents", np.unique(sample.documents, return_inverse=True)[1].reshape(-1)
    return "sentences", np.unique(sample.sentences, return_inverse=True)[1].reshape(-1)


def _folds(sample: WordSample) -> np.ndarray:
    """(n,) documents, or the halves of a single one."""
    if sample.num_documents > 1:
        return sample.documents
    return (np.arange(len(sample)) * 2 // len(sample)).astype(np.int64)


def _unseen(types: np.ndarray, folds: np.ndarray) -> float:
    """Share of words of a type that occurs in no other fold."""
    pairs = np.unique(np.stack((types, folds), axis=1), axis=0)
    return float((np.bincount(pairs[:, 0], minlength=int(types.max()) + 1)[types] < 2).mean())


def pair_lift(
    sample: WordSample, row: int, tag_set: str, *, repeats: int = 200, seed: int = 0
) -> tuple[float | None, Band | None]:
    """Lift of same-tag pairs sharing a group in one layer, and that of shuffled groups.

    Args:
        sample: the words.
        row: of the layer.
        tag_set: "upos" or "coarse".
        repeats: B shuffles.
        seed: of the shuffles.

    Returns:
        The lift, and the band of shuffled groups or None where the text is too short for tests. None twice at k = 1,
        where first groups are the whole membership, and at k = K, where all pairs share a group.
    """
    membership = sample.membership[row]
    if membership[0].sum() < 2 or membership.all():
        return None, None
    tags, num_tags = sample.codes(tag_set), len(TAG_SETS[tag_set])
    codes, overlap = membership_sets(membership)
    table = contingency(tags, codes, num_tags, len(overlap))
    lift = float(sharing_lift(table, overlap))
    if len(sample) < MIN_WORDS:
        return lift, None
    tables = ref.permuted_tables(table, repeats, np.random.default_rng(seed))
    return lift, _band(sharing_lift(tables, overlap))


def _band(values: np.ndarray) -> Band:
    low, high = np.quantile(values, [0.025, 0.975])
    return Band(float(values.mean()), float(low), float(high))


def _p_value(score: float, shuffled: np.ndarray) -> float:
    """Share of shuffles that reach the score, the real arrangement counted among them."""
    return float((1 + (shuffled >= score - 1e-12).sum()) / (1 + len(shuffled)))
