"""Groups that hold more matching tokens than chance, against plain counts, rolled texts and planted cases."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest

from focus_core import FocusError, analyze
from focus_core.analysis.search.gathering import HeadGroups, gathering, groups_of, lift_intervals
from focus_core.routing.config import FocusConfig
from focus_core.routing.narrow.fitting.fit import fit_narrow


def clumped(tokens: int, num_groups: int, rng: np.random.Generator, run: int = 6) -> np.ndarray:
    """(T,) groups that stay for some tokens, as groups of neighbours do."""
    return np.repeat(rng.integers(0, num_groups, tokens // run + 1), run)[:tokens]


def made(tokens: int, *, layers: int = 2, heads: int = 2, num_groups: int = 5, seed: int = 0) -> HeadGroups:
    rng = np.random.default_rng(seed)
    groups = [[clumped(tokens, num_groups, rng) for _ in range(heads)] for _ in range(layers)]
    return HeadGroups(tuple(range(3, 3 + layers)), np.array(groups, dtype=np.int16), num_groups)


def test_counts_are_those_of_plain_tables():
    found, rng = made(300), np.random.default_rng(1)
    matches, counted = rng.random(300) < 0.2, np.arange(300) > 1
    table = gathering(found, matches, counted).table.set_index(["layer", "head", "group"])
    assert len(table) == found.searched == 20
    for row, layer in enumerate(found.layers):
        for head in range(2):
            frame = pd.DataFrame({"group": found.groups[row, head], "match": matches})[counted]
            by = frame.groupby("group")["match"].agg(["sum", "size"])
            for group, (count, size) in by.iterrows():
                own = table.loc[(layer, head, group)]
                assert (own["matching"], own["size"]) == (count, size)
                assert own["inside"] == pytest.approx(count / size)
                assert own["lift"] == pytest.approx((count / frame["match"].sum()) / (size / len(frame)))


def test_p_values_are_those_of_rolled_matches():
    found, matches = made(90, seed=2), np.random.default_rng(3).random(90) < 0.25
    groups, rate = found.groups.reshape(4, 90), matches.mean()

    def scores(moved: np.ndarray) -> np.ndarray:
        out = np.zeros((4, 5))
        for unit, group in np.ndindex(4, 5):
            inside = groups[unit] == group
            n, c = inside.sum(), (inside & moved).sum()
            if n and c / n > rate:
                rest = (n - c) * np.log((n - c) / n / (1 - rate)) if c < n else 0.0
                out[unit, group] = c * np.log(c / n / rate) + rest
        return out

    best = np.array([scores(np.roll(matches, by)).max() for by in range(90)])
    own = scores(matches)
    for each in gathering(found, matches).table.itertuples():
        score = own[(each.layer - 3) * 2 + each.head, each.group]
        assert each.p == pytest.approx((best >= score - 1e-9).mean())


def test_a_planted_group_comes_first_with_its_lift():
    found, rng = made(1500, num_groups=8, seed=4), np.random.default_rng(5)
    inside = found.groups[1, 0] == 6
    matches = rng.random(1500) < np.where(inside, 0.6, 0.05)
    table = gathering(found, matches).table
    first = lift_intervals(found, matches, table.head(1)).iloc[0]
    assert (first["layer"], first["head"], first["group"], first["p"]) == (4, 0, 6, 1 / 1500)
    true = 0.6 / (0.6 * inside.mean() + 0.05 * (1 - inside.mean()))
    assert first["low"] < true < first["high"] and first["low"] > 2
    assert lift_intervals(found, matches, table.head(0)).empty


def test_clumped_matches_without_a_relation_are_rarely_significant():
    smallest = []
    for seed in range(60):
        matches = clumped(400, 5, np.random.default_rng(1000 + seed), run=9) == 0
        smallest.append(gathering(made(400, seed=seed), matches).table["p"].min())
    below = int((np.array(smallest) <= 0.05).sum())
    assert binomtest(below, 60, 0.05, alternative="greater").pvalue > 0.01


def test_short_texts_have_no_interval_and_impossible_searches_are_refused():
    found, matches = made(100), np.arange(100) % 7 == 0
    assert lift_intervals(found, matches, gathering(found, matches).table.head(3))["low"].isna().all()
    for each, said in ((np.zeros(100, dtype=bool), "No token matches"), (np.ones(100, dtype=bool), "Every token")):
        with pytest.raises(FocusError, match=said):
            gathering(found, each)


def test_groups_of_all_heads_are_those_of_each_trace(tiny_llama):
    config = FocusConfig(router="narrow", num_groups=6, top_k=1, window=20, sink_tokens=3, chunk=8, page_size=5)
    focus = fit_narrow(tiny_llama.model, np.random.default_rng(0).integers(1, 200, (4, 200)), config)
    text = "The ships came back to the harbour of the old town. " * 4
    with focus.routing("hard"):
        traces = [analyze(focus, tiny_llama.tokenizer, text, head=head) for head in range(focus.router(0).num_heads)]
    found = groups_of(traces[0])
    assert found.layers == traces[0].layers and found.groups.shape[1] == len(traces) > 1
    for head, trace in enumerate(traces):
        assert np.array_equal(found.groups[:, head], trace.groups)
        assert np.array_equal(groups_of(trace).groups, found.groups)
    focus.detach()
