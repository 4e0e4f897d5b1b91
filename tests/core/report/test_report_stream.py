"""Reports of whole corpora: sections, streaming against plain passes, resuming, and the command."""

from __future__ import annotations

import dataclasses
import errno
import io
import json
import os
import zipfile

import numpy as np
import pandas as pd
import pytest
from safetensors.torch import save_file
from tokenizers import Tokenizer, normalizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from typer.testing import CliRunner

from focus_core import FocusConfig, cli, retrofit
from focus_core.errors import FocusError
from focus_core.io.reading import read_tensors
from focus_core.report.build import build_report
from focus_core.report.bundle import read_bundle
from focus_core.report.corpora.corpus import cuts, scan, sections
from focus_core.report.corpora.stream import STATE, StreamSettings, collect, forget
from focus_core.report.model import DROPPED
from focus_core.report.run import write_report
from focus_core.report.saved import read_report
from focus_core.routing.balance import assign


@pytest.mark.parametrize("longest", [10, 33, 1000])
def test_sections_add_up_to_the_text(longest):
    text = "One line.\nAnother one, longer.\n\nA paragraph that has no breaks at all in it" + "x" * 50
    spans = cuts(text, longest)
    assert "".join(text[a:b] for a, b in spans) == text
    assert all(0 < b - a <= longest for a, b in spans)


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text("The first text is about ships. " * 40)
    (folder / "sub" / "b.txt").write_text("And 我 the other one; café " * 30 + "<script>")
    (folder / "c.md").write_text("Short.")
    return scan([folder])


def test_a_corpus_names_its_files_without_the_machines_paths(corpus, tmp_path):
    assert [document.name for document in corpus.documents] == ["a.txt", "c.md", "sub/b.txt"]
    assert corpus.characters == sum(len(path.read_text()) for path in corpus.files)
    assert "".join(s.text for s in sections(corpus)) == "".join(path.read_text() for path in corpus.files)
    assert [s.corpus_start for s in sections(corpus)] == [0, 1240, 1246]


def test_each_line_of_a_json_lines_file_is_a_document(tmp_path):
    file = tmp_path / "corpus" / "x.jsonl"
    file.parent.mkdir()
    texts = ["First: café\n我.", "Second."]
    rows = [
        json.dumps({"id": 1, "text": texts[0]}, ensure_ascii=False),
        "",
        "{no json}",
        json.dumps({"text": texts[1]}),
    ]
    file.write_bytes(("\ufeff" + "\r\n".join([*rows, json.dumps({"text": " "}), '{"title": "t"}'])).encode())
    corpus = scan(file)
    assert [document.name for document in corpus.documents] == ["x.jsonl:1", "x.jsonl:4"]
    assert [corpus.text(place) for place in (1, 0)] == texts[::-1]
    assert [section.text for section in sections(corpus)] == texts
    assert corpus.documents[0].characters == len(texts[0])
    assert [each.document for each in corpus.unread] == ["x.jsonl:3", "x.jsonl:5", "x.jsonl:6"]
    assert corpus.unread[0].reason == "Line 3 of x.jsonl is not a JSON object with a text: correct it."
    assert "empty text" in corpus.unread[1].reason and "no column called text" in corpus.unread[2].reason
    file.write_text("{}\n")
    with pytest.raises(FocusError, match="no column"):
        scan([file])


