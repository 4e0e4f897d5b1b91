"""Means over kinds of text: intervals against scipy, comparison with our routers, Holm's correction."""

import numpy as np
import pytest
from scipy import stats

from focus_core.errors import FocusError
from focus_core.frontier.kinds.means import mean_over_kinds, mean_rows
from focus_core.frontier.kinds.table import cells, verdict
from focus_core.frontier.speeds import Measured, ModelSpeed, Speeds

KINDS = ("books", "wiki", "web", "technical", "code", "dialogue")


def test_with_equal_blocks_the_interval_is_that_of_all_blocks_together():
    values = np.random.default_rng(0).gamma(2.0, 0.01, (6, 3))
    found = mean_over_kinds(dict(zip(KINDS, values.tolist(), strict=True)))
    expected = stats.ttest_1samp(values.ravel(), 0.0)
    interval = expected.confidence_interval(0.95)
    assert found.difference == pytest.approx(values.mean()) and found.blocks == 18
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.p_value == pytest.approx(expected.pvalue)


def test_with_unequal_blocks_every_kind_counts_alike():
    values = {"long": [1.0, 2.0, 3.0, 2.0, 1.0, 3.0], "short": [8.0, 10.0]}
    found = mean_over_kinds(values)
    assert found.difference == pytest.approx((2.0 + 9.0) / 2) and found.low < 5.5 < found.high
    with pytest.raises(FocusError, match="at least one block of each"):
        mean_over_kinds({"none": []})


def test_the_interval_covers_the_mean_over_kinds():
    random, hits, runs = np.random.default_rng(1), 0, 400
    for _ in range(runs):
        counts = [3, 3, 2, 3, 3, 3]
        found = mean_over_kinds({name: random.normal(1.0, 0.3, count) for name, count in zip(KINDS, counts)})
        hits += found.low <= 1.0 <= found.high
    assert 0.92 <= hits / runs <= 0.98


def record(shifts, blocks=3):
    """A record of six kinds: KL of each method, untouched first, with noise that the blocks share."""
    hardness = np.random.default_rng(2).normal(0.0, 0.01, (6, blocks))
    points = []
    for number, (method, kl) in enumerate({"untouched": None, **shifts}.items()):
        noise = np.random.default_rng(10 + number).normal(0.0, 0.0005, (6, blocks))
        kind = {"untouched": "untouched", "mine": "routers"}.get(method, "baseline")
        for place, text in enumerate(KINDS):
            block_kl = [] if kl is None else (kl + hardness[place] + noise[place]).tolist()
            points.append(
                {
                    "method": method,
                    "kind": kind,
                    "label": method,
                    "source": "",
                    "top_k": 1 if kind == "routers" else None,
                    "wanted_share": 0.15 if kind == "baseline" else None,
                    "kept_share": 0.18 if kind == "routers" else 0.15,
                    "causal_kept_share": 0.2,
                    "perplexity": 20.0,
                    "largest_group_share": 0.1 + 0.01 * place if kind == "routers" else None,
                    "tokens": 90,
                    "block_nll": [3.0 + (0.0 if kl is None else kl)] * blocks,
                    "router": "head" if kind == "routers" else None,
                    "num_groups": 8 if kind == "routers" else None,
                    "kl": None if kl is None else float(np.mean(block_kl)),
                    "kl_last_quarter": None if kl is None else kl,
                    "top1_agreement": None if kl is None else 0.9,
                    "block_kl": block_kl,
                    "text": text,
                    "length": 64,
                }
            )
    parts = {name: {"documents": [], "blocks": {"64": {"used": blocks, "documents": ["a", "b"]}}} for name in KINDS}
    return {
        "kinds": parts,
        "ours": {"method": "mine", "top_k": 1},
        "points": points,
        "settings": {"blocks": blocks, "window": 4, "sink_tokens": 2},
    }


