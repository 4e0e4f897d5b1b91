"""Texts are analysed after what the tokenizer puts before any text, and that is not counted as text."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from focus_core import FocusConfig, analyze, retrofit
from focus_core.analysis.linguistics.corpus.passages import passages
from focus_core.errors import FocusError
from focus_core.report.corpora.corpus import scan
from focus_core.report.corpora.stream import StreamSettings, collect
from focus_core.report.from_trace import report_from_trace
from focus_core.routing.balance import assign

TEXT = "The ship came in at dawn, and nobody spoke of it again."


@pytest.fixture(params=["layer", "head"])
def focus(tiny_llama, request):
    return retrofit(tiny_llama.model, FocusConfig(num_groups=4, top_k=1, window=8, router=request.param), seed=0)


def test_a_trace_is_that_of_the_text_after_its_opening(focus, opening_tokenizer):
    trace = analyze(focus, opening_tokenizer, TEXT)
    ids = torch.tensor([[0, *opening_tokenizer(TEXT, add_special_tokens=False)["input_ids"]]])
    assert trace.input_ids.tolist() == ids[0].tolist() and trace.offsets[0].tolist() == [0, 0]
    entering = focus.model.model.layers[0].input_layernorm(focus.model.model.embed_tokens(ids))
    router = focus.router(0)
    expected = assign(router, router(entering), focus.config)[0]
    assert torch.allclose(torch.from_numpy(trace.assignment[0]), expected, atol=1e-6)


def test_a_report_counts_the_text_alone(focus, opening_tokenizer, tmp_path):
    trace = analyze(focus, opening_tokenizer, TEXT)
    report = report_from_trace(trace, str, vocabulary=300, name="text", states="routed model")
    assert report.num_tokens == len(TEXT)
    (tmp_path / "text.txt").write_text(TEXT)
    settings = StreamSettings(top_k=1, states="routed", block_length=len(TEXT) + 1)
    statistics = collect(focus, opening_tokenizer, scan([tmp_path]), settings, tmp_path, fingerprint={})
    counts = np.zeros_like(statistics.counts)
    for layer, groups in enumerate(trace.groups[:, 1:]):
        np.add.at(counts[layer], (groups, trace.input_ids[1:]), 1)
    assert (statistics.counts == counts).all()


def test_every_block_of_a_report_is_read_after_the_opening(focus, opening_tokenizer, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    settings = StreamSettings(top_k=1, states="routed", block_length=17, batch_size=2)
    statistics = collect(focus, opening_tokenizer, scan([tmp_path]), settings, tmp_path, fingerprint={})
    counts = np.zeros_like(statistics.counts)
    for start in range(0, len(TEXT), 16):
        trace = analyze(focus, opening_tokenizer, TEXT[start : start + 16])
        for layer, groups in enumerate(trace.groups[:, 1:]):
            np.add.at(counts[layer], (groups, trace.input_ids[1:]), 1)
    assert counts.sum() == 3 * len(TEXT)
    assert np.abs(statistics.counts - counts).sum() <= 2  # rounding may move a token that is undecided
    with pytest.raises(FocusError, match="choose 2 to"):
        short = StreamSettings(top_k=1, block_length=1)
        collect(focus, opening_tokenizer, scan([tmp_path]), short, tmp_path, fingerprint={})


def test_passages_leave_room_for_the_opening(opening_tokenizer, byte_tokenizer):
    assert max(map(len, passages(opening_tokenizer, "word " * 50, 20, 0))) <= 19
    assert max(map(len, passages(byte_tokenizer, "word " * 50, 20, 0))) == 20
