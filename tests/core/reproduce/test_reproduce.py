"""Published tables as resumable cells: every experiment on a tiny model, resuming, and what is refused."""

import itertools
import json
from dataclasses import fields, replace
from typing import ClassVar

import numpy as np
import pytest
from typer.testing import CliRunner

from focus_core import FocusError, FocusModel
from focus_core.cli import app
from focus_core.evaluation import evaluate
from focus_core.reproduce import runner
from focus_core.reproduce.context import Context, Scale
from focus_core.reproduce.experiments.recipes import SHARE
from focus_core.reproduce.registry import EXPERIMENTS
from focus_core.reproduce.run import reproduce
from focus_core.reproduce.runner import Experiment, run_experiment
from focus_core.resources import data_dir
from focus_core.results import REPRODUCTION

PUBLISHED = {"retrofit", "scale", "lora", "alignment", "finetune", "domains", "lengths", "speed", "k-sweep"}
PUBLISHED |= {"stability", "ablation", "groups"}
OWN = {"recipes", "adapted"}

pytestmark = pytest.mark.usefixtures("runs")


class Noted(Scale):
    """Notes the sizes that are read."""

    seen: ClassVar[set[str]] = set()

    def __getattribute__(self, name):
        if name in Scale.__dataclass_fields__:
            Noted.seen.add(name)
        return super().__getattribute__(name)


class Watched(Context):
    """Does not count the sizes that only identify a run."""

    def inputs(self):
        before = {*Noted.seen}
        found = super().inputs()
        Noted.seen.intersection_update(before)
        return found


def run(name, context, only=None, **scale):
    values = {field.name: getattr(context, field.name) for field in fields(context)}
    watched = Watched(**{**values, "scale": Noted(**{**vars(context.scale), **scale})})
    Noted.seen.clear()
    record = run_experiment(name, EXPERIMENTS[name], watched, only=only)
    assert Noted.seen <= set(EXPERIMENTS[name].options), "a size that changes the result would be refused"
    return record


def test_options_are_inputs_and_sizes_and_some_experiment_has_each():
    options = {option for each in EXPERIMENTS.values() for option in each.options}
    known = {field.name for part in (Context, Scale) for field in fields(part)}
    assert known - {"scale", "folder", "models", "device", "seed", "progress"} == options
    for each in EXPERIMENTS.values():
        assert {*each.beside, *each.beside.values(), *each.instead, *each.instead.values()} <= set(each.options)
        assert set(each.needs) <= set(each.options)


def test_every_published_table_and_figure_is_there_and_listed():
    assert set(EXPERIMENTS) == PUBLISHED | OWN
    shown = CliRunner().invoke(app, ["reproduce", "--list", "--json"])
    assert set(json.loads(shown.stdout)) == PUBLISHED | OWN
    plain = CliRunner().invoke(app, ["reproduce", "--list"]).stdout
    assert all(name in plain for name in PUBLISHED | OWN)
    published = json.loads((data_dir() / "published.json").read_text(encoding="utf-8"))
    assert set(published["experiments"]) == PUBLISHED


def counted(calls, fail_at=None):
    def one(context, cell, values):
        if cell == fail_at:
            raise KeyboardInterrupt
        calls.append(cell)
        return {"rows": [{"value": values["value"]}], "curve": [1, 2]}

    return Experiment("Counts", lambda context: {n: {"value": n} for n in "abc"}, one, ("value",), Scale())


def test_an_interrupted_run_goes_on_without_repeating_cells(context, runs):
    calls = []
    with pytest.raises(KeyboardInterrupt):
        run_experiment("count", counted(calls, fail_at="c"), context)
    part = json.loads((runs / "reproduce-count" / "result.json").read_text())
    assert calls == ["a", "b"] and part["missing"] == ["c"] and len(part["results"]) == 2
    record = run_experiment("count", counted(calls), context)
    assert calls == ["a", "b", "c"] and record["missing"] == []
    assert [row["cell"] for row in record["results"]] == ["a", "b", "c"] and record["curve"]["c"] == [1, 2]
    assert record["schema"] == REPRODUCTION and set(record["dates"]) == set(record["seconds"]) == set("abc")
    assert str(context.data[0].parent) not in json.dumps(record)  # texts by name and hash, no path
    assert record["settings"]["data"][0]["name"] == "train.txt"
    written = (runs / "reproduce-count" / "result.json").read_bytes()
    run_experiment("count", counted(calls), context)
    assert calls == ["a", "b", "c"] and (runs / "reproduce-count" / "result.json").read_bytes() == written


