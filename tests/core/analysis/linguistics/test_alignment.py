"""The statistical protocol on planted groups: every measure and reference gives what it should."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from focus_core.analysis.linguistics import references as ref
from focus_core.analysis.linguistics.alignment import FREQUENCY, IDENTITY, POSITION, UNTRAINED, Alignment, align
from focus_core.analysis.linguistics.cells import cell_tests
from focus_core.analysis.linguistics.corpus.sample import WordSample
from focus_core.analysis.linguistics.corpus.words import Tagger
from focus_core.analysis.linguistics.group_profile import published_table, top_words
from focus_core.analysis.linguistics.verdicts import layer_sentence, verdicts
from focus_core.analysis.states import balanced_kmeans
from focus_core.analysis.statistics.agreement import ami, contingency, grouped_contingency
from focus_core.analysis.statistics.intervals import Interval, bootstrap_ami, bootstrap_weights, interval

NUM_GROUPS, NUM_WORDS, NUM_DOCUMENTS, NUM_TYPES = 4, 4000, 40, 300
PLANTS = ("perfect", "random", "balanced random", "token identity", "contextual")
NAMES = ("NOUN", "VERB", "ADJ", "PUNCT")


@pytest.fixture(scope="module")
def planted() -> WordSample:
    """One layer for each plant. Half of the types occur with two tags, as "walk" does."""
    rng = np.random.default_rng(0)
    frequency = 1 / np.arange(1, NUM_TYPES + 1)
    types = rng.choice(NUM_TYPES, NUM_WORDS, p=frequency / frequency.sum())
    usual = rng.integers(0, 4, NUM_TYPES)
    other = np.where(np.arange(NUM_TYPES) % 2, usual, (usual + 1) % 4)
    tags = np.where(rng.random(NUM_WORDS) < 0.4, other[types], usual[types])
    group_of_type = rng.integers(0, NUM_GROUPS, NUM_TYPES)
    group_of_type = np.where(rng.random(NUM_TYPES) < 0.7, usual, group_of_type)
    random = rng.integers(0, NUM_GROUPS, NUM_WORDS)
    groups = np.stack(
        [
            tags,
            np.minimum(random, rng.integers(0, NUM_GROUPS, NUM_WORDS)),
            rng.permutation(NUM_WORDS) % NUM_GROUPS,
            group_of_type[types],
            np.where(rng.random(NUM_WORDS) < 0.8, tags, random),
        ]
    )
    documents = np.arange(NUM_WORDS) * NUM_DOCUMENTS // NUM_WORDS
    return WordSample(
        layers=tuple(range(len(PLANTS))),
        groups=groups,
        membership=groups[..., None] == np.arange(NUM_GROUPS),
        tokens=np.arange(NUM_WORDS) % 100,
        types=np.unique(types, return_inverse=True)[1],
        words=tuple(f"w{code}" for code in types),
        tags=tuple(NAMES[tag] for tag in tags),
        sentences=np.arange(NUM_WORDS) // 10,
        documents=documents,
        num_words=NUM_WORDS,
        coverage=1.0,
        exact=1.0,
        rule="last",
        tagger=Tagger("planted", "1", gold=True),
    )


@pytest.fixture(scope="module")
def found(planted):
    untrained = np.random.default_rng(1).integers(0, NUM_GROUPS, (2, len(PLANTS), NUM_WORDS))
    result = align(planted, repeats=300, more={UNTRAINED: untrained})
    return dict(zip(PLANTS, result.layers)), result


def test_perfect_groups_score_one_and_beat_everything(found):
    layer = found[0]["perfect"]
    assert layer.measures.ami == pytest.approx(1) and layer.measures.one_to_one == 1
    assert layer.beyond_chance and layer.beyond_identity and layer.beyond_context and layer.beyond_balance


@pytest.mark.parametrize("plant", ["random", "balanced random"])
def test_random_groups_score_zero_and_beat_nothing(found, plant):
    layer = found[0][plant]
    assert abs(layer.measures.ami) < 0.01
    assert layer.chance.low - 0.002 < layer.measures.ami < layer.chance.high + 0.002
    assert not (layer.beyond_chance or layer.beyond_identity or layer.beyond_context or layer.beyond_balance)
    assert abs(layer.selectivity) < 0.01


def test_groups_that_follow_spelling_are_found_out(found):
    layer = found[0]["token identity"]
    assert layer.beyond_chance and layer.measures.ami > 0.1
    assert not layer.beyond_identity and not layer.beyond_context
    assert abs(layer.references[IDENTITY] - layer.measures.ami) < 0.02
    assert layer.within_type.low == pytest.approx(layer.measures.ami) == layer.within_type.high


def test_contextual_groups_beat_spelling(found):
    layer = found[0]["contextual"]
    assert layer.beyond_chance and layer.beyond_identity and layer.beyond_context and layer.beyond_balance
    assert layer.within_type.high < layer.measures.ami
    assert layer.selectivity > 0.2


def test_references_that_know_no_syntax_score_zero(found):
    for layer in found[0].values():
        assert abs(layer.references[POSITION]) < 0.01 and abs(layer.references[UNTRAINED]) < 0.01
        assert layer.chance.low < 0 < layer.chance.high or abs(layer.chance.mean) < 1e-3
        assert layer.references[FREQUENCY] == pytest.approx(found[0]["perfect"].references[FREQUENCY])


def test_a_random_tag_per_type_is_remembered_by_types_and_not_by_tags(found):
    """Groups that are a function of the type tell a type's random tag better than groups by context do."""
    assert found[0]["token identity"].control.mean > 0.02
    assert found[0]["balanced random"].control.mean < 0.01