def test_a_report_is_read_back_as_it_was_written(tiny_llama, corpus, tmp_path):
    (tmp_path / "corpus" / "bad.txt").write_bytes(b"\xff\xff")
    written = write_report(
        tmp_path / "corpus",
        tmp_path / "out",
        model=tiny_llama,
        untrained=True,
        settings=StreamSettings(block_length=64),
    )
    assert read_report(tmp_path / "out") == written.report and written.report.failed
    options = {"model": tiny_llama, "untrained": True}
    for change in ({"block_length": 32}, {"seed": 1}, {"layers": (0,)}, {"top_k": 1}):
        settings = StreamSettings(**{"block_length": 64, **change})
        with pytest.raises(FocusError, match="out holds a report of other texts, settings or model"):
            write_report(tmp_path / "corpus", tmp_path / "out", settings=settings, **options)
    assert read_report(tmp_path / "out") == written.report
    again = write_report(tmp_path / "corpus", tmp_path / "out", settings=StreamSettings(block_length=64), **options)
    assert again.report.cards == written.report.cards
    with pytest.raises(FocusError, match="There is no report"):
        read_report(tmp_path)
    (tmp_path / "report.json").write_text('{"schema": 1, "cards": 3}')
    with pytest.raises(FocusError, match="is no report"):
        read_report(tmp_path)


def test_bytes_of_a_cut_character_are_spelled(tiny_llama, tmp_path):
    """With a vocabulary of bytes every token is a part of a character that has three."""
    (tmp_path / "text.txt").write_text("我" * 90, encoding="utf-8")
    settings = StreamSettings(block_length=64)
    found = write_report(tmp_path / "text.txt", tmp_path / "out", model=tiny_llama, untrained=True, settings=settings)
    words = {item.text for card in found.report.cards for item in card.frequent}
    assert words == {"<0xE6>", "<0x88>", "<0x91>"}


SETTINGS = StreamSettings(top_k=1, block_length=64, batch_size=3, examples=2)


def stream(loaded, corpus, folder, settings=SETTINGS, progress=lambda message, fraction: None, router="layer"):
    focus = retrofit(loaded.model, FocusConfig(num_groups=4, top_k=2, router=router), seed=0)
    try:
        return collect(focus, loaded.tokenizer, corpus, settings, folder, fingerprint={}, progress=progress)
    finally:
        focus.detach()


@pytest.mark.parametrize("router, head", [("layer", 0), ("head", 1)])
def test_streaming_counts_what_routing_each_block_counts(tiny_llama, corpus, tmp_path, router, head):
    """Every block routed on its own by a plain forward pass; batches of full blocks change nothing."""
    import torch

    settings = dataclasses.replace(SETTINGS, heads=(head,))
    statistics = stream(tiny_llama, corpus, tmp_path, settings, router=router)
    model, tokenizer, _ = tiny_llama
    expected = np.zeros_like(statistics.counts)
    for path in corpus.files:
        ids = tokenizer(path.read_text(), add_special_tokens=False)["input_ids"]
        for start in range(0, len(ids), 64):
            piece = torch.tensor([ids[start : start + 64]])
            states = model(piece, output_hidden_states=True).hidden_states
            focus = retrofit(model, FocusConfig(num_groups=4, top_k=2, router=router), seed=0)
            for layer in range(3):
                entering = model.model.layers[layer].input_layernorm(states[layer])
                groups = assign(focus.router(layer), focus.router(layer)(entering), focus.config).argmax(-1)
                np.add.at(expected[layer], (groups[head].numpy(), piece[0].numpy()), 1)
            focus.detach()
    assert statistics.counts.sum() == expected.sum()
    assert np.abs(statistics.counts - expected).sum() <= 2  # rounding may move a token that is undecided
    assert not (tmp_path / STATE).exists() or forget(tmp_path) is None


def test_several_heads_count_what_each_counts_alone(tiny_llama, corpus, tmp_path):
    def counted(*heads):
        settings = dataclasses.replace(SETTINGS, heads=heads)
        folder = tmp_path / "-".join(map(str, heads))
        folder.mkdir()
        return stream(tiny_llama, corpus, folder, settings, router="head")

    both, alone = counted(1, 0), [counted(1), counted(0)]
    for place, one in enumerate(alone):
        assert np.array_equal(both.counts[place::2], one.counts)
        assert np.array_equal(both.joint[place], one.joint[0])
        assert np.array_equal(both.units[:, place::2], one.units)

    def built(statistics, *heads):
        documents = {"documents": corpus.documents, "origin": {}, "title": "t", "block_length": 64}
        return build_report(statistics, lambda ids: list(map(str, ids)), layers=(0, 1, 2), heads=heads, **documents)

    whole, parts = built(both, 1, 0), [built(alone[0], 1), built(alone[1], 0)]
    assert [(card.layer, card.head) for card in whole.cards[::4]] == [(n, head) for n in range(3) for head in (1, 0)]
    for card in (card for part in parts for card in part.cards):
        same = next(each for each in whole.cards if _place(each) == _place(card))
        assert (same.share, same.frequent, same.persistence) == (card.share, card.frequent, card.persistence)


