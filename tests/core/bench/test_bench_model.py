"""The whole-model benchmark measures what it says; no assertion on how fast anything is."""

import pytest
import torch

from focus_core import FocusConfig, retrofit
from focus_core.bench.model import ModelBenchSettings, run_model_bench
from focus_core.errors import FocusError


def test_every_length_is_measured_untouched_and_routed_and_checked(tiny_llama):
    focus = retrofit(tiny_llama.model, FocusConfig(num_groups=4, window=8), seed=0)
    settings = ModelBenchSettings(prefill=(48, 64), decode=(32, 96), top_k=(1, 2), repetitions=2, steps=3)
    seen = []
    ids = torch.randint(len(tiny_llama.tokenizer), (50,), generator=torch.Generator().manual_seed(0))
    rows = run_model_bench(focus, ids, settings, lambda message, share: seen.append(share))
    assert [(row["task"], row["tokens"], row["top_k"]) for row in rows] == [
        (task, tokens, k)
        for task, sizes in (("prefill", (48, 64)), ("decode", (32, 96)))
        for tokens in sizes
        for k in (None, 1, 2)
    ]
    for row in rows:
        assert row["seconds"]["min"] <= row["seconds"]["median"] <= row["seconds"]["max"]
        assert row["kept_share"] == 1 if row["top_k"] is None else 0 < row["kept_share"] < 1
        assert row["speedup"] == pytest.approx(1.0) or row["top_k"] is not None
    checked = [row["error"] for row in rows if "error" in row]
    assert len(checked) == 2 and max(checked) < 1e-4
    assert len(seen) == 4 and focus.current.mode == "hard"


def test_a_k_the_routers_do_not_have_is_refused(tiny_llama):
    focus = retrofit(tiny_llama.model, FocusConfig(num_groups=4), seed=0)
    with pytest.raises(FocusError, match="top_k is 5"):
        run_model_bench(focus, torch.arange(5), ModelBenchSettings(top_k=(5,)))
