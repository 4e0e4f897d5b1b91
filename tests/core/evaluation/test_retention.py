"""Retention: divergence from the untouched model against float64, zeros, last quarters, records."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from focus_core import FocusConfig, FocusError, retrofit
from focus_core.commands.tables import evaluation_table
from focus_core.evaluation import evaluate, likelihood, retention
from focus_core.evaluation.retention import Untouched
from focus_core.evaluation.run import evaluate_texts

CONFIG = FocusConfig(num_groups=4, top_k=1, window=4, sink_tokens=1, route_dim=8)


@pytest.fixture
def focus(tiny_llama):
    for parameter in tiny_llama.model.parameters():
        parameter.data.mul_(8)  # attention that matters
    return retrofit(tiny_llama.model, CONFIG)


def blocks(rows=3, length=48):
    return np.random.default_rng(0).integers(1, 90, (rows, length))


def logits(focus, row, mode):
    with torch.no_grad(), focus.routing(mode):
        return focus(torch.from_numpy(row)[None], use_cache=False).logits[0, :-1].double()


def test_the_divergence_is_that_of_torch_in_float64(focus, monkeypatch):
    monkeypatch.setattr(likelihood, "CHUNK", 7)
    ids = blocks()
    found = retention(focus, ids)
    for number, row in enumerate(ids):
        full, sparse = (logits(focus, row, mode) for mode in ("off", "hard"))
        kl = F.kl_div(sparse.log_softmax(-1), full.log_softmax(-1), reduction="none", log_target=True).sum(-1)
        assert float(kl.mean()) > 1e-3
        assert found.block_kl[number] == pytest.approx(float(kl.mean()), rel=1e-3)
        assert found.block_kl_last_quarter[number] == pytest.approx(float(kl[-12:].mean()), rel=1e-3)
        agrees = (full.argmax(-1) == sparse.argmax(-1)).double().mean()
        assert found.block_top1_agreement[number] == pytest.approx(float(agrees))
    assert found.kl == pytest.approx(np.mean(found.block_kl))
    assert found.kl_last_quarter == pytest.approx(np.mean(found.block_kl_last_quarter))
    assert found.top1_agreement == pytest.approx(np.mean(found.block_top1_agreement))


def test_nothing_is_lost_where_everything_is_kept(focus):
    everything = retention(focus, blocks(), top_k=4)
    assert abs(everything.kl) < 1e-6 and abs(everything.kl_last_quarter) < 1e-6
    assert everything.top1_agreement == 1
    assert retention(focus, blocks(), routing="off").kl == pytest.approx(0, abs=1e-9)
    assert retention(focus, blocks(), top_k=2).kl < retention(focus, blocks(), top_k=1).kl
    with pytest.raises(FocusError, match="at least one block"):
        retention(focus, blocks(0))


def test_an_evaluation_has_the_same_retention_and_runs_the_untouched_model_once(focus, monkeypatch):
    ids = blocks()
    alone, plain = retention(focus, ids, top_k=1), evaluate(focus, ids, routing="hard", top_k=1)
    assert plain.kl is None and plain.block_kl == ()
    untouched = Untouched(ids)
    evaluate(focus, ids, routing="off", untouched=untouched)
    monkeypatch.setattr(Untouched, "_run", None)  # its states are there already
    row = evaluate(focus, ids, routing="hard", top_k=1, untouched=untouched)
    assert row.block_kl == pytest.approx(alone.block_kl, rel=1e-3)
    assert row.top1_agreement == pytest.approx(alone.top1_agreement)
    assert row.block_nll == pytest.approx(plain.block_nll)
    assert row.kl_last_quarter == pytest.approx(alone.kl_last_quarter, rel=1e-3)


def test_a_stride_counts_the_scored_tokens_alone(focus):
    ids = blocks(2, 32)
    row = evaluate(focus, ids, routing="hard", stride=4, untouched=Untouched(ids))
    full, sparse = (logits(focus, ids[0], mode) for mode in ("off", "hard"))
    kl = F.kl_div(sparse.log_softmax(-1), full.log_softmax(-1), reduction="none", log_target=True).sum(-1)
    assert row.block_kl[0] == pytest.approx(float(kl[-4:].mean()), rel=1e-3)
    assert row.block_kl_last_quarter == row.block_kl


def test_a_record_of_an_evaluation_has_retention_for_hard_rows(tiny_llama, tmp_path):
    (tmp_path / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 20)
    found = evaluate_texts([tmp_path / "text.txt"], model=tiny_llama, untrained=True, length=64, blocks=3, window=4)
    for row, plain in zip(found.results, found.record["results"], strict=True):
        assert (row.kl is not None) == (row.routing != "off")
        assert plain["kl"] == row.kl and plain["top1_agreement"] == row.top1_agreement
        assert len(plain["block_kl"]) == (0 if row.routing == "off" else 3)
    columns = [str(column.header).replace("\n", " ") for column in evaluation_table(found.results, "").columns]
    assert columns[:5] == ["routing", "k", "balance", "KL", "KL, last quarter"]