def _place(card):
    return card.layer, card.head, card.group


@pytest.mark.parametrize("states", ["untouched", "routed"])
@pytest.mark.parametrize("layers", [None, (0, 2)])
def test_without_a_k_planned_routers_are_reported_as_planned(tiny_llama, corpus, tmp_path, states, layers):
    plan = (1, 3, 2)

    def members(**changes):
        config = FocusConfig(num_groups=4, top_k=2, layer_top_k=plan, window=2, sink_tokens=0)
        focus = retrofit(tiny_llama.model, config, seed=0)
        settings = dataclasses.replace(SETTINGS, layers=layers, **changes)
        try:
            return collect(focus, tiny_llama.tokenizer, corpus, settings, tmp_path, fingerprint={}).members
        finally:
            focus.detach()

    found = members(top_k=None, states=states)
    shown = range(3) if layers is None else layers
    tokens = members(top_k=1).sum(1)
    assert found.sum(1).tolist() == [plan[layer] * tokens[0] for layer in shown]
    if states == "untouched":
        for row, layer in enumerate(shown):
            assert (found[row] == members(top_k=plan[layer])[row]).all()
    else:
        assert (found[-1] != members(top_k=None)[-1]).any()


def test_an_interrupted_report_goes_on_where_it_stopped(tiny_llama, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("focus_core.report.corpora.stream._TOKENS_BETWEEN_SAVES", 1)
    whole = stream(tiny_llama, corpus, tmp_path / "whole")

    calls = 0

    def stop(message: str, fraction: float) -> None:
        nonlocal calls
        calls += 1
        if "sub/b.txt" in message:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stream(tiny_llama, corpus, tmp_path / "cut", progress=stop)
    assert (tmp_path / "cut" / STATE).is_file() and not list(tmp_path.rglob("*.partial"))
    messages = []
    again = stream(tiny_llama, corpus, tmp_path / "cut", progress=lambda message, fraction: messages.append(message))
    assert all("sub/b.txt" in message for message in messages)
    assert all((again.arrays()[name] == array).all() for name, array in whole.arrays().items())
    assert again.samples() == whole.samples()

    other = StreamSettings(top_k=2, block_length=64)
    with pytest.raises(FocusError, match="other texts, weights or settings"):
        stream(tiny_llama, corpus, tmp_path / "cut", settings=other)
    (tmp_path / "cut" / STATE).write_bytes(b"\x80\x04nonsense")
    with pytest.raises(FocusError, match="damaged"):
        stream(tiny_llama, corpus, tmp_path / "cut")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (StreamSettings(top_k=1, block_length=0), "A block of 0 tokens"),
        (StreamSettings(top_k=1, block_length=9999), "choose 1 to 512"),
        (StreamSettings(top_k=1, layers=(7,)), "Layer 7 has no router"),
        (StreamSettings(top_k=1, block_length=64, heads=(3,)), "Head 3 has no router"),
        (StreamSettings(top_k=1, block_length=64, heads=(0, 0)), "Each head is reported once"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tiny_llama, corpus, tmp_path, settings, sentence):
    with pytest.raises(FocusError, match=sentence):
        stream(tiny_llama, corpus, tmp_path, settings=settings)


def test_the_command_writes_every_file(tiny_llama, tmp_path):
    tiny_llama.model.save_pretrained(tmp_path / "model")
    tiny_llama.tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "text.txt").write_text("She rowed to the <b>island</b> and the old man was glad of it. " * 30)
    command = ["report", str(tmp_path / "text.txt"), "--model", str(tmp_path / "model"), "--untrained"]
    result = CliRunner().invoke(cli.app, [*command, "--out", str(tmp_path / "out"), "--block", "256", "--json"])
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["tokens"] == 63 * 30 and record["words"] > 300
    assert set(record["files"]) == {path.name for path in (tmp_path / "out").iterdir()}
    page = (tmp_path / "out" / "report.html").read_text()
    assert "untrained" in page and str(tmp_path) not in page and "<b>" not in page
    tags = pd.read_parquet(tmp_path / "out" / "tags.parquet")
    assert {"NOUN", "VERB", "DET"} <= set(tags["tag"])
    again = CliRunner().invoke(cli.app, [*command, "--out", str(tmp_path / "two"), "--block", "256"])
    assert again.exit_code == 0
    for name in ("cards.csv", "examples.csv", "persistence.csv"):
        one, two = ((tmp_path / folder / name).read_text() for folder in ("out", "two"))
        assert (
            pd.read_csv(io.StringIO(one))
            .drop(columns="date")
            .equals(pd.read_csv(io.StringIO(two)).drop(columns="date"))
        )


