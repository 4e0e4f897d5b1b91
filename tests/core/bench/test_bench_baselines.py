"""Timing the baselines: what a point holds, that it is exact, resuming; no assertion on how fast anything is."""

import json
import math

import pytest
import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
from typer.testing import CliRunner

import focus_core.bench.baselines as bench
from focus_core import FocusConfig, retrofit
from focus_core.baselines import BASELINES
from focus_core.baselines.choosing import repeated
from focus_core.bench import heads as bench_head
from focus_core.cli import app
from focus_core.errors import FocusError

SMALL = dict(sizes=(200,), shares=(0.3,), window=8, head_dim=8, repetitions=1, fitted_tokens=64)


def test_points_are_exact_and_keep_the_share(tmp_path):
    record = bench.run_baseline_bench(bench.BaselineBenchSettings(**SMALL), tmp_path / "new" / "b.json")
    assert json.loads((tmp_path / "new" / "b.json").read_text()) == json.loads(json.dumps(record))
    assert [point["baseline"] for point in record["points"]] == list(BASELINES)
    for point in record["points"]:
        method = BASELINES[point["baseline"]]
        assert point["error_output"] < 1e-5
        assert (point["select_s"] is None) == method.fixed
        assert point["speedup"] == pytest.approx(point["full_s"]["median"] / point["attend_s"]["median"])
        if method.fixed:
            assert point["speedup_with_choice"] == point["speedup"] and point["way_with_choice"] == point["way"]
        else:
            taken = point["attend_with_choice_s"]["median"] + point["select_s"]
            assert point["speedup_with_choice"] == pytest.approx(point["full_s"]["median"] / taken)
        for query_heads, kv_heads in point["timed_heads"].values():
            assert query_heads == 3 * kv_heads >= 3
        if method.tunable:
            loose = point["baseline"] == "magicpig"  # fitted on another text
            assert point["kept_share"] == pytest.approx(0.3, abs=0.1 if loose else 0.02)
            distant = 191 * 192 / 2
            near = 200 * 201 / 2 - distant
            kept = point["kept_share"] * distant + near
            assert point["causal_kept_share"] == pytest.approx(kept / (200 * 201 / 2))
        else:
            assert point["share"] is None and point["kept_share"] is None


@pytest.mark.parametrize("name", ["streaming", "strided", "quest", "sparq", "magicpig"])
@pytest.mark.parametrize("threads", [1, 2])
def test_every_call_has_unrepeated_keys_and_values_for_grouped_heads(monkeypatch, name, threads):
    """Three query heads read one key/value head. Fails where keys are repeated for each, or heads run one by one."""
    calls = []

    def seen(name, call):
        def spy(query, key, value, *args, **kwargs):
            calls.append((name, query.shape, key.shape, value.shape))
            return call(query, key, value, *args, **kwargs)

        return spy

    sdpa = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", seen("sdpa", sdpa))
    monkeypatch.setattr(bench, "attend_window", seen("window", bench.attend_window))
    monkeypatch.setattr(bench, "attend_tiles", seen("tiles", bench.attend_tiles))
    monkeypatch.setattr(bench, "attend_key_blocks", seen("blocks", bench.attend_key_blocks))
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    settings = bench.BaselineBenchSettings(**SMALL, query_heads=3)
    (head,) = bench_head.random_heads(200, 64, 8, "cpu", 0, 3)
    assert head.query.shape == (1, 3, 200, 8) and head.key.shape == head.value.shape == (1, 1, 200, 8)
    point = bench.measure_baseline(settings, head, name, 0.3)
    assert point["error_output"] < 1e-5
    assert point["timed_heads"]["full_s"] == [3 * threads, threads]
    whole = [call for call in calls if call[0] == "sdpa" and call[1][2] == call[2][2] == 200 and call[1][1] > 1]
    assert whole and all(call[1:] == ((1, 3 * threads, 200, 8), *[(1, threads, 200, 8)] * 2) for call in whole)
    for which, query, key, value in calls:
        if which in ("tiles", "blocks"):
            assert query == (3 * 200, 8) and key == value == (200, 8)
        elif which == "window":
            assert query == (1, 3 * threads, 200, 8) and key == value == (1, threads, 200, 8)
        elif (which, query, key, value) not in whole:
            assert query[1] == key[1] == value[1] == 1  # a tile: heads are folded into rows
    folded = [call for call in calls if call[0] == "sdpa" and call[1][1] == 1]
    assert any(call[1][2] == 3 * 128 for call in folded)
    assert any(call[0] == "window" for call in calls) == (name == "streaming")


