"""The Sparsity page on the real model, and its view models."""

from __future__ import annotations

import numpy as np
import pytest
from opening import TEXT, open_page, paste, shown
from synthetic import synthetic_trace

from focus_core.analysis.sparsity import CLASSES, pair_table, pooled_mask
from focus_core.models import default_model
from workbench.views.sparsity.charts import frontier, mask_image, share_bars
from workbench.views.sparsity.tables import attention_table, key_memberships, mask_table, swept_k, verdict

real_model = pytest.mark.skipif(not default_model.is_cached(), reason="the default model has not been fetched")


@real_model
def test_the_page_answers_its_question_in_every_view():
    app = paste("sparsity", TEXT, layer="3", window="8")
    said = shown(app)
    assert "of the causal pairs are computed" in said and "a bound, not a measurement" in said
    assert "Layer 3:" in said and "Pooling factor 1" in said
    app.session_state["computed"] = "layers"
    assert "1 - C(K-k, k) / C(K, k)" in shown(app.run())
    app.session_state["computed"] = "mass"
    said = shown(app.run())
    assert "of the untouched model's attention, mean over layers. In layer 3" in said and "all queries" in said
    app.slider(key="k").set_value(8)
    assert "hold **100.0%**" in shown(app.run())


@real_model
def test_the_routed_model_is_measured_at_its_own_k():
    said = shown(paste("sparsity", TEXT, states="routed", computed="mass", window="8", k="1"))
    assert "At k = 1 the kept pairs" in said


@real_model
def test_a_text_inside_the_window_is_computed_in_full():
    assert "Everything is computed" in shown(paste("sparsity", "One two three."))


@real_model
def test_without_a_text_the_page_teaches():
    assert "You will see" in shown(open_page("sparsity", source="paste"))


@pytest.mark.parametrize(
    ("num_groups", "top_k", "swept"), [(4, 2, (1, 2, 3, 4)), (16, 3, (1, 2, 3, 4, 8, 16)), (12, 2, (1, 2, 4, 8, 12))]
)
def test_the_sweep_holds_the_chosen_k_and_all_of_few(num_groups, top_k, swept):
    assert swept_k(num_groups, top_k) == swept


def test_memberships_are_those_of_the_engine():
    trace = synthetic_trace("w " * 30 + "w")
    first, second, everything = key_memberships(trace, (1, 2, 4))
    assert (second == trace.membership).all()
    assert (first.argmax(-1) == trace.groups).all() and everything.all()


def test_tables_hold_the_numbers():
    trace = synthetic_trace("w " * 30 + "w")
    mask = pooled_mask(trace.membership[0], window=2, sink_tokens=1, cells=8)
    table = mask_table(mask, 31)
    assert len(table) == 8 * 9 / 2 and mask.factor == 4
    assert table["last query"].max() == table["last key"].max() == 30
    assert np.allclose(table[list(CLASSES)].sum(axis=1), 1, atol=1e-6)
    mass = np.random.default_rng(0).dirichlet(np.ones(4), (2, 3))
    table = attention_table(trace, (1, 2), mass)
    assert table["k"].tolist() == [1, 1, 1, 2, 2, 2]
    assert table["mass kept"][4] == pytest.approx(1 - mass[1, 1, 3])


def test_the_verdict_is_the_numbers():
    trace = synthetic_trace("w " * 99 + "w")
    pairs = pair_table(trace)
    kept = pairs["kept"].mean()
    assert f"{kept:.0%} of the causal pairs" in verdict(trace, pairs)
    assert f"{1 / kept:.1f} times faster" in verdict(trace, pairs)


@pytest.mark.parametrize("dark", [False, True])
def test_charts_have_titles_and_axis_titles(dark):
    trace = synthetic_trace("w " * 600 + "w")
    pairs = pair_table(trace)
    mask = pooled_mask(trace.membership[0], window=2, sink_tokens=1)
    points = pairs.head(2).assign(k=[1, 2], **{"pairs kept": [0.2, 0.4], "mass kept": [0.8, 0.9]})
    figures = (
        mask_image(mask, 0, 601, dark=dark),
        share_bars(pairs, 1, dark=dark, what="causal pairs", line="random kept"),
        frontier(points, 2, dark=dark),
    )
    for figure in figures:
        assert figure.layout.title.text and figure.layout.xaxis.title.text and figure.layout.yaxis.title.text
    assert "3 × 3 tokens" in figures[0].layout.title.text.replace("<br>", " ")
