"""Home, the navigation and the tour, on the shipped records and without a browser."""

from __future__ import annotations

import json

import numpy as np
import pytest
from opening import open_page, shown
from streamlit.testing.v1 import AppTest

from focus_core.frontier.kinds.means import mean_rows
from focus_core.models import default_model
from focus_core.resources import data_dir
from focus_core.shipped import DEFAULT, PUBLISHED
from workbench.engine.service import Settings, router_config
from workbench.shell import texts
from workbench.tokens import previews
from workbench.views.home import figure, results
from workbench.widgets import tour

needs_model = pytest.mark.skipif(not default_model.is_cached(), reason="the default model has not been fetched")


def record(name: str) -> dict:
    return json.loads((data_dir() / "results" / f"{name}.json").read_text(encoding="utf-8"))


def defaults(**changes) -> Settings:
    own = router_config(DEFAULT, 8)
    return Settings("default", DEFAULT, own.num_groups, own.top_k, own.window, own.sink_tokens, **changes)


def test_results_are_those_of_the_records():
    close, decoding, attention = results.holding()
    rows = record("bench-model-narrow")["results"]
    fastest = max(
        (row for row in rows if row["task"] == "decode" and row["routing"] == "hard"), key=lambda r: r["tokens"]
    )
    assert decoding.figure == f"{fastest['speedup']:.2f}x as fast" and f"{fastest['tokens']:,}" in decoding.claim
    blocks = [
        np.mean(point["block_kl"])
        for point in record("frontier-kinds")["points"]
        if point["method"] == DEFAULT and point["length"] == 2048
    ]
    assert f"Divergence {np.mean(blocks):.4f}" in close.detail
    assert attention.record == "bench-narrow" and float(attention.figure.partition("x")[0]) > 1
    # Whoever is not established to be farther may be as close.
    rivals = [row for row in mean_rows(record("frontier-kinds"), 2048) if row.against is not None]
    rivals = [row for row in rivals if not row.established or row.against.difference > 0]
    assert ("Closest of all." in {result.claim for result in results.failing()}) == bool(rivals)
    for result in [*results.holding(), *results.failing()]:
        assert (data_dir() / "results" / f"{result.record}.json").is_file() and result.page in ("quality", "speed")


def test_what_is_closer_on_another_model_is_told_with_a_link_to_its_record():
    told = {result.record: result for result in results.failing() if result.record in results.OTHER_MODELS}
    for name in results.OTHER_MODELS:
        length = max(point["length"] for point in record(name)["points"] if point["method"] == "sparq")
        kl = {
            each: np.mean(
                [np.mean(p["block_kl"]) for p in record(name)["points"] if (p["method"], p["length"]) == each]
            )
            for each in ((record(name)["ours"]["method"], length), ("sparq", length))
        }
        ours, sparq = kl.values()
        assert (name in told) == (sparq < ours)
        if name in told:
            assert f"by {ours:.4f}" in told[name].detail and f"by {sparq:.4f} at {length:,}" in told[name].detail
            app = open_page("quality", **told[name].query)
            assert app.selectbox(key="record").value == name and f"T = {length:,}" in shown(app)


def test_a_result_that_no_record_supports_is_left_out(monkeypatch, tmp_path):
    monkeypatch.setattr(results, "data_dir", lambda: tmp_path)
    assert results.holding() == [] == results.failing()


def test_previews_are_of_the_shipped_routers_and_every_sample():
    found = previews.index()
    assert found["routers"] == DEFAULT, "run python tools/previews.py"
    for sample in texts.samples().values():
        preview = previews.find(defaults(), sample.read())
        assert preview is not None, f"run python tools/previews.py for {sample.name}"
        data = previews.preview_strip(preview, 12)
        assert data["layer"] == 12 and sample.read().startswith("".join(cell["t"] for cell in data["cells"]))
        assert all(0 <= cell["g"][0] < 64 for cell in data["cells"] if "g" in cell)
    assert previews.find(defaults(), "another text") is None
    assert previews.find(defaults(states="routed"), texts.samples()["news"].read()) is None
    assert previews.find(defaults(head=1), texts.samples()["news"].read()) is None