def test_the_command_refuses_with_one_sentence(tmp_path):
    result = CliRunner().invoke(cli.app, ["report", str(tmp_path / "nothing"), "--out", str(tmp_path / "out")])
    assert (result.exit_code, result.output.count("\n")) == (2, 1) and "There is no file or folder" in result.output
    (tmp_path / "bad.txt").write_bytes(b"caf\xe9 \xff")
    result = CliRunner().invoke(cli.app, ["report", str(tmp_path / "bad.txt"), "--out", str(tmp_path / "out")])
    assert (result.exit_code, result.output.count("\n")) == (2, 1) and "not UTF-8" in result.output
    assert not (tmp_path / "out").exists()


def test_documents_that_fail_are_listed_and_the_others_reported(tiny_llama, corpus, tmp_path):
    """Hostile documents of every kind; the numbers are those of a folder without them."""
    loaded = tiny_llama._replace(tokenizer=without_bells(tiny_llama.tokenizer))
    focus = retrofit(loaded.model, FocusConfig(num_groups=4, top_k=2), seed=0)

    def report(out):
        options = {"routers": focus, "settings": SETTINGS, "tags": False, "title": "t"}
        return write_report(tmp_path / "corpus", out, model=loaded, **options)

    plain = report(tmp_path / "plain")
    bad = tmp_path / "corpus" / "zz"
    (bad / "folder.txt").mkdir(parents=True)
    (bad / "bells.txt").write_text("\a\a\a")
    (bad / "latin.txt").write_bytes(b"caf\xe9 au lait")
    (bad / "utf16.md").write_bytes("text".encode("utf-16"))
    (bad / "empty.txt").write_bytes(b"")
    (bad / "gone.txt").symlink_to(tmp_path / "nothing")
    os.mkfifo(bad / "pipe.md")
    written = report(tmp_path / "out")
    failed = {each["document"]: each["reason"] for each in written.record["failed"]}
    assert {name: reason.split(":")[0] for name, reason in failed.items()} == {
        "zz/bells.txt": DROPPED,
        "zz/empty.txt": "zz/empty.txt is empty",
        "zz/gone.txt": "There is no file zz/gone.txt",
        "zz/latin.txt": "zz/latin.txt is not UTF-8 text (byte 3 cannot be read)",
        "zz/pipe.md": "zz/pipe.md is a pipe or device, not a regular file",
        "zz/utf16.md": "zz/utf16.md is UTF-16 text",
    }
    assert [card.count for card in written.report.cards] == [card.count for card in plain.report.cards]
    assert written.report.documents == plain.report.documents and written.record["documents"] == 3
    made = json.loads((tmp_path / "out" / "report.json").read_text())
    assert made["failed"] == [list(each) for each in failed.items()]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "6 documents, which are in no number here" in page and "zz/pipe.md is a pipe" in page
    assert "in no number" not in (tmp_path / "plain" / "report.html").read_text()


