"""The benchmark measures, checks and resumes; no assertion on how fast anything is."""

import json

import psutil
import pytest

import focus_core.bench.attention as bench
from focus_core.bench import routing
from focus_core.bench.measures import timing
from focus_core.commands.tables.bench import bench_table
from focus_core.errors import FocusError
from focus_core.frontier.speeds import distant_share, read_speeds
from focus_core.results import made_now
from focus_core.routing import balance
from focus_core.routing.config import FocusConfig
from focus_core.routing.narrow.directions import DIRECTIONS

SMALL = dict(sizes=(48, 96), routings=((4, 1), (4, 2)), dtypes=("float32", "bfloat16"), repetitions=2, window=8)


@pytest.mark.parametrize("router", ["layer", "head"])
def test_points_hold_what_the_speed_page_needs(tmp_path, router):
    seen = []
    settings = bench.BenchSettings(**SMALL, backends=("auto", "chunked"), router=router)
    record = bench.run_bench(settings, tmp_path / "new" / "bench.json", lambda *step: seen.append(step))
    assert json.loads((tmp_path / "new" / "bench.json").read_text()) == json.loads(json.dumps(record))
    assert [step[0] for step in seen] == list(range(1, 17)) and {step[1] for step in seen} == {16}
    assert record["made"]["versions"]["torch"] and record["settings"]["window"] == 8
    for point in record["points"]:
        assert point["backend_used"] in ("cpu", "chunked")
        assert point["bound"] == pytest.approx(1 / point["kept_share"]) and point["bound"] >= 1
        assert point["speedup"] == pytest.approx(point["full_s"]["median"] / point["sparse_s"]["median"])
        assert len(point["sparse_s"]["runs"]) == len(point["full_s"]["runs"]) >= 2
        tolerance = 1e-4 if point["dtype"] == "float32" else 2e-2
        assert point["error_output"] < tolerance and point["error_logsumexp"] < tolerance
        assert set(point["routing_s"]) == {"projection", "calibrated", "sinkhorn_30_rounds", "top_k", "sort"}
        assert point["working_bytes"] is None or point["working_bytes"] >= 0
        chosen = sum(value for name, value in point["routing_s"].items() if name != "sinkhorn_30_rounds")
        assert point["select_s"] == pytest.approx(chosen)
        taken = point["sparse_s"]["median"] + chosen
        assert point["speedup_with_choice"] == pytest.approx(point["full_s"]["median"] / taken)


def test_resumes_where_it_stopped(tmp_path, monkeypatch):
    out = tmp_path / "bench.json"
    settings = bench.BenchSettings(**SMALL)
    measure = bench.measure_point
    calls = []

    def interrupted(*arguments, **point):
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append(point)
        return measure(*arguments, **point)

    monkeypatch.setattr(bench, "measure_point", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.run_bench(settings, out)
    first = json.loads(out.read_text())["points"]
    assert len(first) == 3
    monkeypatch.setattr(bench, "measure_point", measure)
    record = bench.run_bench(settings, out)
    assert record["points"][:3] == first and len(record["points"]) == 8
    assert list(tmp_path.iterdir()) == [out]


def test_a_backend_that_cannot_run_is_recorded(tmp_path):
    settings = bench.BenchSettings(sizes=(32,), routings=((4, 2),), dtypes=("float32",), backends=("varlen",))
    (point,) = bench.run_bench(settings, tmp_path / "bench.json")["points"]
    assert "CUDA" in point["failure"] and "sparse_s" not in point


def test_a_backend_of_narrow_groups_is_timed_or_its_refusal_recorded(tmp_path):
    backends = ("chunked", "varlen", "dense")
    small = {"sizes": (200,), "routings": ((8, 1),), "shares": (0.3,), "dtypes": ("float32",), "repetitions": 1}
    settings = bench.BenchSettings(router="narrow", backends=backends, **small)
    plain, varlen, dense = bench.run_bench(settings, tmp_path / "bench.json")["points"]
    assert plain["backend_used"] == "narrow chunked" and plain["sparse_s"]["median"] > 0
    assert "CUDA" in varlen["failure"] and "narrow groups have" in dense["failure"]


@pytest.mark.parametrize("content", ["", "[]", '{"schema": "focus-bench/1"}', "{}"])
def test_other_files_are_not_overwritten(tmp_path, content):
    out = tmp_path / "bench.json"
    out.write_text(content)
    with pytest.raises(FocusError, match=r"not a record of this command"):
        bench.run_bench(bench.BenchSettings(**SMALL), out)
    assert out.read_text() == content


def test_other_settings_are_refused(tmp_path):
    out = tmp_path / "bench.json"
    small = dict(sizes=(32,), routings=((4, 1),), dtypes=("float32",), repetitions=1)
    bench.run_bench(bench.BenchSettings(**small), out)
    with pytest.raises(FocusError, match="other settings"):
        bench.run_bench(bench.BenchSettings(**small, window=3), out)


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(sizes=(0,)), "sizes"),
        (dict(routings=((4, 5),)), "top_k is 5"),
        (dict(dtypes=("int8",)), "dtype is 'int8'"),
        (dict(backends=("magic",)), "backend is 'magic'"),
        (dict(repetitions=0), "repetitions is 0"),
    ],
)
def test_settings_are_checked(change, message):
    with pytest.raises(FocusError, match=message):
        bench.BenchSettings(**change)