def test_intervals_hold_their_score_and_n_is_equal(found):
    layers, result = found
    for layer in layers.values():
        assert layer.interval.low <= layer.measures.ami <= layer.interval.high
    assert (result.resampled, result.num_blocks, result.num_words) == ("documents", NUM_DOCUMENTS, NUM_WORDS)
    assert not result.descriptive and result.num_tags == 4


def test_one_text_is_resampled_by_sentence_and_a_short_one_is_only_described(planted):
    def cut(count: int) -> WordSample:
        fields = {name: getattr(planted, name)[:count] for name in ("tokens", "types", "words", "tags", "sentences")}
        return WordSample(
            layers=planted.layers,
            groups=planted.groups[:, :count],
            membership=planted.membership[:, :count],
            documents=np.zeros(count, dtype=np.int64),
            **fields,
            **{name: getattr(planted, name) for name in ("num_words", "coverage", "exact", "rule", "tagger")},
        )

    one = align(cut(400), repeats=50)
    assert (one.resampled, one.num_blocks, one.descriptive) == ("sentences", 40, False)
    short = align(cut(199), repeats=50)
    assert short.descriptive
    assert all(layer.interval is None and layer.chance_q is None and layer.gaps is None for layer in short.layers)
    assert short.layers[0].measures.ami == pytest.approx(1)
    assert "beyond_chance" not in short.to_dict()["layers"][0]


def test_verdicts_on_gaps_are_corrected_over_layers(found):
    """30 layers whose intervals just leave 0 out prove less than one does."""
    _, result = found
    layer = result.layers[0]
    score, half = layer.measures.ami, 0.1
    barely, clearly = (Interval(part * half, (2 + part) * half) for part in (0.02, 1.5))

    def as_far_as(gap):
        references = {name: score - (gap.low + gap.high) / 2 for name in layer.gaps}
        return replace(layer, gaps=dict.fromkeys(layer.gaps, gap), references=references)

    def judged(layers):
        return Alignment.from_dict(replace(result, layers=tuple(layers)).to_dict()).layers

    (alone,) = judged([as_far_as(barely)])
    assert alone.beyond_identity and alone.beyond_balance
    assert alone.identity_q == pytest.approx(2 * stats.norm.sf(1.02 * stats.norm.ppf(0.975)))
    nothing = as_far_as(Interval(-half, half))
    many = judged([as_far_as(barely), *[nothing] * 29])
    assert not any(each.beyond_identity or each.beyond_balance for each in many)
    strong = judged([as_far_as(clearly), *[nothing] * 29])
    assert [each.beyond_identity for each in strong] == [True] + [False] * 29
    q_values = stats.false_discovery_control([2 * stats.norm.sf(2.5 * stats.norm.ppf(0.975)), *[1.0] * 29])
    assert [each.identity_q for each in strong] == pytest.approx(q_values.tolist())


