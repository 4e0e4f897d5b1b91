"""The Quality page: what it takes for a result, what it compares, and what it says is missing."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from opening import open_page
from streamlit.testing.v1 import AppTest
from typer.main import get_command

from focus_core import FocusConfig, retrofit
from focus_core.cli import app as cli
from focus_core.evaluation import evaluate, standard_settings
from focus_core.resources import data_dir
from focus_core.results import record_run
from workbench.views.quality.charts import BOUND, frontier
from workbench.views.quality.records import VIEWS, find_records
from workbench.views.quality.tables import COLUMNS, FUTURE, find_results, result_rows
from workbench.views.quality.verdicts import quality_verdict

SHIPPED = sorted((data_dir() / "results").glob("smollm2-135m-k8-*.json"))


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("FOCUS_RUNS", str(tmp_path / "runs"))


def test_a_record_of_the_engine_is_read_as_it_was_measured(tiny_llama, tmp_path):
    config = FocusConfig(num_groups=4, top_k=2, window=4, route_dim=8)
    focus = retrofit(tiny_llama.model, config)
    blocks = np.random.default_rng(0).integers(1, 200, (2, 32))
    measured = [
        evaluate(focus, blocks, routing=mode, top_k=k, balance=balance)
        for mode, k, balance in standard_settings(4, (1, 4))
    ]
    report = {
        "schema": "focus-eval/1",
        "model": {"name": "tiny", "revision": "0"},
        "settings": {"config": config, "routers": "untrained", "trained": False, "length": 32},
        "data": [{"name": "a.txt"}, {"name": "b.txt"}],
        "results": measured,
    }
    record_run(tmp_path / "mine.json", report)
    found = find_results([tmp_path / "mine.json"])
    assert not found.skipped and len(found.table) == len(measured)
    for row, truth in zip(found.table.to_dict("records"), measured):
        assert row["perplexity"] == truth.perplexity and row["distant kept"] == truth.kept_share
        assert row["relative"] == pytest.approx(truth.perplexity / measured[0].perplexity)
        assert (row["remark"] == FUTURE) == (truth.balance == "sequence")
        assert row["kind"] == ("untouched" if truth.routing == "off" else "untrained")
    assert set(found.table["text"]) == {"a.txt, b.txt"} and set(found.table["T"]) == {32}
    whole = found.table[found.table["k"] == 4]
    assert np.allclose(whole["relative"], 1, rtol=1e-5)  # k = K is the untouched model


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[1]", "no recorded run"),
        (b"{}", "no recorded evaluation"),
        (b'{"schema": "focus-bench/1", "points": []}', "page Speed"),
        (b'{"results": [{"accuracy": 1}], "settings": {}, "model": {}}', "another kind"),
        (b'{"results": [1], "settings": [], "model": 3}', "another kind"),
    ],
)
def test_other_files_are_skipped_with_a_reason(tmp_path, content, reason):
    (tmp_path / "other.json").write_bytes(content)
    found = find_results([tmp_path / "other.json", tmp_path / "gone.json"])
    assert not len(found.table)
    assert found.skipped[0][0] == "other.json" and reason in found.skipped[0][1]
    assert found.skipped[1][0] == "gone.json"


@pytest.mark.parametrize(
    "change",
    [{"perplexity": float("nan")}, {"perplexity": -1}, {"kept_share": 2}, {"kept_share": None}, {"routing": "magic"}],
)
def test_no_perplexity_without_a_kept_share(change):
    record = json.loads(SHIPPED[0].read_bytes())
    record["results"][2].update(change)
    with pytest.raises(Exception, match=r"another kind|no JSON"):
        result_rows(json.dumps(record).encode(), "x")


def test_routing_without_a_k_is_named_by_its_budget():
    record = json.loads(next(path for path in SHIPPED if "-trained" in path.name).read_bytes())
    record["results"] = [
        row | {"top_k": None} for row in record["results"] if row["routing"] == "off" or row["balance"] == "calibrated"
    ][:2]
    for config, budget in (({"read_share": 0.15}, "budget 15%"), ({}, "as planned")):
        record["settings"]["config"] |= {"read_share": None, **config}
        table = pd.DataFrame(result_rows(json.dumps(record).encode(), "mine"), columns=list(COLUMNS))
        assert list(table["budget"]) == ["", budget]
        assert f"{budget.removeprefix('budget ')} changes perplexity by" in quality_verdict(table)
        assert any(budget in note["text"] for note in frontier(table).to_dict()["layout"]["annotations"])


def test_the_verdict_speaks_of_causal_trained_routing_and_names_what_it_kept():
    table = find_results(SHIPPED).table
    record = json.loads(next(path for path in SHIPPED if "-trained" in path.name).read_bytes())
    off = record["results"][0]["perplexity"]
    verdict = quality_verdict(table)
    for row in record["results"]:
        if row["balance"] == "calibrated":
            assert f"k = {row['top_k']} changes perplexity by {row['perplexity'] / off - 1:+.1%}" in verdict
            assert f"keeps {row['kept_share']:.0%}" in verdict
    assert "Untrained routers at k = 1" in verdict
    assert "fewer than 16" not in verdict and "next tokens" not in verdict  # 16 blocks, all above the untouched model
    few = table.assign(tokens=table["tokens"] // 4)
    assert "Measured on 4 blocks of text: fewer than 16" in quality_verdict(few)
    below = table.assign(relative=table["relative"].where(table["kind"] != "trained", 0.98))
    assert "no win over full attention" in quality_verdict(below)
    only = table[table["kind"] != "trained"]
    assert "No causal routing with trained routers" in quality_verdict(only)


@pytest.mark.parametrize("dark", [False, True])
def test_the_frontier_draws_hard_and_untouched_rows_and_marks_the_future(dark):
    table = find_results(SHIPPED).table
    drawn = table[table["routing"] != "soft"]
    figure = frontier(table, dark=dark)
    assert sorted(y for trace in figure.data for y in trace.y) == pytest.approx(sorted(drawn["relative"] - 1))
    for trace in figure.data:
        assert (FUTURE in trace.name) == (trace.marker.symbol == "diamond-open")
    bounds = frontier(table, dark=dark, against=BOUND)
    assert sorted(x for trace in bounds.data for x in trace.x) == pytest.approx(sorted(1 / drawn["all kept"]))
    assert "not measured" in bounds.layout.xaxis.title.text


def shown(app: AppTest) -> str:
    assert not app.exception
    elements = [*app.markdown, *app.error, *app.info, *app.caption]
    return "\n".join(element.value for element in elements).replace("\\", "")


def open_quality(**query) -> AppTest:
    return open_page("quality", source="sample", routers="untrained", **query)


def test_the_widest_record_of_kinds_of_text_comes_first_and_others_by_date(tmp_path, monkeypatch):
    shutil.copytree(data_dir() / "results", tmp_path / "results")
    widest = tmp_path / "results" / "frontier-kinds.json"
    record = json.loads(widest.read_text())
    record["made"]["date"] = "2026-01-01T00:00:00+00:00"  # older than all others
    widest.write_text(json.dumps(record))
    monkeypatch.setattr("workbench.views.quality.records.data_dir", lambda: tmp_path)
    found = find_records(sorted((tmp_path / "results").glob("*.json")))
    kinds = [record for record in found if record.kind == "kinds"]
    assert kinds[0].name == "frontier-kinds" and all(record.date > kinds[0].date for record in kinds[1:])
    dates = [record.date for record in found if record.kind == "frontier"]
    assert len(dates) > 1 and dates == sorted(dates, reverse=True)


def test_the_page_shows_shipped_results_and_reads_a_folder(tmp_path):
    app = open_quality()
    assert app.selectbox(key="evidence").value == "kinds" and "Retention of routers" in shown(app)
    app.segmented_control(key="evidence_group").set_value("Settings and texts").run()
    assert "With trained, causal routing" in shown(app) and not app.error
    # Of evidence that does not ship, the command that makes it; of what does, none.
    shipped = {record.kind for record in find_records(sorted((data_dir() / "results").glob("*.json")))}
    assert {"frontier", "benchmarks"} <= shipped
    for kind, view in VIEWS.items():
        wanted = kind not in shipped and not view.retired
        assert (f"**{view.label}**: none yet" in shown(app)) == wanted
    assert "focus reproduce --list" in shown(app)
    known = get_command(cli).commands  # type: ignore[attr-defined]
    assert {view.command.split()[1] for view in VIEWS.values()} <= set(known)
    (tmp_path / "broken.json").write_text("{}")
    record = json.loads(SHIPPED[0].read_bytes())
    record["data"] = [{"name": "my own text.txt"}]
    (tmp_path / "own.json").write_text(json.dumps(record))
    app.text_input(key="quality_folder").set_value(str(tmp_path)).run()
    options = app.selectbox(key="evaluated").options
    assert any("my own text.txt" in option for option in options)
    assert "broken.json" in [name for table in app.dataframe for name in table.value.get("file", [])]
    app.text_input(key="quality_folder").set_value("/no/such/place").run()
    assert "There is no file or folder /no/such/place" in shown(app)
