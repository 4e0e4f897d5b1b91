"""The Linguistics page on the real model, without a browser; its charts and tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from focus_core.analysis.linguistics.alignment import align
from focus_core.analysis.linguistics.cells import cell_tests
from focus_core.analysis.linguistics.corpus import tagging
from focus_core.analysis.linguistics.corpus.sample import word_sample
from focus_core.analysis.linguistics.corpus.tagging import tag_text
from focus_core.analysis.linguistics.explain import explain_layers
from focus_core.models import default_model
from workbench.views.linguistics import cached, explained
from workbench.views.linguistics import tables as linguistics
from workbench.views.linguistics.charts import ami_by_layer, residual_map

APP = Path(__file__).parents[3] / "workbench" / "app.py"
SENTENCE = "The old keeper slowly climbed the stairs, and a cold wind from the sea shook the narrow windows. "


def start(text: str | None = None, *opened: str, **query: str) -> AppTest:
    app = AppTest.from_file(str(APP), default_timeout=180)
    for name in opened:
        app.session_state[name] = True
    for name, value in {"v": "1", "routers": "untrained", "source": "paste", **query}.items():
        app.query_params[name] = value
    app.switch_page(str(APP.parents[1] / "pages" / "linguistics.py")).run()
    if text is not None:
        app.text_area(key="paste").set_value(text)
        app.button[0].click()
        app.run()
    return app


def shown(app: AppTest) -> str:
    assert not app.exception
    return "\n".join(e.value for e in [*app.markdown, *app.error, *app.info, *app.warning, *app.caption])


needs_model = pytest.mark.skipif(not default_model.is_cached(), reason="the default model has not been fetched")


@needs_model
def test_without_a_text_the_page_says_what_to_do():
    assert "Paste or upload an English text" in shown(start())


@needs_model
def test_a_text_first_gets_what_explains_its_groups_and_folds_the_rest():
    app = start(SENTENCE * 16, layer="3")
    text = shown(app)
    assert not app.error and not app.warning
    assert "of which group a word is in" in text or "Nothing here explains" in text
    assert "of this text" in text and "en\\_core\\_web\\_sm" in text and "AMI" not in text
    app.session_state["linguistics_layers"] = True
    text = shown(app.run())
    assert "All features together explain" in text


@needs_model
def test_agreement_has_a_verdict_with_every_reference():
    app = start(SENTENCE * 12, "linguistics_ami", layer="3")
    text = shown(app)
    assert not app.error and not app.warning
    assert "Groups follow universal parts of speech beyond chance in" in text and "Beyond token identity" in text
    assert "untrained routers)" in text and "balanced k-means" in text  # clusterings are in by the second drawing
    assert "within this text" in text and "Layer 3: AMI" in text
    app.session_state["tags"], app.session_state["subword"], app.session_state["k"] = "coarse", "all", 3
    app.run()
    text = shown(app)
    assert "five coarse word classes" in text and "every subword" in text and "At k = 3" in text


@needs_model
def test_a_short_text_is_described_and_the_page_says_why():
    app = start(SENTENCE * 3, "linguistics_ami")
    text = shown(app)
    assert "Too few sentences to predict groups from" in text and "sentences or more" in text
    assert "Only described, not tested" in text and "Below 200 words" in text
    assert "beyond chance" not in text


@needs_model
def test_other_languages_are_called_out():
    text = "Der alte Wärter stieg langsam die Treppe hinauf, und ein kalter Wind vom Meer rüttelte an den Fenstern. "
    assert "tagger is for English" in shown(start(text * 3))


@needs_model
def test_hostile_and_tiny_texts_are_shown():
    for text in ("<script>alert(1)</script> =1+1 $x$ **b** 你好 👍🏽 \x07", "one"):
        assert not start(text).error, text


@needs_model
def test_without_spacy_there_is_one_sentence(monkeypatch):
    monkeypatch.setattr(tagging, "MODELS", ("no_such_model",))
    tagging.load_tagger.cache_clear()
    cached._tagged.clear()
    try:
        app = start("A text that nobody has tagged before. " * 3)
        assert not app.exception
        assert len(app.error) == 1 and "pip install spacy" in app.error[0].value.replace("\\", "")
    finally:
        tagging.load_tagger.cache_clear()


@pytest.fixture(scope="module")
def words(request):
    from synthetic import synthetic_trace

    text = (SENTENCE * 14).strip()
    return word_sample([synthetic_trace(text)], [tag_text(text)])


def test_tables_and_charts_say_the_same(words):
    found = align(words, repeats=50)
    table = linguistics.layer_table(found)
    assert table["layer"].tolist() == [0, 1, 2] and table["AMI"].tolist() == [x.measures.ami for x in found.layers]
    figure = ami_by_layer(found, dark=False, row=1)
    drawn = {trace["name"]: trace for trace in figure.to_dict()["data"]}
    assert np.asarray(drawn["groups"]["y"]) == pytest.approx(table["AMI"])
    assert np.asarray(drawn["token identity"]["y"]) == pytest.approx(table["token identity"])
    assert "AMI" in figure.to_dict()["layout"]["yaxis"]["title"]["text"]
    assert "balanced k-means" not in drawn
    tests = cell_tests(
        np.stack([pd.crosstab(words.codes("coarse"), row).reindex(range(5), fill_value=0) for row in words.groups])
    )
    cells = linguistics.residual_table(tests, words, 2, "coarse")
    assert cells["observed"].sum() == len(words)
    heat = residual_map(cells, dark=True, tag_set="coarse").to_dict()["data"][0]
    assert len(heat["y"]) == cells["tag"].nunique()


def test_charts_of_shares_say_what_their_table_says(words):
    found = explain_layers(words)
    table = explained.share_table(found)
    assert len(table) == len(words.layers) * (1 + len(found[0].features)) and set(table["layer"]) == set(words.layers)
    bars = {trace["name"]: trace for trace in explained.share_bars_of(found[1], dark=True).to_dict()["data"]}
    of_layer = table[table["layer"] == words.layers[1]]
    assert np.asarray(bars["by itself"]["x"]) == pytest.approx(100 * of_layer["alone"].to_numpy())
    assert np.asarray(bars["beyond all others"]["x"]) == pytest.approx(100 * of_layer["unique"].dropna().to_numpy())
    lines = {trace["name"]: trace for trace in explained.share_lines(found, layer=0).to_dict()["data"]}
    spelling = table[table["feature"] == "token identity"]
    assert np.asarray(lines["token identity"]["y"]) == pytest.approx(100 * spelling["alone"].to_numpy())


def test_too_short_for_tests_draws_without_bands(words):
    text = SENTENCE * 2
    from synthetic import synthetic_trace

    short = word_sample([synthetic_trace(text)], [tag_text(text)])
    found = align(short)
    assert found.descriptive
    names = [trace["name"] for trace in ami_by_layer(found, dark=True).to_dict()["data"]]
    assert "groups" in names and not any("95%" in name for name in names)
    assert "AMI low" not in linguistics.layer_table(found)
