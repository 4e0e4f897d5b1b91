"""Session files: there and back exactly, and hostile ones refused with one sentence."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import pickle
import stat
import struct
import zipfile

import numpy as np
import pytest

from focus_core.errors import FocusError
from focus_core.report import Block, Statistics, bundle
from focus_core.report.build import build_report
from focus_core.report.bundle import MANIFEST, SESSION, TEXT, Session, read_bundle, write_bundle
from focus_core.report.model import Document
from focus_core.routing.model import FocusModel

HOSTILE = "<script>alert(1)</script> </script> =1+1 \x00 \u202e **b** \r\n\t\ufeff end \u2028 \U0001f35e" + "x" * 9000
SESSION_BEFORE = Session(
    settings={"model": "default", "k": "1", "layer": "7", "states": "untouched"},
    choices={"layers": [0, 3], "sections": ["tokens", "notes"], "seed": 5, "examples": 2},
    notes={"ba9876543210": {"0/1": "note with <b> and\nlines \u202e", "3/0": HOSTILE}},
    text=HOSTILE,
    text_name="a <name>",
    routers_hash="ba9876543210",
)


@pytest.fixture(scope="module")
def report():
    statistics = Statistics(1, 2, 3, characters=12)
    assignment = np.full((1, 4, 2), 0.5, np.float32)
    none = np.zeros(0, dtype=np.int64)
    offsets = np.asarray([[0, 3], [3, 6], [6, 9], [9, 12]])
    statistics.add(
        Block(0, "abcdefghijkl", 0, 0, np.asarray([0, 1, 2, 0]), offsets, assignment, assignment > 0, none, none)
    )
    return build_report(
        statistics,
        lambda ids: [f"t{i}" for i in ids],
        layers=(0,),
        documents=(Document("x", 12, "0" * 64),),
        origin={
            **{"model": "m", "model_revision": "r", "routers": "n", "routers_hash": "h", "routers_trained": False},
            **{"num_groups": 2, "top_k": 1, "window": 0, "sink_tokens": 0, "balance": "none"},
            **{"states": "untouched model", "text_sha256": "0" * 64},
        },
        title="t",
        block_length=4,
    )


@pytest.fixture(scope="module")
def good(report) -> bytes:
    return write_bundle(report, SESSION_BEFORE)


def entries(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(files: dict[str, bytes] | list[tuple[str, bytes]], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in files.items() if isinstance(files, dict) else files:
            archive.writestr(name, data)
    return buffer.getvalue()


def resealed(files: dict[str, bytes]) -> bytes:
    """Files with a manifest that vouches for them: what somebody who means harm would send."""
    manifest = json.loads(files[MANIFEST])
    manifest["files"] = {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in files.items()
        if name != MANIFEST
    }
    return packed({**files, MANIFEST: json.dumps(manifest).encode()})


def changed(files: dict[str, bytes], **values: object) -> bytes:
    """A session whose values were changed by somebody who knows how to seal it."""
    session = {**json.loads(files[SESSION]), **values}
    return resealed({**files, SESSION: json.dumps(session).encode()})


def refused(data: bytes, sentence: str) -> None:
    with pytest.raises(FocusError, match=sentence) as caught:
        read_bundle(data)
    text = str(caught.value)
    assert text.endswith(".") and text.count(". ") == 0 and "\n" not in text and len(text) < 200


def test_a_session_comes_back_as_it_was(good):
    after = read_bundle(good)
    assert dataclasses.replace(after, date="") == SESSION_BEFORE and after.date
    manifest = json.loads(entries(good)[MANIFEST])
    assert manifest["schema"] == 1 and manifest["seed"] == 0 and manifest["origin"]["model"] == "m"
    assert set(manifest["made"]) >= {"date", "versions", "device"}
    assert set(manifest["files"]) == set(entries(good)) - {MANIFEST} >= {SESSION, TEXT, "report.html", "cards.csv"}


def test_a_session_without_its_text(report):
    after = read_bundle(write_bundle(report, dataclasses.replace(SESSION_BEFORE, text=None)))
    assert after.text is None and after.notes == SESSION_BEFORE.notes


def test_no_text_or_note_that_could_not_be_read_back_is_written(report):
    with pytest.raises(FocusError, match="too large"):
        write_bundle(report, dataclasses.replace(SESSION_BEFORE, text="\u4f60" * 2 * bundle.MAX_TEXT))


@pytest.mark.parametrize("cut", [0, 1, 100, 0.5, -30, -1])
def test_a_truncated_file(good, cut):
    length = int(len(good) * cut) if isinstance(cut, float) else cut
    refused(good[:length], "cut short|no ZIP file")


def test_a_file_that_is_no_zip():
    refused(b"hello" * 100, "no ZIP file")
    refused(pickle.dumps({"a": 1}), "no ZIP file")


@pytest.mark.parametrize("place", range(5))
def test_flipped_bytes_never_get_through(good, place):
    spoilt = bytearray(good)
    spoilt[len(good) * (place + 1) // 7] ^= 0x5A
    try:
        after = read_bundle(bytes(spoilt))
    except FocusError as error:
        assert str(error).count("\n") == 0
    else:  # a byte that means nothing, such as a time stamp
        assert dataclasses.replace(after, date="") == SESSION_BEFORE


@pytest.mark.parametrize(
    "name",
    [
        "../../evil.txt",
        "/etc/passwd",
        "..\\evil.txt",
        "C:\\evil.txt",
        "routers.safetensors",
        "weights.pkl",
        "folder/",
        "text.txt/",
        "TEXT.TXT",
        "session.json ",
    ],
)
def test_names_that_do_not_belong(good, name):
    refused(packed({**entries(good), name: b"x"}), "does not belong")


def test_a_name_hidden_behind_a_null_byte(good):
    data = packed({**entries(good), "text.txtXevil": b"x"}).replace(b"text.txtXevil", b"text.txt\x00evil")
    refused(data, "does not belong|twice")


def test_a_pickle_that_is_called_safetensors(good, tmp_path, tiny_llama):
    class Harm:
        def __reduce__(self):
            return (open, (str(tmp_path / "harmed"), "w"))

    payload = pickle.dumps(Harm())
    refused(packed({**entries(good), "routers.safetensors": payload}), "does not belong")
    from focus_core import FocusConfig, retrofit

    focus = retrofit(tiny_llama.model, FocusConfig(), seed=0)
    focus.save_pretrained(tmp_path / "routers")
    focus.detach()
    (tmp_path / "routers" / "routers.safetensors").write_bytes(payload)
    with pytest.raises(FocusError, match="no safetensors file"):
        FocusModel.from_pretrained(tiny_llama.model, tmp_path / "routers")
    assert not (tmp_path / "harmed").exists()


def test_a_link(good):
    files = entries(good)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(name)
            if name == TEXT:
                info.external_attr = (stat.S_IFLNK | 0o777) << 16
                data = b"/etc/passwd"  # noqa: PLW2901
            archive.writestr(info, data)
    refused(buffer.getvalue(), "is a link")


def test_an_entry_twice(good):
    with pytest.warns(UserWarning):
        data = packed([*entries(good).items(), (TEXT, b"other")])
    refused(data, "twice")


def test_a_bomb_that_says_how_large_it_is(good):
    refused(resealed({**entries(good), TEXT: b"0" * 30_000_000}), "too many")
    refused(resealed({**entries(good), "report.html": b"0" * 100_000_000}), "too many")


def test_bombs_that_are_too_large_together(good, monkeypatch):
    monkeypatch.setattr(bundle, "MAX_TOTAL", 10_000_000)
    many = {name: b"0" * 4_000_000 for name in ("report.html", "report.json", "cards.csv")}
    refused(resealed({**entries(good), **many}), "unpacks to more than")


def test_a_bomb_that_lies_about_its_size(good):
    """The sizes in directory and header say 100 bytes; what comes out is another matter."""
    content = b"0" * 30_000_000
    data = bytearray(resealed({**entries(good), TEXT: content}))
    true = struct.pack("<I", len(content))
    assert data.count(true) >= 2
    refused(bytes(data).replace(true, struct.pack("<I", 100)), "far more|damaged|changed")


def test_too_many_bytes_or_entries(good, monkeypatch):
    refused(packed([(f"f{i}", b"") for i in range(100)]), "entries")
    monkeypatch.setattr(bundle, "MAX_FILE", 1000)
    refused(good, "larger than")


@pytest.mark.parametrize("name", [SESSION, TEXT, "report.html", "cards.parquet"])
def test_a_changed_file(good, name):
    files = entries(good)
    refused(packed({**files, name: files[name] + b" "}), f"{name} in the session file was changed")


def test_files_and_manifest_must_agree(good):
    files = entries(good)
    refused(packed({name: data for name, data in files.items() if name != TEXT}), "does not hold the files")
    refused(packed({name: data for name, data in files.items() if name != MANIFEST}), "has no manifest.json")
    refused(packed({MANIFEST: files[MANIFEST]}), "has no session.json")
    refused(packed({**files, "tags.csv": b"x"}), "does not hold the files")


@pytest.mark.parametrize(
    ("manifest", "sentence"),
    [
        (b"{", "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"format": NaN}', "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b'{"format": "zip"}', "is no session file"),
        (b'{"format": "focus-session", "schema": 99}', "schema 99"),
        (b'{"format": "focus-session", "schema": 1, "files": 3}', "does not hold"),
    ],
)
def test_a_manifest_of_another_kind(good, manifest, sentence):
    refused(packed({**entries(good), MANIFEST: manifest}), sentence)


@pytest.mark.parametrize(
    "values",
    [
        {"settings": {"k": 1}},
        {"settings": ["k"]},
        {"settings": {"model": "x" * 1000}},
        {"notes": {"h": "text"}},
        {"notes": {"h": {"0/1": 5}}},
        {"notes": {"h": {"../1": "x"}}},
        {"notes": {"h": {"0/1": "x" * 100_000}}},
        {"notes": {"h": {"0/1": "\ud800"}}},
        {"choices": {"layers": "all"}},
        {"choices": {"layers": [-1]}},
        {"choices": {"seed": True}},
        {"choices": {"other": 1}},
        {"text_name": None},
        {"schema": 2},
        {"more": 1},
    ],
)
def test_values_of_the_wrong_kind(good, values):
    refused(changed(entries(good), **values), "wrong kind|schema")


def test_a_text_that_is_not_utf8(good):
    refused(resealed({**entries(good), TEXT: b"caf\xe9"}), "not UTF-8")


def test_an_encrypted_entry(good):
    data = bytearray(good)
    for start in (data.find(b"PK\x03\x04") + 6, data.find(b"PK\x01\x02") + 8):
        data[start] |= 1
    refused(bytes(data), "encrypted")
