from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import synthetic_trace

from workbench.tokens.reads import (
    BEYOND,
    DROPPED,
    LATER,
    LOCAL,
    SAME_GROUP,
    SELF,
    SINK,
    pair_shares,
    partners,
    relations,
    repeated_words,
)
from workbench.views.explore.verdicts import layer_verdict, repeats_sentence, token_sentence


def relation(trace, layer, i, j):
    """The definition, pair by pair."""
    if j == i:
        return SELF
    if j > i:
        return LATER
    if trace.sliding_windows and i - j >= trace.sliding_windows[layer]:
        return BEYOND
    if i - j <= trace.config.window:
        return LOCAL
    if j < trace.config.sink_tokens:
        return SINK
    return SAME_GROUP if (trace.membership[layer, i] & trace.membership[layer, j]).any() else DROPPED


@settings(max_examples=40, deadline=None)
@given(
    *(st.integers(1, 24), st.integers(0, 6), st.integers(0, 4), st.integers(1, 4), st.integers(0, 999)),
    st.none() | st.integers(1, 20),
)
def test_relations_and_shares_follow_the_definition(length, window, sinks, k, seed, own):
    trace = synthetic_trace("ab " * (length - 1) + "ab", window=window, sink_tokens=sinks, top_k=k, seed=seed)
    if own is not None:
        trace = dataclasses.replace(trace, sliding_windows=(None, own, None))
    codes = np.stack([relations(trace, 1, i) for i in range(length)])
    assert codes.tolist() == [[relation(trace, 1, i, j) for j in range(length)] for i in range(length)]
    shares, pairs = pair_shares(trace, 1), np.isin(codes, (SELF, LOCAL, SINK, SAME_GROUP, DROPPED)).sum()
    assert shares.local == pytest.approx((np.isin(codes, (LOCAL, SELF))).sum() / pairs)
    assert shares.sink == pytest.approx((codes == SINK).sum() / pairs)
    assert shares.same_group == pytest.approx((codes == SAME_GROUP).sum() / pairs)
    assert shares.dropped == pytest.approx((codes == DROPPED).sum() / pairs)
    free = (codes == SAME_GROUP).sum() + (codes == DROPPED).sum()
    expected = (codes == SAME_GROUP).sum() / free if free else None
    assert shares.distant_sharing == (pytest.approx(expected) if free else None)


def test_partners_are_the_farthest_and_nearest_tokens_that_share_a_group():
    trace = synthetic_trace("w " * 39 + "w", seed=3)
    token = 35
    table = partners(trace, 0, token, count=3)
    reached = [j for j in range(40) if relation(trace, 0, token, j) == SAME_GROUP]
    assert table["token"].tolist() == [*reached[:3], *reached[::-1][:3]]
    assert (table["distance"] == token - table["token"]).all()
    for other, affinity in zip(table["token"], table["affinity"]):
        assert affinity == pytest.approx(float(trace.assignment[0, token] @ trace.assignment[0, other]))


def test_repeated_words_pair_the_first_and_last_mention():
    trace = synthetic_trace("x Mara saw the river and the boat and Mara saw a river", window=3)
    table = repeated_words(trace, 0)
    assert table["word"].tolist() == ["Mara", "river"]  # saw, the, and: too short
    assert table[["first", "last", "distance"]].values.tolist() == [[1, 9, 8], [4, 12, 8]]
    shared = (trace.membership[0, 1] & trace.membership[0, 9]).any()
    assert bool(table["kept"][0]) == bool(shared)
    assert repeats_sentence(trace, 0, table).startswith("2 words return")
    near = dataclasses.replace(trace, sliding_windows=(8, 8, 8))
    assert not repeated_words(near, 0)["kept"].any() and (relations(near, 0, 9)[:2] == BEYOND).all()
    assert "2 more, beyond the model's own window" in token_sentence(relations(near, 0, 9), 9, 0)


def test_verdicts_are_the_numbers():
    weights = np.zeros((1, 8, 4), dtype=np.float32)
    weights[0, :6, 0], weights[0, 6:, 1] = 1, 1
    trace = synthetic_trace("a b c d e f g h", assignment=weights, top_k=1, window=1, sink_tokens=0)
    shares = pair_shares(trace, 0)
    sentence = layer_verdict(trace, 0, shares)
    assert "largest of 4 groups holds 75% of the tokens" in sentence
    assert "even split is 25.0%" in sentence
    # 21 distant pairs: 10 among the first six tokens, none in the second group, 11 across.
    assert "48% of the distant pairs" in sentence
    assert "too short" in layer_verdict(synthetic_trace("a b"), 0, pair_shares(synthetic_trace("a b"), 0))
    assert "reads **1 of the 7**" in token_sentence(relations(trace, 0, 7), 7, 0)