def test_an_ami_above_the_ceiling_of_equal_groups_is_explained(found):
    _, result = found
    above = dataclasses.replace(result, ceiling=0.01)
    for sentence in (verdicts(above)[1], layer_sentence(above, 0)):
        assert "At most 0.01 is possible with" in sentence and "not equal, so they may exceed it." in sentence
    below = dataclasses.replace(result, ceiling=1.0)
    assert "exceed" not in verdicts(below)[1] and "equal groups could reach." in layer_sentence(below, 0)


def test_an_alignment_is_read_from_its_record(found):
    _, result = found
    plain = json.loads(json.dumps(result.to_dict()))
    again = Alignment.from_dict(plain)
    assert json.loads(json.dumps(again.to_dict())) == plain
    for name in ("identity_q", "balance_q", "beyond_identity", "beyond_balance"):  # as records were before
        for layer in plain["layers"]:
            layer.pop(name)
    assert verdicts(Alignment.from_dict(plain)) == verdicts(result)


def test_same_seed_same_numbers(planted):
    assert align(planted, repeats=20, seed=3).to_dict() == align(planted, repeats=20, seed=3).to_dict()


def test_the_fast_null_is_that_of_shuffled_labels(planted):
    tags, groups = planted.codes("upos"), planted.groups[3]
    table = contingency(tags, groups, 17, NUM_GROUPS)
    fast = ref.permuted_scores(table, 400, np.random.default_rng(0))
    rng = np.random.default_rng(1)
    slow = [metrics.adjusted_mutual_info_score(tags, rng.permutation(groups)) for _ in range(200)]
    assert stats.ks_2samp(fast, slow).pvalue > 0.01


def test_the_within_type_shuffle_is_that_of_a_loop(planted):
    tags, groups, types = planted.codes("upos"), planted.groups[4], planted.types
    fast = ref.within_type_scores(tags, types, groups[None], 17, NUM_GROUPS, 200, np.random.default_rng(0))[0]
    rng = np.random.default_rng(1)
    slow = []
    for _ in range(100):
        shuffled = tags.copy()
        for code in np.unique(types):
            inside = types == code
            shuffled[inside] = rng.permutation(shuffled[inside])
        slow.append(metrics.adjusted_mutual_info_score(shuffled, groups))
    assert stats.ks_2samp(fast, slow).pvalue > 0.01


def test_the_identity_baseline_learns_elsewhere():
    types = np.asarray([0, 0, 0, 1, 1, 2])
    folds = np.asarray([0, 1, 1, 0, 1, 0])
    groups = np.asarray([[0, 1, 1, 2, 3, 3]])
    # Type 0 in fold 0 sees [1, 1] elsewhere, in fold 1 only [0]; type 1 swaps; type 2 is seen nowhere else.
    assert ref.identity_groups(groups, types, folds, 4).tolist() == [[1, 0, 0, 3, 2, 3]]


