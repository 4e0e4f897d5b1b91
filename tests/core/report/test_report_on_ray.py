"""Reports on a real Ray cluster of two workers: the sums of one process, workers that are killed, and bad days."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import socket
import subprocess
import sys

import numpy as np
import pandas as pd
import psutil
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

from focus_core import FocusError, cli
from focus_core.cluster import Cluster, Lost, connected, in_order, spread
from focus_core.report import work
from focus_core.report.corpus import cuts, scan, sections, units
from focus_core.report.run import write_report
from focus_core.report.stream import STATE, StreamSettings
from focus_core.report.traces import TraceSettings, write_traces
from focus_core.routing.portable import PortableModel

ray = pytest.importorskip("ray", reason="needs pip install 'focus-workbench[ray]'")

SETTINGS = StreamSettings(top_k=1, block_length=64, batch_size=3, examples=3)
PIECE = 600  # characters of a unit here


@pytest.fixture
def given(model_folder, tmp_path, monkeypatch):
    """A corpus of a dozen units, and a model in a folder with routers."""
    monkeypatch.setattr("focus_core.report.corpus.UNIT_CHARACTERS", PIECE)
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
        assert mine.confidence == pytest.approx(other.confidence, rel=1e-12)


def workers_of(process: psutil.Process) -> list[psutil.Process]:
    """The processes below this one that count."""
    return [each for each in process.children(recursive=True) if "ModelWorker" in each.name()]


def no_workers_left() -> None:
    _, alive = psutil.wait_procs(workers_of(psutil.Process()), timeout=20)
    assert not alive


def test_units_are_the_sections_in_order(given):
    corpus = scan(given / "texts")
    found = list(units(corpus))
    assert [section for unit in found for section in unit] == list(sections(corpus)) and len(found) > 8
    assert all(sum(len(section.text) for section in unit) <= PIECE for unit in found)
    assert [section for unit in units(corpus, (5, 0)) for section in unit] == list(sections(corpus))[5:]


def test_two_workers_count_what_one_process_counts_though_one_is_killed(given, cluster, killing):
    kill = killing("Routing")
    written = report(given, "killed", cluster=cluster, progress=kill)
    same(written.report, report(given, "one").report)
    assert [each["document"] for each in written.record["failed"]] == ["broken.txt"]
    assert len(kill.killed) == 1 and not kill.killed[0].is_running()
    no_workers_left()


def test_what_is_stopped_resumes_with_and_without_a_cluster(given, cluster, monkeypatch):
    monkeypatch.setattr("focus_core.report.stream._TOKENS_BETWEEN_SAVES", 1)
    one = report(given, "one")
    runs: list[list[float]] = []

    def stop_after(part: float):
        runs.append([])

        def progress(message: str, share: float) -> None:
            if "Routing" in message:
                runs[-1].append(share)
                if share > part:
                    raise KeyboardInterrupt

        return progress

    for options, part in (({}, 0.2), ({"cluster": cluster}, 0.6)):
        with pytest.raises(KeyboardInterrupt):
            report(given, "out", progress=stop_after(part), **options)
        assert (given / "out" / STATE).is_file()
        no_workers_left()
    again = report(given, "out", progress=stop_after(2))
    assert [shares[0] > least for shares, least in zip(runs, (0.0, 0.15, 0.5))] == [True] * 3
    same(again.report, one.report)


def test_traces_of_two_workers_are_the_rows_of_one_process_though_one_is_killed(given, cluster, killing):
    def traces(out, **options):
        model = {"model": given / "model", "routers": given / "model" / "routers"}
        settings = TraceSettings(block_length=64, rows_per_part=900)
        return write_traces(given / "texts", given / out, settings=settings, **model, **options)

    def stop(message: str, share: float) -> None:
        if "Routing" in message and share > 0.4:
            raise KeyboardInterrupt

    one = traces("one.parquet")
    with pytest.raises(KeyboardInterrupt):
        traces("two.parquet", progress=stop)
    kill = killing("Routing")
    two = traces("two.parquet", cluster=cluster, progress=kill)
    assert len(kill.killed) == 1 and not kill.killed[0].is_running()
    assert {**two.record, "made": 0} == {**one.record, "made": 0}
    files = [sorted(path.relative_to(run.folder) for path in run.folder.rglob("*.parquet")) for run in (one, two)]
    assert files[0] == files[1] and len(files[0]) > 9
    assert all(pq.read_table(one.folder / name).equals(pq.read_table(two.folder / name)) for name in files[0])
    no_workers_left()


def poisoned(job: type) -> type:
    """A job, sent by its content, that ends its worker at one word, after it was long enough in the text."""

    class Poisoned(job):
        def work(self, focus, tokenizer, piece):
            if any("poison" in section.text for section in piece):
                os._exit(1)
            return super().work(focus, tokenizer, piece)

    return Poisoned


def test_a_document_that_ends_its_workers_is_listed_and_in_no_count(given, cluster, monkeypatch):
    """Of a long document one section ends every worker; a short one stands in a unit with others."""
    monkeypatch.setattr("focus_core.report.corpus.cuts", functools.partial(cuts, longest=PIECE))
    without = report(given, "without").report
    (given / "texts" / "1" / "11.txt").write_text(
        "A long text about ships and 我, " * 60 + "with poison. " + "More. " * 90
    )
    (given / "texts" / "2" / "2.txt").write_text("A short poison.")
    for name in ("CountingJob", "TracingJob"):
        monkeypatch.setattr(work, name, poisoned(getattr(work, name)))
    found = report(given, "out", cluster=cluster).report
    reason = "A worker ended 4 times at the same piece of work, perhaps for lack of memory."
    assert {each.document: each.reason for each in found.failed if "broken" not in each.document} == {
        "1/11.txt": reason,
        "2/2.txt": reason,
    }
    assert found.documents == without.documents and found.num_tokens == without.num_tokens
    for mine, other in zip(found.cards, without.cards, strict=True):
        for name in ("layer", "group", "count", "members", "frequent", "typical", "persistence"):
            assert getattr(mine, name) == getattr(other, name), name
        assert mine.confidence == pytest.approx(other.confidence, rel=1e-12)
    assert sorted(path.name for path in (given / "out").iterdir()) == sorted(
        path.name for path in (given / "without").iterdir()
    )
    traces = write_traces(
        given / "texts",
        given / "t.parquet",
        model=given / "model",
        routers=given / "model" / "routers",
        settings=TraceSettings(states="untouched", top_k=1, block_length=64, rows_per_part=900),
        cluster=cluster,
    )
    rows = pd.read_parquet(given / "t.parquet")
    assert traces.record["failed"] == [each._asdict() for each in found.failed]
    assert len(rows) == traces.record["rows"] and set(rows.document) == {each.name for each in found.documents}
    counts = rows.groupby(["layer", "group"], observed=True).size().to_dict()
    assert counts == {(card.layer, card.group): card.count for card in found.cards if card.count}


class Elsewhere:
    """A worker whose module only this process has."""

    def __init__(self, argument: str) -> None:
        self.argument = argument

    def versions(self) -> dict[str, str]:
        raise NotImplementedError

    def work(self, piece: int) -> int:
        raise NotImplementedError


def failing() -> type:
    """A class of workers, sent by its content, that end at one piece and refuse another."""

    class Failing:
        def __init__(self, argument: str) -> None:
            self.argument = argument

        def versions(self) -> dict[str, str]:
            from focus_core.cluster import versions

            return versions()

        def work(self, piece: int) -> int:
            from focus_core.errors import FocusError

            if piece == 3:
                raise FocusError(f"{self.argument} is wrong: give another.")
            if piece == 5:
                os._exit(1)
            if piece == 11:
                raise MemoryError
            return np.ones(2**20) if piece > 100 else piece * piece

    return Failing


def squaring() -> type:
    """The same for pieces of several numbers."""

    class Squaring(failing()):
        def work(self, piece: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(super(Squaring, self).work(each) for each in piece)

    return Squaring


def results(pieces, kind=None, **options):
    with connected("local") as it:
        return list(in_order(it, kind or failing(), "This", pieces, workers=2, threads=1, **options))


@pytest.mark.usefixtures("cluster")
def test_results_come_in_order_and_errors_as_one_sentence():
    assert results([4, 1, 2, 9, 8, 7, 6, 4, 1, 2]) == [(n, n * n) for n in (4, 1, 2, 9, 8, 7, 6, 4, 1, 2)]
    assert results([]) == []
    with pytest.raises(FocusError, match=r"^This is wrong: give another\.$"):
        results([1, 2, 3, 4])
    with pytest.raises(FocusError, match="A worker has too little memory: take fewer with --workers"):
        results([11])
    with pytest.raises(FocusError, match="A worker ended 4 times at the same piece of work, perhaps for lack of mem"):
        results([1, 5, 2])
    with pytest.raises(FocusError, match="A worker lacks a package: install focus-workbench on every node"):
        results([1], Elsewhere)
    with connected("local") as it:
        assert [spread(it, *given) for given in ((None, 2**20), (1, 2**20), (None, 2**60))] == [(2, 1), (1, 2), (1, 2)]


@pytest.mark.usefixtures("cluster")
def test_a_piece_that_ends_its_workers_is_done_in_parts():
    found = results(
        [(1, 2), (4, 11, 6), (7,), (5,), (8, 9)], squaring(), apart=lambda piece: [(each,) for each in piece]
    )
    assert [piece for piece, _ in found] == [(1, 2), (4,), (11,), (6,), (7,), (5,), (8, 9)]
    given = [result for _, result in found]
    assert given[0] == (1, 4) and [given[place] for place in (1, 3, 4, 6)] == [(16,), (36,), (49,), (64, 81)]
    assert given[2] == Lost("A worker has too little memory")
    assert given[5] == Lost("A worker ended 4 times at the same piece of work, perhaps for lack of memory")


@pytest.mark.usefixtures("cluster")
def test_results_do_not_pile_up_in_this_process():
    """Results of 8 MB, 50 of them: this process holds one at a time. Ray's own shared memory is apart."""
    process, pieces = psutil.Process(), iter(range(101, 151))
    before, largest, count = process.memory_full_info().uss, 0, 0
    with connected("local") as it:
        for _, result in in_order(it, failing(), "This", pieces, workers=2, threads=1):
            count += int(result.sum() == 2**20)
            largest = max(largest, process.memory_full_info().uss)
    assert count == 50 and largest - before < 100 * 2**20


