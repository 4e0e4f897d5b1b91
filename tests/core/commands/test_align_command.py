"""`focus align` from files to record, passages, and groupings of hidden states."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from focus_core import FocusConfig, cli, retrofit
from focus_core.analysis.linguistics.corpus.passages import passages
from focus_core.analysis.states import UNTRAINED_SEEDS, group_states, state_groups
from focus_core.text import encode

WORDS = {
    "the": "DET",
    "cat": "NOUN",
    "saw": "VERB",
    "a": "DET",
    "dog": "NOUN",
    "near": "ADP",
    "it": "PRON",
    ".": "PUNCT",
}


def treebank(documents: int) -> str:
    rng = np.random.default_rng(0)
    lines = []
    for document in range(documents):
        lines.append(f"# newdoc id = {document}")
        for _ in range(4):
            for number, word in enumerate(rng.choice(list(WORDS), 9), 1):
                lines.append(f"{number}\t{word}\t{word}\t{WORDS[word]}" + "\t_" * 6)
            lines.append("")
    return "\n".join(lines) + "\n"


@pytest.fixture
def tiny_folder(tiny_llama, tmp_path):
    tiny_llama.model.save_pretrained(tmp_path / "model")
    tiny_llama.tokenizer.save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def focus(*arguments: object):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def test_a_treebank_becomes_a_record_with_every_reference(tiny_folder, tmp_path):
    (tmp_path / "tiny.conllu").write_text(treebank(8))
    out = tmp_path / "record.json"
    result = focus(
        "align", tmp_path / "tiny.conllu", "--model", tiny_folder, "--untrained", "--repeats", 40, "--out", out
    )
    assert result.exit_code == 0, result.output
    record = json.loads(out.read_text())
    assert record["tagger"]["gold"] and record["sample"] == {
        **{"words": 288, "units": 288, "coverage": 1.0, "exact_borders": 1.0, "documents": 8}
    }
    assert {"date", "versions", "device"} <= set(record["made"])
    assert record["data"][0]["name"] == "tiny.conllu" and len(record["published"]) == 6
    explained = record["explained"]
    assert [layer["layer"] for layer in explained["layers"]] == [0, 1, 2] and "All features together" in result.output
    assert {each["feature"] for each in explained["layers"][0]["features"]} == {
        *("token identity", "previous token", "part of speech", "frequency", "position")
    }
    for tag_set in ("upos", "coarse"):
        found = record["alignment"][tag_set]
        assert found["resampled"] == "documents" and len(found["layers"]) == 3
        layer = found["layers"][0]
        assert set(layer["references"]) == {
            *("token identity", "position buckets", "frequency buckets", "untrained routers", "balanced k-means")
        }
        assert layer["chance"] and layer["within_type"] and layer["interval"] and layer["sharing_lift"]
        assert len(record["verdicts"][tag_set]) == 7
    assert "Groups follow" in result.output


def test_texts_are_cut_into_passages_and_short_ones_only_described(tiny_folder, tmp_path):
    (tmp_path / "text.txt").write_text("The cat saw a dog near it. " * 12)
    result = focus(
        "align",
        tmp_path / "text.txt",
        "--model",
        tiny_folder,
        "--untrained",
        "--length",
        100,
        "--json",
        "--rule",
        "first",
    )
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout[result.stdout.index("{") :])
    assert record["sample"]["documents"] == 3 and record["alignment"]["upos"]["descriptive"]
    assert "Only described" in record["verdicts"]["upos"][0]


@pytest.mark.parametrize("bad", [("--rule", "middle"), ("--states", "dreamt")])
def test_unknown_choices_are_refused(tmp_path, bad):
    (tmp_path / "text.txt").write_text("A text.")
    result = CliRunner().invoke(cli.app, ["align", str(tmp_path / "text.txt"), *bad])
    assert result.exit_code == 2


def test_documents_of_texts_are_not_counted(tiny_folder, tmp_path):
    (tmp_path / "text.txt").write_text("A text. " * 20)
    result = focus("align", tmp_path / "text.txt", "-m", tiny_folder, "--untrained", "--documents", 3)
    assert result.exit_code == 2 and "--documents counts those of treebanks, and these are texts" in result.stderr


@pytest.mark.parametrize("option", [("--length", 64), ("--passages", 4)])
def test_treebanks_are_not_cut(tiny_folder, tmp_path, option):
    (tmp_path / "a.conllu").write_text(treebank(1))
    result = focus("align", tmp_path / "a.conllu", "-m", tiny_folder, "--untrained", *option)
    assert result.exit_code == 2 and "these are treebanks: give --documents" in result.stderr


def test_gold_and_predicted_tags_do_not_mix(tiny_folder, tmp_path):
    (tmp_path / "a.txt").write_text("A text.")
    (tmp_path / "b.conllu").write_text(treebank(1))
    assert focus("align", tmp_path / "a.txt", tmp_path / "b.conllu", "-m", tiny_folder, "--untrained").exit_code == 2


def test_documents_that_fail_are_listed(tiny_folder, tmp_path):
    folder = tmp_path / "banks"
    folder.mkdir()
    (folder / "a.conllu").write_text(treebank(4))
    (folder / "b.conllu").write_text("1\tword\n")
    (folder / "c.conllu").write_bytes(b"caf\xe9")
    command = ("align", folder, "-m", tiny_folder, "--untrained", "--repeats", 20)
    result = focus(*command, "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert [each["name"] for each in record["data"]] == ["a.conllu"] and record["sample"]["documents"] == 4
    assert {each["document"]: each["reason"].split(":")[0] for each in record["failed"]} == {
        "c.conllu": "c.conllu is not UTF-8 text (byte 3 cannot be read)",
        "b.conllu": "b.conllu, line 1, has 2 columns instead of 10",
    }
    result = focus(*command, "--tokens", 400)
    assert " of 4 documents were drawn at random: --tokens takes more." in result.output
    assert "2 documents could not be read:\n  c.conllu: " in result.output and "\n  b.conllu: " in result.output
    (folder / "a.conllu").write_text("1\tword\n")
    result = focus(*command)
    assert (result.exit_code, result.output.count("\n")) == (2, 1)
    assert "None of the 2 documents can be used. The first: a.conllu, line 1" in result.output


def test_passages_are_evenly_spaced_and_cut_no_word(byte_tokenizer):
    text = " ".join(f"word{number:03d}" for number in range(100))
    pieces = passages(byte_tokenizer, text, 80, 4)
    assert len(pieces) == 4 and text.startswith(pieces[0]) and text.endswith(pieces[-1].strip())
    assert all(word in text.split() for piece in pieces for word in piece.split())
    assert all(len(encode(byte_tokenizer, piece).input_ids) <= 80 for piece in pieces)
    assert passages(byte_tokenizer, "short", 80, 4) == ["short"]


def test_state_groups_read_what_the_routers_read(tiny_llama):
    model, tokenizer, _ = tiny_llama
    focus_model = retrofit(model, FocusConfig(num_groups=4, top_k=1, window=2, sink_tokens=1), seed=0)
    ids = encode(tokenizer, "The cat saw a dog near it, and it ran. " * 4).input_ids
    seen, scored = {}, {}

    def note(routing):
        seen[routing.layer], scored[routing.layer] = routing.hidden_states, (routing.router, routing.scores)

    with torch.inference_mode(), focus_model.observe(note):
        model(input_ids=torch.from_numpy(ids)[None])
    for layer, (router, scores) in scored.items():
        assert torch.equal(router(seen[layer]), scores)
    tokens = np.arange(0, len(ids), 2)
    found = state_groups(focus_model, [(ids, tokens), (ids[:50], np.arange(50))])
    n = len(tokens) + 50
    assert found.kmeans.shape == (3, n) and found.untrained.shape == (len(UNTRAINED_SEEDS), 3, n)
    assert found.untrained.max() < 4 and np.bincount(found.kmeans[0], minlength=4).max() < 0.5 * n
    again = state_groups(focus_model, [(ids, tokens), (ids[:50], np.arange(50))])
    assert (again.kmeans == found.kmeans).all() and (again.untrained == found.untrained).all()


def test_untrained_routers_are_the_same_beside_routers_of_any_kind():
    """Settings that narrow groups alone have, such as those of the shipped routers, are none of theirs."""
    states = {layer: torch.randn(40, 32, generator=torch.Generator().manual_seed(layer)) for layer in range(2)}
    narrow = {"read_share": 0.2, "by_error": True, "count_spread": True, "full_below": 8, "count_weight": 1.0}
    one, two = (
        group_states([states], FocusConfig(router=router, num_groups=4, **more))
        for router, more in (("layer", {}), ("narrow", narrow))
    )
    assert (one.untrained == two.untrained).all() and (one.kmeans == two.kmeans).all()