@pytest.mark.parametrize(
    "router, routing, share", [("head", (8, 1), 0.3), ("head", (8, 3), 0.5), ("layer", (8, 2), 0.6)]
)
def test_unequal_groups_keep_the_share_that_was_asked_for(tmp_path, router, routing, share):
    settings = bench.BenchSettings(
        sizes=(1500,), routings=(routing,), shares=(share,), dtypes=("float32",), repetitions=1, window=8, router=router
    )
    (point,) = bench.run_bench(settings, tmp_path / "bench.json")["points"]
    assert distant_share(point["kept_share"], 1500, 8) == pytest.approx(share, abs=0.03)
    assert point["share"] == share and point["error_output"] < 1e-4
    equal = bench.BenchSettings(**{**settings.__dict__, "shares": ()})
    record = bench.run_bench(equal, tmp_path / "bench.json")
    assert [each["share"] for each in record["points"]] == [share, None]
    assert record["points"][1]["kept_share"] < point["kept_share"]


def test_groups_cannot_keep_less_than_equal_ones(tmp_path):
    settings = bench.BenchSettings(sizes=(64,), routings=((4, 2),), shares=(0.3,), dtypes=("float32",))
    with pytest.raises(FocusError, match="larger share"):
        bench.run_bench(settings, tmp_path / "bench.json")
    with pytest.raises(FocusError, match="one for each"):
        bench.BenchSettings(routings=((4, 1), (4, 2)), shares=(0.3,))


@pytest.mark.parametrize("router, parameters", [("layer", (24, 16)), ("head", (2, 24, 16))])
def test_routing_is_timed_with_the_functions_of_routed_models(monkeypatch, router, parameters):
    made, rounds = [], []
    assign, sinkhorn = routing.assign, balance.sinkhorn

    def seen(router, scores, config, valid=None):
        made.append((tuple(router.projection.shape), tuple(scores.shape), config.balance))
        return assign(router, scores, config, valid)

    def counted(scores, **settings):
        rounds.append(settings["rounds"])
        return sinkhorn(scores, **settings)

    monkeypatch.setattr(routing, "assign", seen)
    monkeypatch.setattr(balance, "sinkhorn", counted)
    config = FocusConfig(router=router, num_groups=4, top_k=2)
    found = routing.routing_seconds(config, 20, width=24, kv_heads=2, repetitions=1, device="cpu", seed=0)
    assert list(found) == ["projection", "calibrated", "sinkhorn_30_rounds", "top_k", "sort"]
    assert all(seconds > 0 for seconds in found.values())
    rows = 2 if router == "head" else 1
    assert set(made) == {(parameters, (rows, 20, 4), name) for name in ("calibrated", "sequence")}
    assert set(rounds) == {FocusConfig.sinkhorn_rounds}


@pytest.mark.parametrize("directions", [0, DIRECTIONS])
def test_narrow_groups_are_timed_at_a_share(tmp_path, directions):
    out = tmp_path / "bench.json"
    small = SMALL | {"sizes": (300,), "routings": ((8, 1),), "router": "narrow"}
    with pytest.raises(FocusError, match="--share"):
        bench.BenchSettings(**small)
    record = bench.run_bench(bench.BenchSettings(**small, shares=(0.25,), directions=directions), out)
    for point in record["points"]:
        share = distant_share(point["kept_share"], 300, 8)
        assert point["share"] == 0.25 and share == pytest.approx(0.25, abs=0.05)
        assert point["error_output"] < (1e-5 if point["dtype"] == "float32" else 3e-2)
        taken = point["sparse_s"]["median"] + point["select_s"]
        assert point["speedup_with_choice"] == pytest.approx(point["full_s"]["median"] / taken)
    speeds = read_speeds([out])
    router = "narrow" if directions == DIRECTIONS else f"narrow with {directions} directions"
    found = speeds.at((router, 8, None), 300, 0.25)
    single = next(point for point in record["points"] if point["dtype"] == "float32")
    assert found.with_choice == pytest.approx(single["speedup_with_choice"])
    assert speeds.at((router, 8, None), 300, 0.9).attention is None
    assert (speeds.at(("narrow", 8, None), 300, 0.25).attention is None) == (directions != DIRECTIONS)


@pytest.mark.parametrize("router", ["layer", "narrow"])
def test_points_are_timed_again_beside_a_busy_process_that_ends(tmp_path, monkeypatch, router):
    running = []
    waited = timing.synchronize

    def seen(device):
        running.append(len(psutil.Process().children()))
        waited(device)

    monkeypatch.setattr(timing, "synchronize", seen)
    before = len(psutil.Process().children())
    small = SMALL | {"sizes": (64,), "dtypes": ("float32",), "routings": ((8, 1),), "router": router}
    settings = bench.BenchSettings(**small, shares=(0.25,), beside_load=True)
    (point,) = bench.run_bench(settings, tmp_path / "bench.json")["points"]
    loaded = point["loaded"]
    for name in ("full_s", "sparse_s"):
        assert loaded["slowdown"][name] == pytest.approx(loaded[name]["median"] / point[name]["median"])
    assert before + 1 in running and running[0] == before == len(psutil.Process().children())
    header = str(bench_table({"points": [point], "made": made_now()}).columns[-1].header)
    assert header.split() == ["full", "/", "sparse", "beside", "load"]
