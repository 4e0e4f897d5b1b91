"""The Compare page on the real model, and its view models."""

from __future__ import annotations

import dataclasses
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pytest
from opening import TEXT, agreed, open_page, paste, shown
from streamlit.testing.v1 import AppTest
from synthetic import synthetic_trace

from focus_core.analysis import persistence
from focus_core.analysis.statistics import matching
from focus_core.analysis.statistics.matching import agreement_within
from focus_core.models import default_model
from workbench.engine.service import Analysis
from workbench.shell import handover, texts
from workbench.views.compare.tables import (
    Side,
    different_texts_verdict,
    differing,
    differing_table,
    matched,
    origin,
    overlap_table,
    same_text_verdict,
    same_tokens,
    side_table,
)

real_model = pytest.mark.skipif(not default_model.is_cached(), reason="the default model has not been fetched")


@real_model
def test_trained_and_untrained_routers_of_the_same_text():
    app = open_page("compare", source="sample", sample="news", layer="12")
    said = shown(app)
    assert "A and B agree" in said and "within this text" in said and "tokens differ" in said
    assert app.selectbox(key="b_routers").value == "untrained"
    assert app.query_params["differs"] in ("routers", ["routers"])


@real_model
def test_the_same_on_both_sides_is_the_same():
    app = paste("compare", TEXT, differs="nothing")
    said = shown(app)
    assert "form the same groups: AMI 1.00" in said and "No token is in another group" in said


@real_model
def test_layers_k_and_window_may_differ():
    app = paste("compare", TEXT, differs="layer,k,window,sinks", layer="3", b_layer="9", b_k="1", b_window="8")
    said = shown(app)
    assert "**A**, layer 3" in said and "**B**, layer 9" in said
    assert app.number_input(key="b_k").value == 1 and app.number_input(key="b_window").value == 8


@real_model
def test_different_texts_are_not_matched_token_by_token():
    app = paste("compare", TEXT, differs="text", b_source="sample", b_sample="news")
    said = shown(app)
    assert "not compared one by one" in said and "A keeps" in said and "B keeps" in said
    app.session_state["b_source"] = "paste"
    assert "Paste or upload a text for B" in shown(app.run())
    app.session_state["b_paste"] = "Another <b>text</b>, *quite* short."
    assert "B keeps 100%" in shown(app.run())
    assert not any("quite" in str(value) for value in app.query_params.values())


def links_in(app: AppTest, columns: list[str], *twins: str) -> list[dict[str, str]]:
    """The settings of the first link in each of these columns of tables that are folded at first."""
    for twin in twins:
        app.session_state[f"twin_{twin}"] = True
    shown(app.run())
    tables = [each.value for each in app.dataframe]
    found = [table[column].tolist()[0] for table in tables for column in columns if column in table]
    return [dict(parse_qsl(urlsplit(link).query)) for link in found]


@real_model
def test_links_of_b_lead_to_its_text_and_settings(monkeypatch):
    monkeypatch.setattr(handover, "_browser", lambda: "mine")
    app = paste("compare", TEXT, differs="text,window,k", b_source="sample", b_sample="news", b_window="8", b_k="1")
    sizes = ["group"], "sizes-A", "sizes-B"
    a, b = links_in(app, *sizes)
    assert (a["source"], b["source"], b["sample"]) == ("paste", "sample", "news") and "text" not in b
    assert (b["window"], b["k"], b["k_from"]) == ("8", "1", "one") and a["window"] != "8"
    tab = open_page("group", **b)
    assert f"Group {b['group']} of layer {b['layer']}" in shown(tab)
    assert texts.samples()["news"].title in shown(tab) and tab.query_params["k"] == "1"
    app.session_state["b_source"], app.session_state["b_paste"] = "paste", "A grey ship came home. " * 9
    a, own = links_in(app, *sizes)
    assert own["source"] == "paste" and own["text"] != a["text"]
    tab = open_page("group", **own)
    assert "of layer" in shown(tab) and tab.text_area(key="paste").value == "A grey ship came home. " * 9
    assert open_page("group", **a).text_area(key="paste").value == TEXT
    monkeypatch.setattr(handover, "_browser", lambda: None)  # then B's link opens no text, rather than A's
    assert "text" not in links_in(app, *sizes)[1]


@real_model
def test_links_of_b_have_its_routers():
    app = open_page("compare", source="sample", sample="news", layer="12", b_routers="untrained")
    ours, theirs = links_in(app, ["group of A", "group of B"], "overlap")
    assert theirs["routers"] == "untrained" != ours["routers"] and theirs["sample"] == "news"
    assert int(theirs["groups"]) == 64  # untrained routers of B have as many groups as A's