def test_previews_of_other_routers_are_not_shown(monkeypatch):
    monkeypatch.setattr(previews, "fingerprint", lambda routers: "other")
    assert previews.index() == {} and previews.find(defaults(), texts.samples()["news"].read()) is None
    assert figure.load() is None


@needs_model
def test_a_preview_has_the_groups_of_the_engine():
    from workbench.engine import service

    text = texts.samples()["news"].read()
    own = router_config(DEFAULT, 8)
    live = service.analysis(defaults(read_share=own.read_share), text).trace
    shipped = previews.find(defaults(), text)
    assert shipped is not None
    assert (shipped.groups == live.groups).mean() > 0.999  # the last digits of sums differ between machines
    assert (shipped.offsets == live.offsets).all()


def test_the_figure_is_measured_and_says_so():
    found = figure.load()
    assert found is not None and len(found["pieces"]) == found["token"] + 1 == len(found["kept"]) + 1
    counts = found["counts"]
    assert sum(found["kept"]) == counts["near"] + counts["first"] + counts["chosen"] < counts["before"]
    said = figure.sentences(found)
    assert (
        f"{counts['before']:,}" in said["full"]
        and "".join(found["pieces"][-figure.asking(found) :]).strip() == found["word"]
    )


def home() -> AppTest:
    app = AppTest.from_file(str(data_dir().parent / "workbench" / "app.py"), default_timeout=120)
    return app.run()


def test_the_evidence_of_a_figure_is_shown_in_the_dtype_of_the_figure():
    result = results.holding()[2]
    assert "float32" in result.detail
    app = open_page(result.page, **result.query)
    assert app.segmented_control(key="speed_dtype").value == "float32" and "float32" in shown(app)
    assert app.query_params["speed_dtype"] == "float32"
    app.segmented_control(key="speed_dtype").set_value("bfloat16").run()
    assert app.query_params["speed_dtype"] == "bfloat16"


@needs_model
def test_home_is_the_first_page_and_its_figures_are_there():
    app = home()
    said = shown(app)
    assert "Focus lets a language model read a chosen part" in said
    for result in results.holding():
        assert result.figure in said and result.claim in said
    assert not app.sidebar.selectbox  # no settings where none acts


@needs_model
def test_old_links_to_the_first_page_open_explore():
    app = AppTest.from_file(str(data_dir().parent / "workbench" / "app.py"), default_timeout=120)
    for name, value in {"v": "1", "source": "sample", "sample": "news", "routers": "untrained", "layer": "7"}.items():
        app.query_params[name] = value
    app.run()
    assert app.select_slider(key="layer").value == 7 and "In layer 7" in shown(app)


@needs_model
def test_the_switch_chooses_the_best_routers_or_those_as_published():
    app = open_page("explore", source="sample", sample="news")
    assert app.session_state["routers"] == DEFAULT and app.segmented_control(key="form").value == "best"
    app.segmented_control(key="form").set_value("published").run()
    assert app.session_state["routers"] == PUBLISHED and "routing keeps" in shown(app)
    app.selectbox(key="routers").set_value("untrained").run()
    assert app.segmented_control(key="form").value is None


@needs_model
def test_the_tour_can_be_left_and_resumed():
    app = home()
    assert tour.reached() == 0
    next(button for button in app.button if button.label == "Start the tour").click()
    app.run()
    assert "1 of 4" in shown(app) and "In layer" in shown(app) and tour.reached() == 1
    app.session_state["sample"] = "news"
    app.button(key="tour_leave").click().run()
    assert "1 of 4" not in shown(app)
    again = home()
    assert "Resume at step 1" in [button.label for button in again.button]
    tour._keep(4)
    again = home()
    next(button for button in again.button if button.label == "Resume at step 4").click()
    again.run()
    assert "4 of 4" in shown(again)
    again.button(key="tour_finish").click().run()
    assert tour.reached() == 0 and "4 of 4" not in shown(again)
