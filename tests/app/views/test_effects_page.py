"""The Effects page on the real model, and its view models."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
from opening import TEXT, open_page, paste, shown
from synthetic import synthetic_trace

from focus_core import FocusConfig, FocusError, retrofit
from focus_core.analysis.interventions import Change
from focus_core.analysis.interventions.chance import Tested, Trial
from focus_core.analysis.interventions.induction import induction, planted_repeat
from focus_core.analysis.interventions.single import SingleEffect
from focus_core.models import default_model
from workbench.views.effects import single_box
from workbench.views.effects.cached import eligible_sizes
from workbench.views.effects.charts import effect_chart, of_groups, of_kinds
from workbench.views.effects.repeats import repeat_map, repeat_sentence, strongest
from workbench.views.effects.tables import (
    few_keys_sentence,
    floor_sentence,
    kind_table,
    most_changed,
    shown_table,
    target_places,
    target_table,
    verdict,
)

real_model = pytest.mark.skipif(not default_model.is_cached(), reason="the default model has not been fetched")


def effects(p_values: list[float]) -> pd.DataFrame:
    rows = [
        {
            "group": number,
            "keys": 5,
            "links": 9,
            **{name: 0.002 * (number + 1) for name in ("kl", "loss")},
            **{f"{name} {end}": 0.001 for name in ("kl", "loss") for end in ("low", "high")},
            **{f"{name} {p}": value for name in ("kl", "loss") for p in ("p", "p (Holm)")},
            "untouched kl": None,
            "draws": 99,
        }
        for number, value in enumerate(p_values)
    ]
    return pd.DataFrame(rows)


@real_model
def test_the_page_runs_a_group_and_says_whether_it_matters():
    app = paste("effects", TEXT, layer="20", window="16")
    said = shown(app)
    assert "matters" not in said and app.button(key="run_effects").label == "Run"
    app.session_state["effect_which"] = "chosen"
    app.select_slider(key="effect_draws").set_value(19)
    app.text_input(key="effect_targets").set_value("100, 120")
    app = app.run()
    app.button(key="run_effects").click()
    said = shown(app.run())
    assert "of layer 20, head 0 changes the model's predictions" in said
    assert "the p-values are about this text" in said
    assert app.button(key="run_effects").disabled
    assert len(app.dataframe[0].value) == 1
    assert "The predictions to follow" in said
    assert next(each.value for each in app.dataframe if "predicted" in each.value)["token"].tolist() == [100, 120]
    app.session_state["effect_details"] = True
    assert "The predictions that change most" in shown(app.run())


@real_model
def test_one_link_is_restored_and_two_tokens_swapped(monkeypatch):
    monkeypatch.setattr(single_box, "DRAWS", 5)
    app = paste("effects", TEXT, layer="20", window="16")
    app.session_state["effects_single"] = True
    app = app.run()
    app.button(key="run_single").click()
    said = shown(app.run())
    assert "Chance: the same token reads another distant token" in said and "in layer 20, head 0" in said
    assert app.button(key="run_single").disabled and len(app.dataframe[0].value) == 2
    app.session_state["single_kind"] = "swap"
    app = app.run()
    assert not app.button(key="run_single").disabled
    app.button(key="run_single").click()
    said = shown(app.run())
    assert "exchanges its group with a random token of another group" in said
    next(box for box in app.number_input if box.label == "First token").set_value(5)
    assert "exchanges its group" not in shown(app.run())


@real_model
def test_a_text_inside_the_window_has_nothing_to_remove():
    app = paste("effects", "One two three.")
    assert "is read from beyond the window" in shown(app)
    app.session_state["effects_repeats"] = True  # the repeat of random tokens needs nothing of the text
    assert "the key that copying needs more often than" in shown(app.run())


@real_model
def test_without_a_text_the_page_teaches():
    assert "You will see" in shown(open_page("effects", source="paste"))


def test_the_verdict_names_the_groups_that_matter():
    where = {"layer": 3, "head": 1, "tokens": 384}
    assert "None of these 2 groups of layer 3, head 1 matters more" in verdict(
        effects([0.2, 0.9]), "knock-out", **where
    )
    one = verdict(effects([0.2, 0.01]), "knock-out", **where)
    assert one.startswith("Group 1 of layer 3, head 1 matters: removing it")
    assert verdict(effects([0.01, 0.01, 0.4]), "knock-out", **where).startswith(
        "Groups 1 and 0 of layer 3, head 1 matter"
    )
    assert "changes the model's predictions no more than" in verdict(effects([0.5]), "force", **where)


def test_too_few_random_sets_are_said():
    assert floor_sentence(8, 399) == "" and floor_sentence(1, 99) == ""
    assert "below 0.2" in floor_sentence(8, 39)


def test_groups_of_few_tokens_are_warned_of():
    assert few_keys_sentence([10, 30]) == "" and few_keys_sentence([]) == ""
    assert few_keys_sentence([4]).startswith("This group has fewer than 10 tokens")
    assert few_keys_sentence([4, 30]).startswith("1 of these 2 groups have")
    assert few_keys_sentence([4, 3]).startswith("Each of these groups has")


def test_predictions_to_follow_are_read_and_corrected_together():
    assert target_places(" 3, 2 3", 9) == (3, 2) and target_places("", 9) == ()
    for typed, reason in (("a", "no list of places"), ("0", "not predicted"), ("9", "choose places from 1 to 8")):
        with pytest.raises(FocusError, match=reason):
            target_places(typed, 9)
    tested = {"value": 0.5, "low": -0.1, "high": 0.2, "p_value": 0.01, "draws": 99}
    points = [{"group": group, "targets": [tested, tested | {"p_value": 0.04}]} for group in (4, 7)]
    table = target_table(points, (2, 3), synthetic_trace("one two three four"))
    assert table["predicted"].tolist() == [" three", " four"] * 2 and table["group"].tolist() == [4, 4, 7, 7]
    assert table["p"].tolist() == pytest.approx([0.04, 0.08, 0.04, 0.08])
    assert table["chance"].tolist() == ["-0.1 to 0.2"] * 4


def test_the_sentence_of_one_change_says_what_and_how_much():
    trace = synthetic_trace("one two three four")
    asked = single_box.Single("restore", 3, 1, 4, 3, 0)
    chance = Tested(0.5, 0.1, 0.2, 0.01, None, 99)
    change = Change(np.zeros(3, dtype=np.float32), np.zeros(3, dtype=np.float32), 2)
    found = SingleEffect(2, chance, chance, Trial(change, np.zeros((0, 3)), np.zeros((0, 3))))
    said = single_box.sentence(trace, asked, found)
    assert said.startswith("“·four” (3) reading “one” (0) in layer 3, head 1 changes the predictions more than chance")
    swap = dataclasses.replace(asked, kind="swap")
    calm = dataclasses.replace(found, kl=dataclasses.replace(chance, p_value=0.4))
    assert "exchanging groups in layer 3, head 1 matters no more than chance (p = 0.4)" in single_box.sentence(
        trace, swap, calm
    )
    assert "reads that token already" in single_box.sentence(trace, asked, dataclasses.replace(found, links=0))
    assert single_box.single_table(found)["effect"].tolist() == [500, 500]


def test_sizes_are_of_the_tokens_that_can_be_read_from_afar():
    trace = synthetic_trace("w " * 30 + "w")
    sizes = eligible_sizes(trace, 1, 20)
    assert sizes.tolist() == trace.membership[1, 1 : 20 - 1 - 2].sum(0).tolist()
    assert not eligible_sizes(trace, 1, 3).any()


def test_tables_hold_the_numbers():
    table = shown_table(effects([0.01, 0.3]))
    assert table["KL"].tolist() == pytest.approx([2, 4]) and table["chance"][0] == "1 to 1"
    trace = synthetic_trace("one two three four")
    point = {"token_kl": [0.0, 0.4, 0.1], "token_loss": [0.0, -0.2, 0.1], "kinds": {}}
    changed = most_changed(point, trace)
    assert changed["token"].tolist() == [2, 3] and changed["predicted"].tolist() == [" three", " four"]
    assert kind_table(point, "distance").empty


@pytest.mark.parametrize("dark", [False, True])
def test_charts_have_titles(dark):
    kinds = pd.DataFrame(
        {"kind": ["a"], "effect": [0.1], "low": [np.nan], "high": [np.nan], "p": [1.0], "p (Holm)": [1.0]}
    )
    for table in (of_groups(effects([0.01, 0.5])), of_kinds(kinds)):
        figure = effect_chart(table, title="Effects", axis="", dark=dark)
        assert figure.layout.title.text and figure.layout.xaxis.title.text


def test_the_repeat_test_names_the_head_that_copies_and_its_groups(tiny_llama):
    focus = retrofit(tiny_llama.model, FocusConfig(num_groups=3, top_k=1, window=4, sink_tokens=1), seed=0)
    with focus.routing("hard"):
        found = induction(focus, planted_repeat(60, 90, seed=1))
    focus.detach()
    figure = repeat_map(found, dark=True).to_dict()["data"][0]
    assert np.shape(figure["z"]) == (found.heads["layer"].nunique(), found.heads["head"].nunique())
    none = dataclasses.replace(found, heads=found.heads.assign(established=False))
    assert repeat_sentence(none).startswith("No head reads the key that copying needs more often")
    clear = {"difference": 0.5, "low": 0.4, "high": 0.6, "p": 0.001, "established": True, "read": 0.9, "chance": 0.4}
    one = found.heads.copy()
    one.loc[0, list(clear)] = list(clear.values())
    one.loc[1:, "established"] = False
    said = repeat_sentence(dataclasses.replace(found, heads=one))
    assert (
        said.startswith(f"One of {len(one)} heads reads") and "90%, where chance is 40% (difference 50 points" in said
    )
    assert f"layer {int(one.loc[0, 'layer'])}, head {int(one.loc[0, 'head'])}: 90%" in said  # whole numbers
    assert strongest(one)[["layer", "head"]].values.tolist() == [[one.loc[0, "layer"], one.loc[0, "head"]]]
