"""The views of the Quality page beyond perplexity: records of real runs on a tiny model, read and drawn."""

import copy
import json
import logging
import math
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from opening import open_page, shown
from transformers import LlamaConfig, LlamaForCausalLM

from focus_core import FocusConfig, FocusError, retrofit
from focus_core.evaluation import evaluate, standard_settings
from focus_core.frontier.measure import SCHEMA, baseline_point, routed_point
from focus_core.io.files import write_atomic
from focus_core.models import LoadedModel, ModelInfo
from focus_core.reproduce.context import Context, Scale
from focus_core.reproduce.registry import EXPERIMENTS
from focus_core.reproduce.runner import run_experiment
from focus_core.resources import data_dir
from focus_core.results import REPRODUCTION, made_now, plain, record_run
from workbench.views.quality.record_charts import draw
from workbench.views.quality.record_tables import SPEEDS
from workbench.views.quality.record_verdicts import few_blocks, num_blocks, verdict
from workbench.views.quality.records import VIEWS, Record, by_name, find_records, read, run_files

SHIPPED = sorted((data_dir() / "results").rglob("*.json"))
WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "one", "dog", "run", "past", "it", "then", "slept"]
CELLS = {
    "recipes": ["heads", "colder"],
    "k-sweep": None,
    "lengths": None,
    "domains": ["held.txt", "news.txt"],
    "stability": ["losses", "sinkhorn-10"],
    "ablation": ["default", "num_groups=4"],
    "finetune": ["full attention"],
}
CONFIG = FocusConfig(num_groups=4, top_k=1, window=8, sink_tokens=1, route_dim=8)


@pytest.fixture(scope="module")
def tiny(byte_tokenizer):
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(byte_tokenizer), max_position_embeddings=1024, **shape)).eval()
    return LoadedModel(model, byte_tokenizer, ModelInfo("tiny", "folder", "0" * 12, "LlamaForCausalLM", 0))


@pytest.fixture(scope="module")
def recorded(tiny, tmp_path_factory):
    """A folder of runs with one record of every kind that a tiny model makes in a second."""
    folder = tmp_path_factory.mktemp("evidence")
    runs = folder / "runs"
    tiny.model.save_pretrained(folder / "model")
    tiny.tokenizer.save_pretrained(folder / "model")
    for name, seed in (("train.txt", 0), ("held.txt", 1)):
        (folder / name).write_text(" ".join(np.random.default_rng(seed).choice(WORDS, 900)))
    focus = retrofit(tiny.model, CONFIG)
    focus.trained = True
    focus.save_pretrained(folder / "routers")
    rows = [
        evaluate(focus, np.random.default_rng(0).integers(1, 200, (4, 48)), routing=mode, top_k=k, balance=balance)
        for mode, k, balance in standard_settings(4, (1, 2))
    ]
    causal = [row for row in rows if row.routing == "off" or row.balance == "calibrated"]
    held = np.random.default_rng(0).integers(1, 200, (4, 48))
    budget = {"share": 0.4, "window": 8, "sinks": 1, "training_text": torch.from_numpy(held)}
    points = [routed_point("mine", f"mine, k={row.top_k}", "", row) for row in causal]
    points += [baseline_point(focus, name, held, **budget) for name in ("strided", "quest")]
    focus.detach()
    for name, cells in CELLS.items():
        context = Context(
            Scale(2, 2, 1024 if name == "lengths" else 64, 2, 3, 8, 2),
            folder,
            data=[folder / "train.txt"],
            held_out=[folder / "held.txt"],
            models=[str(folder / "model")],
            routers=str(folder / "routers"),
        )
        run_experiment(name, EXPERIMENTS[name], context, out=runs / f"reproduce-{name}", only=cells)
    model = {"name": "tiny", "revision": "0"}
    settings = {"config": CONFIG, "routers": "mine", "trained": True, "length": 48}
    evaluated = {"schema": "focus-eval/1", "model": model, "settings": settings, "data": [], "results": rows}
    record_run(runs / "eval" / "result.json", evaluated)
    record_run(runs / "frontier" / "result.json", {"schema": SCHEMA, "model": model, "points": points})
    return runs


