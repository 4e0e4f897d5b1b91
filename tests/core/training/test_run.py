"""A whole run as one call: what it writes, what it returns, resuming, and who is told."""

import json
import os

import pytest
import torch

from focus_core import FocusConfig, FocusError
from focus_core.models import LoadedModel
from focus_core.routing.storage import routers_hash
from focus_core.training.fit import fit_routers, narrow_config
from focus_core.training.log import read_log
from focus_core.training.phases import train_phases
from focus_core.training.run import train_routers
from focus_core.training.trainer import TrainerSettings
from focus_core.training.watch import Bars, Silent

CONFIG = FocusConfig(num_groups=4, top_k=1, window=4, sink_tokens=1, route_dim=8)
OPTIONS = {"config": CONFIG, "steps": 4, "length": 64, "eval_blocks": 2, "eval_top_k": (1, 4)}


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "my-text.txt"
    path.write_text("She rowed to the island and the old man was glad of it. " * 30)
    return path


class Recorder(Silent):
    """Keeps what it is told, and stops the run at a step."""

    def __init__(self, stop_at=None):
        self.phases, self.steps, self.notes, self.closed, self.stop_at = [], [], [], 0, stop_at

    def phase(self, name, done=0, total=0):
        self.phases.append((name, done, total))

    def step(self, step):
        self.steps.append(step)
        if step.step == self.stop_at:
            raise KeyboardInterrupt

    def note(self, sentence):
        self.notes.append(sentence)

    def close(self):
        self.closed += 1


def test_a_table_gives_the_routers_of_its_texts(tiny_llama, text, tmp_path):
    rows = [text.read_text(), text.read_text().upper()]
    for name, row in zip(("a.txt", "b.txt"), rows, strict=True):
        (tmp_path / "files").mkdir(exist_ok=True)
        (tmp_path / "files" / name).write_text(row)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    found = []
    for data, held, out in (("files", text, "one"), ("rows.jsonl", tmp_path / "rows.jsonl", "other")):
        run = train_routers(tmp_path / data, tmp_path / out, model=tiny_llama, watch=Silent(), held_out=held, **OPTIONS)
        found.append((routers_hash(run.focus.routers), run.record))
        run.focus.detach()
    (texts, plain), (table, record) = found
    assert texts == table
    assert record["held_out"] == record["data"] != plain["data"]


def test_a_run_returns_routers_and_the_record_it_wrote(tiny_llama, text, tmp_path):
    before = {name: tensor.clone() for name, tensor in tiny_llama.model.state_dict().items()}
    watch = Recorder()
    run = train_routers(text, tmp_path / "mine", model=tiny_llama, watch=watch, **OPTIONS)
    assert run.record == json.loads((tmp_path / "mine" / "training.json").read_text())
    assert [row["routing"] for row in run.record["results"]] == ["off", "soft", "hard", "hard", "hard", "hard"]
    assert [row.perplexity for row in run.results] == [row["perplexity"] for row in run.record["results"]]
    assert [row.routing for row in run.untrained] == ["hard"] * 4 and len(run.record["untrained"]) == 4
    # k = K is the untouched model, with trained routers and with untrained ones.
    assert run.results[3].perplexity == pytest.approx(run.results[0].perplexity, rel=1e-5)
    assert run.untrained[1].perplexity == pytest.approx(run.results[0].perplexity, rel=1e-5)
    assert run.focus.trained and run.focus.name == "mine" and run.focus.config == CONFIG
    assert watch.steps == list(read_log(tmp_path / "mine").steps) and watch.closed == 1
    assert [name for name, _, _ in watch.phases] == [
        "loading",
        "training",
        "calibrating",
        *["evaluating"] * 10,
        "finished",
    ]
    assert {path.name for path in run.folder.iterdir()} == {
        *("focus_config.json", "routers.safetensors", "training.json", "progress.jsonl")
    }
    base = run.focus.detach()
    assert base is run.loaded.model is tiny_llama.model
    assert all(torch.equal(tensor, before[name]) for name, tensor in base.state_dict().items())


