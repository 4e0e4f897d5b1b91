"""Corpora and results in object stores: a real S3 server with its permissions, and errors of one sentence."""

from __future__ import annotations

import json
import socket
import sys
import urllib.request

import pandas as pd
import pytest
from typer.testing import CliRunner

from focus_core import FocusConfig, FocusError, cli, retrofit
from focus_core.analysis.linguistics.run import AlignSettings, align_texts
from focus_core.evaluation.run import evaluate_texts
from focus_core.io.locks import LOCK
from focus_core.io.remote import claim_output, claim_record, remote_texts, upload
from focus_core.report.corpora.corpus import scan
from focus_core.report.corpora.stream import STATE, StreamSettings
from focus_core.report.corpora.traces import RECORD, TraceSettings, write_traces
from focus_core.report.run import write_report
from focus_core.results import UnstoredError

s3fs = pytest.importorskip("s3fs", reason="needs pip install 'focus-workbench[dev]'")
boto3 = pytest.importorskip("boto3", reason="needs pip install 'focus-workbench[dev]'")
moto_server = pytest.importorskip("moto.server", reason="needs pip install 'focus-workbench[dev]'")

TEXTS = {
    "a.txt": "The first text is about ships. " * 40,
    "sub/b.md": "And 我 the other; café 🚢\n" * 9,
    "sub/odd::name #1?.txt": "Short, with a name that is none of a chain.",
    "broken.txt": b"caf\xe9 au lait",
    ".hidden/c.txt": "Nobody asked for this.",
    "picture.png": b"\x89PNG\0",
}
READ = ["a.txt", "sub/b.md", "sub/odd::name #1?.txt"]
SETTINGS = StreamSettings(top_k=1, block_length=64, examples=2)


@pytest.fixture(scope="module")
def server():
    """The address of an S3 server on this machine."""
    running = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    yield "http://{}:{}".format(*running.get_host_and_port())
    running.stop()