@real_model
@pytest.mark.parametrize("text", ["Hi there.", "x"])
def test_short_texts_get_no_claim(text):
    assert "match by chance alone" in shown(paste("compare", text, differs="layer"))


@real_model
def test_without_a_text_the_page_teaches():
    assert "that is A" in shown(open_page("compare", source="paste"))


@real_model
@pytest.mark.parametrize(
    ("page", "home", "name"), [("compare", matching, "agreement_within"), ("layers", persistence, "chance_band")]
)
def test_the_way_back_to_a_page_computes_no_interval_anew(monkeypatch, page, home, name):
    made: list[int] = []
    genuine = getattr(home, name)
    monkeypatch.setattr(home, name, lambda *given: made.append(1) or genuine(*given))
    app = paste(page, f"{TEXT} That was {page}.", layer="3", differs="layer")
    shown(app)
    assert len(made) == 1
    shown(app.run())
    assert len(made) == 1
    app.select_slider(key="layer").set_value(5)
    shown(app.run())
    assert len(made) == 2


@real_model
def test_wrong_routers_of_b_are_refused_with_a_sentence():
    app = agreed(open_page("compare", source="sample", sample="news", differs="routers", b_routers="no/such/routers"))
    assert not app.exception
    assert "no saved routers" in app.error[0].value


def side(seed: int, row: int = 0, tokens: int = 300) -> Side:
    trace = synthetic_trace("w " * (tokens - 1) + "w", seed=seed)
    return Side(Analysis(trace, [], "untouched", f"text {seed}"), row)


def test_the_same_layer_under_other_numbers_is_no_difference():
    a = side(0)
    order = np.array([2, 0, 3, 1])
    turned = synthetic_trace("w " * 299 + "w", assignment=a.trace.assignment[..., order])
    b = Side(Analysis(turned, [], "untouched"), 0)
    counts, columns, same = matched(a, b)
    assert np.trace(counts) == 300 and columns.tolist() == np.argsort(order).tolist()
    assert (same.groups[0] == a.trace.groups[0]).all()
    assert not len(differing(a, same))
    said = same_text_verdict(counts, agreement_within(a.trace.groups[0], turned.groups[0], 4, 4))
    assert "the same groups: AMI 1.00" in said and "100% of the tokens" in said


def test_matched_groups_have_the_colour_of_their_partner():
    a, b = side(0), side(0)
    ours, theirs = np.array([[2, 1, 2, 0]] * 3), np.array([[0, 0, 1, 2]] * 3)
    for of_a, of_b, expected in ((ours, theirs, ours[0]), (None, theirs, np.arange(4)), (ours, None, ours[0])):
        first = Side(dataclasses.replace(a.analysis, trace=dataclasses.replace(a.trace, families=of_a)), 0)
        second = Side(dataclasses.replace(b.analysis, trace=dataclasses.replace(b.trace, families=of_b)), 0)
        families = matched(first, second)[2].families
        assert families is not None and families[0].tolist() == expected.tolist()


def test_independent_routings_agree_no_more_than_chance():
    a, b = side(0), side(1)
    counts, columns, other = matched(a, b)
    said = same_text_verdict(counts, agreement_within(a.trace.groups[0], b.trace.groups[0], 4, 4))
    assert "no more than chance" in said
    table = differing_table(a, other, differing(a, other))
    assert len(table) == 300 - np.trace(counts)
    assert table["affinity"].is_monotonic_increasing
    assert (table["group in A"] != table["group in B"]).all()
    overlap = overlap_table(counts, columns)
    assert overlap["tokens"].sum() == 300 and overlap["matched"].sum() == 4


def test_both_sides_are_described_and_named_in_exports():
    a, b = side(0), side(1, row=2, tokens=20)
    assert not same_tokens(a, b) and same_tokens(a, side(3))
    table = side_table(a, b)
    assert table.loc[table["property"] == "text", ["A", "B"]].values.tolist() == [["text 0", "text 1"]]
    assert table.loc[table["property"] == "layer", ["A", "B"]].values.tolist() == [["0", "2"]]
    made_from = origin(a, b)
    assert made_from["text_sha256"] != made_from["b_text_sha256"]
    assert (made_from["compared_layer"], made_from["b_compared_layer"]) == (0, 2)
    assert "A keeps" in different_texts_verdict(a, b) and "; B keeps" in different_texts_verdict(a, b)
