"""Shares explained, on planted groups: the planted feature is found, and a random assignment has a share near 0."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.preprocessing import OneHotEncoder

from focus_core.analysis.linguistics.corpus.sample import WordSample
from focus_core.analysis.linguistics.corpus.tagging import tag_text, with_entities
from focus_core.analysis.linguistics.corpus.words import UPOS, Tagger
from focus_core.analysis.linguistics.explain import FOLDS, Explained, explain, explain_layers
from focus_core.analysis.linguistics.features import BLOCKS, FEATURES, sentence_blocks, word_features
from focus_core.analysis.linguistics.verdicts import explained_sentence, explained_verdicts
from focus_core.errors import FocusError

WORDS, TYPES, GROUPS = 1600, 250, 64
PLANTS = ("part of speech", "position", "previous token", "random", "equal")


@pytest.fixture(scope="module")
def planted() -> WordSample:
    """Half of the types occur with two tags; a layer for each plant."""
    rng = np.random.default_rng(0)
    frequency = 1 / np.arange(1, TYPES + 1)
    types = np.unique(rng.choice(TYPES, WORDS, p=frequency / frequency.sum()), return_inverse=True)[1]
    usual = rng.integers(0, len(UPOS), TYPES)
    other = (usual + np.arange(TYPES) % 2) % len(UPOS)
    tags = np.where(rng.random(WORDS) < 0.4, other[types], usual[types])
    noise, random = rng.random(WORDS) < 0.2, rng.integers(0, GROUPS, WORDS)
    eighths = np.arange(WORDS) * 8 // WORDS
    of_before = rng.integers(0, GROUPS, TYPES)[np.roll(types, 1)]
    plain = np.zeros(WORDS, dtype=np.int64)
    groups = np.stack(
        [
            3 * np.where(noise, rng.permutation(tags), tags),
            np.where(noise, random, 5 * eighths),
            of_before,
            random,
            plain,
        ]
    )
    return WordSample(
        layers=tuple(range(10, 10 + len(groups))),
        groups=groups,
        membership=groups[..., None] == np.arange(GROUPS),
        tokens=np.arange(WORDS),
        types=types,
        words=tuple(f"w{code}" for code in types),
        tags=tuple(UPOS[tag] for tag in tags),
        sentences=np.arange(WORDS) // 14,
        documents=np.zeros(WORDS, dtype=np.int64),
        num_words=WORDS,
        coverage=1.0,
        exact=1.0,
        rule="last",
        tagger=Tagger("planted", "1", gold=True),
        relations=tuple(f"r{code}" for code in rng.integers(0, 12, WORDS)),
        entities=tuple("PERSON" if yes else "" for yes in rng.random(WORDS) < 0.1),
    )


@pytest.fixture(scope="module")
def found(planted) -> dict[str, Explained]:
    return dict(zip(PLANTS, explain_layers(planted)))


@pytest.mark.parametrize("plant", PLANTS[:3])
def test_the_planted_feature_explains_most_and_alone_has_a_share_of_its_own(found, plant):
    explained = found[plant]
    first, *others = explained.features
    assert first.feature == plant and first.alone.difference > 0.4 and first.alone.established
    assert first.unique.difference > 0.1 and first.unique.established
    for other in others:
        assert abs(other.unique.difference) < 0.03
    assert first.alone.difference == pytest.approx(explained.all_features.difference, abs=0.03)


def test_a_feature_that_only_goes_along_has_a_share_alone_and_none_of_its_own(found):
    spelling = next(each for each in found["part of speech"].features if each.feature == "token identity")
    assert spelling.alone.difference > 0.2 and spelling.alone.established and abs(spelling.unique.difference) < 0.03


def test_a_random_assignment_has_shares_near_0_with_intervals_over_0(found):
    random = found["random"]
    assert random.nats == pytest.approx(np.log(GROUPS), rel=0.02)
    for share in (random.all_features, *(each.alone for each in random.features)):
        assert share.low is not None and share.high is not None
        assert share.low <= 0.002 and share.high >= -0.005 and abs(share.difference) < 0.01 and not share.established


def test_one_group_for_all_words_leaves_nothing_to_explain(found):
    assert found["equal"].all_features.difference == pytest.approx(0, abs=1e-6)


def test_shares_are_those_of_an_independent_model_where_one_feature_is_all(planted, found):
    """Multinomial logistic regression on one-hot tags, on the same folds."""
    groups, blocks = planted.groups[0], sentence_blocks(planted)
    tags = OneHotEncoder(handle_unknown="ignore").fit_transform(planted.codes("upos").reshape(-1, 1))
    known, usual = np.zeros(2)
    everything = np.arange(GROUPS)
    for fold in range(FOLDS):
        learnt, held = blocks % FOLDS != fold, blocks % FOLDS == fold
        model = LogisticRegression(C=1.0, max_iter=60).fit(tags[learnt], groups[learnt])
        chances = np.full((held.sum(), GROUPS), 1e-4)
        chances[:, model.classes_] = model.predict_proba(tags[held])
        known += log_loss(groups[held], chances / chances.sum(1, keepdims=True), labels=everything) * held.sum()
        sizes = np.bincount(groups[learnt], minlength=GROUPS) + 0.5
        usual += log_loss(groups[held], np.tile(sizes / sizes.sum(), (held.sum(), 1)), labels=everything) * held.sum()
    assert found["part of speech"].features[0].alone.difference == pytest.approx(1 - known / usual, abs=0.03)
    assert found["part of speech"].nats == pytest.approx(usual / WORDS, rel=0.01)


def test_blocks_are_consecutive_sentences_that_are_held_out_whole(planted):
    blocks = sentence_blocks(planted)
    assert BLOCKS - 2 <= blocks.max() + 1 <= BLOCKS and (np.diff(blocks) >= 0).all()
    for sentence in range(planted.sentences.max() + 1):
        assert len(set(blocks[planted.sentences == sentence])) == 1
    many = dataclasses.replace(planted, documents=np.arange(WORDS) // 80)
    assert np.array_equal(sentence_blocks(many), many.documents)


def test_groups_of_a_block_do_not_decide_its_own_prediction(planted):
    """A value that occurs in one block only tells nothing, however pure its groups are there."""
    blocks = sentence_blocks(planted)
    explained = explain(blocks % GROUPS, {"block": blocks[:, None]}, blocks)
    assert explained.all_features.difference < 0.01


def test_features_without_data_are_left_out_and_short_texts_are_refused(planted):
    bare = dataclasses.replace(planted, relations=(), entities=())
    assert set(word_features(planted)) == set(FEATURES)
    assert set(FEATURES) - set(word_features(bare)) == {"dependency relation", "entity"}
    short = dataclasses.replace(planted, sentences=np.arange(WORDS) // 400)
    with pytest.raises(FocusError, match="longer text"):
        explain_layers(short, [0])


def test_sentences_name_the_feature_its_share_and_no_share_of_chance(found):
    assert explained_sentence(found["position"]).startswith("Position explains ")
    assert "Nothing here explains" in explained_sentence(found["random"])
    whole = explained_verdicts(list(found.values()))
    assert "Part of speech explains most in 1 of 5 layers (10)" in whole[1] and "2 of 5 layers (13–14)" in whole[-1]


def test_a_record_gives_the_same_back(found):
    explained = found["position"]
    assert Explained.from_dict(json.loads(json.dumps(explained.to_dict()))) == explained


def test_relations_and_entities_come_from_the_tagger():
    tagged = with_entities(tag_text("Anna Karenina met John Smith in London."))
    words = dict(zip(tagged.words, zip(tagged.relations, tagged.entities)))
    assert words["met"] == ("ROOT", "") and words["London"] == ("pobj", "GPE")
    assert words["John"][1] == words["Smith"][1] == "PERSON"
