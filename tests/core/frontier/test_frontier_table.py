"""The table and the figure of a frontier: speeds that belong to a row, and what is drawn."""

import json
import math
import shutil
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from focus_core.bench.attention import SCHEMA as KERNEL
from focus_core.bench.baselines import SCHEMA as BASELINE
from focus_core.bench.baselines import UNFOLDED
from focus_core.bench.model import SCHEMA as MODEL
from focus_core.errors import FocusError
from focus_core.frontier.figure import Axis, figure
from focus_core.frontier.files import write_beside
from focus_core.frontier.speeds import ModelSpeed, Speeds, distant_share, read_speeds, recorded_speeds
from focus_core.frontier.table import frontier_rows, markdown
from focus_core.resources import data_dir

SVG = "{http://www.w3.org/2000/svg}"


def point(method, kind, label, kept, perplexity, **more):
    return {
        "method": method,
        "kind": kind,
        "label": label,
        "source": "a paper" if kind == "baseline" else "",
        "kept_share": kept,
        "causal_kept_share": kept,
        "perplexity": perplexity,
        "block_nll": [math.log(perplexity) - 0.01, math.log(perplexity) + 0.01, math.log(perplexity)],
        "largest_group_share": 0.2 if kind == "routers" else None,
        "top_k": None,
        "router": None,
        "num_groups": None,
    } | more


RECORD = {
    "model": {"name": "a model"},
    "settings": {"length": 64, "window": 4, "sink_tokens": 2, "blocks": 3},
    "data": [{"name": "book.txt"}],
    "made": {"date": "2026-01-02T03:04:05", "device": "CPU", "versions": {"torch": "2"}},
    "points": [
        point("untouched", "untouched", "untouched model", 1.0, 50.0),
        point("a<b>", "routers", "a<b>, k=1", 0.18, 51.0, top_k=1, router="head", num_groups=8),
        point("a<b>", "routers", "a<b>, k=2", 0.4, 50.5, top_k=2, router="head", num_groups=8),
        point("old", "routers", "old, k=1", 0.13, 55.0, top_k=1),
        point("plan", "routers", "plan, as planned", 0.3, 52.0),
        point("sparq", "baseline", "SparQ", 0.18, 50.2),
        point("sliding", "baseline", "sliding", 0.18, 90.0),
        point("performer", "baseline", "random features", None, 900.0),
    ],
}
SPEEDS = Speeds(
    (
        (("head", 8, 1), 8192, 0.13, 4.0),
        (("head", 8, 1), 8192, 0.17, 3.0),
        (("head", 8, 1), 32768, 0.10, 9.0),
        (("layer", 8, 1), 8192, 0.13, 5.0),
        (("sparq",), 8192, 0.19, 0.5),
        (("performer",), 8192, math.nan, 2.0),
    )
)


def test_a_row_has_the_speed_nearest_to_its_share_or_none():
    found = {row.label: row.speedups for row in frontier_rows(RECORD, SPEEDS)}
    assert found["a<b>, k=1"] == {8192: 3.0}  # 0.17 is nearer than 0.13; at 32K nothing is near
    assert found["old, k=1"] == {8192: 5.0}  # a record of before kinds of router
    assert found["SparQ"] == {8192: 0.5}
    assert found["random features"] == {8192: 2.0}
    assert found["a<b>, k=2"] == found["plan, as planned"] == found["sliding"] == {}
    assert found["untouched model"] == {8192: 1.0, 32768: 1.0}


def test_a_plan_takes_the_time_of_its_layers_together():
    speeds = Speeds(
        (
            (("layer", 8, 1), 8192, 0.13, 4.0),
            (("layer", 8, 1), 8192, 0.3, 2.0),  # unequal groups
            (("layer", 8, 1), 32768, 0.13, 8.0),
            (("layer", 8, 2), 8192, 0.47, 1.0),
        )
    )
    planned = point(
        "plan", "routers", "plan, as planned", 0.3, 52.0, layer_top_k=[1, 2, 2], num_groups=8, router="layer"
    )
    (row,) = frontier_rows(RECORD | {"points": [planned, RECORD["points"][0]]}, speeds)[:1]
    assert row.speedups == {8192: pytest.approx(3 / (0.25 + 1 + 1))}  # k = 2 was not measured at 32K


