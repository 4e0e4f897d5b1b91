"""The whole-model benchmark measures what it says; no assertion on how fast anything is."""

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from focus_core import FocusConfig, retrofit
from focus_core.bench.kept import LATE
from focus_core.bench.model import ModelBenchSettings, record_model_bench, run_model_bench
from focus_core.bench.window import window_of_share, window_rule
from focus_core.cli import app
from focus_core.errors import FocusError


def test_every_length_is_measured_untouched_and_routed_and_checked(tiny_llama):
    focus = retrofit(tiny_llama.model, FocusConfig(num_groups=4, window=8), seed=0)
    settings = ModelBenchSettings(prefill=(48, 64), decode=(32, 96), top_k=(1, 2), repetitions=2, steps=3)
    seen = []
    ids = torch.randint(len(tiny_llama.tokenizer), (50,), generator=torch.Generator().manual_seed(0))
    rows = run_model_bench(focus, ids, settings, lambda message, share: seen.append(share))
    read, written = ("off", "hard", "hard", "window", "window"), ("off", "hard", "hard")
    assert [(row["task"], row["tokens"], row["routing"], row["top_k"]) for row in rows] == [
        (task, tokens, routing, k)
        for task, sizes, modes in (("prefill", (48, 64), read), ("decode", (32, 96), written))
        for tokens in sizes
        for routing, k in zip(modes, (None, 1, 2, None, None))
    ]
    for row in rows:
        assert row["seconds"]["min"] <= row["seconds"]["median"] <= row["seconds"]["max"]
        assert row["kept_share"] == 1 if row["routing"] == "off" else 0 < row["kept_share"] < 1
        assert row["speedup"] == pytest.approx(1.0) or row["routing"] != "off"
    shares = {(row["tokens"], row["routing"], row["top_k"]): row for row in rows if row["task"] == "prefill"}
    for tokens in (48, 64):
        windows = [row for row in rows if row["routing"] == "window" and row["tokens"] == tokens]
        for k, window in zip((1, 2), windows):  # as many pairs as the routed run, up to one more diagonal
            spare = tokens / ((tokens - 8) * (tokens - 9) / 2)
            assert 0 <= window["distant_share"] - shares[tokens, "hard", k]["distant_share"] <= spare
    checked = [row["error"] for row in rows if "error" in row]
    assert len(checked) == 2 and max(checked) < 1e-4
    assert len(seen) == 4 and focus.current.mode == "hard"


@pytest.mark.parametrize(("share", "budgets"), [(0.2, (None,)), (None, (1, 2))])
def test_narrow_groups_are_measured_at_their_share_or_at_each_k(tiny_llama, share, budgets):
    config = FocusConfig(router="narrow", num_groups=4, top_k=1, window=8, chunk=4, read_share=share)
    settings = ModelBenchSettings(prefill=(48,), decode=(40,), repetitions=1, steps=5, full_below=0)
    rows = run_model_bench(retrofit(tiny_llama.model, config, seed=0), torch.arange(50), settings)
    assert [(row["task"], row["routing"], row["top_k"]) for row in rows] == [
        ("prefill", "off", None),
        *(("prefill", "hard", k) for k in budgets),
        *(("prefill", "window", None) for _ in budgets),
        ("decode", "off", None),
        *(("decode", "hard", k) for k in budgets),
    ]


@pytest.mark.parametrize("tokens", [40, 200])
def test_a_decoded_token_reads_as_many_keys_as_those_before_it(tiny_llama, tokens):
    """Pairs of the text less those of a shorter one, each counted in a pass of its own."""
    config = FocusConfig(router="narrow", num_groups=4, top_k=1, window=8, chunk=4, read_share=0.2)
    focus = retrofit(tiny_llama.model, config, seed=0)
    ids = torch.randint(len(tiny_llama.tokenizer), (tokens + 9,), generator=torch.Generator().manual_seed(0))
    settings = ModelBenchSettings(prefill=(16,), decode=(tokens,), repetitions=1, steps=3, full_below=0)
    untouched, ours = run_model_bench(focus, ids, settings)[-2:]

    def counted(length):
        counts = []
        with torch.inference_mode(), focus.observe(lambda routing: counts.append(routing.pair_counts())):
            focus.model(ids[None, :length], use_cache=False)
        return [sum(int(getattr(each, name).sum()) for each in counts) for name in ("kept", "causal")]

    kept, causal = counted(tokens)
    if tokens > LATE:
        earlier = counted(tokens - LATE)
        kept, causal = kept - earlier[0], causal - earlier[1]
    assert untouched["kept_share"] == 1 and ours["kept_share"] == pytest.approx(kept / causal)


