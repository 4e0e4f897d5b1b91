"""Frontiers from and to a store are those of the disk: texts, a record that grows, and what was learned for it."""

from __future__ import annotations

import json

import pytest
from fsspec import filesystem
from typer.testing import CliRunner

from focus_core import FocusError, cli
from focus_core.frontier.stores import on_this_machine

PLACE = "memory://frontier"
LEFT_OUT = ("made", "seconds", "learned", "tuning")


@pytest.fixture
def store(tmp_path, monkeypatch):
    """An empty store of fsspec, with two kinds of text and training text."""
    monkeypatch.setenv("FOCUS_RUNS", str(tmp_path / "runs"))
    found = filesystem("memory")
    found.store.clear()
    texts = {
        "kinds/prose.txt": "The quick brown fox jumps over the lazy dog, and sleeps. " * 6,
        "kinds/code/a.txt": "def add(first, second):\n    return first + second\n\n" * 6,
        "kinds/code/.hidden/b.txt": "Nobody asked for this.",
        "train.txt": "Once upon a time there was a model of language. " * 60,
    }
    for name, text in texts.items():
        found.pipe_file(f"/frontier/{name}", text.encode())
        path = tmp_path / "disk" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    yield found
    found.store.clear()


def frontier(place, folder, *more):
    command = ["frontier", "--train", f"{place}/train.txt", "--out", f"{place}/out/f.json", "--json"]
    command += ["--model", str(folder), "--routers", str(folder / "routers"), "--window", "4", "--sinks", "2"]
    done = CliRunner().invoke(cli.app, [*command, "--learned-tokens", "1024", "--kinds", f"{place}/kinds", *more])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def plain(record):
    points = [{name: value for name, value in each.items() if name not in LEFT_OUT} for each in record["points"]]
    points.sort(key=lambda point: (point["method"], point["text"]))
    return {**{name: value for name, value in record.items() if name not in LEFT_OUT}, "points": points}


def test_a_frontier_from_store_to_store_is_that_of_the_disk_and_grows(store, model_folder, tmp_path):
    disk, few = tmp_path / "disk", ("--length", "64", "--blocks", "2", "--baseline", "streaming")
    record = frontier(PLACE, model_folder, *few)
    assert len(record["points"]) == 6 and json.loads(store.cat_file("/frontier/out/f.json")) == record
    assert sorted(store.find("/frontier/out")) == [f"/frontier/out/f.{kind}" for kind in ("json", "md", "svg")]
    assert not [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    grown, whole = (frontier(place, model_folder, *few, "--baseline", "seer") for place in (PLACE, disk))
    assert plain(grown) == plain(whole) and len(whole["points"]) == 8
    assert [each for each in grown["points"] if each["method"] != "seer"] == record["points"]
    files = {path.relative_to(disk).as_posix() for path in (disk / "out").rglob("*.*") if path.is_file()}
    assert {name.removeprefix("/frontier/") for name in store.find("/frontier/out")} == files
    assert any(name.startswith("out/f-learned/") for name in files)


def test_a_stopped_frontier_resumes_here_unless_another_machine_wrote_it(store, tmp_path):
    out = f"{PLACE}/out/f.json"
    for number in range(2):
        with pytest.raises(KeyboardInterrupt), on_this_machine(out) as (path, _):
            assert path.exists() == bool(number)
            path.parent.mkdir(exist_ok=True)
            path.write_text("half")
            raise KeyboardInterrupt
    assert not store.find("/frontier/out")
    store.pipe_file("/frontier/out/f.json", b"another")
    with pytest.raises(FocusError, match=f"{out} has changed since a run was stopped here"), on_this_machine(out):
        pass
    store.rm_file("/frontier/out/f.json")
    with on_this_machine(out) as (path, _):
        path.write_text("whole")
    assert store.cat_file("/frontier/out/f.json") == b"whole" and not list((tmp_path / "runs").rglob("*.json"))
    with pytest.raises(FocusError, match="Wrong"), on_this_machine(out):
        raise FocusError("Wrong.")
    assert not list((tmp_path / "runs").rglob("*.json"))


def test_what_is_not_there_is_one_sentence(store, tmp_path):
    for given, words in (
        (["--kinds", f"{PLACE}/nothing", "--train", f"{PLACE}/train.txt"], "There is no file or folder memory://front"),
        (["--data", f"{PLACE}/kinds/prose.txt", "--train", f"{PLACE}/none.txt"], "There is no file or folder memory:/"),
        (["--data", "ftp://host/x", "--train", f"{PLACE}/train.txt"], "in no store that is known here"),
    ):
        done = CliRunner().invoke(cli.app, ["frontier", *given, "--out", str(tmp_path / "f.json")])
        assert (done.exit_code, done.output.count("\n")) == (2, 1) and words in done.output