@pytest.mark.parametrize("name", ["sliding", "streaming", "strided", "bigbird", "kmeans", "quest", "sparq"])
def test_the_timed_call_is_dense_attention_over_the_kept_pairs_of_grouped_heads(name):
    """The result of the fastest way against softmax over the baseline's own mask, keys repeated, float64."""
    settings = bench.BaselineBenchSettings(**SMALL)
    (head,) = bench_head.random_heads(200, 64, 8, "cpu", 1, 3)
    method, case = BASELINES[name], bench._case(settings, head, name, 0.3)
    for way in bench._pair_ways(case, name, method):
        planned = way.plan()
        found = way.attend(planned).unflatten(0, (3, 200))
        kept = bench.kept_by(planned, torch.arange(600), 200).unflatten(0, (3, 200)) if "keys" not in way.name else kept
        logits = head.query[0].double() @ head.key[0, 0].double().T * head.scale
        expected = logits.masked_fill(~kept, float("-inf")).softmax(-1) @ head.value[0, 0].double()
        assert torch.allclose(found.double(), expected, atol=1e-5), way.name
    if method.fixed:
        assert torch.equal(kept, method.keep(repeated(case)).expand(1, 3, 200, 200)[0])


def test_a_tuned_setting_is_measured_and_recorded(tmp_path):
    tuned = {"quest": {"page": 4.0}}
    settings = bench.BaselineBenchSettings(**SMALL, baselines=("quest", "moba"), tuned=tuned)
    record = bench.run_baseline_bench(settings, tmp_path / "b.json")
    assert [point["setting"] for point in record["points"]] == [{"page": 4.0}, {}]
    default = bench.BaselineBenchSettings(**SMALL, baselines=("quest",))
    assert len(bench.run_baseline_bench(default, tmp_path / "b.json")["points"]) == 3
    with pytest.raises(FocusError, match="quest has no setting of size: give page"):
        bench.BaselineBenchSettings(tuned={"quest": {"size": 4}})


def test_the_default_points_are_those_of_quality():
    settings = bench.BaselineBenchSettings()
    assert settings.sizes == (512, 2048, 8192) and settings.shares == (0.15,)


def test_an_older_record_is_not_continued(tmp_path):
    out = tmp_path / "b.json"
    bench.run_baseline_bench(bench.BaselineBenchSettings(**SMALL, baselines=("moba",)), out)
    out.write_text(out.read_text().replace(bench.SCHEMA, bench.UNFOLDED))
    with pytest.raises(FocusError, match="other settings"):
        bench.run_baseline_bench(bench.BaselineBenchSettings(**SMALL, baselines=("moba",)), out)


