"""Narrow routers of the default model on every page: what a query head reads, many groups, and a share in place of k."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from opening import ROOT, TEXT, open_named, shown

from focus_core import FocusConfig, analyze
from focus_core.analysis.reading import pair_counts
from focus_core.analysis.sparsity import pair_table
from focus_core.models import default_model
from focus_core.routing.narrow.fitting.fit import fit_narrow
from workbench.engine import service
from workbench.tokens.reads import pair_shares, relations
from workbench.widgets.strip import strip_data

pytestmark = pytest.mark.skipif(not default_model.is_cached(), reason="the default model has not been fetched")
GROUPS, SHARE = 20, 0.25
SETTINGS = {"router": "narrow", "num_groups": GROUPS, "top_k": 1, "window": 24, "read_share": SHARE, "chunk": 16}


@pytest.fixture(scope="module")
def routers(tmp_path_factory) -> str:
    """A folder of narrow routers for the default model, fitted on the sample story."""
    base = service.load_base("default")
    ids = base.tokenizer((ROOT / "data" / "samples" / "story.txt").read_text())["input_ids"]
    blocks = np.array(ids[: 4 * 500]).reshape(4, 500)
    folder = tmp_path_factory.mktemp("narrow") / "fitted"
    with base.lock:
        focus = fit_narrow(base.model, blocks, FocusConfig(**SETTINGS, page_size=8))
        focus.save_pretrained(folder)
        focus.detach()
    return str(folder)


def settings(routers: str, **changes) -> service.Settings:
    own = service.router_config(routers, 8)
    plain = service.Settings("default", routers, GROUPS, own.top_k, 24, 4, read_share=SHARE)
    return dataclasses.replace(plain, **changes)


def at(page: str, routers: str, **query: str):
    return open_named(page, **{"source": "sample", "sample": "news", "routers": routers, "layer": "9", **query})


@pytest.mark.parametrize("page", ["layers", "balance", "sparsity", "linguistics", "compare", "report"])
def test_every_page_shows_narrow_groups(page, routers):
    app = at(page, routers, head="1")
    assert shown(app) and not app.exception


@pytest.mark.parametrize("page", ["quality", "speed", "train"])
def test_pages_without_a_text_open(page, routers):
    app = at(page, routers)
    assert not app.exception and not app.error


@pytest.mark.parametrize("view", ["repeats", "map", "sizes", "ambiguous", "table"])
def test_explore_shows_a_query_head_and_the_routers_own_settings(view, routers):
    app = at("explore", routers, view=view, token="300")
    said = shown(app)
    assert "query head 0 of key/value head 0 reads" in said and "Summaries stand for the other" in said
    assert app.number_input(key="window").value == 24
    assert app.select_slider(key="share").value == 100 * SHARE
    assert not [slider for slider in app.slider if slider.key == "k"]
    app.segmented_control(key="query_head").set_value(2)
    app.run()
    assert "query head 2 of key/value head 0 reads" in shown(app) and app.query_params["query_head"] in ("2", ["2"])


def test_settings_follow_the_routers_until_they_are_changed(routers):
    app = at("explore", routers)
    app.selectbox(key="routers").set_value(service.UNTRAINED)
    app.run()
    other = service.router_config(service.UNTRAINED, 8)
    assert app.number_input(key="window").value == other.window and app.slider(key="k").value == other.top_k
    app.number_input(key="window").set_value(40)
    app.run()
    app.selectbox(key="routers").set_value("smollm2-135m-k8-heads-lm")
    app.run()
    assert app.number_input(key="window").value == 40


def test_the_share_is_what_queries_read(routers):
    traces = [service.analysis(settings(routers, read_share=share), TEXT).trace for share in (SHARE, 0.5, 1.0)]
    shares = [pair_shares(trace, 9).distant_sharing for trace in traces]
    assert shares[0] < shares[1] < shares[2] == 1
    assert abs(shares[0] - SHARE) < 0.1 and np.array_equal(traces[0].groups, traces[2].groups)
    counts = pair_counts(traces[0], 9)
    kept = [(relations(traces[0], 9, token) == 4).sum() for token in range(len(traces[0].tokens))]
    assert sum(kept) == int(counts.distant_kept - counts.distant_sink)


def test_hidden_states_are_those_of_the_chosen_model(routers):
    """Both analyses run the model once; groups of the first layer agree, those of the last are those of each."""
    base = service.load_base("default")
    untouched = service.analysis(settings(routers), TEXT)
    routed = service.analysis(settings(routers, states="routed"), TEXT)
    assert np.array_equal(untouched.trace.groups[0], routed.trace.groups[0])
    assert not np.allclose(untouched.trace.scores[-1], routed.trace.scores[-1], atol=1e-3)
    with base.lock:
        full = service.routed(
            base,
            settings(routers, read_share=1.0, states="routed"),
            lambda focus: analyze(focus, base.tokenizer, TEXT),
        )
    assert np.allclose(untouched.trace.scores, full.scores, atol=1e-2)


def test_attention_kept_is_measured_at_several_shares(routers):
    said = shown(at("sparsity", routers, computed="mass"))
    assert "% of the causal pairs are computed by query head 0 of key/value head 0, mean over layers" in said
    assert "At a budget of 25% the kept pairs" in said and "left to summaries" in said
    routed = shown(at("sparsity", routers, computed="mass", states="routed"))
    assert "At a budget of 25% the kept pairs" in routed and routed != said
    assert "The budget is a share of the pairs" in shown(at("sparsity", routers, computed="layers"))


def test_balance_speaks_of_potentials_and_not_of_rounds(routers):
    said = shown(at("balance", routers))
    assert "Narrow groups have no Sinkhorn rounds" in said and "Sequence Sinkhorn" not in said


def test_the_strip_colours_families_and_prints_group_numbers(routers):
    found = service.analysis(settings(routers), TEXT)
    trace = found.trace
    data = strip_data(trace, trace.token_bytes, found.cells, 9, selected=100, fade_unread=True)
    assert [group["number"] for group in data["groups"]] == list(range(GROUPS)) and data["by"] == "score"
    families = trace.families[9]
    fills = [group["fill"] for group in data["groups"]]
    assert len(set(fills)) == len(set(families)) <= 12
    assert all((fills[a] == fills[b]) == (families[a] == families[b]) for a in range(GROUPS) for b in range(GROUPS))
    assert data["cells"][-1]["l"] == str(trace.groups[9, -1])
    sentences = {cell["r"] for cell in data["cells"] if "r" in cell}
    assert any("summary of a page" in sentence for sentence in sentences)


def test_comparing_shares_keeps_the_groups(routers):
    app = at("compare", routers, differs="k", b_share="50")
    assert "A and B form the same groups" in shown(app)
    table = app.table[0].value.set_index("property")
    assert [table.loc["groups K, and what a token reads", side] for side in "AB"] == [
        "20, budget 25%",
        "20, budget 50%",
    ]
    kept = [float(table.loc["kept share of causal pairs", side].rstrip("%")) for side in "AB"]
    first = service.analysis(settings(routers), (ROOT / "data" / "samples" / "news.txt").read_text()).trace
    assert kept[0] == pytest.approx(100 * pair_table(first)["kept"][9], abs=0.06) and kept[0] < kept[1]
    other = at("compare", routers, differs="routers", b_routers="untrained")
    assert shown(other)


def test_cards_show_margins_in_order_of_size(routers):
    cards = at("report", routers).get("iframe")[0].proto.srcdoc
    assert "Mean margin to the next group" in cards and "Mean weight" not in cards
    assert cards.count("<article") == GROUPS