def without_bells(tokenizer):
    """The tokenizer, which drops a control character, as some do."""
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.normalizer = normalizers.Replace("\a", "")
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def test_a_line_of_a_megabyte_is_cut_and_reported(default_model, tmp_path):
    """The real vocabulary and tagger, and a model that is as small as it can be."""
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(default_model.tokenizer), num_key_value_heads=1, **size))
    focus = retrofit(model.eval(), FocusConfig(num_groups=4, top_k=2), seed=0)
    (tmp_path / "line.txt").write_text("x" * 2**20)
    settings = StreamSettings(block_length=512, batch_size=16)
    loaded = default_model._replace(model=model)
    written = write_report(tmp_path / "line.txt", tmp_path / "out", model=loaded, routers=focus, settings=settings)
    ids = default_model.tokenizer("x" * 100_000)["input_ids"]
    last = default_model.tokenizer("x" * (2**20 - 1_000_000))["input_ids"]
    assert written.record["tokens"] == 10 * len(ids) + len(last) and not written.record["failed"]


def test_a_folder_that_cannot_be_listed_is_listed_as_failed(corpus, tmp_path, monkeypatch):
    real = os.scandir

    def scandir(path):
        if str(path).endswith("sub"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))  # the tests may run as root
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    (unread,) = scan([tmp_path / "corpus"]).unread
    assert unread == ("sub/", "sub cannot be listed (Permission denied): none of its texts are here.")


def test_files_named_in_two_ways_have_a_common_folder(corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path / "corpus")
    found = scan(["a.txt", tmp_path / "corpus" / "sub" / "b.txt"])
    assert [each.name for each in found.documents] == ["a.txt", "sub/b.txt"]


@pytest.mark.parametrize("given", ["folders", "a saved model"])
def test_a_report_that_is_given_away_names_no_folder_of_its_maker(tiny_llama, corpus, tmp_path, monkeypatch, given):
    tiny_llama.model.save_pretrained(tmp_path / "mine")
    tiny_llama.tokenizer.save_pretrained(tmp_path / "mine")
    focus = retrofit(tiny_llama.model, FocusConfig(num_groups=4, top_k=2))
    focus.save_pretrained(tmp_path / "routers")
    focus.detach()
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "mine" if given == "folders" else "./mine"
    out = tmp_path / "out"
    write_report(corpus.files, out, model=model, routers=tmp_path / "routers", settings=SETTINGS, tags=False)
    session = read_bundle((out / "session.zip").read_bytes())
    assert (session.settings["model"], session.settings["routers"]) == ("mine", "routers")
    with zipfile.ZipFile(out / "session.zip") as archive:
        packed = b"".join(archive.read(name) for name in archive.namelist())
    assert str(tmp_path).encode() not in packed + b"".join(path.read_bytes() for path in out.glob("report*"))


@pytest.mark.parametrize("damage", ["cut", "arrays", "samples", "place", "failed"])
def test_a_damaged_state_is_refused_in_one_sentence(tiny_llama, corpus, tmp_path, monkeypatch, damage):
    monkeypatch.setattr("focus_core.report.corpora.stream._TOKENS_BETWEEN_SAVES", 1)
    stream(tiny_llama, corpus, tmp_path)
    path = tmp_path / STATE
    metadata, tensors = read_tensors(path)
    if damage == "arrays":
        tensors["counts"] = tensors["counts"][:1].contiguous()
    elif damage == "samples":
        metadata["samples"] = '{"blocks": null, "random": 3}'
    elif damage in ("place", "failed"):
        assert metadata[damage]
        metadata[damage] = "many"
    save_file(tensors, path, metadata=metadata)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(FocusError, match=r"delete it and start again\.$"):
        stream(tiny_llama, corpus, tmp_path)
