"""The Layers page on the real model, and its view models."""

from __future__ import annotations

import numpy as np
import pytest
from opening import TEXT, open_page, paste, shown
from synthetic import synthetic_trace

from focus_core.analysis.persistence import churn, layer_agreement
from focus_core.models import default_model
from workbench.views.layers.charts import agreement_map, churn_line, flow_map
from workbench.views.layers.tables import churn_order, flow, flow_table, step_table, token_churn, verdict

real_model = pytest.mark.skipif(not default_model.is_cached(), reason="the default model has not been fetched")


@real_model
def test_the_page_answers_its_question_and_links_hold_both_layers():
    app = paste("layers", TEXT, layer="3", other="20")
    said = shown(app)
    assert "From one layer to the next groups" in said and "Layers 3 and 20: AMI" in said
    app.select_slider(key="other").set_value(4)
    app.run()
    assert "Layers 3 and 4: AMI" in shown(app)
    assert app.query_params["other"] in ("4", ["4"])


@real_model
@pytest.mark.parametrize(("text", "sentence"), [("Hi there.", "Too short to tell"), ("x", "Too short to tell")])
def test_short_texts_get_no_claim(text, sentence):
    assert sentence in shown(paste("layers", text))


@real_model
def test_without_a_text_the_page_teaches():
    assert "You will see" in shown(open_page("layers", source="paste"))


def made(tokens: int = 40, layers: int = 4):
    trace = synthetic_trace("w " * (tokens - 1) + "w", num_layers=layers)
    return trace, churn(trace.groups, 4), layer_agreement(trace.groups, 4)


def test_flow_puts_matched_groups_on_the_diagonal():
    trace, _, _ = made()
    counts, columns = flow(trace, 0, 2)
    for row in range(4):
        for position, group in enumerate(columns):
            both = (trace.groups[0] == row) & (trace.groups[2] == group)
            assert counts[row, position] == both.sum()
    table = flow_table(trace, 0, 2)
    assert table["tokens"].sum() == 40 and table["matched"].sum() == 4
    assert np.allclose(table.groupby("group")["share of group"].sum(), 1)
    same, order = flow(trace, 1, 1)
    assert order.tolist() == [0, 1, 2, 3] and np.trace(same) == 40


def test_tables_hold_the_numbers():
    trace, changes, agreement = made()
    steps = step_table(trace, changes, agreement)
    assert len(steps) == 3
    assert steps["AMI"].tolist() == [agreement[i, i + 1] for i in range(3)]
    tokens = token_churn(trace, changes, 0, churn_order(changes))
    assert sorted(tokens["token"]) == list(range(40))
    assert tokens["churn"].is_monotonic_increasing
    assert (tokens["changes"] == (tokens["churn"] * 3).round()).all()


def test_the_verdict_says_when_groups_are_random_and_when_they_stay():
    trace, changes, agreement = made(2000, 6)
    assert "beyond chance" in verdict(trace, changes, agreement)
    stays = synthetic_trace(
        "w " * 199 + "w", assignment=np.tile(np.eye(4, dtype=np.float32)[np.arange(200) % 4], (3, 1, 1))
    )
    said = verdict(stays, churn(stays.groups, 4), layer_agreement(stays.groups, 4))
    assert "largely persist" in said and "at 0% of the steps" in said
    one = synthetic_trace("a b c", num_layers=1)
    assert "Only one layer" in verdict(one, churn(one.groups, 4), layer_agreement(one.groups, 4))


@pytest.mark.parametrize("dark", [False, True])
def test_charts_have_titles_and_axis_titles(dark):
    trace, changes, agreement = made()
    for figure in (
        agreement_map(trace, agreement, 0, 1, dark=dark),
        flow_map(trace, 0, 1, dark=dark),
        churn_line(step_table(trace, changes, agreement), dark=dark),
    ):
        assert figure.layout.title.text and figure.layout.xaxis.title.text and figure.layout.yaxis.title.text
