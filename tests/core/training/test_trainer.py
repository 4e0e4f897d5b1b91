"""Training through Trainer: modes, resuming, several processes, streamed data."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig

from focus_core import FocusConfig, FocusError, FocusModel, retrofit
from focus_core.models import load_model
from focus_core.routing.storage import routers_hash
from focus_core.training.log import read_log
from focus_core.training.modes import phases, scratch_model
from focus_core.training.stream import TokenStream, find_sources
from focus_core.training.trainer import TrainerSettings, save, train_phase

ROOT = Path(__file__).parents[3]
CONFIG = FocusConfig(num_groups=4, top_k=1, window=4, sink_tokens=1, route_dim=8)
SETTINGS = TrainerSettings(batch_size=4, learning_rate=0.05, base_learning_rate=0.01, save_every=3)
WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "one", "dog", "run", "past", "it", "then", "slept"]


def write_text(folder, name="text.txt", words=4000, seed=0):
    path = folder / name
    path.write_text(" ".join(np.random.default_rng(seed).choice(WORDS, words)))
    return path


@pytest.fixture
def stream(tmp_path, byte_tokenizer):
    return TokenStream(find_sources([write_text(tmp_path)]), byte_tokenizer, 48)


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(first, second):
    return all(torch.equal(tensor, second[name]) for name, tensor in first.items())


@pytest.mark.parametrize("objective, router", [("mass", "layer"), ("lm", "layer"), ("mass", "head")])
def test_centroids_learn_and_the_base_stays(tiny_llama, stream, tmp_path, objective, router):
    before = weights(tiny_llama.model)
    focus = retrofit(tiny_llama.model, CONFIG.replace(router=router))
    steps = []
    (phase,) = phases("centroid-only", objective, 20, 1)
    trainer = train_phase(focus, stream, phase, SETTINGS, tmp_path / "run", steps.append)
    losses = [step.loss for step in steps]
    assert len(losses) == 20
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    save(trainer, tmp_path / "run")
    expected = routers_hash(focus.routers)
    base = focus.detach()
    assert same(before, weights(base))
    again = FocusModel.from_pretrained(base, tmp_path / "run")
    assert again.trained
    assert again.base_matches
    assert routers_hash(again.routers) == expected


def test_mixed_precision_trains_and_calibrates(tiny_llama, stream, tmp_path):
    settings = TrainerSettings(batch_size=4, learning_rate=0.05, precision="bf16")
    (phase,) = phases("centroid-only", "lm", 2, 1)
    focus = retrofit(tiny_llama.model, CONFIG)
    train_phase(focus, stream, phase, settings, tmp_path / "run")
    assert all(bool(router.potential.any()) for router in focus.routers.values())


def test_two_phases_train_everything_and_save_a_model_that_loads(tiny_llama, stream, tmp_path):
    before = weights(tiny_llama.model)
    focus = retrofit(tiny_llama.model, CONFIG)
    steps = []
    for phase in phases("two-phase", "mass", 4, 20):
        trainer = train_phase(focus, stream, phase, SETTINGS, tmp_path / "run", steps.append)
    assert [step.step for step in steps] == [*range(1, 5), *range(1, 21)]
    assert steps[-1].loss < 0.8 * steps[4].loss
    assert not same(before, weights(focus.model))
    save(trainer, tmp_path / "run", tiny_llama.tokenizer)
    ids = next(iter(stream))["input_ids"][None]
    with torch.no_grad():
        expected = focus(ids, use_cache=False).logits
    loaded = load_model(tmp_path / "run")
    again = FocusModel.from_pretrained(loaded.model, tmp_path / "run")
    assert again.base_matches
    with torch.no_grad():
        assert torch.allclose(again(ids, use_cache=False).logits, expected, atol=1e-6)
    assert not list((tmp_path / "run").glob("*.bin"))


def test_from_scratch_any_configuration(byte_tokenizer, stream, tmp_path):
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(byte_tokenizer), **shape)
    config.save_pretrained(tmp_path / "architecture")
    options = {"seed": 0, "dtype": torch.float32}
    model = scratch_model(tmp_path / "architecture", len(byte_tokenizer), **options)
    again = scratch_model(tmp_path / "architecture" / "config.json", len(byte_tokenizer), **options)
    assert same(weights(model), weights(again))
    steps = []
    focus = retrofit(model, CONFIG)
    (phase,) = phases("scratch", "mass", 1, 20)
    train_phase(focus, stream, phase, SETTINGS, tmp_path / "run", steps.append)
    assert steps[-1].loss < steps[0].loss
    with pytest.raises(FocusError, match="vocab_size"):
        scratch_model(tmp_path / "architecture", 10_000, **options)
    with pytest.raises(FocusError, match="no configuration"):
        scratch_model(tmp_path / "nothing", 10, **options)
    (tmp_path / "bad.json").write_text(json.dumps({"model_type": "t5"}))
    with pytest.raises(FocusError, match="causal language model"):
        scratch_model(tmp_path / "bad.json", 10, **options)


@pytest.mark.parametrize("mode", ["centroid-only", "scratch"])
def test_an_interrupted_run_resumes_to_the_same_weights(tiny_llama, stream, tmp_path, mode):
    phase = phases(mode, "mass", 8, 8)[-1]
    start = weights(tiny_llama.model)

    def fresh():
        tiny_llama.model.load_state_dict(start)
        return retrofit(tiny_llama.model, CONFIG)

    focus = fresh()
    train_phase(focus, stream, phase, SETTINGS, tmp_path / "whole")
    routers, base = routers_hash(focus.routers), weights(focus.detach())

    def stop(step):
        if step.step == 5:
            raise KeyboardInterrupt

    focus = fresh()
    with pytest.raises(KeyboardInterrupt):
        train_phase(focus, stream, phase, SETTINGS, tmp_path / "parts", stop)
    focus.detach()
    focus = fresh()
    with pytest.raises(FocusError, match="other text, weights or settings"):
        train_phase(focus, stream, phase, TrainerSettings(batch_size=2), tmp_path / "parts")
    steps = []
    train_phase(focus, stream, phase, SETTINGS, tmp_path / "parts", steps.append)
    assert steps[0].step == 4  # the checkpoint of step 3
    assert routers_hash(focus.routers) == routers
    assert same(base, weights(focus.detach()))


def launch(processes, *arguments):
    """`focus train` in one process, or in several that gloo connects."""
    launcher = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)] if processes > 1 else []
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, *launcher, "-m", "focus_core.cli", "train", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def test_two_processes_equal_one(tiny_llama, tmp_path):
    tiny_llama.model.save_pretrained(tmp_path / "model")
    tiny_llama.tokenizer.save_pretrained(tmp_path / "model")
    text = write_text(tmp_path)
    options = ["--data", text, "--model", tmp_path / "model", "--mode", "two-phase", "--steps", 4, "--full-steps", 4]
    options += ["--length", 48, "--batch-size", 4, "-K", 4, "-k", 1, "--window", 4, "--base-learning-rate", 0.001]
    done = launch(1, *options, "--out", tmp_path / "one", "--held-out", text, "--json")
    launch(2, *options, "--out", tmp_path / "two")
    assert done.stderr.count("Memory per process") == 2
    record = json.loads(done.stdout)
    assert [row["routing"] for row in record["results"]] == ["off", "soft", "hard", "hard", "hard", "hard"]
    for name in ("model.safetensors", "routers.safetensors", "centroids/routers.safetensors"):
        one, two = load_file(tmp_path / "one" / name), load_file(tmp_path / "two" / name)
        assert one.keys() == two.keys()
        for key, tensor in one.items():
            assert torch.allclose(tensor, two[key], atol=1e-4), key
    losses = [[step.loss for step in read_log(tmp_path / name).steps] for name in ("one", "two")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert not (tmp_path / "two" / "checkpoints").exists()


def damage_optimizer(path: Path, damage: str) -> None:
    content = bytearray(path.read_bytes())
    state = torch.load(path, weights_only=True)
    moments = state["state"][0]["exp_avg"]
    if damage == "gone":
        path.unlink()
    elif damage == "changed":
        place = content.find(moments.numpy().tobytes())
        assert place > 0
        content[place] ^= 1  # one bit of the disk
        path.write_bytes(content)
    else:
        moments.view(-1)[0] = math.nan
        state["state"][0]["exp_avg"] = moments if damage == "not finite" else moments.nan_to_num()[:1]
        torch.save([1] if damage == "another kind" else state, path)


@pytest.mark.parametrize(
    "damage",
    [
        *("text", "optimizer.pt", "trainer_state.json", "routers.safetensors", "old", "none"),
        *("changed", "gone", "not finite", "another shape", "another kind"),
    ],
)
def test_a_checkpoint_of_another_run_or_a_damaged_one_is_refused(tiny_llama, stream, tmp_path, damage):
    phase = phases("centroid-only", "mass", 8, 8)[0]

    def stop(step):
        if step.step == 5:
            raise KeyboardInterrupt

    focus = retrofit(tiny_llama.model, CONFIG)
    with pytest.raises(KeyboardInterrupt):
        train_phase(focus, stream, phase, SETTINGS, tmp_path / "run", stop)
    focus = retrofit(focus.detach(), CONFIG)
    checkpoints = tmp_path / "run" / "checkpoints" / phase.name
    words = "is damaged: delete it"
    if damage == "text":
        write_text(tmp_path, seed=1)  # as long, under the same name
        words = "other text, weights or settings"
    elif damage == "old":
        (checkpoints / "run.json").write_text(json.dumps({"phase": {}, "settings": {}}))
        words = "older version"
    elif damage in ("changed", "gone", "not finite", "another shape", "another kind"):
        damage_optimizer(checkpoints / "checkpoint-3" / "optimizer.pt", damage)
    elif damage != "none":
        path = checkpoints / "checkpoint-3" / damage
        path.write_bytes(path.read_bytes()[:-40])
    if damage == "none":
        train_phase(focus, stream, phase, SETTINGS, tmp_path / "run")
        return
    with pytest.raises(FocusError, match=words):
        train_phase(focus, stream, phase, SETTINGS, tmp_path / "run")
