"""Routers per key/value head: one head on show, keys in one group, queries that read others."""

from __future__ import annotations

import pytest
from opening import TEXT, open_page, shown

from focus_core.models import default_model
from workbench.engine import service

pytestmark = pytest.mark.skipif(not default_model.is_cached(), reason="the default model has not been fetched")
HEADS = "smollm2-135m-k8-heads-lm"


def at(page: str, **query: str):
    return open_page(page, **{"source": "sample", "sample": "news", "routers": HEADS, "layer": "9", **query})


def test_the_head_is_chosen_in_the_sidebar_and_kept_in_the_link():
    app = at("explore", window="8")
    control = app.segmented_control(key="head")
    assert list(control.options) == ["0", "1", "2"] and control.value == 0
    before = shown(app)
    assert "are in a group that the later token reads" in before
    control.set_value(2)
    app.run()
    assert shown(app) != before and app.query_params["head"] in ("2", ["2"])
    assert at("explore", head="7").segmented_control(key="head").value == 0
    assert not [
        each
        for each in open_page("explore", source="sample", sample="news", routers="smollm2-135m-k8").segmented_control
        if each.key == "head"
    ]


def test_settings_reach_the_trace():
    first, second = (
        service.analysis(service.Settings("default", HEADS, 8, 3, 8, 4, head=head), TEXT) for head in (0, 1)
    )
    assert (first.trace.head, second.trace.head) == (0, 1) and first.origin["head"] == 0
    assert (first.trace.groups != second.trace.groups).any()
    assert (first.trace.membership.sum(-1) == 1).all() and (first.trace.query_membership.sum(-1) == 3).all()
    wider = service.analysis(service.Settings("default", HEADS, 8, 5, 8, 4), TEXT).trace
    assert (wider.query_membership.sum(-1) == 5).all() and (wider.groups == first.trace.groups).all()


@pytest.mark.parametrize("page", ["layers", "balance", "sparsity", "linguistics", "compare", "report"])
def test_every_page_shows_a_head(page):
    app = at(page, head="1")
    assert shown(app) and not app.error and not app.exception


def test_attention_kept_is_that_of_the_head():
    said = [shown(at("sparsity", computed="mass", window="8", head=head)) for head in ("0", "1")]
    assert said[0] != said[1] and all("kept pairs" in each for each in said)


def test_cards_speak_of_the_one_group_that_a_key_is_in():
    cards = at("report", head="1").get("iframe")[0].proto.srcdoc
    assert "Layer 9, head 1, group 0" in cards and "with it among" not in cards