@given(tokens=st.integers(2, 60), window=st.integers(0, 12), every=st.integers(1, 7))
def test_the_distant_share_is_that_of_counting(tokens, window, every):
    pairs = [(i, j) for i in range(tokens) for j in range(i + 1)]
    kept = [i - j <= window or (i * 7 + j) % every == 0 for i, j in pairs]
    distant = [one for one, (i, j) in zip(kept, pairs) if i - j > window]
    share = distant_share(sum(kept) / len(pairs), tokens, window)
    assert share == pytest.approx(sum(distant) / len(distant) if distant else 1.0)


def test_speeds_are_read_from_what_the_benchmark_writes(tmp_path):
    kernel = {
        "schema": KERNEL,
        "settings": {"window": 4, "router": "head"},
        "points": [
            {"dtype": "float32", "num_groups": 8, "top_k": 1, "tokens": 64, "kept_share": 0.5, "speedup": 2.0},
            {"dtype": "bfloat16", "num_groups": 8, "top_k": 1, "tokens": 64, "kept_share": 0.5, "speedup": 3.0},
            {"dtype": "float32", "num_groups": 8, "top_k": 2, "tokens": 64, "kept_share": 0.5, "failure": "no"},
        ],
    }
    baseline = {
        "schema": BASELINE,
        "points": [
            {"baseline": "strided", "tokens": 64, "share": 0.2, "kept_share": 0.2, "speedup": 0.7},
            {"baseline": "moba", "tokens": 64, "share": 0.2, "head": None, "kept_share": 0.2, "speedup": 0.1},
            {"baseline": "moba", "tokens": 64, "share": 0.2, "head": [0, 1], "kept_share": 0.2, "speedup": 2.0},
            {"baseline": "moba", "tokens": 64, "share": 0.3, "head": [0, 1], "kept_share": 0.3, "speedup": 0.9},
            {"baseline": "moba", "tokens": 64, "share": 0.2, "head": [5, 0], "kept_share": 0.24, "speedup": 1.0},
            {"baseline": "performer", "tokens": 64, "share": None, "kept_share": None, "speedup": 3.0},
        ],
    }
    for each in baseline["points"]:
        each["speedup_with_choice"] = each["speedup"] / 2
    files = [tmp_path / name for name in ("kernel.json", "baseline.json", "other.json", "broken.json", "gone.json")]
    for file, content in zip(files, (kernel, baseline, {"schema": "x"})):
        file.write_text(json.dumps(content))
    files[3].write_text("[")
    found = tuple(each[:4] for each in read_speeds(files).points)
    assert found[:-1] == (
        (("head", 8, 1), 64, pytest.approx(distant_share(0.5, 64, 4)), 2.0),
        (("strided",), 64, 0.2, 0.7),
        (("moba",), 64, pytest.approx(0.22), pytest.approx(2 / (1 / 2.0 + 1 / 1.0))),  # not of random tensors
        (("moba",), 64, 0.3, pytest.approx(0.9)),
    )
    assert found[-1][:2] == (("performer",), 64) and math.isnan(found[-1][2]) and found[-1][3] == 3.0


def written(path, schema, device, date, points, **more):
    made = {"date": date, "device": device, "versions": {}}
    path.write_text(json.dumps({"schema": schema, "made": made, "points": points, **more}))
    return path


def of_baseline(name, tokens, share, speedup, with_choice):
    sizes = {"baseline": name, "tokens": tokens, "share": share, "kept_share": share, "head": [0, 0]}
    return sizes | {"speedup": speedup, "speedup_with_choice": with_choice}


def of_routers(tokens, kept, sparse):
    timed = {"full_s": {"median": 4.0}, "sparse_s": {"median": sparse}, "speedup": 4.0 / sparse}
    routing = {"projection": 0.5, "calibrated": 0.25, "sinkhorn_30_rounds": 9.0, "top_k": 0.125, "sort": 0.125}
    shape = {"dtype": "float32", "num_groups": 8, "top_k": 1, "tokens": tokens, "kept_share": kept}
    return shape | timed | {"routing_s": routing}


