"""Routers that carry a plan: a k of its own for every layer, in the sidebar, on every page and in links."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from opening import TEXT, open_named, shown
from synthetic import synthetic_trace

from focus_core.analysis.display.cells import build_cells
from focus_core.analysis.tables import described
from focus_core.analysis.tokens import margins
from focus_core.models import default_model
from focus_core.routing.config import FocusConfig
from focus_core.routing.storage import CONFIG, saved_config
from workbench.engine import service
from workbench.engine.plans import PLANNED, budget_name, chosen_k, k_name, plan_in_words
from workbench.tokens.tables import ambiguous, groups_by_layer, token_table
from workbench.views.sparsity.charts import frontier
from workbench.views.sparsity.tables import attention_sentence, attention_table, key_memberships, swept_k
from workbench.widgets.strip import strip_data

real_model = pytest.mark.skipif(not default_model.is_cached(), reason="the default model has not been fetched")
PLAN = tuple([0, 1, 8] + [2] * 27)


@pytest.fixture
def planned(tmp_path) -> Path:
    """Shipped routers, which k is the budget of, with a plan."""
    folder = tmp_path / "planned"
    shutil.copytree(service.router_folder("smollm2-135m-k8"), folder)
    record = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    record["routing"]["layer_top_k"] = PLAN
    (folder / CONFIG).write_text(json.dumps(record), encoding="utf-8")
    return folder


def at(page: str, folder: Path, **query: str):
    return open_named(page, **{"source": "sample", "sample": "news", "routers": str(folder), **query})


@real_model
def test_the_plan_is_the_default_and_one_k_can_be_chosen(planned):
    app = at("explore", planned, layer="1")
    assert "window and sinks alone in layer 0; k = 1 in layer 1" in shown(app)
    assert not [slider for slider in app.slider if slider.key == "k"]
    assert app.query_params["k_from"] in ("plan", ["plan"])
    app.segmented_control(key="k_from").set_value("one")
    app.run()
    assert app.slider(key="k").value == 2 and app.query_params["k_from"] in ("one", ["one"])
    link = at("explore", planned, k_from="one", k="3")
    assert link.slider(key="k").value == 3 and not link.error


@real_model
@pytest.mark.parametrize("states", ["untouched", "routed"])
def test_memberships_are_those_of_the_plan(planned, states):
    config = saved_config(planned)
    settings = service.Settings("default", str(planned), config.num_groups, 2, 8, 4, states, PLAN)
    trace = service.analysis(settings, TEXT).trace
    assert trace.config.layer_top_k == PLAN
    assert (trace.membership.sum(-1) == np.array(PLAN)[:, None]).all()
    one = service.analysis(service.Settings("default", str(planned), config.num_groups, 2, 8, 4, states), TEXT).trace
    assert one.config.layer_top_k is None and (one.membership.sum(-1) == 2).all()
    same = (trace.assignment == one.assignment).all()
    assert same if states == "untouched" else not same  # the routed model computes something else under the plan


@real_model
@pytest.mark.parametrize("page", ["layers", "balance", "sparsity", "linguistics", "compare", "report"])
def test_every_page_draws_a_layer_without_groups_and_says_its_k(planned, page):
    app = at(page, planned, layer="0")
    assert shown(app)
    chosen = next(slider for slider in app.select_slider if slider.key == "layer")
    assert chosen.value == 0 and chosen.options[:3] == ["0 (k = 0)", "1 (k = 1)", "2 (k = 8)"]


@real_model
def test_attention_kept_by_the_plan_stands_beside_every_k(planned):
    said = shown(at("sparsity", planned, computed="mass", window="8"))
    assert "At the planned k the kept pairs" in said


@real_model
def test_b_can_be_as_planned(planned):
    app = at("compare", planned, k_from="one", k="1", differs="k", layer="2")
    assert app.selectbox(key="b_k").value == 0 and "all pairs in layer 2" not in shown(app)
    table = app.table[0].value
    k = table.loc[table["property"].str.startswith("groups K")].iloc[0]
    assert (k["A"], k["B"]) == ("8, 1", "8, 8")


def made(top_k: tuple[int, ...] = (0, 1, 4)):
    text = "w " * 30 + "w"
    return synthetic_trace(text, num_layers=len(top_k), layer_top_k=top_k)


def test_words_for_a_plan():
    config = FocusConfig(num_groups=4, layers=(3, 5, 9), layer_top_k=(1, 4, 1))
    assert plan_in_words(config) == "k = 1 in layers 3, 9; all pairs in layer 5"
    assert (chosen_k(config), k_name(config)) == (PLANNED, "planned k")
    assert (chosen_k(config.replace(top_k=3)), k_name(config.replace(top_k=3))) == (3, "k 3")
    share = FocusConfig(num_groups=4, router="narrow", top_k=1, read_share=0.15)
    assert (k_name(share), budget_name(chosen_k(share)), budget_name(2)) == ("budget 15%", "budget 15%", "k=2")
    provenance = made().provenance
    assert described(provenance, config, "untouched model", "0")["top_k"] == "planned: 1 4 1"


def test_view_models_take_each_layers_own_k():
    trace = made()
    assert np.isinf(margins(trace, 0)).all() and np.isinf(margins(trace, 2)).all()
    assert np.isfinite(margins(trace, 1)).all()
    assert len(ambiguous(trace, 0)) == len(ambiguous(trace, 2)) == 0 and len(ambiguous(trace, 1)) == 31
    lists = groups_by_layer(trace, 5)["groups"].tolist()
    assert [len(groups.split()) for groups in lists] == [0, 1, 4]
    table = token_table(trace, [b"w"] * 31)
    assert [len(table[f"layer_{layer}_groups"][5].split()) for layer in range(3)] == [0, 1, 4]
    cells = build_cells(trace.text, trace.offsets)
    for row, drawn in enumerate((1, 1, 4)):
        data = strip_data(trace, [b"w"] * 31, cells, row)
        assert {len(cell["g"]) for cell in data["cells"]} == {drawn}


def test_a_plan_is_swept_beside_the_ks():
    trace = made()
    swept = swept_k(4, chosen_k(trace.config))
    assert swept == (1, 2, 3, 4, PLANNED)
    assert (key_memberships(trace, swept)[-1] == trace.membership).all()
    mass = np.random.default_rng(0).dirichlet(np.ones(4), (5, 3))
    table = attention_table(trace, swept, mass)
    assert (table["k"] == PLANNED).sum() == 3
    pairs = table.head(3).assign(kept=[0.1, 0.2, 0.3])
    assert attention_sentence(trace, 1, swept, mass, pairs).startswith("At the planned k the kept pairs (20% of all)")
    points = table.head(5).assign(k=np.array(swept), **{"pairs kept": 0.2, "mass kept": 0.8})
    names = [part.name for part in frontier(points, PLANNED, dark=False).data]
    assert "the routers' plan" in names