def test_a_run_resumes_and_other_settings_are_refused(tmp_path):
    out = tmp_path / "b.json"
    first = bench.run_baseline_bench(bench.BaselineBenchSettings(**SMALL, baselines=("moba",)), out)
    both = bench.run_baseline_bench(bench.BaselineBenchSettings(**SMALL, baselines=("moba", "lsh")), out)
    assert both["points"][0] == first["points"][0] and len(both["points"]) == 2
    with pytest.raises(FocusError, match="other settings"):
        bench.run_baseline_bench(bench.BaselineBenchSettings(**SMALL | {"window": 9}), out)


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(sizes=(0,)), "at least 1"),
        (dict(shares=(1.5,)), "between 0 and 1"),
        (dict(baselines=("magic",)), "no baseline 'magic'"),
        (dict(baselines=("sliding",), tuned={"quest": {"page": 4}}), "quest has a setting and is not measured"),
        (dict(tuned={"quest": {"bits": 4}}), "quest has no setting of bits: give page"),
        (dict(tuned={"quest": {"page": 0}}), "page of quest is 0: give a whole number"),
        (dict(tuned={"quest": {"page": 1.5}}), "page of quest is 1.5"),
        (dict(tuned={"magicpig": {"bits": -5}}), "bits of magicpig is -5"),
        (dict(tuned={"kmeans": {"clusters": math.inf}}), "clusters of kmeans is inf"),
        (dict(tuned={"moba": {"page": math.nan}}), "page of moba is nan"),
        (dict(tuned={"sparq": {"components": 1e30}}), "a share above 0 and up to 1"),
        (dict(tuned={"sparq": {"components": 0}}), "components of sparq is 0"),
    ],
)
def test_settings_are_checked(change, message):
    with pytest.raises(FocusError, match=message):
        bench.BaselineBenchSettings(**change)


