"""Hostile files and command lines: every one ends in a result or in one sentence, never in a traceback or a wait."""

from __future__ import annotations

import copy
import io
import json
import math
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from typer.testing import CliRunner

from focus_core import FocusConfig, cli, retrofit
from focus_core.analysis.linguistics.corpus.conllu import read_conllu
from focus_core.bench.attention import run_bench
from focus_core.bench.settings import BenchSettings
from focus_core.errors import FocusError
from focus_core.evaluation.plan import _earlier
from focus_core.frontier.kinds.record import resumed
from focus_core.frontier.run import stored_beside
from focus_core.frontier.speeds import read_speeds
from focus_core.io.reading import read_tensors
from focus_core.models.loading import check_configuration, check_safetensors
from focus_core.report.bundle import read_bundle
from focus_core.resources import data_dir
from focus_core.results import resume_record, stored_or_run
from focus_core.routing.storage import saved_config, saved_heads
from focus_core.shipped import CONFIG
from focus_core.text import read_text
from focus_core.training.log import LOG, read_log

VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**31, 10**12, 10**30, 0.5, -0.0, 1e30, 1e300, math.nan, math.inf),
    *("", "x", "NaN", "../..", "\ud800".encode("utf-16", "surrogatepass").hex(), "9" * 5000, [], {}, [[]], [None]),
    *([1, "2"], {"a": {}}, {"name": None}),
)
"""Values that take the place of others in valid files."""