def test_the_balance_ceiling():
    rng = np.random.default_rng(0)
    assert ref.balance_ceiling(np.repeat(np.arange(4), 25), 4, rng) == pytest.approx(1)
    tags = np.repeat(np.arange(3), (60, 30, 10))
    ceiling = ref.balance_ceiling(tags, 4, rng)
    by_hand = metrics.adjusted_mutual_info_score(tags, np.arange(100) // 25)
    assert by_hand - 1e-9 <= ceiling < 1
    assert ceiling > metrics.adjusted_mutual_info_score(tags, rng.permutation(100) // 25)


def test_buckets_are_balanced_and_ordered():
    groups = ref.position_groups(np.arange(10), 5)
    assert groups.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    types = np.repeat([0, 1, 2, 3], (40, 40, 10, 10))
    assert ref.frequency_groups(types, 5)[[0, 40, 80, 90]].tolist() in (
        [2, 4, 0, 0],
        [1, 3, 0, 0],
        [1, 4, 0, 0],
        [2, 3, 0, 0],
    )


def test_the_scaled_expectation_of_the_bootstrap_is_close_to_the_exact_one(planted):
    documents = planted.documents
    tables = grouped_contingency(planted.codes("upos"), planted.groups[3], documents, 17, NUM_GROUPS, NUM_DOCUMENTS)
    weights = bootstrap_weights(NUM_DOCUMENTS, 60, np.random.default_rng(0))
    fast = bootstrap_ami(tables, weights)
    exact = [ami(np.einsum("d,drc->rc", weight, tables)) for weight in weights]
    assert np.abs(fast - exact).max() < 0.02 * np.std(exact)


def test_intervals_cover_the_truth():
    """200 samples of documents from one known joint distribution; its own score is that of a very large sample."""
    rng = np.random.default_rng(0)
    joint = rng.dirichlet(np.full(32, 0.5)).reshape(8, 4)
    truth = ami(np.round(joint * 1e6).astype(np.int64))
    hits = 0
    for _ in range(200):
        tables = rng.multinomial(25, joint.ravel(), size=30).reshape(30, 8, 4)
        low, high = interval(ami(tables.sum(0)), bootstrap_ami(tables, bootstrap_weights(30, 300, rng)))
        hits += low <= truth <= high
    assert 0.89 <= hits / 200 <= 0.99


def test_cells_are_tested_exactly_and_small_ones_hidden():
    rng = np.random.default_rng(0)
    table = np.asarray([[30, 10, 1], [10, 40, 1], [2, 1, 0]])
    found = cell_tests(table[None])
    assert np.isnan(found.residual[0, 2]).all() and np.isnan(found.q_value[0, :, 2]).all()
    expected = stats.contingency.expected_freq(table)
    assert found.expected[0] == pytest.approx(expected)
    tags, groups = (np.repeat(codes, table.ravel()) for codes in np.indices(table.shape).reshape(2, -1))
    counts = [contingency(tags, rng.permutation(groups), 3, 3)[0, 0] for _ in range(2000)]
    assert found.residual[0, 0, 0] == pytest.approx((30 - np.mean(counts)) / np.std(counts), rel=0.08)
    assert found.q_value[0, 0, 0] < 0.001
    noise = contingency(rng.integers(0, 5, 2000), rng.integers(0, 4, (10, 2000)), 5, 4)
    assert np.nanmin(cell_tests(noise).q_value) > 0.01


def test_balanced_kmeans_balances_and_still_finds_clusters():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(4, 20)) * 8
    even = np.repeat(np.arange(4), 100)
    groups = balanced_kmeans((centres[even] + rng.normal(size=(400, 20))).astype(np.float32), 4)
    assert metrics.adjusted_mutual_info_score(even, groups) > 0.99
    uneven = np.repeat(np.arange(4), (280, 40, 40, 40))
    groups = balanced_kmeans((centres[uneven] + rng.normal(size=(400, 20))).astype(np.float32), 4)
    assert np.bincount(groups, minlength=4).max() < 0.35 * 400


def test_the_published_table_is_measured_where_it_was_not_chosen(planted):
    rows = {row["category"]: row for row in published_table(planted, repeats=100)}
    assert len(rows) == 6
    for name in ("punctuation", "verbs and pronouns", "content nouns"):
        assert rows[name]["layer"] == 0 and rows[name]["purity"] == 1 and rows[name]["recall"] == 1
    assert rows["determiners"]["purity"] == 0 and rows["determiners"]["base_rate"] == 0
    assert rows["punctuation"]["words"] + rows["punctuation"]["words_chosen_on"] == NUM_WORDS


def test_top_words_by_count_and_by_association(planted):
    table = top_words(planted, 3, limit=5)
    for (group, by), part in table.groupby(["group", "by"]):
        inside = [word for word, own in zip(planted.words, planted.groups[3]) if own == group]
        if by == "count":
            assert part["count"].iloc[0] == max(inside.count(word) for word in set(inside))
        else:  # groups are a function of the type: every word is wholly inside, with the same PMI
            assert part["PMI (bits)"].iloc[0] == pytest.approx(np.log2(NUM_WORDS / len(inside)))
        assert part["rank"].tolist() == list(range(1, len(part) + 1))
