"""The whole-model benchmark measures what it says; no assertion on how fast anything is."""

import json

import pytest
import torch
from typer.testing import CliRunner

from focus_core import FocusConfig, retrofit
from focus_core.bench.model import ModelBenchSettings, record_model_bench, run_model_bench
from focus_core.cli import app
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


def test_the_record_is_written_and_returned(tmp_path, tiny_llama):
    tiny_llama.model.save_pretrained(tmp_path / "model")
    tiny_llama.tokenizer.save_pretrained(tmp_path / "model")
    retrofit(tiny_llama.model, FocusConfig(num_groups=4, window=8), seed=0).save_pretrained(tmp_path / "routers")
    record = record_model_bench(
        str(tmp_path / "model"),
        tmp_path / "bench.json",
        routers=str(tmp_path / "routers"),
        settings=ModelBenchSettings(prefill=(32,), decode=(24,), top_k=(1,), repetitions=1, steps=1),
    )
    assert json.loads((tmp_path / "bench.json").read_text(encoding="utf-8")) == record
    assert record["schema"] == "focus-bench-model/1" and record["data"][0]["name"] == "story.txt"
    assert record["settings"]["config"]["num_groups"] == 4 and record["settings"]["measured"]["prefill"] == [32]
    assert [(row["task"], row["top_k"]) for row in record["results"]] == [
        ("prefill", None),
        ("prefill", 1),
        ("decode", None),
        ("decode", 1),
    ]


def test_a_dtype_that_is_none_is_refused():
    result = CliRunner().invoke(app, ["bench", "model", "--dtype", "int8"])
    assert (result.exit_code, result.stderr) == (2, "dtype is 'int8': choose one of float32, bfloat16, float16.\n")
