"""Timing the baselines: what a point holds, that it is exact, that a run goes on; nothing on how fast anything is."""

import json

import pytest
from typer.testing import CliRunner

import focus_core.bench_baselines as bench
from focus_core.baselines import BASELINES
from focus_core.cli import app
from focus_core.errors import FocusError

SMALL = dict(sizes=(200,), shares=(0.3,), window=8, head_dim=8, repetitions=1, fitted_tokens=64)


def test_points_are_exact_and_keep_the_share(tmp_path):
    record = bench.run_baseline_bench(bench.BaselineBenchSettings(**SMALL), tmp_path / "new" / "b.json")
    assert json.loads((tmp_path / "new" / "b.json").read_text()) == json.loads(json.dumps(record))
    assert [point["baseline"] for point in record["points"]] == list(BASELINES)
    for point in record["points"]:
        method = BASELINES[point["baseline"]]
        assert point["error_output"] < 1e-5
        assert (point["select_s"] is None) == method.fixed
        taken = point["attend_s"]["median"] + (point["select_s"] or 0)
        assert point["speedup"] == pytest.approx(point["full_s"]["median"] / point["attend_s"]["median"])
        assert point["speedup_with_choice"] == pytest.approx(point["full_s"]["median"] / taken)
        if method.tunable:
            loose = point["baseline"] == "magicpig"  # fitted on another text
            assert point["kept_share"] == pytest.approx(0.3, abs=0.1 if loose else 0.02)
            distant = 191 * 192 / 2
            near = 200 * 201 / 2 - distant
            kept = point["kept_share"] * distant + near
            assert point["causal_kept_share"] == pytest.approx(kept / (200 * 201 / 2))
        else:
            assert point["share"] is None and point["kept_share"] is None


def test_a_run_goes_on_and_other_settings_are_refused(tmp_path):
    out = tmp_path / "b.json"
    first = bench.run_baseline_bench(bench.BaselineBenchSettings(**SMALL, baselines=("moba",)), out)
    both = bench.run_baseline_bench(bench.BaselineBenchSettings(**SMALL, baselines=("moba", "lsh")), out)
    assert both["points"][0] == first["points"][0] and len(both["points"]) == 2
    with pytest.raises(FocusError, match="other settings"):
        bench.run_baseline_bench(bench.BaselineBenchSettings(**SMALL | {"window": 9}), out)


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(sizes=(0,)), "at least 1"),
        (dict(shares=(1.5,)), "between 0 and 1"),
        (dict(baselines=("magic",)), "no baseline 'magic'"),
    ],
)
def test_settings_are_checked(change, message):
    with pytest.raises(FocusError, match=message):
        bench.BaselineBenchSettings(**change)


def test_the_command_measures_baselines(tmp_path):
    out = tmp_path / "b.json"
    arguments = ["bench", "--baseline", "streaming", "--baseline", "sparq", "--share", "0.3", "--size", "100"]
    result = CliRunner().invoke(app, [*arguments, "--window", "8", "--repetitions", "1", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "streaming" in result.output and "sparq" in result.output
    assert [point["tokens"] for point in json.loads(out.read_text())["points"]] == [100, 100]