def test_an_interrupted_run_leaves_the_model_free_and_resumes_to_the_same_routers(tiny_llama, text, tmp_path):
    whole = train_routers([text], tmp_path / "whole", model=tiny_llama, watch=Silent(), **OPTIONS)
    expected, results = routers_hash(whole.focus.routers), whole.record["results"]
    whole.focus.detach()
    watch = Recorder(stop_at=2)
    with pytest.raises(KeyboardInterrupt):
        train_routers([text], tmp_path / "parts", model=tiny_llama, watch=watch, **OPTIONS)
    assert watch.closed == 1
    watch = Recorder()
    run = train_routers([text], tmp_path / "parts", model=tiny_llama, watch=watch, **OPTIONS)
    assert [step.step for step in watch.steps] == [3, 4] and len(read_log(run.folder).steps) == 4
    assert routers_hash(run.focus.routers) == expected and run.record["results"] == results


def test_held_out_files_leave_every_block_for_training(tiny_llama, text, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("A dog ran past the house and the cat slept on. " * 20)
    run = train_routers(text, tmp_path / "out", model=tiny_llama, held_out=other, watch=Silent(), **OPTIONS)
    assert [entry["name"] for entry in run.record["held_out"]] == ["other.txt"]
    assert run.record["held_out_blocks"] == 2
    none = OPTIONS | {"eval_blocks": 0}
    run.focus.detach()
    run = train_routers(text, tmp_path / "none", model=tiny_llama, watch=Silent(), **none)
    assert run.results == run.untrained == () and run.record["results"] == [] and run.focus.trained


def content(folder):
    """The bytes of every file in a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_finished_routers_of_another_run_are_never_overwritten(tiny_llama, text, tmp_path):
    short = OPTIONS | {"steps": 1, "eval_blocks": 0, "eval_top_k": None, "watch": Silent(), "model": tiny_llama}
    first = train_routers(text, tmp_path / "out", **short)
    first.focus.detach()
    before = content(tmp_path / "out")
    other = tmp_path / "other.txt"
    other.write_text(text.read_text().upper())
    for texts, change in ((text, {"seed": 1}), (text, {"config": CONFIG.replace(window=8)}), (other, {})):
        with pytest.raises(FocusError, match=r"out holds the result of another run.* name another place, or remove"):
            train_routers(texts, tmp_path / "out", **short | change)
    config = narrow_config(num_groups=4, window=8, page_size=4, chunk=8, by_error=False, count_spread=False)
    with pytest.raises(FocusError, match="out holds the result of another run"):
        fit_routers(text, tmp_path / "out", model=tiny_llama, config=config, tokens=512)
    assert content(tmp_path / "out") == before
    again = train_routers(text, tmp_path / "out", **short)
    again.focus.detach()
    assert again.record["final_loss"] == first.record["final_loss"]
    (tmp_path / "out" / "training.json").unlink()
    with pytest.raises(FocusError, match="out holds routers of an unknown run"):
        train_routers(text, tmp_path / "out", **short)


def test_finished_phases_of_another_run_are_never_overwritten(tiny_llama, text, tmp_path):
    tiny_llama.model.save_pretrained(tmp_path / "model")
    tiny_llama.tokenizer.save_pretrained(tmp_path / "model")
    options = {"mode": "centroid-only", "model": tmp_path / "model", "config": CONFIG, "steps": 1, "length": 48}
    assert train_phases(text, tmp_path / "out", watch=Silent(), **options) is not None
    before = content(tmp_path / "out")
    with pytest.raises(FocusError, match="out holds the result of another run"):
        train_phases(text, tmp_path / "out", watch=Silent(), **options | {"steps": 2})
    assert content(tmp_path / "out") == before


def test_routers_to_start_from_keep_their_settings(tiny_llama, text, tmp_path):
    with pytest.raises(FocusError, match="leave out config or start_from"):
        train_routers(text, tmp_path / "out", config=CONFIG, start_from="smollm2-135m-k8")


def test_shipped_routers_are_a_place_to_start_from(default_model, text, tmp_path):
    options = {"steps": 1, "batch_size": 1, "length": 96, "eval_blocks": 0, "watch": Silent()}
    run = train_routers(text, tmp_path / "out", model=default_model, start_from="smollm2-135m-k8", **options)
    run.focus.detach()
    earlier = run.record["started_from"]
    assert earlier["settings"]["config"]["num_groups"] == 8 and earlier["made"]["date"]
    assert run.focus.config.num_groups == 8


def test_bars_show_steps_settings_and_notes(tiny_llama, text, tmp_path, capsys):
    train_routers(text, tmp_path / "out", model=tiny_llama, **OPTIONS).focus.detach()
    shown = capsys.readouterr()
    assert shown.out == "" and "Training: 100%" in shown.err and "4/4" in shown.err
    assert "Evaluating: 100%" in shown.err and "10/10" in shown.err and "Calibrating" not in shown.err
    Bars().note("Memory.")
    assert capsys.readouterr().err == "Memory.\n"


def test_phases_in_one_call(tiny_llama, text, tmp_path):
    tiny_llama.model.save_pretrained(tmp_path / "model")
    tiny_llama.tokenizer.save_pretrained(tmp_path / "model")
    watch = Recorder()
    run = train_phases(
        text,
        tmp_path / "out",
        model=tmp_path / "model",
        config=CONFIG,
        steps=2,
        full_steps=2,
        length=48,
        held_out=text,
        settings=TrainerSettings(batch_size=2, base_learning_rate=1e-3),
        watch=watch,
    )
    assert run is not None and isinstance(run.loaded, LoadedModel)
    assert run.record == json.loads((tmp_path / "out" / "training.json").read_text())
    assert watch.phases == [("centroids", 0, 2), ("everything", 0, 2)] and len(watch.notes) == 2
    assert [step.step for step in watch.steps] == [1, 2, 1, 2] and watch.closed == 1
    assert [row.routing for row in run.results] == ["off", "soft", *["hard"] * 4]
    assert (tmp_path / "out" / "model.safetensors").is_file() and run.focus.trained
    with pytest.raises(FocusError, match="give both, or neither"):
        train_phases(text, tmp_path / "other", mode="scratch")


def test_a_finished_phase_is_used_again_for_the_same_text_alone(tiny_llama, text, tmp_path):
    tiny_llama.model.save_pretrained(tmp_path / "model")
    tiny_llama.tokenizer.save_pretrained(tmp_path / "model")
    other = tmp_path / "other.txt"
    other.write_text(text.read_text().replace("island", "shore"))
    options = {"model": tmp_path / "model", "config": CONFIG, "steps": 2, "full_steps": 2, "length": 48}
    options["settings"] = TrainerSettings(batch_size=2, base_learning_rate=1e-3)

    class Stop(Recorder):
        def phase(self, name, done=0, total=0):
            super().phase(name, done, total)
            if name == "everything":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_phases(text, tmp_path / "out", watch=Stop(), **options)
    with pytest.raises(FocusError, match="centroids belongs to a run with other text, weights or settings"):
        train_phases(other, tmp_path / "out", watch=Silent(), **options)
    watch = Recorder()
    assert train_phases(text, tmp_path / "out", watch=watch, **options) is not None
    assert watch.phases == [("everything", 0, 2)]
    (tmp_path / "out" / "centroids" / "run.json").unlink()
    with pytest.raises(FocusError, match="cannot be resumed"):
        train_phases(text, tmp_path / "out", watch=Silent(), **options)


def test_two_runs_in_one_folder_are_one_too_many(tiny_llama, text, tmp_path):
    class Second(Silent):
        def step(self, step):
            with pytest.raises(FocusError, match=f"out is being written by process {os.getpid()}"):
                train_routers(text, tmp_path / "out", model=tiny_llama, watch=Silent(), **OPTIONS)

    train_routers(text, tmp_path / "out", model=tiny_llama, watch=Second(), **OPTIONS)
    assert len(read_log(tmp_path / "out").steps) == 4