def test_a_speed_is_of_its_own_length_share_and_cpu(tmp_path):
    old = written(tmp_path / "a.json", BASELINE, "old CPU", "2026-01-01", [of_baseline("quest", 512, 0.15, 9.0, 8.0)])
    new = written(tmp_path / "b.json", BASELINE, "new CPU", "2026-02-01", [of_baseline("quest", 2048, 0.15, 2.0, 0.5)])
    settings = {"window": 4, "router": "head"}
    kernel = written(
        tmp_path / "c.json", KERNEL, "new CPU", "2026-01-02", [of_routers(64, 0.5, 1.0)], settings=settings
    )
    speeds = read_speeds([old, new, kernel])
    assert speeds.machine == "new CPU"
    assert speeds.at("quest", 2048, 0.17) == (2.0, 0.5, None, True)
    nothing = (None, None, None, True)
    assert speeds.at("quest", 512, 0.15) == nothing  # measured on another CPU alone
    assert speeds.at("quest", 1024, 0.15) == speeds.at("quest", 2048, 0.3) == speeds.at("moba", 2048, 0.15) == nothing
    kind = ("head", 8, 1)
    assert speeds.at(kind, 64, distant_share(0.5, 64, 4)) == (4.0, 4.0 / 2.0, None, True)  # Sinkhorn runs in training
    assert speeds.at(kind, 128, distant_share(0.5, 64, 4)) == nothing


def test_a_models_speed_is_not_shown_at_another_share():
    kind = ("narrow", 64, None)
    speeds = Speeds(models=(ModelSpeed(kind, "ours", 2048, 0.15, 1.2), ModelSpeed(kind, "older", 2048, None, 1.1)))
    assert speeds.at(kind, 2048, 0.16, routers="ours").model == 1.2
    assert speeds.at(kind, 2048, 0.06, routers="ours").model is None
    assert speeds.at(kind, 2048, 0.06, routers="older").model == 1.1  # a record that does not tell its share


def test_older_baselines_are_marked_until_they_are_measured_folded(tmp_path):
    sizes = ("2026-01-01", [of_baseline("quest", 512, 0.15, 9.0, 8.0)])
    old = written(tmp_path / "a.json", UNFOLDED, "CPU", *sizes)
    assert read_speeds([old]).at("quest", 512, 0.15) == (9.0, None, None, False)
    new = written(tmp_path / "b.json", BASELINE, "CPU", "2026-01-01", [of_baseline("moba", 512, 0.15, 1.0, 0.5)])
    both = read_speeds([old, new])
    assert both.at("quest", 512, 0.15).attention is None and both.at("moba", 512, 0.15).attention == 1.0


def test_a_speed_is_of_its_own_setting(tmp_path):
    points = [
        of_baseline("quest", 512, 0.15, speed, 0.5) | {"setting": {"page": page}} for speed, page in ((2, 4), (3, 8))
    ]
    speeds = read_speeds([written(tmp_path / "a.json", BASELINE, "CPU", "2026-01-01", points)])
    assert speeds.at("quest", 512, 0.15, setting={"page": 8.0}).attention == 3
    assert speeds.at("quest", 512, 0.15, setting={}).attention is None
    assert speeds.at("quest", 512, 0.15).attention in (2, 3)


def test_the_whole_model_is_that_of_its_routers_or_of_the_window(tmp_path):
    def row(tokens, routing, top_k, speedup, **more):
        return {"task": "prefill", "tokens": tokens, "routing": routing, "top_k": top_k, "speedup": speedup} | more

    rows = [row(512, "off", None, 1.0), row(512, "hard", 1, 1.5, distant_share=0.2)]
    rows += [row(512, "window", None, 1.8, distant_share=0.2, window=90), row(512, "hard", 2, 1.2, distant_share=0.4)]
    settings = {"config": {"router": "head", "num_groups": 8}, "routers": "mine", "dtype": "float32"}
    file = written(tmp_path / "m.json", MODEL, "CPU", "2026-01-01", [], settings=settings, results=rows)
    speeds = read_speeds([file])
    assert speeds.at(("head", 8, 1), 512, 0.21, routers="mine").model == 1.5
    assert speeds.at(("head", 8, 2), 512, 0.4, routers="mine").model == 1.2
    assert speeds.at("streaming", 512, 0.18).model == 1.8
    assert speeds.at("streaming", 512, 0.4).model is None
    assert speeds.at(("head", 8, 1), 512, 0.21, routers="others").model is None
    assert speeds.at(("head", 8, 1), 2048, 0.21, routers="mine").model is None


