"""Loading models from folders and by name, and every way in which that can go wrong."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM, T5Config, T5ForConditionalGeneration

from focus_core.errors import FocusError
from focus_core.models.loading import check_safetensors, load_model, weights_revision


@pytest.fixture
def folder(tiny_llama, tmp_path):
    tiny_llama.model.save_pretrained(tmp_path)
    tiny_llama.tokenizer.save_pretrained(tmp_path)
    return tmp_path


def one_sentence(failure) -> str:
    message = str(failure.value)
    assert message.endswith(".") and "\n" not in message
    return message


def test_a_folder_gives_the_model_that_was_saved(folder, tiny_llama):
    model, tokenizer, info = load_model(folder)
    assert (info.name, info.source, info.class_name) == (folder.name, "folder", "LlamaForCausalLM")
    assert info.num_parameters == tiny_llama.info.num_parameters
    assert not model.training and model.dtype == torch.float32
    ids = torch.tensor([tokenizer("A small text.")["input_ids"]])
    with torch.no_grad():
        assert torch.equal(model(ids).logits, tiny_llama.model(ids).logits)


def test_dtype_is_that_asked_for(folder):
    assert load_model(folder, dtype=torch.bfloat16).model.dtype == torch.bfloat16


def test_revision_is_stable_and_follows_the_weights(folder):
    before = weights_revision(folder)
    assert before == weights_revision(folder) == load_model(folder).info.revision
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights["model.layers.1.mlp.up_proj.weight"] += 1e-3
    save_file(weights, path, metadata={"format": "pt"})
    assert weights_revision(folder) != before


def test_folder_without_config(tmp_path):
    with pytest.raises(FocusError) as failure:
        load_model(tmp_path)
    assert "config.json" in one_sentence(failure)


def test_pickled_weights_are_refused(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(FocusError) as failure:
        load_model(folder)
    assert "safetensors" in one_sentence(failure)


@pytest.mark.parametrize("keep", [0, 4, 40, -1])
def test_truncated_weights(folder, keep):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(FocusError) as failure:
        load_model(folder)
    assert "truncated" in one_sentence(failure)


def test_a_pickle_named_safetensors(folder):
    torch.save({"a": torch.ones(3)}, folder / "model.safetensors")
    with pytest.raises(FocusError) as failure:
        load_model(folder)
    assert "safetensors" in one_sentence(failure)


@pytest.mark.parametrize("header", [b"[]", b"{]", b'{"a": 1}', b"\xff\xff", b'{"a": {"data_offsets": 3}}'])
def test_nonsense_headers(tmp_path, header):
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(FocusError):
        check_safetensors(path)


def test_missing_weights_are_not_replaced_by_random_ones(folder):
    path = folder / "model.safetensors"
    weights = load_file(path)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(FocusError) as failure:
        load_model(folder)
    assert "up_proj" in one_sentence(failure)


def test_weights_of_another_shape(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": 64, "head_dim": 16}))
    with pytest.raises(FocusError) as failure:
        load_model(folder)
    one_sentence(failure)


def test_a_tokenizer_of_another_model_is_refused(folder, tiny_llama):
    config = tiny_llama.model.config
    config.vocab_size = 100
    type(tiny_llama.model)(config).save_pretrained(folder)
    with pytest.raises(FocusError, match="a tokenizer of 257 tokens and embeddings of 100"):
        load_model(folder)


def test_damaged_config(folder):
    (folder / "config.json").write_text('{"model_type": "lla')
    with pytest.raises(FocusError) as failure:
        load_model(folder)
    one_sentence(failure)


def test_code_that_comes_with_a_model_is_not_run(folder):
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "own",
        "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text("raise SystemExit('the code was run')")
    with pytest.raises(FocusError) as failure:
        load_model(folder)
    one_sentence(failure)


def test_encoders_are_refused(tmp_path):
    config = BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    BertForMaskedLM(config).save_pretrained(tmp_path)
    with pytest.raises(FocusError) as failure:
        load_model(tmp_path)
    assert "BertForMaskedLM" in one_sentence(failure) and "an encoder:" in str(failure.value)


def test_encoder_decoders_are_refused(tmp_path):
    T5ForConditionalGeneration(
        T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    ).save_pretrained(tmp_path)
    with pytest.raises(FocusError) as failure:
        load_model(tmp_path)
    assert "an encoder-decoder:" in one_sentence(failure)


def test_folder_without_tokenizer(folder):
    for path in folder.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(FocusError) as failure:
        load_model(folder)
    assert "tokenizer" in one_sentence(failure)


@pytest.mark.parametrize("name", ["./nowhere", "/no/where/else", "missing.gguf", "no-such-owner/no-such-model-0815"])
def test_unknown_models(name):
    with pytest.raises(FocusError) as failure:
        load_model(name)
    assert name in one_sentence(failure)


@pytest.mark.parametrize("content", [b"", b"GG", b"not a model at all", b"GGUF\3\0\0\0" + b"\xff" * 32])
def test_a_file_that_is_no_gguf(tmp_path, content):
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(FocusError) as failure:
        load_model(path)
    assert str(path) in one_sentence(failure)


def test_unknown_device(folder):
    with pytest.raises(FocusError) as failure:
        load_model(folder, device="abacus")
    assert "abacus" in one_sentence(failure)


def test_the_default_model_is_the_one_described(default_model):
    model, tokenizer, info = default_model
    config = model.config
    assert (info.name, info.source, info.revision) == ("SmolLM2-135M-Instruct", "default", "b179c9523d0e")
    assert (config.num_hidden_layers, config.hidden_size) == (30, 576)
    assert (config.num_attention_heads, config.num_key_value_heads) == (9, 3)
    assert info.num_parameters == 134_515_008 and len(tokenizer) == 49_152
    assert model.dtype == torch.float32 and config._attn_implementation == "sdpa" and not model.training
    ids = tokenizer("The capital of France is", return_tensors="pt")
    with torch.no_grad():
        assert tokenizer.decode(model(**ids).logits[0, -1].argmax()) == " Paris"


def test_its_tokenizer_cuts_numbers_as_in_training(default_model):
    pieces = default_model.tokenizer.tokenize("in  2024")
    assert pieces == ["in", "ĠĠ", "2", "0", "2", "4"]