@pytest.fixture
def bucket(server, monkeypatch, tmp_path):
    """A bucket with texts, on a server that has nothing else."""
    for name, value in {"ACCESS_KEY_ID": "any", "SECRET_ACCESS_KEY": "any", "DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    monkeypatch.setenv("FOCUS_RUNS", str(tmp_path / "runs"))
    control(server, "reset")
    client = boto3.client("s3")
    client.create_bucket(Bucket="bucket")
    for name, content in TEXTS.items():
        client.put_object(Bucket="bucket", Key=f"texts/{name}", Body=content)
    s3fs.S3FileSystem.clear_instance_cache()
    yield client
    control(server, "reset-auth", b"inf")
    s3fs.S3FileSystem.clear_instance_cache()


def control(server: str, action: str, data: bytes = b"") -> None:
    request = urllib.request.Request(f"{server}/moto-api/{action}", data, {"Content-Type": "text/plain"})
    urllib.request.urlopen(request)


def keys(client, prefix: str = "") -> list[str]:
    found = client.list_objects_v2(Bucket="bucket", Prefix=prefix).get("Contents", [])
    return [each["Key"] for each in found]


def on_disk(tmp_path):
    for name, content in TEXTS.items():
        path = tmp_path / "texts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return tmp_path / "texts"


def routed(loaded):
    return retrofit(loaded.model, FocusConfig(num_groups=4, top_k=2, router="layer", window=4), seed=0)


def stop_at(name):
    def progress(message: str, share: float) -> None:
        if name in message:
            raise KeyboardInterrupt

    return progress


def test_a_folder_in_a_store_is_the_corpus_that_it_is_on_disk(bucket, tmp_path):
    stored, local = scan("s3://bucket/texts/"), scan(on_disk(tmp_path))
    assert stored.documents == local.documents and [each.name for each in stored.documents] == READ
    assert stored.unread == local.unread and stored.unread[0].document == "broken.txt"
    assert [stored.text(index) for index in range(3)] == [local.text(index) for index in range(3)]
    bucket.put_object(Bucket="bucket", Key="texts/new.txt", Body="A text that came later.")
    assert len(scan("s3://bucket/texts").documents) == 4
    one = scan(["s3://bucket/texts/a.txt", "s3://bucket/texts/a.txt"])
    assert [each.name for each in one.documents] == ["a.txt"]


def test_lines_of_a_file_in_a_store_are_the_documents_that_they_are_on_disk(bucket, tiny_llama, tmp_path):
    """With a byte order mark, an empty line and lines that are no text, in a file of many megabytes."""
    rows = [json.dumps({"text": text}, ensure_ascii=False) for text in ("First: café\n我. " * 9, "Second. " * 20)]
    filler = json.dumps({"text": " ", "more": "x" * 2**22})
    content = ("\ufeff" + "\r\n".join([rows[0], "", "{no json}", filler, filler, rows[1]])).encode()
    (tmp_path / "x.jsonl").write_bytes(content)
    bucket.put_object(Bucket="bucket", Key="lines/x.jsonl", Body=content)
    stored, local = scan("s3://bucket/lines/x.jsonl"), scan(tmp_path / "x.jsonl")
    assert [each.name for each in local.documents] == ["x.jsonl:1", "x.jsonl:6"]
    assert stored.documents == local.documents and stored.unread == local.unread
    assert [stored.text(place) for place in (1, 0)] == [local.text(place) for place in (1, 0)]
    model = {"model": tiny_llama, "routers": routed(tiny_llama)}
    evaluation, alignment = {"length": 64, "window": 8}, {"settings": AlignSettings(length=64, repeats=20)}
    for work, given in ((evaluate_texts, evaluation), (align_texts, alignment)):
        two, one = (
            work(place, **model, **given).record for place in ("s3://bucket/lines/x.jsonl", tmp_path / "x.jsonl")
        )
        assert {**two, "made": 0} == {**one, "made": 0} and len(one["data"]) == 2 and len(one["failed"]) == 3
    bucket.put_object(Bucket="bucket", Key="lines/empty.jsonl", Body=b"\n")
    with pytest.raises(FocusError, match="There is no document in these files"):
        scan("s3://bucket/lines/empty.jsonl")


def test_a_report_from_store_to_store_is_that_of_the_disk(bucket, tiny_llama, tmp_path):
    focus = routed(tiny_llama)
    settings = {"model": tiny_llama, "routers": focus, "settings": SETTINGS, "tags": False, "title": "ships"}
    local = write_report(on_disk(tmp_path), tmp_path / "out", **settings)
    stored = write_report("s3://bucket/texts", "s3://bucket/out/report", **settings)
    assert stored.report.cards == local.report.cards and stored.report.origin == local.report.origin
    assert [each["document"] for each in stored.record["failed"]] == ["broken.txt"]
    assert sorted(keys(bucket, "out/")) == sorted(f"out/report/{name}" for name in stored.record["files"])
    written = json.loads(bucket.get_object(Bucket="bucket", Key="out/report/report.json")["Body"].read())
    assert written["failed"][0][0] == "broken.txt" and len(written["documents"]) == 3
    assert not [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]


def test_a_report_resumes_from_this_machine_and_readers_see_it_whole(bucket, tiny_llama, tmp_path, monkeypatch):
    monkeypatch.setattr("focus_core.report.corpora.stream._TOKENS_BETWEEN_SAVES", 1)
    settings = {"model": tiny_llama, "routers": routed(tiny_llama), "settings": SETTINGS, "tags": False}
    with pytest.raises(KeyboardInterrupt):
        write_report("s3://bucket/texts", "s3://bucket/out", progress=stop_at("b.md"), **settings)
    assert keys(bucket, "out/") == [] and len(list((tmp_path / "runs").rglob(STATE))) == 1
    seen = []
    write_report("s3://bucket/texts", "s3://bucket/out", progress=lambda message, _: seen.append(message), **settings)
    assert not any("a.txt" in message for message in seen) and not list((tmp_path / "runs").rglob(STATE))
    written = [(each["LastModified"], each["Key"]) for each in bucket.list_objects_v2(Bucket="bucket")["Contents"]]
    order = []

    class Noted(dict):
        def __getitem__(self, name):
            order.append((name, "out/report.json" in keys(bucket)))
            return super().__getitem__(name)

    upload(Noted({"report.json": b"{}", "a": b"", "b": b""}), "s3://bucket/out", last="report.json")
    assert order == [("a", False), ("b", False), ("report.json", False)] and len(written) > 3


def test_traces_in_a_store_hold_the_rows_of_the_disk(bucket, server, tiny_llama, tmp_path, monkeypatch):
    settings = {"model": tiny_llama, "routers": routed(tiny_llama), "settings": TraceSettings(block_length=64)}
    local = write_traces(on_disk(tmp_path), tmp_path / "t.parquet", **settings)

    def broken(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("s3fs.S3FileSystem.put_file", broken)
        write_traces("s3://bucket/texts", "s3://bucket/t.parquet", **settings)
    assert keys(bucket, "t.parquet") == []
    seen = []
    stored = write_traces(
        "s3://bucket/texts", "s3://bucket/t.parquet", progress=lambda message, _: seen.append(message), **settings
    )
    assert {**stored.record, "made": 0} == {**local.record, "made": 0} and not any("Routing" in each for each in seen)
    options = {"client_kwargs": {"endpoint_url": server}}
    found = pd.read_parquet("s3://bucket/t.parquet", storage_options=options)
    assert found.equals(pd.read_parquet(tmp_path / "t.parquet"))
    assert json.loads(bucket.get_object(Bucket="bucket", Key=f"t.parquet/{RECORD}")["Body"].read()) == stored.record
    assert len(found) == stored.record["rows"] and not list((tmp_path / "runs").rglob("*.parquet"))
    with pytest.raises(FocusError, match="exists already"):
        write_traces("s3://bucket/texts", "s3://bucket/t.parquet", **settings)


def stored_record(client, key: str):
    return json.loads(client.get_object(Bucket="bucket", Key=key)["Body"].read())


def test_an_evaluation_from_store_to_store_is_that_of_the_disk(bucket, tiny_llama, tmp_path):
    settings = {"model": tiny_llama, "routers": routed(tiny_llama), "length": 64, "blocks": None, "window": 8}
    local = evaluate_texts(on_disk(tmp_path), out=tmp_path / "eval.json", **settings).record
    stored = evaluate_texts("s3://bucket/texts", out="s3://bucket/out/eval.json", **settings).record
    assert [each["name"] for each in local["data"]] == ["a.txt", "b.md", "odd::name #1?.txt"]
    assert [each["document"] for each in local["failed"]] == ["broken.txt"]
    assert {**stored, "made": 0} == {**local, "made": 0} and keys(bucket, "out/") == ["out/eval.json"]
    assert stored_record(bucket, "out/eval.json") == stored


def test_an_alignment_from_store_to_store_is_that_of_the_disk(bucket, tiny_llama, tmp_path):
    settings = {
        "model": tiny_llama,
        "routers": routed(tiny_llama),
        "settings": AlignSettings(length=128, passages=4, repeats=20),
    }
    local = align_texts(on_disk(tmp_path), out=tmp_path / "align.json", **settings).record
    stored = align_texts("s3://bucket/texts/", out="s3://bucket/align.json", **settings).record
    assert [each["document"] for each in local["failed"]] == ["broken.txt"] and len(local["data"]) == 3
    assert {**stored, "made": 0} == {**local, "made": 0} and stored_record(bucket, "align.json") == stored


def test_a_record_in_a_store_is_written_by_one_run_and_never_lost(bucket, tiny_llama, tmp_path, monkeypatch):
    with claim_record("s3://bucket/out/a.json"), claim_record("s3://bucket/out/b.json"):
        monkeypatch.setenv("FOCUS_RUNS", str(tmp_path / "another machine"))
        with pytest.raises(
            FocusError, match=f"another run: wait until it ends, or delete s3://bucket/out/.a.json{LOCK}"
        ):
            claim_record("s3://bucket/out/a.json").__enter__()
        monkeypatch.setenv("FOCUS_RUNS", str(tmp_path / "runs"))
    assert keys(bucket, "out/") == []
    for wrong in ("s3://bucket/out/", "s3://bucket", "s3://"):
        with pytest.raises(FocusError, match="no name of a file"):
            claim_record(wrong).__enter__()
    model = {"model": tiny_llama, "routers": routed(tiny_llama)}
    with monkeypatch.context() as patch, pytest.raises(UnstoredError) as caught:
        patch.setattr("focus_core.io.remote.put", lambda *_: (_ for _ in ()).throw(FocusError("Gone.")))
        evaluate_texts("s3://bucket/texts/a.txt", out="s3://bucket/e.json", length=64, window=8, **model)
    assert caught.value.record["results"] and keys(bucket, "e.json") == []


def test_one_run_at_a_time_writes_a_place_in_a_store(bucket, tmp_path, monkeypatch):
    with claim_output("s3://bucket/out"):
        monkeypatch.setenv("FOCUS_RUNS", str(tmp_path / "another machine"))
        with pytest.raises(FocusError, match=f"by another run: wait until it ends, or delete s3://bucket/out/{LOCK}"):
            claim_output("s3://bucket/out").__enter__()
        monkeypatch.setenv("FOCUS_RUNS", str(tmp_path / "runs"))
        with pytest.raises(FocusError, match=r"^s3://bucket/out is being written by process"):
            claim_output("s3://bucket/out").__enter__()
    assert keys(bucket, "out/") == []
    killed = claim_output("s3://bucket/out")
    folder = killed.__enter__()
    mark = (folder / "mark").read_bytes()
    killed.__exit__(None, None, None)
    folder.mkdir(parents=True)
    (folder / "mark").write_bytes(mark)  # as a run that was killed leaves it
    bucket.put_object(Bucket="bucket", Key=f"out/{LOCK}", Body=mark)
    with claim_output("s3://bucket/out/"):
        pass
    assert keys(bucket, "out/") == []


def run_command(*arguments: str) -> str:
    """The only line of a command that is refused."""
    done = CliRunner().invoke(cli.app, list(arguments))
    assert (done.exit_code, done.output.count("\n")) == (2, 1), done.output
    return done.output


def test_a_place_without_permission_is_one_sentence_before_the_work(bucket, server, monkeypatch, tmp_path):
    iam = boto3.client("iam")
    iam.create_user(UserName="reader")
    allowed = [{"Effect": "Allow", "Action": ["s3:ListBucket", "s3:GetObject"], "Resource": "*"}]
    policy = json.dumps({"Version": "2012-10-17", "Statement": allowed})
    key = iam.create_access_key(UserName="reader")["AccessKey"]
    control(server, "reset-auth", b"0")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
    s3fs.S3FileSystem.clear_instance_cache()
    out = str(tmp_path / "out")
    assert "No permission for s3://bucket/texts: " in run_command("report", "s3://bucket/texts", "--out", out)
    control(server, "reset-auth", b"inf")
    iam.put_user_policy(UserName="reader", PolicyName="read", PolicyDocument=policy)
    control(server, "reset-auth", b"0")
    assert len(scan("s3://bucket/texts").documents) == 3
    said = run_command("report", "s3://bucket/texts", "--out", "s3://bucket/out")
    assert "No permission for s3://bucket/out: " in said
    said = run_command("analyze", "s3://bucket/texts", "--out", "s3://bucket/t.parquet")
    assert "No permission for s3://bucket/t.parquet: " in said
    for command in (["eval", "--data"], ["align"]):
        said = run_command(*command, "s3://bucket/texts", "--out", "s3://bucket/r.json")
        assert "No permission for s3://bucket/r.json: " in said


def test_what_is_not_there_is_one_sentence(bucket, tmp_path):
    out = str(tmp_path / "out")
    bucket.put_object(Bucket="bucket", Key="pictures/.a/b.txt", Body=b"hidden")
    for address, words in {
        "s3://nobody/texts": "or no such bucket",
        "s3://bucket/nothing": "There is no file or folder",
        "s3://bucket/texts/picture.png": "is a binary file",
        "s3://bucket/pictures": "has no .txt",
        "s3://": "names no bucket",
        "ftp://host/x": "in no store that is known here",
    }.items():
        assert words in run_command("report", address, "--out", out), address
        for command in (["eval", "--data"], ["align"]):
            assert words in run_command(*command, address), address
    said = run_command("report", "s3://bucket/texts", "--out", "s3://nobody/out")
    assert "There is no s3://nobody/out, or no such bucket" in said
    assert "give those of one place" in run_command("report", "s3://bucket/texts", str(tmp_path), "--out", out)
    assert "name a data set with --out" in run_command("analyze", "s3://bucket/texts/a.txt")


def test_a_store_that_cannot_be_used_is_one_sentence(bucket, monkeypatch, tmp_path):
    out = str(tmp_path / "out")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:{1}".format(*free.getsockname()))
    monkeypatch.setattr("s3fs.core.S3FileSystem.retries", 1)
    s3fs.S3FileSystem.clear_instance_cache()
    said = run_command("report", "s3://bucket/texts", "--out", out)
    assert "does not answer or refuses (EndpointConnectionError): check the network" in said
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.delenv(f"AWS_{name}")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3fs.S3FileSystem.clear_instance_cache()
    assert "there are no credentials for it" in run_command("report", "s3://bucket/texts", "--out", out)
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    said = run_command("report", "gs://bucket/texts", "--out", out)
    assert "needs the package 'gcsfs'" in said and "focus-workbench[gcs]" in said


def test_other_stores_of_fsspec_work_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("FOCUS_RUNS", str(tmp_path / "runs"))
    with claim_output("memory://place/out"):
        upload({"texts/a.txt": b"A text.", "index": b""}, "memory://place/out", last="index")
    assert [str(each) for each in remote_texts("memory://place/out")] == ["memory://place/out/texts/a.txt"]
    assert scan("memory://place/out/texts/a.txt").text(0) == "A text."
