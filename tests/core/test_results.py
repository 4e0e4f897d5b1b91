"""The envelope of records: round trip, resuming, one description of the machine, and every record that is shipped."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict

import pytest
import torch

from focus_core.bench.attention import SCHEMA, run_bench
from focus_core.bench.settings import BenchSettings
from focus_core.errors import FocusError
from focus_core.machine import cpu_name, describe_machine
from focus_core.resources import data_dir
from focus_core.results import (
    machine_of,
    made_of,
    plain,
    record_run,
    resume_record,
    stamp,
    stored_or_run,
)
from focus_core.routing.config import FocusConfig

SHIPPED = sorted((data_dir() / "results").glob("*.json"))
SMALL = dict(sizes=(32,), routings=((4, 1),), dtypes=("float32",), repetitions=1)
OLD_MACHINE = ("device", "cores", "threads", "instructions", "torch", "python", "system")
REPORT = {"schema": "focus-test/1", "settings": {"sizes": [1], "seed": 0}}


def test_a_record_comes_back_as_it_was_written(tmp_path):
    report = {"schema": "focus-test/1", "settings": FocusConfig(layers=(0, 2)), "results": [{"a": (1, 2.5), "b": None}]}
    record = record_run(tmp_path / "new" / "r.json", report, device="cpu")
    assert json.loads((tmp_path / "new" / "r.json").read_text(encoding="utf-8")) == record
    assert next(iter(record)) == "schema"  # readers look for it at the start of the file
    assert record["settings"] == json.loads(FocusConfig(layers=(0, 2)).to_json())
    assert record["results"] == [{"a": [1, 2.5], "b": None}] and record["made"]["date"].endswith("+00:00")


def test_the_machine_is_described_in_one_way_everywhere(tmp_path):
    machine = describe_machine("cpu")
    assert set(machine) == {"device", "processor", "cores", "threads", "instructions", "system", "versions"}
    assert set(machine["versions"]) == {"python", "torch", "transformers"}
    assert machine["versions"]["torch"] == torch.__version__ and machine["device"] == machine["processor"]
    bench = run_bench(BenchSettings(**SMALL), tmp_path / "bench.json")
    cell = stored_or_run(tmp_path / "cell.json", {"a": 1}, lambda: {"rows": []}, schema="focus-test/1")
    for record in (stamp({"schema": "focus-test/1"}, device="cpu"), bench, cell):
        assert {name: value for name, value in record["made"].items() if name != "date"} == machine
        assert "machine" not in record
    flat = {name: value for name, value in machine.items() if name != "versions"} | machine["versions"]
    assert machine_of(bench) == flat


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_record_says_how_it_was_made(path):
    record = json.loads(path.read_text(encoding="utf-8"))
    machine = machine_of(record)
    assert machine["torch"].startswith("2.") and machine["python"] and machine["device"] and machine["threads"] >= 1
    assert "versions" not in machine and "date" not in machine
    if "machine" in record:
        assert machine.items() >= record["machine"].items()
    else:
        assert made_of(record) == record["made"]


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        ("", ""),
        ("processor\t: 0\nBogoMIPS\t: 50.00\n", ""),
        ("cpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n", "AMD EPYC, family 26 model 2"),
        ("cpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9654\n", "AMD EPYC 9654"),
        ("model name\t: AMD EPYC\n", "AMD EPYC"),
        ("cpu family\t: 6\nmodel\t\t: 1\nmodel name\t: X\n\ncpu family\t: 7\nmodel\t\t: 9\nmodel name\t: Y\n",
         "X, family 6 model 1"),
    ],
)  # fmt: skip
def test_a_cpu_without_a_number_has_its_family_and_model(cpuinfo, name):
    assert cpu_name(cpuinfo) == name


@pytest.mark.parametrize(("units", "beside"), [(True, ", AMX"), (False, "")])
def test_matrix_units_are_named_beside_vectors(monkeypatch, units, beside):
    vectors = torch.backends.cpu.get_cpu_capability()
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": units})
    assert describe_machine()["instructions"] == vectors + beside


def test_a_record_without_a_machine_is_refused():
    with pytest.raises(KeyError, match="made"):
        machine_of({"schema": "focus-test/1"})


def old_form(path):
    """Rewrite a benchmark as it was written before there was one envelope."""
    record = json.loads(path.read_text(encoding="utf-8"))
    machine = machine_of(record)
    old = {"schema": record["schema"], "machine": {name: machine[name] for name in OLD_MACHINE}}
    old |= {"settings": record["settings"], "points": record["points"]}
    path.write_text(json.dumps(old, indent=1), encoding="utf-8")
    return old


def test_a_benchmark_in_the_old_form_is_resumed_in_the_new_one(tmp_path):
    out = tmp_path / "bench.json"
    run_bench(BenchSettings(**SMALL), out)
    old = old_form(out)
    same = run_bench(BenchSettings(**SMALL), out)
    assert same["points"] == old["points"] and machine_of(same).items() >= old["machine"].items()
    more = run_bench(BenchSettings(**SMALL | {"sizes": (32, 48)}), out)
    assert more["points"][:1] == old["points"] and len(more["points"]) == 2
    assert "machine" not in more and json.loads(out.read_text(encoding="utf-8")) == more


@pytest.mark.parametrize("old", [False, True])
def test_a_benchmark_of_another_machine_is_refused(tmp_path, old):
    out = tmp_path / "bench.json"
    run_bench(BenchSettings(**SMALL), out)
    record = old_form(out) if old else json.loads(out.read_text(encoding="utf-8"))
    record["machine" if old else "made"]["threads"] += 1
    out.write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(FocusError, match=r"another machine: name another file with --out\.$"):
        run_bench(BenchSettings(**SMALL), out)


def test_a_shipped_benchmark_is_resumed_or_refused_in_one_sentence(tmp_path):
    for path in SHIPPED:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record.get("schema") == SCHEMA:
            copy = tmp_path / path.name
            copy.write_bytes(path.read_bytes())
            values = {**record["settings"], "sizes": (), "routings": (), "shares": ()}
            values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
            try:
                found = run_bench(BenchSettings(**values), copy)
            except FocusError as error:
                assert "another machine" in str(error)
            else:
                assert found["points"] == record["points"]
            assert copy.read_bytes() == path.read_bytes()


def test_points_are_resumed_only_under_the_same_settings_and_inputs(tmp_path):
    path = tmp_path / "r.json"
    fresh = resume_record(path, REPORT)
    assert fresh == {**REPORT, "points": []}
    written = record_run(path, {**fresh, "points": [{"a": 1}]})
    assert resume_record(path, REPORT) == written
    grown = {**REPORT, "settings": {"sizes": [1, 2], "seed": 0}}
    assert resume_record(path, grown, free=("sizes",))["points"] == [{"a": 1}]
    assert resume_record(path, grown, free=("sizes",))["settings"] == grown["settings"]
    newer = {**REPORT, "settings": {"sizes": [1], "seed": 0, "extra": "x"}}
    assert resume_record(path, newer, older={"extra": "x"})["points"] == [{"a": 1}]
    for other in (grown, newer, {**REPORT, "schema": "focus-other/1"}, {**REPORT, "data": []}):
        with pytest.raises(FocusError, match=r"other settings|not a record"):
            resume_record(path, other)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"schema": "focus-test/1"}', "{", "3"])
def test_other_files_are_no_records_to_resume(tmp_path, content):
    path = tmp_path / "r.json"
    path.write_text(content)
    with pytest.raises(FocusError, match="not a record of this command"):
        resume_record(path, REPORT)


def test_a_damaged_result_is_refused_in_one_sentence(tmp_path):
    path = tmp_path / "r.json"
    path.write_text("{")
    with pytest.raises(FocusError, match="damaged"):
        stored_or_run(path, {}, dict, schema="focus-test/1")


def test_every_record_says_its_kind():
    with pytest.raises(KeyError, match="schema"):
        stamp({"settings": {}})


def test_plain_values_are_what_a_file_gives_back():
    assert plain({"a": (1, FocusConfig(num_groups=3))}) == {"a": [1, plain(asdict(FocusConfig(num_groups=3)))]}
    with pytest.raises(TypeError, match="no place in a record"):
        plain({"a": object()})


def test_attention_is_measured_with_torch_alone(tmp_path):
    code = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name.split('.')[0] in ('transformers', 'numpy', 'jaxtyping', 'streamlit', 'pandas', 'scipy'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "import focus_core.attention\n"
        "from focus_core.bench.attention import run_bench\n"
        "from focus_core.bench.settings import BenchSettings\n"
        "small = dict(sizes=(32,), routings=((4, 2),), dtypes=('float32',), repetitions=1)\n"
        "for router in ('layer', 'head'):\n"
        "    run_bench(BenchSettings(**small, router=router), f'{sys.argv[1]}/{router}.json')\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, str(tmp_path)], check=True)
    for router in ("layer", "head"):
        (point,) = json.loads((tmp_path / f"{router}.json").read_text(encoding="utf-8"))["points"]
        assert point["routing_s"]["sinkhorn_30_rounds"] > 0 and point["error_output"] < 1e-4
