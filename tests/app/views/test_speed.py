"""The Speed page: what it believes, what it computes, what it draws, on files that the benchmark really wrote."""

import json
import math
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from opening import open_page
from streamlit.testing.v1 import AppTest

from focus_core import FocusConfig, retrofit
from focus_core.bench.attention import run_bench
from focus_core.bench.model import ModelBenchSettings, run_model_bench
from focus_core.bench.settings import BenchSettings
from focus_core.errors import FocusError
from focus_core.resources import data_dir
from focus_core.results import stamp
from workbench.charts.ticks import legible, log_ticks
from workbench.runs import jobs
from workbench.views.speed.baselines import read_baseline_speed, shipped_baselines
from workbench.views.speed.charts import error_curves, memory_curves, model_curves, speedup_curves, time_curves
from workbench.views.speed.tables import (
    DEFAULTS,
    MAX_BYTES,
    PUBLISHED,
    apart,
    crossovers,
    is_whole_model,
    read_model_speed,
    read_speed,
    shipped_speeds,
    title_of,
)
from workbench.views.speed.verdicts import baseline_verdict, model_speed_verdict, speed_verdict


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A real measurement, one of its points impossible here."""
    out = tmp_path_factory.mktemp("bench") / "bench.json"
    sizes = dict(sizes=(48, 96), routings=((4, 1), (4, 2)), dtypes=("float32",), repetitions=2, window=8)
    run_bench(BenchSettings(**sizes, backends=("auto", "varlen")), out)
    return out.read_bytes()


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("FOCUS_RUNS", str(tmp_path / "runs"))


def test_a_real_measurement_is_read_as_it_was_written(measured):
    record, raw = read_speed(measured, "mine"), json.loads(measured)
    done = [point for point in raw["points"] if "failure" not in point]
    assert len(record.points) == len(done) == 4 and len(record.failures) == 4
    assert set(record.failures["tokens"]) == {48, 96} and "CUDA" in record.failures["reason"][0]
    for point in done:
        keys = {"K": point["num_groups"], "k": point["top_k"], "tokens": point["tokens"]}
        (row,) = [row for row in record.points.to_dict("records") if all(row[key] == keys[key] for key in keys)]
        assert row["speedup"] == pytest.approx(point["speedup"]) and row["bound"] == pytest.approx(point["bound"])
        assert row["error output"] == point["error_output"] and row["kept share"] == point["kept_share"]
        assert row["speedup with routing"] < row["speedup"]
    assert record.machine["torch"] and record.settings["window"] == "8"


def broken(change):
    """A function that spoils the first point of a record."""

    def spoil(record):
        point = next(point for point in record["points"] if "failure" not in point)
        change(point)

    return spoil


@pytest.mark.parametrize(
    "spoil",
    [
        lambda record: record.update(schema="other/1"),
        lambda record: record.pop("points"),
        lambda record: record.update(points={}),
        lambda record: record.update(points=[[]]),
        lambda record: record.update(points=[{}] * 6000),
        lambda record: record.update(made=[]),
        lambda record: record.pop("made"),
        broken(lambda point: point.pop("error_output")),  # no speed without exactness
        broken(lambda point: point.update(error_output=math.nan)),
        broken(lambda point: point.update(error_logsumexp=-1)),
        broken(lambda point: point.update(tokens="1024")),
        broken(lambda point: point.update(tokens=True)),
        broken(lambda point: point.update(top_k=9)),
        broken(lambda point: point.update(dtype="<script>")),
        broken(lambda point: point.update(kept_share=1.5)),
        broken(lambda point: point.update(share="a third")),
        broken(lambda point: point["full_s"].update(median=0)),
        broken(lambda point: point["full_s"].update(median=math.inf)),
        broken(lambda point: point["sparse_s"].update(min=1e9)),
        broken(lambda point: point.update(working_bytes="much")),
    ],
)
def test_spoilt_files_are_refused_with_a_sentence(measured, spoil):
    record = json.loads(measured)
    spoil(record)
    with pytest.raises(FocusError, match="mine is ") as error:
        read_speed(json.dumps(record).encode(), "mine")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "data", [b"", b"\x80\x04pickle", b"[" * 100_000, b"[]", b"null", b'"x"', b"\xff\xfe", b" " * (MAX_BYTES + 1)]
)
def test_hostile_files_are_refused_with_a_sentence(data):
    with pytest.raises(FocusError, match="mine is "):
        read_speed(data, "mine")


def test_ratios_in_the_file_are_not_believed(measured):
    record = json.loads(measured)
    for point in record["points"]:
        point["speedup"] = point["bound"] = 99.0
    assert read_speed(json.dumps(record).encode(), "mine").points["speedup"].max() < 99


def test_unequal_groups_are_a_series_of_their_own(measured):
    record = json.loads(measured)
    first = next(point for point in record["points"] if "failure" not in point)
    record["points"].append(first | {"share": 0.4})
    points = read_speed(json.dumps(record).encode(), "mine").points
    drawn, beside = apart(points)
    assert set(drawn["series"]) == set(read_speed(measured, "mine").points["series"]) and len(beside) == 1
    assert "unequal groups (40%)" in beside["series"][0]
    alone, none = apart(points.loc[points["unequal"]])
    assert len(alone) == 1 and not len(none)


def test_narrow_groups_have_a_share_and_no_k_and_their_choice_is_timed():
    content = (data_dir() / "results" / "bench-narrow.json").read_bytes()
    points = read_speed(content, "narrow").points
    assert set(points["series"]) == {
        f"narrow groups, 15% of the distant pairs, {dtype}" for dtype in ("float32", "bfloat16")
    }
    raw = [(point["tokens"], point["dtype"], point["speedup_with_choice"]) for point in json.loads(content)["points"]]
    shown = zip(points["tokens"], points["dtype"], points["speedup with routing"])
    assert sorted(shown) == [(*where, pytest.approx(value)) for *where, value in sorted(raw)]
    assert not points["unequal"].any()
    assert crossovers(points)["choosing included, from"].notna().all()


def test_the_default_routers_are_named_in_the_speed_of_the_whole_model():
    content = (data_dir() / "results" / "bench-model-narrow.json").read_bytes()
    points = read_model_speed(content, "model").points
    best = max(row["speedup"] for row in json.loads(content)["results"] if row["routing"] in ("hard", "switched"))
    verdict = model_speed_verdict(points.loc[points["task"] == "prefill"], "m")
    rows = points.loc[(points["task"] == "prefill") & points["routed"]]
    assert f"prefill is at best {rows['speedup'].max():.2f}x" in verdict and rows["speedup"].max() <= best
    assert "narrow groups" in verdict


def with_speedups(values, tokens=None):
    tokens = tokens or [2**n for n in range(9, 9 + len(values))]
    columns = {"series": "s", "tokens": tokens, "speedup": values, "speedup with routing": np.array(values) * 0.9}
    return pd.DataFrame(columns | {"bound": 9.0, "error output": 1e-7})


@settings(deadline=None)
@given(st.lists(st.floats(0.05, 20) | st.floats(0.98, 1.02), min_size=1, max_size=8))
def test_the_crossover_is_where_every_longer_length_wins(values):
    points = with_speedups(values)
    (row,) = crossovers(points.sample(frac=1, random_state=0)).to_dict("records")
    shown_faster = points["speedup"].map("{:.2f}".format).astype(float) > 1
    wins = [n for n in points["tokens"] if shown_faster[points["tokens"] >= n].all()]
    losses = points.loc[~shown_faster, "tokens"]
    assert (None if pd.isna(row["faster from"]) else row["faster from"]) == (min(wins) if wins else None)
    assert row["slower at"] == ", ".join(f"{tokens:,}" for tokens in losses)


def test_the_verdict_names_losses_and_never_promises():
    machine = {"device": "a laptop"}
    lost = with_speedups([0.5, 0.9])
    assert "is not faster at any measured length" in speed_verdict(crossovers(lost), machine, lost)
    won = with_speedups([0.5, 1.5, 3.0])
    sentence = speed_verdict(crossovers(won), machine, won)
    assert "from 1,024 tokens on" in sentence and "is 2.7x as fast at 2,048 tokens" in sentence
    assert "allows at most 9.0x" in sentence and "Choosing included" in sentence
    assert "as fast or faster at 1 of the 3 measured points" in sentence
    above = with_speedups([0.5, 1.5, 12.0])
    sentence = speed_verdict(crossovers(above), machine, above)
    assert "10.8x as fast at 2,048 tokens. Its share of pairs explains 9.0x;" in sentence and "at most" not in sentence
    fast = with_speedups([1.5, 3.0])
    assert "as fast or faster at none of the 2 measured points" in speed_verdict(crossovers(fast), machine, fast)
    untimed = won.assign(**{"speedup with routing": math.nan})
    sentence = speed_verdict(crossovers(untimed), machine, untimed)
    assert "is 3.0x as fast at 2,048 tokens" in sentence and "Choosing excluded" in sentence
    assert "nothing has been measured" in speed_verdict(crossovers(won[:0]), machine, won[:0])


@pytest.mark.parametrize("dark", [False, True])
def test_figures_draw_the_measured_points_and_mark_what_was_not_measured(measured, dark):
    points = read_speed(measured, "mine").points
    figure = speedup_curves(points, dark=dark, published=True)
    lines = [trace for trace in figure.data if trace.mode == "lines+markers"]
    assert sorted(value for line in lines for value in line.y) == sorted(points["speedup"])
    others = [trace for trace in figure.data if trace.mode == "lines"]
    assert [list(trace.y) for trace in others] == [list(values) for values in PUBLISHED.values()]
    assert all("published, H100" in trace.name and trace.line.dash != "solid" for trace in others)
    plain = speedup_curves(points, dark=dark)
    assert not any("published" in (trace.name or "") for trace in plain.data)
    times = {trace.name: trace for trace in time_curves(points, dark=dark).data}
    for series, rows in points.groupby("series"):
        drawn = times[series]
        assert list(drawn.y) == pytest.approx(list(rows["sparse s"] * 1e3))
        assert list(np.add(drawn.y, drawn.error_y.array)) == pytest.approx(list(rows["sparse max s"] * 1e3))
    assert len(memory_curves(points, dark=dark).data) >= 1
    errors = [value for trace in error_curves(points, dark=dark).data for value in trace.y]
    assert sorted(errors) == sorted(points["error output"])


@pytest.fixture
def whole_model(tiny_llama):
    """A record of `focus bench model`, of a small model."""
    focus = retrofit(tiny_llama.model, FocusConfig(num_groups=4, top_k=2, window=4, route_dim=8))
    settings = ModelBenchSettings(prefill=(16, 32), decode=(24,), repetitions=1, steps=2)
    rows = run_model_bench(focus, torch.arange(1, 60), settings)
    report = {
        "schema": "focus-bench-model/1",
        "model": {"name": "tiny", "revision": "0"},
        "settings": {"config": asdict(focus.config), "routers": "untrained", "dtype": "float32"},
        "results": rows,
    }
    return stamp(report, device="cpu")


def test_a_whole_model_is_read_as_it_was_measured_and_drawn(whole_model):
    data = json.dumps(whole_model).encode()
    assert is_whole_model(data)
    points = read_model_speed(data, "mine").points
    assert points["tokens per second"].tolist() == [row["tokens_per_second"] for row in whole_model["results"]]
    assert points["kept share"].tolist() == [row["kept_share"] for row in whole_model["results"]]
    caches = [row["cache_bytes"] for row in whole_model["results"] if row["task"] == "decode"]
    assert points["cache bytes"].dropna().tolist() == caches
    older = [{name: row[name] for name in row if name != "cache_bytes"} for row in whole_model["results"]]
    assert (
        read_model_speed(json.dumps(whole_model | {"results": older}).encode(), "old")
        .points["cache bytes"]
        .isna()
        .all()
    )
    for task in ("prefill", "decode"):
        drawn = [value for trace in model_curves(points, task, dark=False).data for value in trace.y]
        assert sorted(drawn) == sorted(points.loc[points["task"] == task, "tokens per second"])
    verdict = model_speed_verdict(points, "tiny")
    routed = points[(points["task"] == "prefill") & points["k"].notna()]
    assert f"prefill is at best {routed['speedup'].max():.2f}x" in verdict
    slower = (routed["speedup"].round(2) <= 1).sum()
    assert f"no faster at {slower or 'none'} of the {len(routed)}" in verdict


def test_a_spoilt_whole_model_is_refused_with_a_sentence(whole_model):
    for change in ({"seconds": {}}, {"kept_share": 0}, {"task": "dream"}, {"speedup": math.nan}):
        record = whole_model | {"results": [whole_model["results"][0] | change]}
        with pytest.raises(FocusError, match="mine is damaged"):
            read_model_speed(json.dumps(record).encode(), "mine")
    with pytest.raises(FocusError, match="no speed measurement"):
        read_model_speed(b"{}", "mine")


def shown(app: AppTest) -> str:
    assert not app.exception
    elements = [*app.markdown, *app.error, *app.info, *app.warning, *app.caption]
    return "\n".join(element.value for element in elements).replace("\\", "")


def open_speed(**query) -> AppTest:
    return open_page("speed", source="sample", routers="untrained", **query)


def test_the_page_shows_a_measurement_of_this_machine_and_its_failures(measured):
    folder = jobs.new_folder("speed-quick")
    content = {"format": 1, "arguments": ["bench"], "about": {"points": 8}, "created": "2026-01-01T00:00:00+00:00"}
    (folder / "job.json").write_text(json.dumps(content))
    (folder / "bench.json").write_bytes(measured)
    (folder / "outcome.json").write_text('{"status": 130}')
    (folder / "log.txt").write_text("Stopped.\n")
    app = open_speed(speed="run:speed-quick")
    record = read_speed(measured, "speed-quick")
    assert speed_verdict(crossovers(record.points), record.machine, record.points) in shown(app)
    assert "ended at 8 of 8 points" in shown(app) and "could not be measured" in shown(app)
    assert "Resume" in [button.label for button in app.button]


def test_unequal_groups_stand_in_a_table_of_their_own():
    app = open_page("speed", speed="bench-heads-cpu")
    assert not app.exception and not app.error
    assert any("points with unequal groups" in each.label for each in app.expander)


def test_shipped_measurements_are_shown_whole():
    for name, path in shipped_speeds().items():
        read = read_model_speed if is_whole_model(path.read_bytes()) else read_speed
        record = read(path.read_bytes(), name)
        assert len(record.points)
        app = open_speed(speed=name)
        assert record.machine["torch"] in shown(app) and not app.error


def test_baselines_stand_with_attention_only_and_choosing_included():
    for name, path in shipped_baselines().items():
        record, raw = read_baseline_speed(path.read_bytes(), name), json.loads(path.read_bytes())
        for row, point in zip(record.points.to_dict("records"), raw["points"], strict=True):
            assert row["attention only"] == pytest.approx(point["speedup"])
            assert row["choosing included"] == pytest.approx(point["speedup_with_choice"])
            assert ("older record" in row["timed"]) == raw["schema"].endswith("/1")
    app = open_speed(speed=name)
    assert baseline_verdict(record.points) in shown(app)
    raw["points"][0]["attend_s"]["median"] = 0
    with pytest.raises(FocusError, match="mine is damaged"):
        read_baseline_speed(json.dumps(raw).encode(), "mine")


def test_an_uploaded_file_is_shown_and_a_hostile_one_refused(measured):
    app = open_speed(speed="upload")
    assert "Upload a record" in shown(app)
    uploader = app.get("file_uploader")[-1]
    uploader.set_value(("mine.json", measured, "application/json")).run()
    assert "measured points" in shown(app) and not app.error
    spoilt = measured.replace(b"float32", b"<b>x</b>")
    app.get("file_uploader")[-1].set_value(("mine.json", spoilt, "application/json")).run()
    assert len(app.error) == 1 and "mine.json is damaged" in app.error[0].value.replace("\\", "")


def test_the_page_opens_on_the_default_routers_and_names_measurements_in_words():
    app = open_page("speed")
    box = app.selectbox(key="speed")
    assert box.value == DEFAULTS[0]
    assert app.segmented_control(key="speed_dtype").value == "float32"  # as the figures of README and Home
    assert box.options[:2] == [f"{title_of(name)} · comes with the workbench" for name in DEFAULTS]
    assert title_of("bench-narrow-xeon") == "One attention call, default routers, Intel Xeon"
    assert title_of("bench-narrow-xeon-no-amx") == "One attention call, default routers, Intel Xeon without AMX"
    assert title_of("bench-baselines-epyc") == "Other methods, AMD EPYC" and title_of("bench-other") == "bench-other"
    assert title_of("bench-baselines-epyc-26") == "Other methods, AMD EPYC, family 26"


def ticks(axis) -> list[float]:
    low, high = min(axis.tickvals), max(axis.tickvals)
    assert low > 0 and math.isfinite(high)
    return list(axis.tickvals)


@pytest.mark.parametrize("name", shipped_speeds())
def test_a_measured_range_of_less_than_a_decade_has_three_ticks(name):
    data = shipped_speeds()[name].read_bytes()
    if is_whole_model(data):
        points = read_model_speed(data, name).points
        figures = [model_curves(points, task) for task in dict.fromkeys(points["task"])]
    else:
        points, _ = apart(read_speed(data, name).points)
        figures = [draw(points) for draw in (speedup_curves, time_curves, memory_curves, error_curves)]
    assert all(len(ticks(figure.layout.yaxis)) >= 3 for figure in figures), name


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(1e-9, 1e9), min_size=2, max_size=9))
def test_ticks_lie_in_the_range_and_are_few_enough(values):
    low, high = min(values), max(values)
    found = log_ticks(values)
    assert all(low / 1.03 <= tick <= high * 1.03 for tick in found)
    assert 3 <= len(found) <= 20


def test_labels_of_lengths_close_to_each_other_are_left_out():
    assert legible([512, 1024, 1536, 2048, 4096, 8192, 16384, 32768]) == {2**n for n in range(9, 16)}
    assert legible([512, 2048, 8000]) == {512, 2048, 8000} and legible([700]) == {700} and legible([]) == set()