@pytest.mark.parametrize(
    "damaged",
    [
        {"schema": KERNEL, "settings": {"window": 4}, "points": [{"dtype": "float32", "tokens": 64}]},
        {"schema": KERNEL, "points": None},
        {"schema": BASELINE},
        {"schema": BASELINE, "points": [{"baseline": "strided", "tokens": 64, "kept_share": 0.2, "speedup": None}]},
        {"schema": BASELINE, "points": [{"baseline": "strided", "tokens": 64, "kept_share": 0.2, "speedup": 0}]},
    ],
)
def test_a_damaged_record_of_speeds_is_named(tmp_path, damaged):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(damaged))
    with pytest.raises(FocusError, match=r"bench\.json is a damaged record of focus bench"):
        read_speeds([path])


def test_the_table_never_has_a_perplexity_without_its_share():
    lines = markdown(RECORD, SPEEDS).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")][1:]
    assert len(cells) == 8 and all(len(row) == 11 and row[4] and row[6] for row in cells)
    by_name = {row[0]: row for row in cells}
    assert by_name["**a<b>, k=1**"][8:] == ["20.0%", "3.00x", ""]
    assert by_name["SparQ (a paper)"][4] == "18.0%" and by_name["random features (a paper)"][4] == "approximate"


def test_the_figure_is_one_drawing_without_scripts_and_with_every_point():
    tree = ElementTree.fromstring(figure(RECORD, SPEEDS))
    panels = [group for group in tree.findall(f"{SVG}g") if group.find(f"{SVG}polyline") is not None]
    marks = [[mark.find(f"{SVG}title").text for mark in panel.findall(f"{SVG}g")] for panel in panels]
    assert len(marks[0]) == 6  # estimates keep no share
    assert any(note.startswith("a<b>, k=1: perplexity 51.00 (+2.0%), distant pairs kept 18.0%") for note in marks[0])
    assert len(marks[1]) == 4  # two routers, SparQ and random features have a speed at 8K
    words = " ".join(tree.itertext())
    assert "+80%" in words  # beyond the edge, with its value
    assert "a<b>" in words and "not measured: focus bench" in words  # nothing near was measured at 32K
    assert list(tree.iter(f"{SVG}script")) == []


def test_without_speeds_the_figure_has_one_panel_and_says_nothing_of_speed():
    tree = ElementTree.fromstring(figure(RECORD, Speeds()))
    assert sum(group.find(f"{SVG}polyline") is not None for group in tree.findall(f"{SVG}g")) == 1
    assert "speed" not in " ".join(tree.itertext()).lower()


@given(low=st.floats(-100, 100), span=st.floats(1e-3, 1e3))
def test_ticks_are_round_and_inside(low, span):
    ticks = Axis(low, low + span, 500.0).ticks(repr)
    assert 1 <= len(ticks) <= 8
    assert all(-0.2 <= tick["at"] <= 500.2 for tick in ticks)


def test_both_are_written_beside_the_record(tmp_path):
    write_beside(tmp_path / "f.json", markdown(RECORD, SPEEDS), figure(RECORD, SPEEDS))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f.md", "f.svg"]


def test_speeds_of_a_model_are_none_of_another(tmp_path):
    """Attention calls have the shape of the default model's; records of whole models name theirs."""
    results = data_dir() / "results"
    files = [results / "bench-narrow.json", results / "bench-baselines-epyc-26.json"]
    record = json.loads((results / "bench-model-narrow.json").read_text())
    files += [results / "bench-model-narrow.json", tmp_path / "other.json"]
    record["model"]["name"] = "another"
    for row in record["results"]:
        row["speedup"] *= 3
    files[-1].write_text(json.dumps(record))
    default, other = (read_speeds(files, model=name) for name in (record["settings"]["routers"], "another"))
    assert not default.points and not default.models  # a model of the routers' name has no record
    default = read_speeds(files, model="SmolLM2-135M-Instruct")
    assert default.points and not other.points
    assert [3 * row.speedup for row in default.models] == [row.speedup for row in other.models]