def test_baselines_are_compared_with_our_routers_over_the_same_blocks():
    made = record({"mine": 0.05, "better": 0.04, "same": 0.05, "worse": 0.08})
    rows = {row.series: row for row in mean_rows(made, 64)}
    assert [row.series for row in mean_rows(made, 64)] == ["untouched", "mine", "better", "same", "worse"]
    of = {(point["method"], point["text"]): point["block_kl"] for point in made["points"]}
    alone = {
        name: stats.ttest_rel(
            np.concatenate([of["mine", text] for text in KINDS]), np.concatenate([of[name, text] for text in KINDS])
        ).pvalue
        for name in ("better", "same", "worse")
    }
    least = 0.0
    for rank, name in enumerate(sorted(alone, key=alone.get)):  # Holm, written out
        least = min(1.0, max(least, (3 - rank) * alone[name]))
        assert rows[name].p_value == pytest.approx(least)
    assert rows["better"].against.difference == pytest.approx(0.01, abs=1e-3) and rows["better"].established
    assert rows["worse"].against.difference < 0 and rows["worse"].established
    assert not rows["same"].established and rows["mine"].against is None and rows["untouched"].kl is None
    assert rows["mine"].largest_group_share == pytest.approx(0.15)
    assert rows["mine"].relative == pytest.approx(np.exp(0.05))


def test_few_blocks_establish_nothing():
    rows = mean_rows(record({"mine": 0.05, "worse": 0.5}, blocks=2), 64)
    assert rows[-1].p_value < 0.001 and not rows[-1].established


def test_the_verdict_counts_baselines_and_says_whom_an_unequal_share_favours():
    made = record({"mine": 0.05, "better": 0.04, "same": 0.05, "worse": 0.08})
    text = verdict(made, 64)
    assert text.startswith("The routers (mine) keep 18.0% of the distant pairs and are 0.0")
    assert "nats of KL per token from the untouched model. Of 3 baselines, 1 is significantly closer and" in text
    assert "and 1 significantly farther." in text
    assert "3 of 3 keep fewer pairs than the routers" in text
    few = verdict(record({"mine": 0.05, "better": 0.04}, blocks=2), 64)
    assert "Of 1 baseline, 1 is closer, but over fewer than 16 blocks nothing is established." in few
    assert verdict({**made, "ours": {"method": "gone", "top_k": 1}}, 64).startswith("The routers are not measured")


def test_a_row_shows_retention_before_perplexity_and_speed_of_its_own_length_alone():
    rows = mean_rows(record({"mine": 0.05, "sparq": 0.04}), 64)
    points = (
        Measured(("head", 8, 1), 64, 0.17, 3.0, 2.0),
        Measured(("head", 8, 1), 128, 0.17, 9.0, 8.0),
        Measured(("sparq",), 128, 0.15, 0.5, 0.4),
    )
    models = (ModelSpeed(("head", 8, 1), "mine", 64, 0.18, 1.5), ModelSpeed(("head", 8, 1), "others", 64, 0.18, 1.9))
    ours, sparq = (cells(row, Speeds(points, models)) for row in rows[1:])
    assert ours[1] == "18.0%" and ours[2].startswith("0.0") and ours[3] == "0.0500" and ours[5] == "90.0%"
    assert ours[6].startswith("+5.1%") and ours[7:] == ("15%", "3.00x", "2.00x", "1.50x")
    assert sparq[7:] == ("", "", "", "")


def test_a_call_of_narrow_groups_was_measured_with_those_that_ship_alone():
    made = record({"mine": 0.05})
    for point in made["points"]:
        if point["kind"] == "routers":
            point |= {"router": "narrow", "num_groups": 64, "top_k": None}
    kind = ("narrow", 64, None)
    speeds = Speeds((Measured(kind, 64, 0.18, 3.0, 2.0),), (ModelSpeed(kind, "mine", 64, 0.18, 1.5),))
    (own,) = (row for row in mean_rows(made, 64) if row.kind == "routers")
    assert cells(own, speeds)[8:] == ("", "", "1.50x")
    for point in own.points.values():
        point["method"] = "smollm2-135m-narrow64"
    assert cells(own, speeds)[8:] == ("3.00x", "2.00x", "")
