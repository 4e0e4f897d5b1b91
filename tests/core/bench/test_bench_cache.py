"""The benchmark of caches measures what it says; no assertion on how fast anything is."""

from __future__ import annotations

import json

import pytest
import torch

from focus_core import FocusConfig, retrofit
from focus_core.bench.cache import CacheBenchSettings, record_cache_bench, run_cache_bench
from focus_core.errors import FocusError

CONFIG = FocusConfig(router="narrow", num_groups=4, window=8, chunk=4, read_share=0.3)


def test_every_cache_is_measured_and_compared_with_the_untouched_one(tiny_llama):
    focus = retrofit(tiny_llama.model, CONFIG, seed=0)
    ids = torch.randint(len(tiny_llama.tokenizer), (300,), generator=torch.Generator().manual_seed(0))
    seen = []
    settings = CacheBenchSettings(tokens=(40, 90), blocks=3, after=20, steps=2)
    rows = run_cache_bench(focus, ids, settings, lambda message, share: seen.append(share))
    kinds = [("off", None), ("hard", None), ("hard", 8)]
    assert [(row["tokens"], row["routing"], row["cache_bits"]) for row in rows] == [
        (tokens, *kind) for tokens in (40, 90) for kind in kinds
    ]
    for row in rows:
        assert row["seconds"]["min"] <= row["seconds"]["median"] <= row["seconds"]["max"]
        assert ("kl" in row) == (row["routing"] == "hard")
        if "kl" in row:
            assert len(row["block_kl"]) == 3 and row["kl"] == pytest.approx(sum(row["block_kl"]) / 3)
            assert row["kl_low"] <= row["kl"] <= row["kl_high"] and 0 <= row["agreement"] <= 1
    assert rows[5]["cache_bytes"] < rows[4]["cache_bytes"]
    assert len(seen) == 6 and focus.current.mode == "hard"

    # The last text again, by hand.
    block = ids[None, -113:]
    with torch.no_grad():
        full = tiny_llama_logits(focus, "off", block[:, :110])
        routed = tiny_llama_logits(focus, "hard", block[:, :110])
    kl = (full.log_softmax(-1).exp() * (full.log_softmax(-1) - routed.log_softmax(-1))).sum(-1)[90:]
    assert rows[4]["block_kl"][-1] == pytest.approx(float(kl.mean()), rel=1e-3, abs=1e-6)


def test_an_interrupted_benchmark_goes_on_with_the_lengths_that_are_left(tiny_llama, tmp_path, stops):
    tiny_llama.model.save_pretrained(tmp_path / "model")
    tiny_llama.tokenizer.save_pretrained(tmp_path / "model")
    retrofit(tiny_llama.model, CONFIG, seed=0).save_pretrained(tmp_path / "routers")
    (tmp_path / "text.txt").write_text("The keeper rowed to the island. " * 20)
    given = {"model": str(tmp_path / "model"), "out": tmp_path / "cache.json", "routers": str(tmp_path / "routers")}
    given |= {"data": tmp_path / "text.txt", "settings": CacheBenchSettings((20, 40), blocks=2, after=5, steps=1)}
    with pytest.raises(KeyboardInterrupt):
        record_cache_bench(**given, progress=stops("After 40", 0.1))
    first = json.loads((tmp_path / "cache.json").read_text(encoding="utf-8"))["results"]
    assert [row["tokens"] for row in first] == [20] * 3
    record = record_cache_bench(**given)
    assert record["results"][:3] == first and [row["tokens"] for row in record["results"][3:]] == [40] * 3


def tiny_llama_logits(focus, mode, ids):
    with focus.routing(mode):
        return focus(input_ids=ids, use_cache=False).logits[0].double()


def test_what_cannot_be_measured_is_refused(tiny_llama, tmp_path):
    small = CacheBenchSettings(tokens=(40,), blocks=2, after=5, steps=1)
    layer = retrofit(tiny_llama.model, FocusConfig(num_groups=4), seed=0)
    with pytest.raises(FocusError, match="Only narrow groups"):
        run_cache_bench(layer, torch.arange(90), small)
    layer.detach()
    focus = retrofit(tiny_llama.model, CONFIG, seed=0)
    with pytest.raises(FocusError, match="The text has 40 tokens, too few for 2 texts of 47"):
        run_cache_bench(focus, torch.arange(40), small)
    focus.detach()
    with pytest.raises(FocusError, match="at least 1"):
        CacheBenchSettings(blocks=0)
    with pytest.raises(FocusError, match="dtype is 'int4'"):
        record_cache_bench("default", tmp_path / "cache.json", dtype="int4")
    assert not list(tmp_path.glob("*.json"))
