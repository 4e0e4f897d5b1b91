"""Settings of the sidebar stand only where they act, and are kept where they do not."""

from __future__ import annotations

from typing import Any

import pytest
from opening import TEXT, open_named, open_page, paste, shown
from streamlit.testing.v1 import AppTest

from focus_core.models import default_model
from focus_core.shipped import shipped_routers
from workbench.engine import service
from workbench.shell import asking

OF_GROUPS = ("find", "layers", "balance", "linguistics")
real_model = pytest.mark.skipif(not default_model.is_cached(), reason="the default model has not been fetched")


def keys(app: AppTest) -> set[str]:
    drawn = [*app.sidebar.number_input, *app.sidebar.select_slider, *app.sidebar.button_group, *app.sidebar.radio]
    return {str(each.key) for each in drawn}


@pytest.mark.parametrize("page", OF_GROUPS)
def test_pages_of_groups_have_no_settings_of_what_is_read(page):
    app = open_page(page, source="paste", window="32", share="20")
    assert "Groups of the untouched model do not depend on what is read" in shown(app)
    assert keys(app) & {"window", "sinks", "share", "query_head"} == set() and "states" in keys(app)
    assert (app.query_params["window"], app.query_params["share"]) in (("32", "20"), (["32"], ["20"]))
    app.sidebar.radio(key="states").set_value("routed")  # there every layer sees what the ones before it kept
    app = app.run()
    assert {"window", "sinks", "share"} <= keys(app) and app.number_input(key="window").value == 32
    assert "do not depend on what is read" not in shown(app)


@pytest.mark.parametrize("page", ["explore", "sparsity", "group", "write"])
def test_pages_of_reading_have_them(page):
    app = open_page(page, source="paste")
    assert {"window", "sinks", "share"} <= keys(app)


@real_model
def test_a_page_of_groups_takes_the_analysis_of_the_others(monkeypatch):
    text, passes, genuine = f"{TEXT} That was shared.", [], service.analyze

    def analyze(*args: Any, **options: Any) -> Any:
        passes.append(1)
        return genuine(*args, **options)

    monkeypatch.setattr(service, "analyze", analyze)
    for page in ("explore", "layers", "balance"):
        app = paste(page, text, window="32", share="20", routers="smollm2-135m-narrow64", query_head="1")
        assert shown(app) and app.session_state["window"] == 32 and app.session_state["query_head"] == 1
    assert len(passes) == 1


@pytest.mark.parametrize(
    ("model", "first", "others"),
    [
        ("default", "smollm2-135m-narrow64", "smollm2-135m-k8"),
        ("Qwen/Qwen2.5-Coder-0.5B-Instruct", "qwen2.5-coder-0.5b-narrow64", "untrained"),
        ("openai-community/gpt2", "smollm2-135m-narrow64", "qwen2.5-coder-0.5b-narrow64"),
    ],
)
def test_routers_made_for_the_model_are_offered_first(model, first, others):
    offered = service.routers_offered(model)
    assert offered[0] == first and others in offered[1:] and offered[-1] == service.UNTRAINED
    if model != "openai-community/gpt2":  # shipped routers of other models are left out
        assert len({name.split("-")[0] for name in offered if name in shipped_routers()}) == 1


def test_another_model_gets_its_own_routers():
    asking._known.clear()
    app = open_named("explore", model="nowhere/qwen2.5-coder-0.5b-instruct.gguf", source="paste")
    assert app.selectbox(key="routers").value == "qwen2.5-coder-0.5b-narrow64"
    app.selectbox(key="model").set_value("default")
    assert app.run().selectbox(key="routers").value == "smollm2-135m-narrow64"