def test_recorded_speeds_cover_routers_and_baselines():
    # Those of the CPU of the default's own record, and no other.
    kinds = {kind[0] for kind, *_ in recorded_speeds().points}
    assert {"narrow", "streaming", "sparq"} <= kinds
    results = data_dir() / "results"
    older = {kind[0] for kind, *_ in read_speeds([results / "bench-cpu.json", results / "bench-heads-cpu.json"]).points}
    assert older == {"layer", "head"}
    xeon = read_speeds(sorted(results.glob("bench-*xeon.json")))
    assert xeon.machine and xeon.machine != recorded_speeds().machine
    assert xeon.points and all(point not in recorded_speeds().points for point in xeon.points)


def test_recorded_speeds_stay_those_of_one_cpu_when_another_is_measured_later(tmp_path, monkeypatch):
    (tmp_path / "results").mkdir()
    for name in ("bench-narrow.json", "bench-model-narrow.json"):
        shutil.copy(data_dir() / "results" / name, tmp_path / "results" / name)
    monkeypatch.setattr("focus_core.frontier.speeds.data_dir", lambda: tmp_path)
    alone = recorded_speeds()
    later = json.loads((tmp_path / "results" / "bench-model-narrow.json").read_text())
    later["made"] |= {"date": "2030-01-01T00:00:00+00:00", "device": "another"}
    (tmp_path / "results" / "bench-another.json").write_text(json.dumps(later))
    assert recorded_speeds() == alone and alone.models
    assert read_speeds(sorted((tmp_path / "results").iterdir())).machine == "another"
    # A processor of the same name with matrix units is another one, too.
    later["made"] |= {"device": alone.machine, "instructions": "AVX512, AMX"}
    (tmp_path / "results" / "bench-another.json").write_text(json.dumps(later))
    assert recorded_speeds() == alone
    assert read_speeds(sorted((tmp_path / "results").iterdir())).machine == f"{alone.machine}, AMX"


def over(blocks, shifts):
    """The record with so many blocks, each point's losses shifted from the untouched model's, with noise."""
    hardness = np.random.default_rng(0).normal(4, 0.3, blocks)
    points = []
    for number, shift in enumerate(shifts):
        noise = np.random.default_rng(1 + number).normal(0, 0.01, blocks) if number else 0.0
        kind = "baseline" if number else "untouched"
        points.append(point("moba", kind, f"{number}", 0.2, 50.0, block_nll=(hardness + shift + noise).tolist()))
    return RECORD | {"settings": RECORD["settings"] | {"blocks": blocks}, "points": points}


def test_no_difference_over_few_blocks_is_established():
    record = over(8, [0.0, 0.5])
    row = frontier_rows(record, SPEEDS)[1]
    assert row.low > 0 and not row.established and row.mark == "fewer than 16 blocks: not established"
    assert "Fewer than 16 blocks: not established" in markdown(record, SPEEDS)
    assert "fewer than 16 blocks" in " ".join(ElementTree.fromstring(figure(record, SPEEDS)).itertext())


def test_many_rows_are_corrected_by_holms_method():
    record = over(24, [0.0, 0.5, *[0.0043] * 9])
    first, *rows = frontier_rows(record, SPEEDS)
    assert first.p_value is None and not first.established
    alone = [
        frontier_rows(record | {"points": [record["points"][0], each]}, SPEEDS)[1] for each in record["points"][1:]
    ]
    order = sorted(range(10), key=lambda number: alone[number].p_value)
    least = 0.0
    for rank, number in enumerate(order):  # Holm: the smallest times 10, the next times 9, never falling
        least = min(1.0, max(least, (10 - rank) * alone[number].p_value))
        assert rows[number].p_value == pytest.approx(least)
    assert rows[0].established
    assert sum(row.established for row in rows) < sum(row.established for row in alone)
    assert "fewer than" not in markdown(record, SPEEDS) and "Holm" in markdown(record, SPEEDS)


def test_a_record_with_retention_shows_it_before_perplexity():
    measured = [each | {"kl": 0.0123, "kl_last_quarter": 0.0456, "top1_agreement": 0.9} for each in RECORD["points"]]
    lines = markdown(RECORD | {"points": measured}, SPEEDS).splitlines()
    head, row = (next(line for line in lines if line.startswith(start)) for start in ("| method", "| SparQ"))
    assert head.index("KL") < head.index("perplexity") and "| 0.0123 | 0.0456 | 90.0% |" in row