def test_a_run_whose_first_tokens_attend_to_everything_stands_beside(tiny_llama):
    config = FocusConfig(router="narrow", num_groups=4, top_k=1, window=8, chunk=4, read_share=0.1)
    settings = ModelBenchSettings(prefill=(48, 32), decode=(40, 20), repetitions=1, steps=3, full_below=36)
    rows = run_model_bench(retrofit(tiny_llama.model, config, seed=0), torch.arange(50), settings)
    kept = {(row["task"], row["tokens"], row["routing"]): row["kept_share"] for row in rows}
    assert kept["prefill", 48, "hard"] < kept["prefill", 48, "switched"] < 1 == kept["prefill", 32, "switched"]
    assert kept["decode", 40, "switched"] == kept["decode", 40, "hard"] < 1 == kept["decode", 20, "switched"]
    assert {row["full_below"] for row in rows if row["routing"] == "switched"} == {36}


@pytest.mark.parametrize("router", ["layer", "head"])
def test_the_window_is_that_of_a_mask(tiny_llama, router):
    """Against the base model under an additive mask of its own, with eager attention."""
    ids = torch.randint(len(tiny_llama.tokenizer), (2, 40), generator=torch.Generator().manual_seed(0))
    focus = retrofit(tiny_llama.model, FocusConfig(router=router, num_groups=4, window=8, sink_tokens=3), seed=0)
    with torch.inference_mode(), focus.routing("hard", rule=window_rule(11, 3)):
        ours = focus(input_ids=ids).logits
    model = focus.detach()
    index = torch.arange(40)
    distance = index[:, None] - index
    kept = (distance >= 0) & ((distance <= 11) | (index < 3))
    mask = torch.zeros(2, 1, 40, 40).masked_fill_(~kept, torch.finfo(torch.float32).min)
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        theirs = model(input_ids=ids, attention_mask=mask).logits
        untouched = model(input_ids=ids).logits
    model.set_attn_implementation(before)
    assert torch.allclose(ours, theirs, atol=1e-4) and not torch.allclose(ours, untouched, atol=1e-3)


@given(st.floats(0, 1), st.integers(1, 90), st.integers(0, 12), st.integers(0, 5))
def test_the_window_of_a_share_is_the_smallest(share, tokens, window, sinks):
    index = torch.arange(tokens)
    distance = index[:, None] - index
    distant = distance > window

    def kept(width):
        return int((distant & ((distance <= width) | (index < sinks))).sum())

    width = window_of_share(share, tokens, window, sinks)
    assert width >= window and kept(width) >= share * int(distant.sum()) - 1e-3
    assert width == window or kept(width - 1) < share * int(distant.sum()) + 1e-3


def test_a_k_the_routers_do_not_have_is_refused(tiny_llama):
    focus = retrofit(tiny_llama.model, FocusConfig(num_groups=4), seed=0)
    with pytest.raises(FocusError, match="top_k is 5"):
        run_model_bench(focus, torch.arange(5), ModelBenchSettings(top_k=(5,)))
    with pytest.raises(FocusError, match="leave --full-below out"):
        run_model_bench(focus, torch.arange(5), ModelBenchSettings(full_below=64))
    focus = retrofit(focus.detach(), FocusConfig(router="narrow", num_groups=4, top_k=1, read_share=0.2))
    with pytest.raises(FocusError, match="leave --k out"):
        run_model_bench(focus, torch.arange(5), ModelBenchSettings(top_k=(1,)))


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
    assert record["model"]["positions"] == tiny_llama.model.config.max_position_embeddings
    assert record["settings"]["config"]["num_groups"] == 4 and record["settings"]["measured"]["prefill"] == [32]
    assert [(row["task"], row["top_k"]) for row in record["results"]] == [
        ("prefill", None),
        ("prefill", 1),
        ("prefill", None),
        ("decode", None),
        ("decode", 1),
    ]


def test_an_interrupted_benchmark_goes_on_with_the_lengths_that_are_left(tmp_path, tiny_llama, stops):
    tiny_llama.model.save_pretrained(tmp_path / "model")
    tiny_llama.tokenizer.save_pretrained(tmp_path / "model")
    retrofit(tiny_llama.model, FocusConfig(num_groups=4, window=8), seed=0).save_pretrained(tmp_path / "routers")
    settings = ModelBenchSettings(prefill=(16, 32), decode=(24,), top_k=(1,), repetitions=1, steps=1)
    given = {"model": str(tmp_path / "model"), "out": tmp_path / "bench.json", "routers": str(tmp_path / "routers")}
    with pytest.raises(KeyboardInterrupt):
        record_model_bench(**given, settings=settings, progress=stops("Decode", 0.1))
    first = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))["results"]
    assert [(row["task"], row["tokens"]) for row in first] == [("prefill", 16)] * 3 + [("prefill", 32)] * 3
    record = record_model_bench(**given, settings=settings)
    assert record["results"][:6] == first and {row["task"] for row in record["results"][6:]} == {"decode"}
    assert record_model_bench(**given, settings=settings)["results"] == record["results"]
    with pytest.raises(FocusError, match="name another file with --out"):
        record_model_bench(**given, settings=replace(settings, steps=2))


def test_a_dtype_that_is_none_is_refused():
    result = CliRunner().invoke(app, ["bench", "model", "--dtype", "int8"])
    assert (result.exit_code, result.stderr) == (2, "dtype is 'int8': choose one of float32, bfloat16, float16.\n")
