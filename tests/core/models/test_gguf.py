"""A small GGUF file, written here, against the tensors and the vocabulary that it has."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from tokenizers import pre_tokenizers

from focus_core.models import load_model

WIDTH, INNER, HEADS, KV_HEADS, HEAD_DIM = 32, 64, 4, 2, 8
TENSORS = {
    "token_embd": "model.embed_tokens",
    "output": "lm_head",
    "output_norm": "model.norm",
    "blk.0.attn_norm": "model.layers.0.input_layernorm",
    "blk.0.attn_v": "model.layers.0.self_attn.v_proj",
    "blk.0.attn_output": "model.layers.0.self_attn.o_proj",
    "blk.0.ffn_norm": "model.layers.0.post_attention_layernorm",
    "blk.0.ffn_gate": "model.layers.0.mlp.gate_proj",
    "blk.0.ffn_up": "model.layers.0.mlp.up_proj",
    "blk.0.ffn_down": "model.layers.0.mlp.down_proj",
}
"""Names in the file and in Transformers, of those that keep the order of their rows."""


def written(path: Path, pre: str) -> dict[str, np.ndarray]:
    """A Llama of one layer with a vocabulary of bytes and one merge; its tensors."""
    tokens = ["<s>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "th"]
    shapes = {
        "token_embd": (len(tokens), WIDTH),
        "output": (len(tokens), WIDTH),
        "output_norm": (WIDTH,),
        "blk.0.attn_norm": (WIDTH,),
        "blk.0.attn_q": (HEADS * HEAD_DIM, WIDTH),
        "blk.0.attn_k": (KV_HEADS * HEAD_DIM, WIDTH),
        "blk.0.attn_v": (KV_HEADS * HEAD_DIM, WIDTH),
        "blk.0.attn_output": (WIDTH, HEADS * HEAD_DIM),
        "blk.0.ffn_norm": (WIDTH,),
        "blk.0.ffn_gate": (INNER, WIDTH),
        "blk.0.ffn_up": (INNER, WIDTH),
        "blk.0.ffn_down": (WIDTH, INNER),
    }
    rng = np.random.default_rng(0)
    tensors = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * (len(tokens) - 1))
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    for name, tensor in tensors.items():
        writer.add_tensor(f"{name}.weight", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


@pytest.mark.parametrize(("pre", "alone"), [("smollm", True), ("default", False)])
def test_a_file_is_parsed_once_and_its_weights_and_digits_are_those_it_names(tmp_path, monkeypatch, pre, alone):
    tensors, reader, parsed = written(tmp_path / "tiny.gguf", pre), gguf.GGUFReader, []

    def counted(path, *arguments):
        parsed.append(str(path))
        return reader(path, *arguments)

    monkeypatch.setattr(gguf, "GGUFReader", counted)
    model, tokenizer, info = load_model(tmp_path / "tiny.gguf")
    assert parsed == [str(tmp_path / "tiny.gguf")] and gguf.GGUFReader is counted
    assert info.class_name == "LlamaForCausalLM"
    weights = model.state_dict()
    for theirs, ours in TENSORS.items():
        np.testing.assert_array_equal(weights[f"{ours}.weight"].numpy(), tensors[theirs])
    assert tokenizer.decode(tokenizer("the 12").input_ids) == "the 12"
    pieces = [piece for piece, _ in tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("on 12")]
    assert (pieces[-2:] == ["1", "2"]) == alone