def test_other_settings_get_a_folder_of_their_own(context, runs, tmp_path):
    calls = []
    run_experiment("count", counted(calls), context, only=["a"])
    before = (runs / "reproduce-count" / "result.json").read_bytes()
    other = replace(context, seed=1)
    run_experiment("count", counted(calls), other, only=["a"])
    assert (runs / "reproduce-count" / "result.json").read_bytes() == before
    assert (runs / "reproduce-count-2" / "result.json").is_file()
    run_experiment("count", counted(calls), other, only=["b"])
    assert not (runs / "reproduce-count-3").exists() and calls == ["a", "a", "b"]
    with pytest.raises(FocusError, match="other settings"):
        run_experiment("count", counted(calls), context, out=runs / "reproduce-count-2")
    changed = replace(counted(calls), cells=lambda context: {n: {"value": n, "new": 1} for n in "abc"})
    run_experiment("count", changed, other, only=["a"])
    assert (runs / "reproduce-count-3" / "result.json").is_file()
    with pytest.raises(FocusError, match="other files"):
        run_experiment("count", counted(calls), context, out=tmp_path)
    with pytest.raises(FocusError, match="no cell 'z'"):
        run_experiment("count", counted(calls), context, only=["z"])


def test_a_copy_of_the_record_is_never_written_over_that_of_another_run(context, runs, tmp_path):
    calls, copy = [], tmp_path / "kept.json"
    record = run_experiment("count", counted(calls), context, only=["a"], copy=copy)
    assert json.loads(copy.read_text()) == record and calls == ["a"]
    run_experiment("count", counted(calls), context, copy=copy)
    written = copy.read_bytes()
    assert json.loads(written)["missing"] == []
    for name, other in (("count", replace(context, seed=1)), ("other", context)):
        with pytest.raises(FocusError, match=r"kept\.json holds the result of another run"):
            run_experiment(name, counted(calls), other, copy=copy)
    assert calls == ["a", "b", "c"] and copy.read_bytes() == written


@pytest.mark.parametrize(
    ("name", "option"), [("stability", "--data"), ("alignment", "--bench"), ("groups", "--treebank"), ("chess", "list")]
)
def test_what_is_missing_is_named_with_its_option(folder, name, option):
    arguments = ["reproduce", name, "--model", str(folder / "model")]
    if name == "alignment":
        arguments += ["--data", str(folder / "train.txt")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2 and "Traceback" not in done.output
    assert (option in done.output) if option != "list" else ("stability" in done.output)


def test_the_k_sweep_measures_what_evaluate_does(context):
    record = run("k-sweep", context)
    rows = {(row["cell"], row["balance"]): row for row in record["results"]}
    assert set(rows) == {("untouched", "none")} | {(f"k={k}", b) for k in range(1, 5) for b in texts_balances()}
    focus = FocusModel.from_pretrained(context.load().model, context.routers)
    held = context.held
    for k in (1, 4):
        truth = evaluate(focus, held, routing="hard", top_k=k, balance="calibrated")
        row = rows[f"k={k}", "calibrated"]
        assert row["perplexity"] == pytest.approx(truth.perplexity) and row["kept_share"] == truth.kept_share
        assert row["speedup_bound"] == pytest.approx(1 / truth.causal_kept_share)
    assert rows["k=4", "calibrated"]["difference"] == pytest.approx(0, abs=1e-3)  # k = K
    assert record["settings"]["routers"]


def texts_balances():
    return ("calibrated", "sequence")


def test_domains_and_lengths_compare_on_the_same_blocks(context, folder):
    config = json.loads((folder / "model" / "config.json").read_text())
    (folder / "model" / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 1024}))
    record = run("domains", context, only=["held.txt", "news.txt"])
    assert [(row["cell"], row["routing"]) for row in record["results"]][:3] == [
        ("held.txt", "off"),
        ("held.txt", "hard"),
        ("held.txt", "hard"),
    ]
    assert "news.txt" in {row["cell"] for row in record["results"]} and "story.txt" in record["missing"]
    longest = run("lengths", context, length=1024, blocks=1)
    assert {row["length"] for row in longest["results"]} == {512, 1024}
    assert all(bins[-1]["bins"][-1]["stop"] == int(length) for length, bins in longest["positions"].items())
    assert all("low" in row for row in longest["results"] if row["routing"] == "hard" and row["length"] == 1024)


