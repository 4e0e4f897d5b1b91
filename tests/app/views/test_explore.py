"""The Explore page on the real model, without a browser."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
from opening import agreed
from streamlit.testing.v1 import AppTest

from focus_core import FocusConfig, analyze, retrofit
from focus_core.models import default_model
from workbench.engine import service
from workbench.shell import state, texts
from workbench.tokens.reads import pair_shares
from workbench.views.explore.verdicts import layer_verdict

APP = Path(__file__).parents[3] / "workbench" / "app.py"
TEXT = "Mara rowed to the island. " + "The water was grey and the wind was cold. " * 12 + "Mara rowed home."

pytestmark = pytest.mark.skipif(not default_model.is_cached(), reason="the default model has not been fetched")


def start(**query: str) -> AppTest:
    app = AppTest.from_file(str(APP), default_timeout=120)
    for name, value in query.items():
        app.query_params[name] = value
    return app.run()


def paste(text: str, **query: str) -> AppTest:
    app = start(v="1", source="paste", routers="untrained", **query)
    app.text_area(key="paste").set_value(text)
    app.button[0].click()
    return app.run()


def shown(app: AppTest) -> str:
    assert not app.exception
    return "\n".join(element.value for element in [*app.markdown, *app.error, *app.info])


def test_the_page_without_a_text_says_what_to_do():
    app = start(source="paste", v="1")
    assert "Paste or upload a text" in shown(app)
    assert not app.error


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_verdict_at_every_k_is_that_of_the_engine_in_the_routed_model(k):
    app = paste(TEXT, layer="7", states="routed", k=str(k))
    base = service.load_base("default")
    with base.lock:
        focus = retrofit(base.model, FocusConfig(), seed=0)
        try:
            with focus.routing("hard", top_k=k):
                trace = analyze(focus, base.tokenizer, TEXT)
        finally:
            focus.detach()
    assert layer_verdict(trace, 7, pair_shares(trace, 7)) in shown(app)
    assert f"{len(trace.tokens):,} tokens" in shown(app)


def test_by_default_the_untouched_models_states_are_routed():
    """k = K is the untouched model; its assignments give the memberships of any k."""
    app = paste(TEXT, layer="7", k="1")
    base = service.load_base("default")
    with base.lock:
        focus = retrofit(base.model, FocusConfig(), seed=0)
        try:
            with focus.routing("hard", top_k=8):
                full = analyze(focus, base.tokenizer, TEXT)
        finally:
            focus.detach()
    membership = full.groups[..., None] == np.arange(8)
    trace = dataclasses.replace(full, membership=membership, config=full.config.replace(top_k=1))
    assert layer_verdict(trace, 7, pair_shares(trace, 7)) in shown(app)


def test_untrained_routers_are_called_untrained():
    assert "UNTRAINED" in shown(paste("A short text."))


def test_every_view_draws_and_tables_download():
    app = paste(TEXT)
    for view in ("repeats", "map", "sizes", "ambiguous", "table"):
        app.session_state["view"] = view
        app.run()
        assert not app.exception and not app.error, view
    app.session_state["token"] = 5
    app.run()
    assert "it reads" in shown(app)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (" \n\t ", "The text is empty"),
        ("a b " * 9000, "the limit here is 8,192"),
        ("x" * 1_000_000, "shorten or split it"),
    ],
)
def test_unusable_texts_are_refused_with_a_sentence(text, sentence):
    app = paste(text)
    assert not app.exception
    assert len(app.error) == 1 and sentence in app.error[0].value.replace("\\", "")


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script> <img src=x onerror=alert(1)>",
        "# Title **bold** [link](javascript:alert(1)) $x$ :red[y]",
        "=1+1 @cmd +A1",
        "שלום وداعا 你好 👩‍🍳 👍🏽 e\u0301 \u202eabc\u202c \x07",
        "x" * 3000,
        "one",
    ],
)
def test_unusual_texts_are_shown(text):
    app = paste(text)
    assert not app.exception and not app.error
    app.session_state["view"] = "table"
    app.session_state["token"] = 0
    app.run()
    assert not app.exception and not app.error
    # Nothing but our own pages may read as HTML.
    assert all("<script" not in element.value.replace("\\<", "") for element in app.markdown)


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ({"routers": "no/such/routers"}, "no saved routers"),
        ({"routers": "untrained", "model": "./no-such-model"}, "no model folder"),
    ],
)
def test_wrong_models_and_routers_are_refused_with_a_sentence(query, sentence):
    app = agreed(start(v="1", source="sample", sample="news", **query))
    assert not app.exception
    assert sentence in app.error[0].value.replace("\\", "")


def test_routers_of_another_model_are_refused(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=64
    )
    retrofit(LlamaForCausalLM(config), FocusConfig(), seed=0).save_pretrained(tmp_path / "other")
    app = agreed(start(v="1", source="sample", sample="news", routers=str(tmp_path / "other")))
    assert not app.exception
    assert len(app.error) == 1


def test_an_unexpected_error_is_an_apology_not_a_traceback(monkeypatch):
    def fail(*args: object) -> None:
        raise RuntimeError("the roof fell in\nsecond line")

    monkeypatch.setattr(service, "analysis", fail)
    app = start(v="1", source="sample", sample="news", routers="untrained")
    assert not app.exception
    assert "Sorry" in app.error[0].value and "the roof fell in" in app.error[0].value
    assert "second line" not in app.error[0].value


def test_a_link_restores_the_settings_and_never_holds_the_text():
    app = paste(TEXT, layer="3", k="1", window="8", sinks="0", view="sizes")
    assert app.select_slider(key="layer").value == 3
    assert app.slider(key="k").value == 1
    assert app.number_input(key="window").value == 8
    assert app.number_input(key="sinks").value == 0
    link = {name: value if isinstance(value, str) else value[0] for name, value in app.query_params.items()}
    assert link["v"] == state.VERSION
    assert {name: link[name] for name in ("layer", "k", "window", "sinks", "view")} == {
        "layer": "3",
        "k": "1",
        "window": "8",
        "sinks": "0",
        "view": "sizes",
    }
    assert not any("Mara" in value for value in link.values())
    assert set(link) <= {"v", *state.SETTINGS}


@pytest.mark.parametrize(
    "query", [{"k": "99"}, {"k": "-1"}, {"k": "x"}, {"layer": "77"}, {"token": "99999"}, {"view": "<b>"}]
)
def test_nonsense_in_a_link_falls_back(query):
    app = start(v="1", source="sample", sample="news", routers="untrained", **query)
    assert not app.exception and not app.error
    assert re.search(r"In layer \d+ routing keeps \d+% of the distant pairs", shown(app))


def test_a_link_of_another_version_is_not_read(monkeypatch):
    short = {"news": texts.samples()["news"]}
    monkeypatch.setattr(texts, "samples", lambda: short)  # the first sample is the long story
    app = start(v="0", source="paste", k="1")
    assert app.session_state["source"] == "sample"


def test_a_folder_of_texts_shows_one_at_a_time_and_the_link_holds_the_path(tmp_path, monkeypatch):
    monkeypatch.setattr(texts, "PART_CHARACTERS", 2_000)
    (tmp_path / "one.txt").write_text(TEXT)
    (tmp_path / "two.md").write_text("The heron stood in the reeds. " * 110)
    app = start(v="1", source="folder", routers="untrained")
    assert "Paste or upload a text" in shown(app)
    app.text_input(key="folder").set_value(str(tmp_path)).run()
    assert "In layer" in shown(app) and app.selectbox(key="file").value == "one.txt"
    again = start(v="1", source="folder", routers="untrained", folder=str(tmp_path), file="two.md", part="2")
    assert "In layer" in shown(again) and again.number_input(key="part").value == 2
    assert not any("heron" in str(value) for value in again.query_params.values())
    app.text_input(key="folder").set_value(str(tmp_path / "no")).run()
    assert "There is no folder" in app.error[0].value and not app.exception
