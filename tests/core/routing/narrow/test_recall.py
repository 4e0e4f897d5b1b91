"""Heads that recall: texts that return, attention against the model's own weights, and what they then read."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_narrow import FAMILIES, blocks, model

from focus_core import FocusConfig, FocusError, retrofit
from focus_core.routing.narrow.fitting import recall, thresholds
from focus_core.routing.narrow.fitting.fit import fit_narrow
from focus_core.routing.narrow.fitting.recall import EXCERPT, LEAST, read_all, recall_scores, recalling_texts
from focus_core.routing.narrow.fitting.thresholds import LEVELS, head_costs
from focus_core.routing.routers.narrow import ALL, MEANS

CONFIG = FocusConfig(
    router="narrow", num_groups=6, top_k=1, window=5, sink_tokens=2, chunk=4, read_share=0.3, page_size=4,
    by_error=True, count_spread=True, count_weight=1.0, score="dot",
)  # fmt: skip


@given(texts=st.integers(1, 3), length=st.integers(1, 160), window=st.integers(0, 40), seed=st.integers(0, 9))
def test_the_end_of_a_text_returned_from_before_its_window(texts, length, window, seed):
    ids = np.arange(texts * length).reshape(texts, length)  # so a token says where it was
    found = recalling_texts(ids, window, seed)
    if found is None:
        asked = length // 4 // EXCERPT * EXCERPT
        assert asked == 0 or length - asked - window - EXCERPT < 1
        return
    for row, before, sources in zip(found.ids, ids, found.sources):
        first = int(found.queries.min()) - 1
        assert row[0] == before[0] and len(set(row[:first].tolist())) == first
        assert set(row.tolist()) <= set(before.tolist())
        for query, source in zip(found.queries, sources):
            # The token after the query is the one at the source, and the one before both is the same, too.
            assert row[query + 1] == row[source] and row[query] == row[source - 1]
            assert 0 < source < first - window <= query - window and query + 1 < length


def test_texts_are_shuffled_alike_with_one_seed_and_others_with_another():
    first, again, other = (recalling_texts(blocks(), 5, seed) for seed in (0, 0, 1))
    assert (first.ids == again.ids).all() and (first.ids != other.ids).any()


@pytest.mark.parametrize("name", FAMILIES)
def test_scores_are_the_weights_that_the_model_gives(name):
    untouched = model(name)
    untouched.set_attn_implementation("eager")
    texts = recalling_texts(blocks(), CONFIG.window)
    with torch.no_grad():
        weights = untouched(torch.from_numpy(texts.ids), output_attentions=True).attentions
    focus = retrofit(model(name), CONFIG, seed=0)
    found = recall_scores(focus, blocks())
    assert sorted(found) == [0, 1]
    for layer, scores in found.items():
        each = [weights[layer][row][:, texts.queries, sources] for row, sources in enumerate(texts.sources)]
        assert scores == pytest.approx(torch.stack(each).double().mean((0, 2)).numpy(), abs=1e-6)


@given(scores=st.lists(st.floats(0, 1), min_size=20, max_size=20), share=st.floats(0, 1), part=st.floats(0, 1))
def test_key_value_heads_read_all_by_their_best_query_head(scores, share, part):
    kv_heads = {0: 4, 1: 2, 2: 2}  # some models have other heads in some layers
    by_layer = np.split(np.array(scores), [8, 16])
    found = np.split(read_all(by_layer, list(kv_heads.values()), share, part), [8, 16])
    heads = [(layer, head) for layer, count in kv_heads.items() for head in range(count)]
    best, chosen = {}, set()
    for layer, head in heads:
        repeats = len(by_layer[layer]) // kv_heads[layer]
        own = slice(head * repeats, (head + 1) * repeats)
        best[layer, head] = by_layer[layer][own].max()
        assert found[layer][own].all() or not found[layer][own].any()
        chosen |= {(layer, head)} if found[layer][own].all() else set()
    most = int(part * share * len(heads))
    assert len(chosen) == min(most, sum(score >= LEAST for score in best.values()))
    left = [score for place, score in best.items() if place not in chosen]
    assert not left or not chosen or max(left) <= min(best[place] for place in chosen)


def test_a_head_that_recalls_reads_everything_and_the_others_as_much_less(monkeypatch):
    monkeypatch.setattr(recall, "LEAST", 0.0)  # the heads of a model with random weights recall by chance
    most = partial(read_all, part=0.9)  # four key/value heads
    monkeypatch.setattr(thresholds, "read_all", most)
    told = {}
    plain, asked = (
        fit_narrow(model(), blocks(2), CONFIG, recall=recalls, on_recall=told.update) for recalls in (False, True)
    )
    scores = [told[layer] for layer in (0, 1)]
    before, after = (
        torch.stack([focus.router(layer).thresholds for layer in (0, 1)], 1).numpy() for focus in (plain, asked)
    )
    everything = np.stack([most(scores, (2, 2), mean).reshape(2, 4) for mean in MEANS])
    assert ((after == ALL) == everything).all() and not (before == ALL).any()
    assert set(everything.sum((1, 2)).tolist()) == {0, 2, 4, 6}
    assert (after[~everything] >= before[~everything] - 1e-5).all()

    # The share of all heads stays as it was asked for.
    costs = head_costs(asked, blocks(2))
    pairs = np.stack([costs[layer].pairs for layer in (0, 1)])
    for place in range(1, len(MEANS) - 1):
        read = sum(
            np.interp(-after[place, layer, head], -np.array(LEVELS), pairs[layer, head])
            for layer, head in np.ndindex(2, 4)
        )
        least = pairs[..., -1][everything[place]].sum() + pairs[..., 0][~everything[place]].sum()
        # Between two levels pairs are not on a line where a level between them does not pay.
        assert read == pytest.approx(max(MEANS[place] * pairs[..., -1].sum(), least), rel=0.1)


def test_texts_too_short_to_recall_leave_thresholds_as_they_are():
    short, told = blocks(12, 12), []
    config = CONFIG.replace(window=8)
    plain, asked = (
        fit_narrow(model(), short, config, recall=recalls, on_recall=told.append) for recalls in (False, True)
    )
    assert told == [{}, {}]
    assert all((plain.router(layer).thresholds == asked.router(layer).thresholds).all() for layer in (0, 1))


@pytest.mark.parametrize("how", [{"one_threshold": True}, {"by_error": False}])
def test_recall_without_thresholds_of_heads_is_refused(how):
    config = CONFIG.replace(by_error=how.pop("by_error", True))
    with pytest.raises(FocusError, match="recall"):
        fit_narrow(model(), blocks(6), config, recall=True, **how)
