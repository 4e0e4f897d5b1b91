"""Induction keys that are read, against plain loops over the pairs of traces."""

from __future__ import annotations

import numpy as np
import pytest

from focus_core import FocusConfig, FocusError, analyze, retrofit
from focus_core.analysis.interventions.induction import induction, induction_pairs, planted_repeat
from focus_core.analysis.reading import kept_keys
from focus_core.routing.narrow.fitting.fit import fit_narrow

TEXT = "Nora Finch kept the lamp. The sea was loud and grey. Nora Finch slept, and the lamp was cold. "


def test_pairs_of_a_planted_repeat_lie_one_copy_apart():
    ids = planted_repeat(40, 10**6)
    assert np.array_equal(ids[:40], ids[40:])
    assert induction_pairs(ids).tolist() == [[place, place - 39] for place in range(40, 79)]
    assert induction_pairs(np.array([5, 6, 7, 5, 6, 5, 8])).tolist() == [[3, 1]]
    assert not len(induction_pairs(np.arange(9)))


@pytest.mark.parametrize("router", ["layer", "narrow"])
def test_shares_are_those_of_plain_loops_over_traces(tiny_llama, router):
    settings = {"num_groups": 6, "top_k": 1, "window": 12, "sink_tokens": 3}
    if router == "narrow":
        config = FocusConfig(router="narrow", chunk=8, page_size=5, read_share=0.3, **settings)
        focus = fit_narrow(tiny_llama.model, np.random.default_rng(0).integers(1, 200, (4, 200)), config)
    else:
        focus = retrofit(tiny_llama.model, FocusConfig(**settings), seed=0)
    with focus.routing("hard"):
        trace = analyze(focus, tiny_llama.tokenizer, TEXT, query_head=0)
        found = induction(focus, np.array(trace.input_ids))
    pairs, row = induction_pairs(trace.input_ids), 1
    borders = np.full(len(pairs), 0)
    if trace.parts is not None and trace.parts[row] is not None:
        borders = trace.parts[row].borders(pairs[:, 0])
    read, chance, by_group, links = [], [], {}, []
    for (query, key), border in zip(pairs.tolist(), borders.tolist()):
        kept = kept_keys(trace, row, np.array([query]))[0]
        distant = [k for k in range(3, query) if (k < border if router == "narrow" else query - k > 12)]
        if key in distant:
            read.append(bool(kept[key]))
            chance.append(np.mean([kept[k] for k in distant]))
            by_group.setdefault(int(trace.groups[row, key]), []).append(bool(kept[key]))
            links += [(int(trace.groups[row, key]), int(trace.groups[row, k]), kept[k]) for k in distant]
    own = found.heads.query("layer == @row and head == 0").iloc[0]
    assert own["pairs"] == len(read) > 3
    assert own["read"] == pytest.approx(np.mean(read)) and own["chance"] == pytest.approx(np.mean(chance))
    assert own["difference"] == pytest.approx(np.mean(read) - np.mean(chance), abs=0.02)  # stretches differ by a pair
    table = found.groups.query("layer == @row and head == 0").set_index("group")
    for group, expected in table["chance"].dropna().items():
        others = [kept for own_group, of, kept in links if own_group != group and of == group]
        assert expected == pytest.approx(np.mean(others))
    assert table["read"].to_dict() == pytest.approx({group: np.mean(hits) for group, hits in sorted(by_group.items())})
    focus.detach()


def test_groups_have_intervals_where_they_hold_enough_pairs(tiny_llama):
    focus = retrofit(tiny_llama.model, FocusConfig(num_groups=3, top_k=1, window=4, sink_tokens=1), seed=0)
    with focus.routing("hard"):
        found = induction(focus, planted_repeat(60, 90, seed=1))
    groups, heads = found.groups, found.heads.set_index(["layer", "head"])
    known = groups[groups["pairs"] >= 16]
    assert groups[groups["pairs"] < 16]["low"].isna().all() and not known.empty
    assert (known["low"] <= known["difference"]).all() and (known["difference"] <= known["high"]).all()
    assert known["difference"].to_numpy(float) == pytest.approx((known["read"] - known["chance"]).to_numpy(), abs=0.06)
    for place, part in groups.groupby(["layer", "head"]):
        assert np.average(part["read"], weights=part["pairs"]) == pytest.approx(heads.loc[place, "read"])
    focus.detach()


def test_reading_everything_is_no_more_than_chance_and_impossible_texts_are_refused(tiny_llama):
    focus = retrofit(tiny_llama.model, FocusConfig(num_groups=4, top_k=4, window=4, sink_tokens=1), seed=0)
    ids = planted_repeat(30, 90, seed=1)
    with focus.routing("hard"):
        found = induction(focus, ids).heads
        assert (found[["read", "chance"]] == 1).all(axis=None) and not found["established"].any()
        with pytest.raises(FocusError, match="No token is repeated"):
            induction(focus, np.arange(20))
    with focus.routing("off"), pytest.raises(FocusError, match="hard routing"):
        induction(focus, ids)