@pytest.fixture
def records(recorded, tmp_path, monkeypatch):
    """A copy of the runs, which the app finds."""
    shutil.copytree(recorded, tmp_path / "runs")
    monkeypatch.setenv("FOCUS_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def harness_records(runs, tiny):
    """Records of `focus harness` and of the former `focus lora`, from a task without files."""
    from focus_core.harness.model import FocusLM
    from focus_core.harness.scores import Setting, run_task, summary
    from focus_core.harness.tasks import load_task
    from focus_core.reproduce.studies.lora import LoraSettings
    from focus_core.reproduce.studies.lora_grid import Yardstick, run_grid
    from focus_core.training.stream import TokenStream, find_sources

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    text, model = "The cat sat. The dog ran off! " * 60, {"name": "tiny", "revision": "0"}
    base = copy.deepcopy(tiny.model)
    focus = retrofit(base, CONFIG)
    plan = [Setting("off"), Setting("hard", 1)]
    task = load_task("needle_200", tiny.tokenizer, data=None, filler=text)
    found = {
        each.name: run_task(FocusLM(focus, tokenizer=tiny.tokenizer, mode=each.mode, top_k=each.top_k), task, 4)
        for each in plan
    }
    report = {
        "schema": "focus-harness/1",
        "model": model,
        "settings": {},
        "results": summary({"needle_200": found}, plan),
    }
    record_run(runs / "bench" / "summary.json", report)
    source = runs / "text.txt"
    source.write_text(text)
    grid = run_grid(
        lambda: tiny._replace(model=copy.deepcopy(tiny.model)),
        lambda: TokenStream(find_sources([source]), tiny.tokenizer, 32),
        [LoraSettings(2, 1e-2, steps=2)],
        Yardstick(np.random.default_rng(0).integers(1, 200, (4, 32)), ["needle_200"], None, 3, text),
        {"seed": 0},
        runs / "grid",
    )
    former = plain({"model": model, "settings": {"steps": 2}, **grid, "made": made_now()})
    write_atomic(runs / "lora" / "summary.json", json.dumps(former))


def test_differences_over_few_blocks_come_with_a_caution():
    few = "Measured on 8 blocks of text: fewer than 16, so small differences and ranks are not established."
    assert num_blocks({"settings": {"blocks": 8}}) == num_blocks({"settings": {"scale": {"blocks": 8}}}) == 8
    assert num_blocks({"settings": {"blocks": 16}, "points": [{"block_nll": [1.0] * 8}]}) == 8
    assert few_blocks(8) == [few] and few_blocks(16) == few_blocks(None) == []
    assert num_blocks({"settings": {}}) is None and num_blocks({}) is None
    assert num_blocks({"experiment": "lengths", "settings": {"scale": {"blocks": 1}}}) is None


def test_every_record_is_found_read_and_drawn(records, tiny):
    pytest.importorskip("lm_eval")
    pytest.importorskip("peft")
    harness_records(records, tiny)
    found = {record.kind: record for record in find_records(run_files())}
    assert set(found) == {*CELLS, "leak", "benchmarks", "adapters", "frontier"}
    for kind, record in found.items():
        view, table = VIEWS[kind], read(record)
        assert len(table), kind
        blocks = num_blocks(record.content)
        sentence = verdict(view.draw, table, view.metric, blocks=blocks)
        assert sentence.endswith(".") and "nan" not in sentence
        assert (blocks is None) == (kind in ("benchmarks", "adapters", "lengths"))
        assert blocks is None or "fewer than 16" in sentence
        assert "significant" not in sentence or kind in ("benchmarks", "adapters")
        for dark in (False, True):
            figure = draw(view.draw, table, metric=view.metric, dark=dark)
            drawn = sum(len(trace.x) for trace in figure.data)
            assert drawn == len(table) * (2 if view.draw == "curves" else 1), kind
    truth = found["stability"].content["curve"]["losses"][-1]
    last = read(found["stability"]).query("variant == 'softmax, entropy and balance losses'").iloc[-1]
    assert (last["step"], last["largest group"], last["stability"]) == (4, truth["largest"], truth["stability"])
    frontier = read(found["frontier"])
    assert frontier["series"].tolist() == ["mine", "mine", "strided", "block top-k, bounds"]
    points = found["frontier"].content["points"]
    assert frontier["difference"].tolist() == pytest.approx(
        [point["perplexity"] - points[0]["perplexity"] for point in points[1:]]
    )
    sweep = read(found["k-sweep"])
    assert sweep.loc[sweep["k"] == 4, "relative"].tolist() == pytest.approx([1, 1], rel=1e-5)
    leak = read(found["leak"])
    assert leak["label"].tolist() == ["k = 1", "k = 2"] and leak["low"].notna().all()


@pytest.mark.parametrize("kind", list(VIEWS))
def test_the_page_shows_a_view_or_names_its_command(records, kind):
    app = open_page("quality", evidence=kind)
    said = shown(app).replace("\\", "")
    if kind in CELLS or kind == "leak":
        assert app.selectbox(key="record").value and "none yet" not in said.split("Evidence that is missing")[0][:50]
        assert f"{VIEWS[kind].question}." in said
    else:
        assert VIEWS[kind].command in said


def test_damaged_records_are_refused_in_one_sentence(records):
    path = next(records.glob("reproduce-k-sweep/result.json"))
    content = json.loads(path.read_text())
    content["results"][1].pop("speedup_bound")
    path.write_text(json.dumps(content))
    (record,) = [each for each in find_records([path])]
    with pytest.raises(FocusError, match="damaged"):
        read(record)
    app = open_page("quality", evidence="k-sweep")
    assert any("damaged" in error.value for error in app.error)
    for text in ("", "[" * 5000, "{}", '{"schema": "focus-reproduce/1", "experiment": "x", "model": {"name": "a"}}'):
        path.write_text(text)
        assert find_records([path, path.with_name("gone.json")]) == []


def test_records_of_one_name_are_told_apart():
    records = [Record("kinds", name, "2026-01-01", {"number": number}) for number, name in enumerate("abaa")]
    found = {key: each.content["number"] for key, each in by_name(records).items()}
    assert found == {"a": 0, "b": 1, "a 2": 2, "a 3": 3}


def test_a_frontier_is_drawn_against_measured_speed_too():
    record = {
        "series": ["a", "a", "b", "SparQ"],
        "kind": ["routers", "routers", "routers", "baseline"],
        "label": ["a, k=1", "a, k=2", "b, k=1", "SparQ"],
        "distant kept": [0.2, 0.4, 0.15, 0.2],
        "perplexity": [51.0, 50.5, 55.0, 50.1],
        "relative": [1.02, 1.01, 1.1, 1.002],
        "speed-up at 8K": [2.0, 1.4, math.nan, 0.7],
        "speed-up at 32K": [4.0, 2.1, math.nan, 0.6],
    }
    table = pd.DataFrame(record)
    for dark in (False, True):
        kept = draw("frontier", table, metric="", dark=dark)
        speed = draw("frontier", table, metric="", dark=dark, against="speed-up at 32K")
        assert [trace.name for trace in kept.data] == ["a", "b", "SparQ"]
        assert {trace.name: list(trace.x) for trace in speed.data} == {"a": [2.1, 4.0], "SparQ": [0.6]}
        assert speed.data[0].line.color == kept.data[0].line.color
        assert speed.layout.xaxis.ticktext == ("0x", "1x", "2x", "3x", "4x")
        assert "speed-up at 32K tokens" in speed.layout.xaxis.title.text
    assert verdict("frontier", table, "", "speed-up at 32K") == (
        "At 32,768 tokens and 2.1x the speed, “a, k=2” changes perplexity by +1.0% and keeps 40% of the distant pairs.\n\n"
        "At 32,768 tokens and 4.0x the speed, “a, k=1” changes perplexity by +2.0% and keeps 20% of the distant pairs. "
        "Speed of one attention call, selection time excluded. Baselines are not ranked: their recorded speeds are "
        "understated until they are measured again."
    )
    slow = table.loc[table["kind"] == "baseline"]
    assert verdict("frontier", slow, "", "speed-up at 8K") == (
        "No routers here are 1.5 times as fast as full attention at 8,192 tokens.\n\nBaselines are not ranked: their "
        "recorded speeds are understated until they are measured again."
    )


def test_a_speed_stands_only_beside_a_perplexity_of_its_own_length(tmp_path):
    (record, *_) = [each for each in find_records(SHIPPED) if each.name == "frontier-2048"]
    assert read(record)[list(SPEEDS)].isna().all(axis=None)
    app = open_page("quality", evidence="frontier", frontier_axis="speed32768", routers="smollm2-135m-k8")
    said = shown(app).replace("\\", "")
    assert "frontier_axis" not in [group.key for group in app.get("button_group")] and "x the speed" not in said
    assert not any(name in table.value for table in app.dataframe for name in SPEEDS)
    assert "blocks of text: fewer than 16" in said and "no win over full attention" in said
    content = copy.deepcopy(record.content)
    content["settings"]["length"] = 8192
    routed = next(point for point in content["points"] if point["kind"] == "routers")
    content["points"].append(routed | {"router": "narrow", "num_groups": 64, "top_k": None, "kept_share": 0.15})
    (tmp_path / "long.json").write_text(json.dumps(content))
    table = read(*find_records([tmp_path / "long.json"]))
    assert table["speed-up at 8K"].notna().any() and table["speed-up at 32K"].isna().all()


def test_a_frontier_names_the_best_routers_under_each_share():
    def point(kind, label, kept, relative):
        return {"kind": kind, "label": label, "distant kept": kept, "relative": relative, "perplexity": 50 * relative}

    table = pd.DataFrame(
        [
            point("untouched", "untouched model", 1.0, 1.0),
            point("routers", "a, k=1", 0.14, 1.10),
            point("routers", "b, k=1", 0.17, 1.03),
            point("routers", "b, k=2", 0.31, 1.04),
            point("routers", "b, k=3", 0.45, 1.01),
            point("routers", "b, k=4", 0.6, 1.0),
            point("baseline", "oracle", 0.18, 1.0),
            point("baseline", "random", 0.18, 1.2),
            point("baseline", "random", 0.47, 1.05),
        ]
    )
    assert verdict("frontier", table, "") == (
        "With at most 20% of the distant pairs, “b, k=1” changes perplexity by +3.0% and keeps 17%.\n\n"
        "With at most 50% of the distant pairs, “b, k=3” changes perplexity by +1.0% and keeps 45%. "
        "Named are the routers of smallest perplexity at each share."
    )
    few = verdict("frontier", table, "", blocks=8)
    assert few.endswith(
        "Measured on 8 blocks of text: fewer than 16, so small differences and ranks are not established."
    )
    below = verdict("frontier", table.assign(relative=table["relative"] - 0.1), "", blocks=16)
    assert "no win over full attention" in below and "not established" not in below


def test_differences_are_called_significant_over_enough_blocks_only():
    table = pd.DataFrame({"difference": [1.0, 0.1, -1.0], "low": [0.5, -0.1, math.nan], "high": [1.5, 0.3, math.nan]})
    assert verdict("differences", table, "the difference", blocks=16) == (
        "Of 3 rows, the difference is significantly above 0 in 1 and below 0 in 0.\n\n1 are not significant (95% "
        "intervals, not corrected for the number of rows). 1 rows have no interval."
    )
    few = verdict("differences", table, "the difference", blocks=8)
    assert few.startswith("Over 3 rows, the difference ranges from -1 to +1.") and "significant" not in few
    assert "not established" in few


def test_routers_beyond_the_largest_budget_are_named_as_such():
    table = pd.DataFrame(
        [{"kind": "routers", "label": "b, k=4", "distant kept": 0.6, "relative": 1.0, "perplexity": 50}]
    )
    assert verdict("frontier", table, "") == "All routers here keep more than 50% of the distant pairs."


@pytest.mark.parametrize(
    "change",
    [{"results": [{}, 0]}, {"schema": REPRODUCTION, "experiment": []}, {"results": None}, {"made": 5}, {"made": None}],
)
def test_records_with_values_of_other_kinds_are_passed_over(tmp_path, change):
    content = {"schema": "x/1", "model": {"name": "m"}, "results": [{}], **change}
    (tmp_path / "r.json").write_text(json.dumps(content))
    assert find_records([tmp_path / "r.json"]) == []