def test_stability_keeps_curves_of_both_phases(context):
    record = run("stability", context, only=["untouched", "losses", "sinkhorn-10"])
    assert set(record["curve"]) == {"losses", "sinkhorn-10"} and "softmax" in record["missing"]
    for points in record["curve"].values():
        assert [point["step"] for point in points] == [0, 1, 2, 3, 4]
    rows = [row for row in record["results"] if row["cell"] == "losses"]
    assert [(row["phase"], row["routing"], row["balance"]) for row in rows] == [
        (phase, routing, "none") for phase in ("centroids", "everything") for routing in ("soft", "hard")
    ]
    assert all(
        row["kept_share"] <= 1 and row["largest"] == record["curve"]["losses"][row["steps"]]["largest"] for row in rows
    )


def test_ablation_changes_one_setting_at_a_time(context):
    cells = EXPERIMENTS["ablation"].cells(context)
    default = cells["default"]["config"]
    for name, values in list(cells.items())[2:]:
        changed = {key for key in vars(default) if vars(values["config"])[key] != vars(default)[key]}
        assert len(changed) + (values["objective"] != cells["default"]["objective"]) <= 2, name
        assert changed or name.endswith("gate=log")
    settings = {key for values in cells.values() if values for key in vars(default)
                if vars(values["config"])[key] != vars(default)[key]}  # fmt: skip
    assert {
        "num_groups",
        "window",
        "temperature",
        "sinkhorn_rounds",
        "route_dim",
        "gate",
        "sink_tokens",
        "layers",
    } <= settings
    chosen = ["untouched", "default", "num_groups=4", "layers=first half", "objective=lm, gate=paper"]
    record = run("ablation", context, only=chosen)
    assert [row["cell"] for row in record["results"] if row["routing"] != "off"] == [
        c for c in chosen[1:] for _ in "12"
    ]
    assert all(row["largest_group_share"] for row in record["results"] if row["routing"] == "hard")


def test_retrofit_and_scale_train_the_published_recipe(context):
    chosen = ["untouched", "untrained", "published recipe", "our recipe"]
    record = run("retrofit", context, only=chosen)
    rows = record["results"]
    assert list(dict.fromkeys(row["cell"] for row in rows)) == chosen
    assert not list((context.folder).rglob("checkpoint.safetensors"))
    record = run("scale", replace(context, models=[*context.models, *context.models]), only=["2 model"])
    threes = [row for row in record["results"] if row["top_k"] == 3]
    assert {row["kept_share"] for row in threes} == {1.0}  # any two of three memberships in four groups meet
    assert record["missing"] == ["1 model"]


def test_baselines_keep_what_our_recipe_keeps(context):
    pytest.importorskip("focus_core.frontier.measure")
    with pytest.raises(FocusError, match="first"):
        run("retrofit", context, only=["baseline streaming"])
    rows = run("retrofit", context, only=["our recipe", "baseline bigbird"])["results"]
    ours = next(row for row in rows if row.get("top_k") == 2 and row["balance"] == "calibrated")
    assert rows[-1]["kept_share"] == pytest.approx(ours["kept_share"], abs=0.1)


def test_fine_tuning_changes_all_weights_and_leaves_no_checkpoints(context, runs):
    record = run("finetune", context, only=["full attention", "our recipe"])
    by_cell = {row["cell"]: row for row in record["results"]}
    assert by_cell["full attention"]["routing"] == "off" and by_cell["full attention"]["kept_share"] == 1
    untouched = run("k-sweep", context, only=["untouched"])["results"][0]["perplexity"]
    assert by_cell["full attention"]["perplexity"] != untouched
    assert not list(runs.rglob("checkpoints"))


