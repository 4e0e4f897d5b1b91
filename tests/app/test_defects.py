"""Defects that users met, each as a test: what failed silently now says so, and what was lost is kept."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from opening import TEXT, open_page, paste, shown
from streamlit.runtime.scriptrunner_utils.script_requests import RerunData
from streamlit.testing.v1 import AppTest, local_script_runner

from focus_core.errors import FocusError
from focus_core.models import default_model
from focus_core.resources import runs_dir
from workbench.engine import service
from workbench.runs import jobs, notes
from workbench.shell import sessions, texts
from workbench.views.explore.pairs import pair_bar
from workbench.views.train.form import check_long_enough
from workbench.views.train.tables import TrainRequest
from workbench.views.train.verdicts import finished_verdict

pytestmark = pytest.mark.skipif(not default_model.is_cached(), reason="the default model has not been fetched")


def toasts(app: AppTest) -> str:
    return "\n".join(toast.value for toast in app.toast).replace("\\", "")


def value(app: AppTest, name: str) -> str:
    found = app.query_params[name]
    return found if isinstance(found, str) else found[0]


def show_url(app: AppTest, before: dict[str, list[str]]) -> AppTest:
    """A run of the page with the former URL, as one that began before the browser had the last one."""
    app.query_params.clear()
    for name, values in before.items():
        app.query_params[name] = values[0] if isinstance(values, list) else values
    return app.run()


def go_back(app: AppTest, before: dict[str, list[str]]) -> AppTest:
    """What a browser does on Back: the former URL, and a run that says so."""
    with pytest.MonkeyPatch.context() as patch:  # `AppTest` cannot say it
        patch.setattr(local_script_runner, "RerunData", partial(RerunData, is_history_navigation=True))
        return show_url(app, before)


def test_back_restores_the_layer_and_the_token_of_before():
    app = paste("explore", TEXT, layer="4", token="3")
    before = dict(app.query_params)
    app.select_slider(key="layer").set_value(9).run()
    assert value(app, "layer") == "9"
    go_back(app, before)
    assert app.select_slider(key="layer").value == 4 and value(app, "layer") == "4"
    assert app.number_input(key="token_box").value == 3
    app.select_slider(key="layer").set_value(7).run()  # and goes on as ever
    assert app.select_slider(key="layer").value == 7 and value(app, "layer") == "7"


def test_a_url_that_lags_behind_a_change_is_not_taken_for_back():
    app = paste("explore", TEXT, layer="4")
    before = dict(app.query_params)
    app.select_slider(key="layer").set_value(9)
    show_url(app, before)
    assert app.select_slider(key="layer").value == 9 and value(app, "layer") == "9"
    show_url(app, before)  # nor in a run that no change asked for, as when the words have been tagged
    assert app.select_slider(key="layer").value == 9 and value(app, "layer") == "9"


def test_a_run_tells_the_browser_no_value_that_it_has():
    app = paste("explore", TEXT, layer="4")
    app.select_slider(key="layer").set_value(9).run()
    app.run()
    # Such a message, still on its way when the next click comes, would undo that click in the browser alone.
    drawn = [widget for kind in ("select_slider", "number_input", "toggle", "button_group") for widget in app.get(kind)]
    assert len(drawn) > 5
    assert not [widget.key for widget in drawn if widget.proto.set_value and not widget.proto.disabled]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"source": "sample", "sample": "nope"}, "asks for sample nope"),
        ({"source": "sample", "sample": "news", "layer": "99"}, "asks for layer 99, which is not here. Shown instead"),
        ({"source": "sample", "sample": "news", "view": "none"}, "asks for view none"),
        ({"source": "sample", "sample": "news", "token": "99999"}, "asks for token 99999"),
        ({"source": "sample", "sample": "news", "k": "99"}, "asks for k 99"),
    ],
)
def test_links_to_what_is_not_here_say_so(query, said, monkeypatch):
    short = {"news": texts.samples()["news"]}
    monkeypatch.setattr(texts, "samples", lambda: short)
    app = open_page("explore", routers="untrained", **query)
    assert said in toasts(app)
    app.run()
    assert said not in toasts(app)  # once


def test_notes_are_on_disk_and_a_new_session_has_them():
    sessions.take_note("abc", 4, 1, "names of people")
    sessions.take_note("abc", 4, 2, "verbs")
    sessions.take_note("abc", 4, 2, "  ")
    sessions.take_note("other", 4, 1, "of other routers")
    assert sessions.notes("abc") == {(4, 1): "names of people"} == {(4, 1): notes.read("abc")["4/1"]}
    assert sorted(path.name for path in runs_dir().iterdir() if path.suffix == ".json") == [notes.NOTES]
    (runs_dir() / notes.NOTES).write_text("{broken")
    assert sessions.notes("abc") == {}
    sessions.take_note("abc", 4, 1, "again")
    assert sessions.notes("abc") == {(4, 1): "again"}


def test_an_empty_text_says_so():
    app = open_page("explore", source="paste", routers="untrained")
    app.button[0].click().run()
    assert "There is no text yet" in "".join(box.value for box in app.warning)


def test_of_a_text_that_is_too_long_the_beginning_is_offered():
    text = "The wind came over the grey water and shook the windows. " * 5000
    app = paste("explore", text)
    assert "the limit here is 8,192" in app.error[0].value.replace("\\", "")
    assert "Use the first 8,192 tokens" in [button.label for button in app.button]
    # Both are in the block that the next run replaces first, before it routes what was taken.
    blocks: list[Any] = [block for block in app.main.children.values() if getattr(block, "children", None)]
    waiting = next(block for block in blocks if len(block.error))
    assert waiting.children[0].error[0].value == app.error[0].value
    assert [button.label for button in waiting.children[0].button] == ["Use the first 8,192 tokens"]
    taken = service.beginning("default", text)
    assert taken is not None and text.startswith(taken)
    assert len(service.encoding("default", taken).input_ids) == 8192
    assert service.beginning("default", "A short text.") is None and service.beginning("default", " ") is None
    letters = "x" * 400_000
    assert letters.startswith(str(service.beginning("default", letters)))


REQUEST = TrainRequest("default", 8, 2, 8, 4, 20, 64, 2, 0.01, "mass", 0, 2)


def test_a_training_text_that_is_too_short_is_refused_before_the_run():
    with pytest.raises(FocusError, match="fills 0 blocks of 64 tokens, and training needs 3"):
        check_long_enough(REQUEST, ["Three short words"])
    check_long_enough(REQUEST, ["words and more words " * 40, "words and more words " * 40])
    app = open_page("train", source="sample", routers="untrained")
    app.selectbox(key="train_start").set_value("layer").run()
    app.text_area(key="train_paste").set_value("Three short words")
    next(button for button in app.button if button.label == "Start training").click()
    app.run()
    assert "training needs 3" in app.error[0].value and jobs.jobs() == []


def held_out(low: float | None, high: float | None, tokens: int) -> pd.DataFrame:
    common = {"routing": "hard", "k": 2, "remark": "", "T": 128, "stride": 128, "distant kept": 0.4}
    common |= {"largest group": 0.2, "tokens": tokens, "relative low": low, "relative high": high}
    rows = [{"kind": "trained", "perplexity": 39.48, "relative": 0.987}]
    rows += [{"kind": "untrained", "perplexity": 45.0, "relative": 1.125}]
    return pd.DataFrame([common | row for row in rows])


def test_a_run_with_one_held_out_block_headlines_no_change():
    said = finished_verdict(held_out(None, None, 127), 2, 2)
    headline = said.partition("\n")[0]
    assert (
        headline == "Too little held-out text to tell a change of perplexity: 127 tokens in 1 block of the 2 asked for."
    )
    assert "-1.3%" not in said and "without an interval" in said
    enough = finished_verdict(held_out(0.97, 1.01, 127 * 16), 2, 16)
    assert "changes perplexity by -1.3% (95% interval -3.0% to +1.0%)" in enough


@pytest.mark.parametrize("page", ["explore", "layers", "balance", "sparsity", "linguistics", "compare", "report"])
def test_tiny_texts_are_one_token_and_claim_nothing(page):
    app = paste(page, "one")
    said = shown(app)
    assert "1 tokens" not in said and "AMI 1.00" not in said and "**1.000**" not in said
    assert "1 token" in said


def test_a_hint_that_no_longer_holds_is_one_block_that_the_answer_replaces():
    app = open_page("explore", source="paste", routers="untrained")
    # The second element of the page is replaced first; all of the hint has to be in it.
    blocks: list[Any] = list(app.main.children.values())
    assert len(blocks) == 2 and "You will see" in "".join(each.value for each in blocks[1].markdown)


def test_the_bar_of_pairs_has_its_ticks_inside_the_chart():
    from workbench.tokens.reads import PairShares

    figure = pair_bar(PairShares(0.2, 0.1, 0.3, 0.4, 0.4), 3)
    assert (
        next(iter(figure.layout.xaxis.tickvals)) == 0 and figure.layout.margin.l >= 20 and figure.layout.margin.r >= 20
    )
    assert np.isclose(sum(float(bar.x[0]) for bar in figure.data), 1)
