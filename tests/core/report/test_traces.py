"""Traces as a Parquet data set: counts of the report and of traces again, resuming, and documents that fail."""

from __future__ import annotations

import dataclasses
import json
from typing import NamedTuple

import duckdb
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from focus_core import FocusConfig, FocusError, analyze, cli, retrofit
from focus_core.report.corpora.corpus import scan
from focus_core.report.corpora.parts import COLUMNS
from focus_core.report.corpora.stream import StreamSettings, collect
from focus_core.report.corpora.traces import RECORD, TraceSettings, write_traces

TEXTS = {
    "a.txt": "The first text is about ships. " * 6,
    "b.md": "Short.",
    "sub/c.txt": "And 我 the other; café 🚢\n" * 9,
}
SETTINGS = TraceSettings(block_length=64, rows_per_part=900)


class Failing(NamedTuple):
    content: bytes
    reason: str


FAILING = {
    "broken.txt": Failing(b"caf\xe9 au lait", "broken.txt is not UTF-8 text (byte 3 cannot be read)"),
    "empty.txt": Failing(b"", "empty.txt is empty"),
    "blank.md": Failing(b" \n\n ", "blank.md is empty"),
    "picture.txt": Failing(b"\x89PNG\0\0", "picture.txt is a binary file"),
}


@pytest.fixture
def folder(tmp_path):
    for name, content in TEXTS.items():
        (tmp_path / "texts" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "texts" / name).write_text(content)
    return tmp_path / "texts"


def routed(loaded, router):
    return retrofit(loaded.model, FocusConfig(num_groups=4, top_k=2, router=router, window=4), seed=0)


@pytest.mark.parametrize("router", ["layer", "head", "narrow"])
def test_the_counts_are_those_of_the_report(tiny_llama, folder, tmp_path, router):
    """DuckDB and pandas count groups by layer and token type; the report's statistics count the same."""
    focus = routed(tiny_llama, router)
    settings = dataclasses.replace(SETTINGS, states="untouched", heads=(0,))
    write_traces(folder, tmp_path / "t.parquet", model=tiny_llama, routers=focus, settings=settings)
    statistics = collect(
        focus, tiny_llama.tokenizer, scan([folder]), StreamSettings(block_length=64), tmp_path, fingerprint={}
    )
    rows = duckdb.sql(
        f"""SELECT layer, "group", id, count(*) AS n FROM read_parquet('{tmp_path}/t.parquet/**/*.parquet')
        GROUP BY ALL"""
    ).fetchall()
    found = np.zeros_like(statistics.counts)
    for layer, group, token, count in rows:
        found[layer, group, token] = count
    assert np.array_equal(found, statistics.counts)
    frame = pd.read_parquet(tmp_path / "t.parquet", columns=["layer", "group", "id"])
    again = np.zeros_like(statistics.counts)
    np.add.at(again, (frame.layer.astype(int), frame.group, frame.id), 1)
    assert np.array_equal(again, statistics.counts)
    members = duckdb.sql(
        f"""SELECT layer, member, count(*) AS n FROM
        (SELECT layer, unnest(groups) AS member FROM read_parquet('{tmp_path}/t.parquet/**/*.parquet')) GROUP BY ALL"""
    ).fetchall()
    assert {(layer, member): n for layer, member, n in members} == {
        (layer, member): n for (layer, member), n in np.ndenumerate(statistics.members) if n
    }


@pytest.mark.parametrize("router", ["layer", "head", "narrow"])
def test_rows_are_those_of_a_trace_of_the_same_text(tiny_llama, folder, tmp_path, router):
    """Pandas reads the data set; of texts that fit in a block it holds what `analyze` finds, in every head."""
    focus = routed(tiny_llama, router)
    settings = dataclasses.replace(SETTINGS, block_length=512)
    record = write_traces(folder, tmp_path / "t.parquet", model=tiny_llama, routers=focus, settings=settings).record
    found = pd.read_parquet(tmp_path / "t.parquet")
    assert list(found.columns) == [*COLUMNS, "layer"]
    assert len(found) == record["rows"] and found.document.nunique() == 3
    heads = [None] if router == "layer" else [0, 1]
    for name, text in TEXTS.items():
        for head in heads:
            with focus.routing("hard"):
                trace = analyze(focus, tiny_llama.tokenizer, text, head=head or 0)
            expected = trace.to_dataframe()
            ours = found[found.document == name]
            ours = ours[ours["head"].isna() if head is None else ours["head"] == head]
            ours = ours.sort_values(["layer", "token"]).reset_index(drop=True)
            for column in ("layer", "token", "start", "end", "text", "id", "group"):
                assert ours[column].tolist() == expected[column].tolist(), column
            assert np.allclose(ours.margin, expected.margin, atol=1e-6)
            joined = [sorted(map(int, each.split())) for each in expected.groups]
            assert [list(each) for each in ours.groups] == joined