def test_recipes_are_judged_against_the_base_one_at_one_share(context):
    alone = run("recipes", context, only=["k-means"])["results"]
    assert all(row.get("against_base") is None for row in alone)
    by_layer = ["windows-by-layer", "groups-by-layer"]
    chosen = ["untouched", "heads", "planned", *by_layer, "logits-annealed", "bias"]
    record = run("recipes", context, only=chosen)
    by_cell = {cell: [row for row in record["results"] if row["cell"] == cell] for cell in chosen}
    assert [row["top_k"] for row in by_cell["heads"]] == [1, 2, 3] and len(by_cell["planned"]) == 3
    for cell in chosen[1:]:
        assert all(row["kept_share"] and row["largest_group_share"] for row in by_cell[cell])
        shares, losses = (np.array(record["block_nll"][cell][key]) for key in ("shares", "losses"))
        assert np.allclose(np.exp(losses.mean(1)), [row["perplexity"] for row in by_cell[cell]])
        read = [np.interp(SHARE, shares, column) for column in losses.T]
        reached = shares.min() <= SHARE <= shares.max()
        assert (by_cell[cell][0]["against_base"] is not None) == (reached and cell != "heads")
        if by_cell[cell][0]["against_base"] is not None:
            base = record["block_nll"]["heads"]
            truth = [np.interp(SHARE, base["shares"], column) for column in np.array(base["losses"]).T]
            expected = np.exp(np.mean(read)) - np.exp(np.mean(truth))
            assert by_cell[cell][0]["against_base"] == pytest.approx(expected)


def test_groups_and_speed_go_through_the_commands_that_measure_them(context, monkeypatch):
    record = run("groups", replace(context, treebank=None), blocks=4)
    assert record["columns"][1] == "category" and record["texts"]["groups"][0]["name"] == "held.txt"
    record = run("speed", context, length=1024)
    (tokens,) = {row["tokens"] for row in record["results"]}
    assert tokens == 1024 and all(row["speedup"] <= row["bound"] * 1.5 for row in record["results"])


def test_an_experiment_is_one_call_that_returns_the_record(folder, runs):
    record = reproduce(
        "k-sweep",
        scale={"length": 64, "blocks": 2},
        held_out=[folder / "held.txt"],
        models=[str(folder / "model")],
        routers=str(folder / "routers"),
    )
    stored = json.loads((runs / "reproduce-k-sweep" / "result.json").read_text(encoding="utf-8"))
    assert record == stored and record["settings"]["scale"]["length"] == 64 and not record["missing"]
    with pytest.raises(FocusError, match="no experiment 'chess'"):
        reproduce("chess")


def test_the_command_writes_a_record_and_all_says_what_it_left_out(folder, monkeypatch):
    common = [
        "--model",
        str(folder / "model"),
        "--held-out",
        str(folder / "held.txt"),
        "--routers",
        str(folder / "routers"),
    ]
    common += ["--length", "64", "--blocks", "2"]
    done = CliRunner().invoke(app, ["reproduce", "k-sweep", *common, "--record", str(folder / "record.json"), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads((folder / "record.json").read_text())["experiment"] == "k-sweep"
    only = {name: EXPERIMENTS[name] for name in ("stability", "k-sweep")}
    monkeypatch.setattr("focus_core.reproduce.registry.EXPERIMENTS", only)
    done = CliRunner().invoke(app, ["reproduce", "all", *common])
    assert done.exit_code == 0 and "stability was not run" in done.output and "--data" in done.output


def test_sizes_below_one_are_refused():
    with pytest.raises(FocusError, match="--full-steps"):
        Scale(full_steps=0)
    assert set(runner.NEEDS) >= {need for each in EXPERIMENTS.values() for need in each.needs}


def test_a_run_is_known_by_all_of_its_inputs(context, folder):
    (folder / "bank.conllu").write_text("one")
    (folder / "bench").mkdir()
    (folder / "bench" / "piqa.jsonl").write_text("{}")
    full = replace(context, treebank=folder / "bank.conllu", bench=folder / "bench", models=[*context.models] * 2)
    seen = [full.inputs()]
    (folder / "bank.conllu").write_text("two")
    seen.append(full.inputs())
    (folder / "bench" / "piqa.jsonl").write_text("[]")
    seen.append(full.inputs())
    assert all(one != two for one, two in itertools.pairwise(seen))
    assert len(seen[0]["models"]) == 1 and str(folder) not in json.dumps(seen)


@pytest.mark.parametrize("content", ["{", "null", "[]", '{"settings": {}}', "[" * 100_000, None])
def test_a_damaged_cell_is_refused_in_one_sentence(context, folder, content):
    one = Experiment("t", lambda context: {"a": {}}, lambda context, cell, values: {"rows": [{"x": 1}]}, ("x",))
    run_experiment("t", one, context, out=folder / "out")
    path = folder / "out" / "cells" / "a.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps(stored | {"rows": 3, "made": "now"}) if content is None else content)
    with pytest.raises(FocusError, match=r"a\.json is damaged: delete it"):
        run_experiment("t", one, context, out=folder / "out")