@pytest.mark.usefixtures("cluster")
def test_workers_of_other_versions_are_refused(monkeypatch):
    from focus_core import cluster as module

    own = module.versions()
    monkeypatch.setattr(module, "versions", lambda: {**own, "torch": "0.1"})  # of this process alone
    with pytest.raises(FocusError, match=rf"other versions \(torch {own['torch'].replace('+', '.')} instead of 0.1\)"):
        results([1])


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


@pytest.mark.slow
def test_the_command_starts_a_cluster_of_its_own(given):
    command = [sys.executable, "-m", "focus_core.cli", "report", str(given / "texts"), "--json", "--untrained"]
    command += ["--model", str(given / "model"), "--out", str(given / "out"), "--no-tags", "--block", "64", "--ray"]
    done = subprocess.run([*command, "--workers", "2"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    command[command.index(str(given / "out"))] = str(given / "one")
    expected = CliRunner().invoke(cli.app, command[3:-1])
    assert expected.exit_code == 0, expected.output
    for name in ("tokens", "failed", "documents", "files"):
        assert record[name] == json.loads(expected.stdout)[name]
    one, two = (pd.read_parquet(given / out / "tokens.parquet").drop(columns="date") for out in ("one", "out"))
    assert one.equals(two)


SMALL_UNITS = "import focus_core.report.corpus as c; from focus_core.cli import app; c.UNIT_CHARACTERS = 600; app()"


@pytest.mark.slow
def test_standard_output_is_json_though_a_worker_is_killed(given):
    command = [sys.executable, "-c", SMALL_UNITS, "report", str(given / "texts"), "--json", "--untrained", "--no-tags"]
    command += [
        "--model",
        str(given / "model"),
        "--out",
        str(given / "out"),
        "--block",
        "64",
        "--workers",
        "2",
        "--ray",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None and run.stdout is not None
        for line in run.stderr:
            if line.startswith("Routing"):
                workers_of(psutil.Process(run.pid))[0].kill()
                break
        told, printed = run.stderr.read(), run.stdout.read()
    assert run.returncode == 0, told
    assert json.loads(printed)["documents"] == 24
    assert (
        "A worker died or was killed" in told or "Task ModelWorker.work failed" in told
    )  # Ray wrote it, to standard error


def reported(given, out: str, *more: str) -> dict:
    """The record of the command in a process of its own."""
    command = [sys.executable, "-m", "focus_core.cli", "report", str(given / "texts"), "--json", "--untrained"]
    command += ["--model", str(given / "model"), "--out", str(given / out), "--no-tags", *more]
    # A shell between: the peak memory of a process includes that of the one which started it.
    between = ["sh", "-c", '"$@"; exit $?', "sh", *command]
    done = subprocess.run(between, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_the_command_takes_the_address_of_a_head(given):
    address = ray.get_runtime_context().gcs_address
    assert re.fullmatch(r"[\d.]+:\d+", address)
    two, one = (
        reported(given, out, "--block", "64", *more) for out, more in (("two", ("--ray", address)), ("one", ()))
    )
    assert all(two[name] == one[name] for name in ("tokens", "failed", "documents", "files"))


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_memory_of_the_command_does_not_grow_with_the_corpus(given):
    """Of a vocabulary of bytes: 100,000 characters are as many tokens. The peak is that of the command itself."""
    shutil.rmtree(given / "texts")
    peaks = []
    for files in (1, 10):
        for number in range(files):
            (given / "texts").mkdir(exist_ok=True)
            text = " ".join(f"Ship {number} sails from port {each * each}." for each in range(3_500))
            (given / "texts" / f"{number}.txt").write_text(text[:100_000])
        record = reported(given, f"out-{files}", "--block", "512", "--workers", "2", "--ray")
        assert record["tokens"] == files * 100_000
        peaks.append(record["peak_memory_bytes"])
    assert peaks[1] < peaks[0] + 32 * 2**20