def test_a_run_that_is_interrupted_resumes_to_the_same_rows(tiny_llama, folder, tmp_path):
    focus, out = routed(tiny_llama, "head"), tmp_path / "t.parquet"

    def stop(message, share):
        if "c.txt" in message:
            raise KeyboardInterrupt

    whole = write_traces(folder, tmp_path / "w.parquet", model=tiny_llama, routers=focus, settings=SETTINGS)
    with pytest.raises(KeyboardInterrupt):
        write_traces(folder, out, model=tiny_llama, routers=focus, settings=SETTINGS, progress=stop)
    assert not out.exists() and (tmp_path / "t.parquet.partial" / "state.json").is_file()
    other = dataclasses.replace(SETTINGS, top_k=1)
    with pytest.raises(FocusError, match="unfinished traces of other texts, weights or settings"):
        write_traces(folder, out, model=tiny_llama, routers=focus, settings=other)
    seen = []
    again = write_traces(
        folder, out, model=tiny_llama, routers=focus, settings=SETTINGS, progress=lambda m, s: seen.append(m)
    )
    assert not any("a.txt" in message for message in seen)
    assert not (tmp_path / "t.parquet.partial").exists()
    assert {**again.record, "made": 0} == {**whole.record, "made": 0}
    files = [sorted(path.relative_to(run.folder) for path in run.folder.rglob("*.parquet")) for run in (whole, again)]
    assert files[0] == files[1] and len(files[0]) >= 2 * 3
    assert all(pq.read_table(whole.folder / name).equals(pq.read_table(out / name)) for name in files[0])
    with pytest.raises(FocusError, match="exists already"):
        write_traces(folder, out, model=tiny_llama, routers=focus, settings=SETTINGS)


def test_the_command_lists_documents_that_fail_and_routes_a_line_without_end(tiny_llama, folder, tmp_path):
    for name, failing in FAILING.items():
        (folder / name).write_bytes(failing.content)
    (folder / "line.txt").write_text("x" * 100_010)  # longer than a section, with no place to cut it
    tiny_llama.model.save_pretrained(tmp_path / "model")
    tiny_llama.tokenizer.save_pretrained(tmp_path / "model")
    command = ["analyze", str(folder), "--model", str(tmp_path / "model"), "--untrained", "--length", "512"]
    done = CliRunner().invoke(cli.app, [*command, "--out", str(tmp_path / "t.parquet"), "--json"])
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert record == json.loads((tmp_path / "t.parquet" / RECORD).read_text())
    failed = {each["document"]: each["reason"] for each in record["failed"]}
    assert failed.keys() == FAILING.keys()
    assert all(failed[name].startswith(failing.reason) for name, failing in FAILING.items())
    assert {each["document"] for each in record["failed"]} | {each["name"] for each in record["documents"]} == {
        path.relative_to(folder).as_posix() for path in folder.rglob("*.*")
    }
    line = duckdb.sql(
        f"""SELECT count(*), max("end") FROM '{tmp_path}/t.parquet/layer=1/*.parquet' WHERE document = 'line.txt'"""
    )
    assert line.fetchall() == [(100_010, 100_010)]
    stated = json.loads(pq.read_schema(tmp_path / "t.parquet" / "layer=0" / "part-00000.parquet").metadata[b"focus"])
    assert stated["columns"] == record["columns"] and stated["model"] == record["model"]


def test_what_cannot_be_used_is_refused_in_one_sentence(tiny_llama, tmp_path):
    focus, out = routed(tiny_llama, "head"), tmp_path / "t.parquet"
    (tmp_path / "a.txt").write_text("A text.")
    (tmp_path / "bad.txt").write_bytes(b"\xff")

    def write(name, **changes):
        settings = dataclasses.replace(SETTINGS, **changes)
        return write_traces(tmp_path / name, out, model=tiny_llama, routers=focus, settings=settings)

    for name, changes, words in (
        ("a.txt", {"heads": (2,)}, "choose from 0 to 1"),
        ("a.txt", {"block_length": 513}, "choose 1 to 512"),
        ("a.txt", {"states": "other"}, "choose untouched or routed"),
        ("bad.txt", {}, "not UTF-8"),
    ):
        with pytest.raises(FocusError, match=words):
            write(name, **changes)
    (tmp_path / "two").mkdir()
    for name in ("1.txt", "2.txt"):
        (tmp_path / "two" / name).write_bytes(b"")
    with pytest.raises(FocusError, match="None of the 2 documents can be read"):
        write("two")
    assert not list(tmp_path.glob("t.parquet*"))
    done = CliRunner().invoke(cli.app, ["analyze", str(tmp_path)])
    assert "name a data set with --out" in str(done.exception) or "name a data set with --out" in done.output
