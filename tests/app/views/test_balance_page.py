"""The Balance page on the real model, and its view models."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from opening import TEXT, open_page, paste, shown
from synthetic import synthetic_trace

from focus_core.analysis.group_balance import balancing
from focus_core.models import default_model
from focus_core.routing.balance import BALANCES
from workbench.views.balance.charts import flip_lines, future_line, largest_lines, load_map, round_lines
from workbench.views.balance.tables import (
    RAW,
    SEQUENCE,
    balance_table,
    flip_table,
    future_sentence,
    future_table,
    has_potentials,
    round_table,
    verdict,
)

real_model = pytest.mark.skipif(not default_model.is_cached(), reason="the default model has not been fetched")


@real_model
def test_the_page_answers_its_question():
    app = paste("balance", TEXT, layer="3")
    said = shown(app)
    assert "Sequence Sinkhorn" in said and "Layer 3 as routed (calibrated)" in said
    assert "would be in another group of layer 3" not in said and len(app.get("plotly_chart")) == 2
    app.session_state["balance_more"] = True
    app.run()
    assert "would be in another group of layer 3" in shown(app)
    assert "no potentials of their own" in said  # untrained routers


@real_model
def test_shipped_routers_have_potentials():
    said = shown(open_page("balance", source="sample", sample="news", routers="smollm2-135m-k8"))
    assert "frozen from the training texts" in said and "an even split is 12.5%" in said


@real_model
@pytest.mark.parametrize("text", ["Hi there.", "x"])
def test_short_texts_get_no_claim(text):
    assert "Too short to tell" in shown(paste("balance", text))


@real_model
def test_without_a_text_the_page_teaches():
    assert "You will see" in shown(open_page("balance", source="paste"))


def made(tokens: int = 200, balance: str = "calibrated"):
    trace = synthetic_trace("w " * (tokens - 1) + "w", num_layers=3)
    trace = dataclasses.replace(trace, config=trace.config.replace(balance=balance))
    return trace, balancing(trace.scores, temperature=0.1, rounds=5)


def test_tables_hold_the_numbers():
    trace, result = made()
    table = balance_table(trace, result)
    assert len(table) == 9 and (table["largest group"] >= 0.25).all() and (table["effective groups"] <= 4).all()
    part = table[(table["routing"] == SEQUENCE) & (table["layer"] == 1)]
    assert part["largest group"].item() == np.bincount(result.sequence[1]).max() / 200
    assert len(round_table(trace, result)) == 3 * 6
    flips = flip_table(trace, result)
    assert flips.iloc[0, 1] == (result.raw[0] != result.sequence[0]).mean()
    assert flips.shape == (3, 4)
    assert future_table(trace, 0)["changed by later tokens"].iloc[-1] == 0


def test_only_calibrated_routing_is_compared_as_calibrated():
    trace, result = made(balance="sequence")
    assert "depend on later tokens" in verdict(trace, balance_table(trace, result))
    assert flip_table(trace, result).shape == (3, 2)
    assert not has_potentials(trace, result)
    trace, result = made(balance="none")
    assert "is not balanced" in verdict(trace, balance_table(trace, result))


@pytest.mark.parametrize(
    "causal, sight", [(True, "does not depend on later tokens"), (False, "depends on later tokens")]
)
def test_a_balance_of_ones_own_is_a_third_routing(monkeypatch, causal, sight):
    monkeypatch.setitem(BALANCES, "mine", dataclasses.replace(BALANCES["none"], causal=causal))
    trace, result = made(balance="mine")
    table = balance_table(trace, result)
    assert set(table["routing"]) == {RAW, SEQUENCE, "mine"} and flip_table(trace, result).shape == (3, 4)
    assert f"Mine routing is in force and {sight}" in verdict(trace, table)


def test_a_single_token_has_no_future():
    trace, _ = made(1)
    assert "text is too short" in future_sentence(trace, 0, future_table(trace, 0))


@pytest.mark.parametrize("dark", [False, True])
def test_charts_have_titles_and_axis_titles(dark):
    trace, result = made()
    for figure in (
        load_map(trace, dark=dark),
        largest_lines(balance_table(trace, result), 4, dark=dark),
        round_lines(result.errors, 1, 1, dark=dark),
        flip_lines(flip_table(trace, result), dark=dark),
        future_line(future_table(trace, 1), 1, dark=dark),
    ):
        assert figure.layout.title.text and figure.layout.xaxis.title.text and figure.layout.yaxis.title.text
