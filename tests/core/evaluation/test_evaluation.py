"""Likelihoods in chunks, strides, length transfer, the leak."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import Gemma2Config, Gemma2ForCausalLM, GPT2Config, GPT2LMHeadModel

from focus_core import FocusConfig, FocusError, retrofit
from focus_core.evaluation import evaluate, leaks, length_transfer, likelihood, settings_for, standard_settings
from focus_core.evaluation.lengths import position_bins
from focus_core.evaluation.run import evaluate_texts
from focus_core.text import token_blocks, token_windows

CONFIG = FocusConfig(num_groups=4, top_k=1, window=4, sink_tokens=1, route_dim=8)


def blocks(rows, length):
    return np.random.default_rng(0).integers(1, 90, (rows, length))


def gemma():
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
    return Gemma2ForCausalLM(
        Gemma2Config(vocab_size=97, num_attention_heads=4, num_key_value_heads=2, final_logit_softcapping=0.5, **shape)
    )


@pytest.mark.parametrize(
    "make", [gemma, lambda: GPT2LMHeadModel(GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=4))]
)
@pytest.mark.parametrize("mode", ["off", "hard"])
def test_losses_in_chunks_are_those_of_the_whole_logits(make, mode, monkeypatch):
    monkeypatch.setattr(likelihood, "CHUNK", 7)
    torch.manual_seed(0)
    focus = retrofit(make().eval(), CONFIG)
    ids = torch.from_numpy(blocks(2, 40))
    with torch.no_grad(), focus.routing(mode):
        logits = focus(ids, use_cache=False).logits
        expected = F.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
        assert torch.allclose(likelihood.token_losses(focus, ids), expected, atol=1e-5)
        assert torch.equal(focus(ids, use_cache=False).logits, logits)  # the decoder answers for itself again


def test_losses_over_a_large_vocabulary_are_exact():
    """49,152 columns: float32 sums over transposed logits are 5e-5 nats too low here, 9e-5 at worst."""
    torch.manual_seed(0)
    vocabulary = 49_152
    focus = retrofit(
        GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, n_embd=16, n_layer=1, n_head=2, n_positions=512)).eval(),
        CONFIG,
    )
    ids = torch.from_numpy(np.random.default_rng(0).integers(1, vocabulary, (1, 512)))
    with torch.no_grad(), focus.routing("off"):
        focus.model.lm_head.weight.mul_(60)
        logits = focus(ids, use_cache=False).logits[0, :-1].double()
        expected = logits.logsumexp(-1) - logits.gather(1, ids[0, 1:, None])[:, 0]
        losses = likelihood.token_losses(focus, ids)[0].double()
    assert abs(float((losses - expected).mean())) < 1e-5
    assert (losses - expected).abs().max() < 2e-5


def test_a_stride_scores_the_last_tokens_with_full_context(tiny_llama):
    focus = retrofit(tiny_llama.model, CONFIG)
    ids = blocks(3, 32)
    losses = likelihood.token_losses(focus, torch.from_numpy(ids))[:, -8:].double()
    row = evaluate(focus, ids, routing="hard", stride=8)
    assert row.tokens == 24
    assert row.perplexity == pytest.approx(math.exp(losses.mean()), rel=1e-6)
    assert row.block_nll == pytest.approx(losses.mean(1).tolist())
    assert row.removed_share == pytest.approx(1 - row.causal_kept_share)
    assert row.removed_share <= row.exposure


def test_windows_overlap_and_agree_with_blocks(byte_tokenizer):
    text = "abcdefghij" * 5
    whole = byte_tokenizer(text)["input_ids"]
    windows = token_windows(byte_tokenizer, [text, "short"], 20, 10)
    assert windows.tolist() == [whole[start : start + 20] for start in range(0, 31, 10)]
    assert np.array_equal(token_windows(byte_tokenizer, [text], 20, 20), token_blocks(byte_tokenizer, [text], 20))
    with pytest.raises(FocusError, match="stride"):
        token_windows(byte_tokenizer, [text], 20, 21)
    with pytest.raises(FocusError, match="No text"):
        token_windows(byte_tokenizer, ["short"], 20, 10)


def test_lengths_are_evaluated_with_the_window_that_was_given(tiny_llama, tmp_path):
    (tmp_path / "text.txt").write_text("the tide went out and came back again " * 12)
    options = {"model": tiny_llama, "length": 64, "blocks": 1, "top_k": [1], "lengths": [64], "length_blocks": 1}
    focus = retrofit(tiny_llama.model, CONFIG)
    for window in (4, 16):
        found = evaluate_texts(tmp_path / "text.txt", routers=focus, window=window, **options)
        whole = [row for row in found.results if row.routing == "hard" and row.balance == "calibrated"]
        later = [row.evaluation for row in found.lengths if row.evaluation.routing == "hard"]
        assert [row.exposure for row in whole] == [row.exposure for row in later] != []


def test_length_transfer_scores_the_same_text_at_every_length(tiny_llama):
    focus = retrofit(tiny_llama.model, CONFIG)
    ids = blocks(2, 128)
    settings = [("off", None, None), ("hard", 4, "calibrated"), ("hard", 1, "calibrated")]
    rows = length_transfer(focus, ids, [32, 128], settings)
    assert [row.length for row in rows] == [32] * 3 + [128] * 3
    for row in rows:
        alone = evaluate(focus, ids.reshape(-1, row.length), routing=row.evaluation.routing, top_k=row.evaluation.top_k)
        assert row.evaluation.perplexity == pytest.approx(alone.perplexity)
        assert row.positions[0].start == 1
        assert row.positions[-1].stop == row.length
        mean = sum(part.nll * (part.stop - part.start) for part in row.positions) / (row.length - 1)
        assert math.exp(mean) == pytest.approx(row.evaluation.perplexity, rel=1e-5)
    assert rows[0].above_untouched is None
    assert rows[4].above_untouched.difference == pytest.approx(0, abs=1e-3)  # k = K
    assert rows[5].above_untouched.blocks == 8  # pieces of the shortest length
    opened = ids.reshape(-1, 32).copy()
    opened[:, 0] = 5
    (row,) = length_transfer(focus, ids, [32], [("off", None, None)], opening=[5])
    assert row.evaluation.perplexity == pytest.approx(evaluate(focus, opened, routing="off").perplexity)
    with pytest.raises(FocusError, match="divide"):
        length_transfer(focus, ids, [48, 128], settings)
    with pytest.raises(FocusError, match="Soft"):
        length_transfer(focus, ids, [32], [("soft", None, "sequence")])


def test_bins_double():
    bins = position_bins(np.arange(1, 300, dtype=float)[None])
    assert [(part.start, part.stop) for part in bins] == [(1, 64), (64, 128), (128, 256), (256, 300)]
    assert bins[0].nll == pytest.approx(np.arange(1, 64).mean())
    assert [(part.start, part.stop) for part in position_bins(np.zeros((1, 31)))] == [(1, 32)]


def test_the_leak_compares_both_balances_at_each_k(tiny_llama):
    focus = retrofit(tiny_llama.model, CONFIG)
    ids = blocks(4, 48)
    rows = [evaluate(focus, ids, routing=mode, top_k=k, balance=b) for mode, k, b in standard_settings(4, (1, 4))]
    by_k = {leak.top_k: leak for leak in leaks(rows)}
    assert set(by_k) == {1, 4}
    assert by_k[4].perplexity_difference == pytest.approx(0, abs=1e-6)  # everything is kept either way
    find = {(row.top_k, row.balance): row.perplexity for row in rows if row.routing == "hard"}
    expected = find[1, "sequence"] - find[1, "calibrated"]
    assert by_k[1].perplexity_difference == pytest.approx(expected)
    assert by_k[1].low <= expected <= by_k[1].high
    assert {leak.reading for leak in by_k.values()} == {"fewer than 16 blocks: not established"}
    assert not by_k[1].established and by_k[1].blocks == 4


def test_narrow_groups_are_evaluated_at_the_share_that_they_read(tiny_llama):
    def rows(top_ks=None, **changes):
        return settings_for(FocusConfig(router="narrow", num_groups=8, **changes), top_ks)

    off, own = ("off", None, None), ("hard", None, "calibrated")
    assert rows(read_share=0.15) == [off, own]
    assert rows((3,), read_share=0.15) == [off, own, ("hard", 3, "calibrated")]
    assert rows(top_k=5) == [off, ("hard", 5, "calibrated")]
    assert settings_for(FocusConfig(num_groups=8)) == standard_settings(8, (1, 2))
    focus = retrofit(tiny_llama.model, FocusConfig(router="narrow", num_groups=8, window=4, chunk=4, read_share=0.25))
    ids = np.random.default_rng(0).integers(0, 99, (2, 64))
    untouched, read = (evaluate(focus, ids, routing=mode, top_k=k, balance=b) for mode, k, b in rows(read_share=0.25))
    assert untouched.kept_share == 1 and 0.15 < read.kept_share < 0.35 and read.top_k is None