def test_the_command_measures_baselines(tmp_path):
    out = tmp_path / "b.json"
    arguments = ["bench", "baseline", "streaming", "sparq", "--share", "0.3", "--size", "100"]
    result = CliRunner().invoke(app, [*arguments, "--window", "8", "--repetitions", "1", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "streaming" in result.output and "sparq" in result.output
    assert [point["tokens"] for point in json.loads(out.read_text())["points"]] == [100, 100]


def test_a_models_head_is_what_its_attention_gets(tiny_llama):
    focus = retrofit(tiny_llama.model, FocusConfig(num_groups=4, top_k=1, window=4, sink_tokens=1, route_dim=8))
    ids = torch.arange(1, 41)
    layer, heads = 1, tiny_llama.model.config.num_attention_heads
    attention = focus.model.base_model.layers[layer].self_attn
    seen = {}
    hook = attention.register_forward_pre_hook(lambda module, args, kwargs: seen.update(kwargs), with_kwargs=True)
    with torch.inference_mode(), focus.routing("off"):
        focus.model.base_model(input_ids=ids[None], use_cache=False)
    hook.remove()
    hidden, (cos, sin) = seen["hidden_states"], seen["position_embeddings"]
    key_heads = tiny_llama.model.config.num_key_value_heads
    with torch.inference_mode():
        query = attention.q_proj(hidden).unflatten(-1, (heads, -1)).transpose(1, 2)
        key = attention.k_proj(hidden).unflatten(-1, (key_heads, -1)).transpose(1, 2)
        value = attention.v_proj(hidden).unflatten(-1, (key_heads, -1)).transpose(1, 2)
        query, key = apply_rotary_pos_emb(query, key, cos, sin)
    places = [(0, 1), (layer, 0), (layer, heads - 1)]
    for (_, head), found in list(zip(places, bench_head.model_heads(focus, ids, places)))[1:]:
        each = heads // key_heads
        group = head // each
        mine = slice(group * each, (group + 1) * each)
        for ours, theirs in zip(found[:3], (query[:, mine], key[:, group, None], value[:, group, None])):
            assert ours.shape == theirs.shape and torch.allclose(ours, theirs, atol=1e-5)
        assert found[3] == pytest.approx(attention.scaling)


def test_the_command_reads_a_text_with_a_model(tmp_path, tiny_llama):
    tiny_llama.model.save_pretrained(tmp_path / "model")
    tiny_llama.tokenizer.save_pretrained(tmp_path / "model")
    text, out = tmp_path / "text.txt", tmp_path / "b.json"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 4)
    arguments = ["bench", "baseline", "moba", "--model", tmp_path / "model", "--data", text, "--share", 0.3]
    arguments += ["--size", 100, "--window", 8, "--repetitions", 1, "--device", "cpu", "--out", out]
    result = CliRunner().invoke(app, [str(part) for part in arguments])
    assert result.exit_code == 0, result.output
    record = json.loads(out.read_text())
    assert record["settings"]["source"]["data"][0]["name"] == "text.txt"
    config = tiny_llama.model.config
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    sample = {(layers * part // 4, heads * part // 4) for part in (1, 2, 3)}
    assert {tuple(point["head"]) for point in record["points"]} == sample and len(sample) == len(record["points"])
    assert all(point["error_output"] < 1e-5 for point in record["points"])
    first = record["points"]
    result = CliRunner().invoke(app, [*map(str, arguments), "--head", f"{layers - 1}/0"])
    assert result.exit_code == 0, result.output
    points = json.loads(out.read_text())["points"]
    assert points[: len(first)] == first and [point["head"] for point in points[len(first) :]] == [[layers - 1, 0]]


def test_learned_baselines_are_trained_and_then_timed(tmp_path, tiny_llama):
    tiny_llama.model.save_pretrained(tmp_path / "model")
    tiny_llama.tokenizer.save_pretrained(tmp_path / "model")
    text, out = tmp_path / "text.txt", tmp_path / "b.json"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 60)
    arguments = ["bench", "baseline", "seer", "indexer", "--model", tmp_path / "model", "--data", text, "--share", 0.3]
    arguments += ["--size", 100, "--window", 8, "--repetitions", 1, "--device", "cpu", "--out", out, "--head", "2/3"]
    given = [str(part) for part in arguments]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 2 and "--train" in result.output
    result = CliRunner().invoke(app, [*given, "--train", str(text), "--learned-tokens", "1024"])
    assert result.exit_code == 0, result.output
    record = json.loads(out.read_text())
    assert [point["baseline"] for point in record["points"]] == ["seer", "indexer"]
    for point in record["points"]:
        assert point["error_output"] < 1e-5 and point["kept_share"] == pytest.approx(0.3, abs=0.02)
        taken = point["attend_with_choice_s"]["median"] + point["select_s"]
        assert point["speedup_with_choice"] == pytest.approx(point["full_s"]["median"] / taken)
    learned = record["settings"]["source"]["learned"]
    assert learned["tokens"] == 1024 and learned["data"][0]["name"] == "text.txt"


@pytest.mark.parametrize("more", [["streaming", "--train", "TEXT"], ["quest", "--learned-tokens", "2048"], ["seer"]])
def test_training_belongs_to_learned_baselines(tmp_path, more):
    (tmp_path / "text.txt").write_text("words")
    given = [part.replace("TEXT", str(tmp_path / "text.txt")) for part in more]
    result = CliRunner().invoke(app, ["bench", "baseline", *given, "--out", str(tmp_path / "b.json")])
    assert result.exit_code == 2 and "belong together" in result.output and not (tmp_path / "b.json").exists()


def test_heads_that_are_not_there_are_refused(tiny_llama):
    focus = retrofit(tiny_llama.model, FocusConfig(num_groups=4, top_k=1, window=4, sink_tokens=1, route_dim=8))
    layers, heads = tiny_llama.model.config.num_hidden_layers, tiny_llama.model.config.num_attention_heads
    known = ", ".join(map(str, range(layers)))
    for layer, head in ((layers, 0), (0, heads)):
        with pytest.raises(FocusError, match=f"no head {layer}/{head}: layers are {known}"):
            bench_head.check_heads(focus, [(layer, head)])
    result = CliRunner().invoke(app, ["bench", "baseline", "moba", "--head", "0/0"])
    assert result.exit_code == 2 and "--model" in result.output


def test_settings_of_baselines_reach_the_record(tmp_path):
    out = tmp_path / "bench.json"
    options = ["--size", "64", "--share", "0.3", "--repetitions", "1", "--setting", "quest:page=4", "--out", str(out)]
    done = CliRunner().invoke(app, ["bench", "baseline", "quest", *options])
    assert done.exit_code == 0, done.output
    (point,) = json.loads(out.read_text(encoding="utf-8"))["points"]
    assert point["setting"] == {"page": 4}
    done = CliRunner().invoke(app, ["bench", "baseline", "quest", "--setting", "quest:page", "--out", str(out)])
    assert done.exit_code == 2 and "quest:page=4" in done.output