QUICK = settings(
    max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values in plain JSON, the first three of each list."""
    found = [path]
    if isinstance(value, dict):
        for name, each in value.items():
            found += places(each, (*path, name))
    if isinstance(value, list):
        for index, each in enumerate(value[:3]):
            found += places(each, (*path, index))
    return found


def changed(value: Any, path: tuple[Any, ...], to: Any, *, gone: bool) -> Any:
    """A copy of plain JSON with another value at a path, or without it."""
    if not path:
        return to
    found = copy.deepcopy(value)
    inner = found
    for step in path[:-1]:
        inner = inner[step]
    if gone:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    return found


def answered(read: Callable[[], Any]) -> None:
    """Call a reader, which may give a result or a sentence."""
    try:
        read()
    except OSError:
        pass
    except FocusError as error:
        assert str(error).endswith(".") and "\n" not in str(error)


def shipped(name: str) -> dict[str, Any]:
    return json.loads((data_dir() / "results" / name).read_text(encoding="utf-8"))


def _routers(path: Path, folder: Path) -> None:
    (folder / CONFIG).write_bytes(path.read_bytes())
    saved_config(folder)


def _kinds(path: Path, folder: Path) -> None:
    record = shipped("frontier-kinds.json")
    report = {name: record[name] for name in ("schema", "model", "settings", "training_text")}
    resumed(path, report, {"kinds": record["kinds"], "routers": record["routers"], "ours": record["ours"]})


def _frontier(path: Path, folder: Path) -> None:
    record = shipped("frontier-512.json")
    report = {name: record[name] for name in ("schema", "model", "settings", "data", "training_text")}
    resume_record(path, report, older={"tuned": False})
    stored_beside(path, {"mine": "0" * 12})


READERS: dict[str, tuple[Any, Callable[[Path, Path], Any]]] = {
    "routers": (json.loads((data_dir() / "routers" / "smollm2-135m-k8" / CONFIG).read_text()), _routers),
    "kinds": (shipped("frontier-kinds.json"), _kinds),
    "frontier": (shipped("frontier-512.json"), _frontier),
    "speeds": (shipped("bench-cpu.json"), lambda path, folder: read_speeds([path], named=True)),
    "speeds of baselines": (shipped("bench-baselines-cpu.json"), lambda path, folder: read_speeds([path], named=True)),
    "speeds of models": (shipped("bench-model-cpu.json"), lambda path, folder: read_speeds([path], named=True)),
    "plan": (shipped("plan-20.json") | {"routers_hash": "x"}, lambda path, folder: _earlier(path, {}, needed=True)),
    "cell": (
        {"settings": {}, "rows": [{"x": 1}], "made": {"date": "d"}},
        lambda path, folder: stored_or_run(path, {}, dict, schema="x/1"),
    ),
    "model": (
        {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 8, "text_config": {"num_layers": 2}},
        lambda path, folder: check_configuration(path),
    ),
}


@pytest.mark.parametrize("name", READERS)
@QUICK
@given(data=st.data())
def test_a_changed_file_is_read_or_refused(tmp_path, name, data):
    valid, read = READERS[name]
    path = data.draw(st.sampled_from(places(valid)))
    value = data.draw(st.sampled_from(VALUES))
    content = changed(valid, path, value, gone=bool(path) and data.draw(st.booleans()))
    (tmp_path / "f.json").write_text(json.dumps(content))
    answered(lambda: read(tmp_path / "f.json", tmp_path))


@pytest.mark.parametrize("name", READERS)
def test_a_valid_file_is_read_and_others_are_refused(tmp_path, name):
    valid, read = READERS[name]
    place = tmp_path / "f.json"
    place.write_text(json.dumps(valid))
    if name not in ("frontier", "plan"):  # of an older version, or of another machine's settings
        read(place, tmp_path)
    for content in (b"", b"\0" * 9, b"[" * 200_000, b"{" * 10, b"null", b"[1]", b'"x"', b"\xff\xfe\xfd"):
        place.write_bytes(content)
        with pytest.raises(FocusError):
            read(place, tmp_path)
    place.unlink()
    os.mkfifo(place)
    if name != "routers":  # read through a copy above
        with pytest.raises(FocusError):
            read(place, tmp_path)


@QUICK
@given(st.binary(max_size=200), st.integers(0, 300), st.binary(min_size=1, max_size=3))
def test_binary_files_are_read_or_refused(tmp_path, content, place, other):
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    valid = struct.pack("<Q", len(header)) + header + b"\0" * 8
    damaged = valid[:place] + other + valid[place + len(other) :]
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("manifest.json", content)
    for each in (content, damaged, archive.getvalue()):
        path = tmp_path / "routers.safetensors"
        path.write_bytes(each)
        (tmp_path / LOG).write_bytes(each)
        for read in (check_safetensors, read_tensors, read_text, read_conllu):
            answered(lambda read=read, path=path: read(path))
        answered(lambda: saved_heads(tmp_path))
        answered(lambda each=each: read_bundle(each))
        assert read_log(tmp_path).steps == ()


@QUICK
@given(st.sampled_from(VALUES), st.sampled_from(["phase", "done", "total", "step", "loss", "time"]))
def test_a_changed_log_is_read(tmp_path, value, name):
    lines = [
        {"time": 1.0, "phase": "training", "done": 0, "total": 2},
        {"time": 1.0, "step": 1, "loss": 2.0, "largest_group_share": 0.5, "tokens_per_second": 9.0},
    ]
    (tmp_path / LOG).write_text("\n".join(json.dumps(line | {name: value}) for line in lines))
    found = read_log(tmp_path)
    assert all(isinstance(step.loss, float | int) and math.isfinite(step.loss) for step in found.steps)


@QUICK
@given(st.dictionaries(st.sampled_from([*json.loads(FocusConfig().to_json()), "else"]), st.sampled_from(VALUES)))
def test_settings_are_accepted_or_refused(values):
    answered(lambda: FocusConfig.from_values(values, "f.json"))
    answered(lambda: FocusConfig.from_json(json.dumps(values)))


@QUICK
@given(st.sampled_from(VALUES), st.sampled_from(["points", "settings", "made", "schema"]), st.booleans())
def test_a_changed_benchmark_is_resumed_or_refused(tmp_path, value, name, inside):
    options = BenchSettings(sizes=(8,), routings=((4, 1),), dtypes=("float32",), repetitions=1)
    if not (tmp_path / "valid.json").exists():
        run_bench(options, tmp_path / "valid.json")
    record = json.loads((tmp_path / "valid.json").read_text())
    if inside:
        record["points"][0] = value
    else:
        record[name] = value
    (tmp_path / "b.json").write_text(json.dumps(record))
    answered(lambda: run_bench(options, tmp_path / "b.json"))


TEXTS = ("", "text", "empty", "binary", "folder", "pipe", "missing", "/dev/null", "a[/b]", "-", "\ud83d\ude00")
NUMBERS = ("0", "1", "2", "-1", "nan", "inf", "1e30", "10" * 12, "x", "", "1.5")
WORDS = ("", "x", "[/red]", "cpu", "tpu", "../..", "layer", "1/2", "quest:page=0", "1 2", "\ud800")
COMMANDS: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "train": (("--data", TEXTS), ("--steps", NUMBERS), ("--start-from", TEXTS), ("--mode", WORDS), ("--seed", NUMBERS)),
    "fit": (("--data", TEXTS), ("--groups", NUMBERS), ("--share", NUMBERS), ("--out", TEXTS)),
    "eval": (("--data", TEXTS), ("--length", NUMBERS), ("-k", NUMBERS), ("--routers", TEXTS), ("--out", TEXTS)),
    "analyze": (("", TEXTS), ("--routers", TEXTS), ("--head", NUMBERS), ("-k", NUMBERS)),
    "align": (("", TEXTS), ("--rule", WORDS), ("--states", WORDS), ("--repeats", NUMBERS), ("--out", TEXTS)),
    "report": (("", TEXTS), ("--out", TEXTS), ("--layer", NUMBERS), ("--block", NUMBERS)),
    "plan": (("--data", TEXTS), ("--out", TEXTS), ("--budget", NUMBERS), ("--costs", TEXTS)),
    "frontier": (("--train", TEXTS), ("--out", TEXTS), ("--data", TEXTS), ("--speeds", TEXTS), ("--share", NUMBERS)),
    "frontier ": (("--train", TEXTS), ("--out", TEXTS), ("--kinds", TEXTS), ("--length", NUMBERS)),
    "reproduce": (("", ("k-sweep", "x", "")), ("--held-out", TEXTS), ("--out", TEXTS), ("--rate", NUMBERS)),
    "bench model": (("--routers", TEXTS), ("--size", NUMBERS), ("--dtype", WORDS), ("--out", TEXTS)),
    "bench baseline": (("--setting", WORDS[1:]), ("--share", NUMBERS), ("--head", WORDS)),
    "bench scale": (("--routers", TEXTS), ("--size", NUMBERS), ("--out", TEXTS)),
    "bench attention --size 8 --repetitions 1": (
        *(("--out", TEXTS), ("--heads", WORDS), ("--routing", WORDS), ("--dtype", WORDS), ("--backend", WORDS)),
        *(("--router", WORDS), ("--window", NUMBERS), ("--device", WORDS), ("--preset", WORDS), ("--share", NUMBERS)),
    ),
    "effects": (("", TEXTS), ("--layer", NUMBERS), ("--group", NUMBERS), ("--kind", WORDS), ("--out", TEXTS)),
    "generate": (("", WORDS), ("--document", TEXTS), ("--temperature", NUMBERS), ("--full-below", NUMBERS)),
    "harness": (("--data", TEXTS), ("--task", WORDS), ("--filler", TEXTS), ("--out", TEXTS), ("--record", TEXTS)),
    "export": (("", TEXTS), ("", TEXTS), ("", TEXTS), ("--full-below", NUMBERS)),
    "serve": (("", TEXTS), ("--host", WORDS), ("--dtype", WORDS), ("--device", WORDS)),
    "scale": (
        ("--tokens", NUMBERS),
        ("--flops", NUMBERS),
        ("--record", TEXTS),
        ("--sheet", WORDS),
        ("--gpus", NUMBERS),
    ),
    "train ": (("--plan", TEXTS), ("--mode", WORDS), ("--gpus", NUMBERS), ("--precision", WORDS), ("--recipe", WORDS)),
    "fetch": (),
}
WITHOUT_MODEL = ("bench attention --size 8 --repetitions 1", "serve", "export")


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    """A folder with files of every kind that command lines may name."""
    folder = tmp_path_factory.mktemp("ground")
    (folder / "text").write_text("Some text. " * 20)
    (folder / "empty").write_text("")
    (folder / "binary").write_bytes(bytes(range(256)))
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    return folder


@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=[*HealthCheck])
@given(data=st.data())
def test_any_command_line_ends_in_one_sentence(ground, monkeypatch, data):
    monkeypatch.chdir(ground)
    monkeypatch.setenv("FOCUS_RUNS", str(ground / "runs"))
    command = data.draw(st.sampled_from(sorted(COMMANDS)))
    model = data.draw(st.sampled_from(("", "./nowhere", "folder", "pipe", "binary", "text.gguf", "a/b/c/d")))
    arguments = [*command.split(), *([] if command in WITHOUT_MODEL else ["--model", model])]
    for option, values in COMMANDS[command]:
        if data.draw(st.integers(0, 3)):
            value = data.draw(st.sampled_from(values))
            arguments += [option, value] if option else ["--", value] if value.startswith("-") else [value]
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), (arguments, result.exc_info)
    assert result.exit_code in (0, 2) and "Traceback" not in result.output
    assert not list(ground.rglob("*.partial")) and not list(ground.rglob("*.lock"))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_routers_with_values_that_are_not_finite_are_not_read(tmp_path, tiny_llama, value):
    focus = retrofit(tiny_llama.model, FocusConfig(num_groups=4, top_k=1, route_dim=8))
    focus.save_pretrained(tmp_path)
    _, tensors = read_tensors(tmp_path / "routers.safetensors")
    next(iter(tensors.values())).view(-1)[0] = value
    save_file(tensors, tmp_path / "routers.safetensors")
    with pytest.raises(FocusError, match="not finite"):
        type(focus).from_pretrained(focus.detach(), tmp_path)


def test_hostile_routers_do_not_fill_the_memory(tmp_path, tiny_llama):
    focus = retrofit(tiny_llama.model, FocusConfig(num_groups=4, top_k=1, route_dim=8))
    focus.save_pretrained(tmp_path)
    record = json.loads((tmp_path / CONFIG).read_text())
    model = focus.detach()
    for change in ({"num_groups": 10**12}, {"route_dim": 1e30}, {"layers": 5}, {"window": 0.5}, {"top_k": "1"}):
        (tmp_path / CONFIG).write_text(json.dumps(record | {"routing": record["routing"] | change}))
        with pytest.raises(FocusError, match="is damaged"):
            type(focus).from_pretrained(model, tmp_path)
    (tmp_path / CONFIG).write_text(json.dumps(record | {"format": "1"}))
    with pytest.raises(FocusError, match="format is '1'"):
        type(focus).from_pretrained(model, tmp_path)
