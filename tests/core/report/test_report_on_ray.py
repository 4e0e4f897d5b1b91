"""Reports on a real Ray cluster: the sums of one process, workers that are killed, and bad days.

Each start of a worker takes seconds, so there are two of them only where both share the work.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import socket
import subprocess
import sys

import pandas as pd
import psutil
import pyarrow.parquet as pq
import pytest
import torch
from model_workers import model_workers
from typer.testing import CliRunner

from focus_core import FocusError, cli
from focus_core.cluster import Cluster, connected
from focus_core.report.corpora import work
from focus_core.report.corpora.corpus import cuts, scan, sections, units
from focus_core.report.corpora.stream import STATE, StreamSettings
from focus_core.report.corpora.traces import TraceSettings, write_traces
from focus_core.report.run import write_report
from focus_core.routing.portable import PortableModel

ray = pytest.importorskip("ray", reason="needs pip install 'focus-workbench[ray]'")

SETTINGS = StreamSettings(top_k=1, block_length=64, batch_size=3, examples=3)
PIECE = 600  # characters of a unit here


@pytest.fixture
def given(model_folder, tmp_path, monkeypatch):
    """A corpus of a dozen units, and a model in a folder with routers."""
    monkeypatch.setattr("focus_core.report.corpora.corpus.UNIT_CHARACTERS", PIECE)
    for number in range(24):
        path = tmp_path / "texts" / f"{number % 3}" / f"{number:02}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"The text {number} is about 我 ships; café and {number * number} more. " * (3 + number % 5))
    (tmp_path / "texts" / "broken.txt").write_bytes(b"\xff")
    return tmp_path


def report(folder, out, **options):
    model = {"model": folder / "model", "routers": folder / "model" / "routers", "tags": False, "title": "t"}
    return write_report(folder / "texts", folder / out, settings=SETTINGS, **model, **options)


def same(one, two) -> None:
    """The same report but for the rounding of sums."""
    assert one.documents == two.documents and one.failed == two.failed and one.num_tokens == two.num_tokens
    for mine, other in zip(one.cards, two.cards, strict=True):
        exact = ("layer", "group", "count", "share", "members", "frequent", "typical", "random", "strongest")
        assert all(getattr(mine, name) == getattr(other, name) for name in (*exact, "tags", "persistence"))
        # A probability of the model, in float32: on some CPUs its last bits differ from process to process.
        assert mine.confidence == pytest.approx(other.confidence, rel=1e-6)


def no_workers_left() -> None:
    _, alive = psutil.wait_procs(model_workers(psutil.Process()), timeout=20)
    assert not alive


def test_units_are_the_sections_in_order(given):
    corpus = scan(given / "texts")
    found = list(units(corpus))
    assert [section for unit in found for section in unit] == list(sections(corpus)) and len(found) > 8
    assert all(sum(len(section.text) for section in unit) <= PIECE for unit in found)
    assert [section for unit in units(corpus, (5, 0)) for section in unit] == list(sections(corpus))[5:]


def test_what_is_stopped_here_and_on_two_workers_resumes_to_what_one_process_counts(given, cluster, monkeypatch):
    monkeypatch.setattr("focus_core.report.corpora.stream._TOKENS_BETWEEN_SAVES", 1)
    one = report(given, "one").report
    runs: list[list[float]] = []

    def stop_after(part: float):
        runs.append([])

        def progress(message: str, share: float) -> None:
            if "Routing" in message:
                runs[-1].append(share)
                if share > part:
                    raise KeyboardInterrupt

        return progress

    for options, part in (({}, 0.2), ({"cluster": cluster}, 0.8)):
        with pytest.raises(KeyboardInterrupt):
            report(given, "out", progress=stop_after(part), **options)
        assert (given / "out" / STATE).is_file()
        no_workers_left()
    written = report(given, "out", progress=stop_after(2))
    assert [shares[0] > least for shares, least in zip(runs, (0.0, 0.15, 0.7))] == [True] * 3
    same(written.report, one)
    assert [each["document"] for each in written.record["failed"]] == ["broken.txt"]


def test_traces_that_were_stopped_resume_on_a_worker_to_the_rows_of_one_process(given, cluster, stops):
    def traces(out, **options):
        model = {"model": given / "model", "routers": given / "model" / "routers"}
        settings = TraceSettings(block_length=64, rows_per_part=900)
        return write_traces(given / "texts", given / out, settings=settings, **model, **options)

    one = traces("one.parquet")
    with pytest.raises(KeyboardInterrupt):
        traces("two.parquet", progress=stops("Routing", 0.4))
    two = traces("two.parquet", cluster=dataclasses.replace(cluster, workers=1))
    assert {**two.record, "made": 0} == {**one.record, "made": 0}
    files = [sorted(path.relative_to(run.folder) for path in run.folder.rglob("*.parquet")) for run in (one, two)]
    assert files[0] == files[1] and len(files[0]) > 9
    assert all(pq.read_table(one.folder / name).equals(pq.read_table(two.folder / name)) for name in files[0])
    no_workers_left()


REASON = "A worker has too little memory"


def failing(job: type) -> type:
    """A job, sent by its content, that lacks memory at one word."""

    class Failing(job):
        def work(self, focus, tokenizer, piece):
            if any("heavy" in section.text for section in piece):
                raise MemoryError
            return super().work(focus, tokenizer, piece)

    return Failing


@pytest.mark.slow
def test_a_document_that_is_too_large_for_its_workers_is_listed_and_in_no_count(given, cluster, monkeypatch):
    """One section of a long document is too large for workers; so is a short document in a unit with others.

    That a piece which ends its workers has the same result is a test of the cluster, whose workers start sooner.
    """
    monkeypatch.setattr("focus_core.report.corpora.corpus.cuts", functools.partial(cuts, longest=PIECE))
    without = report(given, "without").report
    (given / "texts" / "1" / "11.txt").write_text(
        "A long text about ships and 我, " * 60 + "a heavy one. " + "More. " * 90
    )
    (given / "texts" / "2" / "2.txt").write_text("A short and heavy text.")
    for name in ("CountingJob", "TracingJob"):
        monkeypatch.setattr(work, name, failing(getattr(work, name)))
    one_worker = dataclasses.replace(cluster, workers=1)
    found = report(given, "out", cluster=one_worker).report
    failed = {each.document: each.reason for each in found.failed if "broken" not in each.document}
    assert failed == {"1/11.txt": f"{REASON}.", "2/2.txt": f"{REASON}."}
    assert found.documents == without.documents and found.num_tokens == without.num_tokens
    for mine, other in zip(found.cards, without.cards, strict=True):
        for name in ("layer", "group", "count", "members", "frequent", "typical", "persistence"):
            assert getattr(mine, name) == getattr(other, name), name
        # A probability of the model, in float32: on some CPUs its last bits differ from process to process.
        assert mine.confidence == pytest.approx(other.confidence, rel=1e-6)
    assert sorted(path.name for path in (given / "out").iterdir()) == sorted(
        path.name for path in (given / "without").iterdir()
    )
    traces = write_traces(
        given / "texts",
        given / "t.parquet",
        model=given / "model",
        routers=given / "model" / "routers",
        settings=TraceSettings(states="untouched", top_k=1, block_length=64, rows_per_part=900),
        cluster=one_worker,
    )
    rows = pd.read_parquet(given / "t.parquet")
    assert traces.record["failed"] == [each._asdict() for each in found.failed]
    assert len(rows) == traces.record["rows"] and set(rows.document) == {each.name for each in found.documents}
    counts = rows.groupby(["layer", "group"], observed=True).size().to_dict()
    assert counts == {(card.layer, card.group): card.count for card in found.cards if card.count}


def test_other_weights_on_a_worker_are_refused(given):
    routers = {path.name: path.read_bytes() for path in (given / "model" / "routers").iterdir()}
    model = PortableModel(str(given / "model"), torch.float32, "0", routers, 0)
    with pytest.raises(FocusError, match="model has other weights on a worker: put the same model on every node"):
        model.load(1)


def refused(*arguments: str) -> str:
    done = CliRunner().invoke(cli.app, ["report", *arguments])
    assert (done.exit_code, done.output.count("\n")) == (2, 1), done.output
    return done.output


def test_addresses_that_lead_nowhere_are_one_sentence(given, tiny_llama, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # the cluster of this file is another program's
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = "127.0.0.1:{1}".format(*free.getsockname())
    texts, out = str(given / "texts"), ("--out", str(given / "out"), "--model", str(given / "model"), "--untrained")
    out = (*out, "--no-tags", "--block", "64")
    assert f"No Ray cluster answers at {nobody} (" in refused(texts, *out, "--ray", nobody)
    assert "--workers belongs to a cluster" in refused(texts, *out, "--workers", "2")
    with pytest.raises(FocusError, match="is no address of a Ray cluster"), connected("somewhere"):
        pass
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "pip install 'focus-workbench[ray]'" in refused("--ray", texts, *out)
    with pytest.raises(FocusError, match="Workers load the model themselves"):
        write_report(texts, given / "out", model=tiny_llama, untrained=True, tags=False, cluster=Cluster())
    assert not (given / "out").exists()


def command_of(given, out: str) -> list[str]:
    """Arguments of the command."""
    texts, model = (str(given / name) for name in ("texts", "model"))
    return ["report", texts, "--json", "--untrained", "--model", model, "--out", str(given / out), "--no-tags"]


SMALL_UNITS = (
    "import focus_core.report.corpora.corpus as c; from focus_core.cli import app; c.UNIT_CHARACTERS = 600; app()"
)


@pytest.mark.slow
def test_the_command_starts_a_cluster_of_its_own_and_prints_json_though_a_worker_is_killed(given):
    ray_of_one = ["--block", "64", "--ray", "--workers", "1"]
    command = [sys.executable, "-c", SMALL_UNITS, *command_of(given, "out"), *ray_of_one]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None and run.stdout is not None
        for line in run.stderr:
            if line.startswith("Routing"):
                (worker,) = model_workers(psutil.Process(run.pid))
                worker.kill()
                break
        told, printed = run.stderr.read(), run.stdout.read()
    assert run.returncode == 0, told
    assert "A worker died or was killed" in told or "Task ModelWorker.work failed" in told  # of Ray, not on stdout
    record = json.loads(printed)
    expected = CliRunner().invoke(cli.app, [*command_of(given, "one"), "--block", "64"])
    assert expected.exit_code == 0, expected.output
    for name in ("tokens", "failed", "documents", "files"):
        assert record[name] == json.loads(expected.stdout)[name]
    tables = sorted(name for name in record["files"] if name.endswith(".parquet"))
    assert "tokens.parquet" in tables and len(tables) > 3
    for name in tables:
        one, out = (pd.read_parquet(given / folder / name).drop(columns="date") for folder in ("one", "out"))
        pd.testing.assert_frame_equal(one, out, rtol=1e-12)  # but for the rounding of sums


def reported(given, out: str, *more: str) -> dict:
    """The record of the command in a process of its own."""
    command = [sys.executable, "-m", "focus_core.cli", *command_of(given, out), *more]
    # A shell between: the peak memory of a process includes that of the one which started it.
    between = ["sh", "-c", '"$@"; exit $?', "sh", *command]
    # A crash in native code, seen once in some hundred runs, then says where it was.
    own = {**os.environ, "PYTHONFAULTHANDLER": "1"}
    done = subprocess.run(between, capture_output=True, text=True, timeout=1200, check=False, env=own)
    assert done.returncode == 0, f"{done.stderr}\n{done.stdout[-500:]}"
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.usefixtures("cluster")
def test_the_command_takes_the_address_of_a_head_and_memory_does_not_grow_with_the_corpus(given):
    """Of a vocabulary of bytes: 30,000 characters are as many tokens. The peak is that of the command itself."""
    address = ray.get_runtime_context().gcs_address
    assert re.fullmatch(r"[\d.]+:\d+", address)

    def with_long(files: int) -> dict:
        for number in range(files):
            text = " ".join(f"Ship {number} sails from port {each * each}." for each in range(1_100))
            (given / "texts" / f"long-{number}.txt").write_text(text[:30_000])
        return reported(given, f"out-{files}", "--block", "512", "--workers", "1", "--ray", address)

    few = with_long(1)
    done = CliRunner().invoke(cli.app, [*command_of(given, "one"), "--block", "512"])
    assert done.exit_code == 0, done.output
    one = json.loads(done.stdout)
    assert all(few[name] == one[name] for name in ("tokens", "failed", "documents", "files"))
    many = with_long(5)
    assert many["tokens"] == few["tokens"] + 120_000
    assert many["peak_memory_bytes"] < few["peak_memory_bytes"] + 4 * 2**20  # 35 bytes for each more token
