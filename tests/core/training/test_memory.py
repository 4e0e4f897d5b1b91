"""The memory estimate against the bytes of a real model and a real step."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from focus_core import FocusConfig, cli, retrofit
from focus_core.training.modes import phases
from focus_core.training.parallel.memory import estimate_memory
from focus_core.training.parallel.plan import plan_training

SHAPE = {
    "vocab_size": 260,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
CONFIG = FocusConfig(num_groups=4, top_k=1, window=4, route_dim=8)
SIZES = {"length": 64, "micro_batch": 2}


@pytest.mark.parametrize("router", ["layer", "head"])
@pytest.mark.parametrize("mode", ["centroid-only", "scratch"])
def test_weights_gradients_and_optimizer_are_those_of_the_real_model(mode, router):
    settings = CONFIG.replace(router=router)
    model_config = LlamaConfig(**SHAPE)
    focus = retrofit(LlamaForCausalLM(model_config), settings)
    if mode == "scratch":
        focus.model.requires_grad_(True)
    estimate = estimate_memory(model_config, settings, phases(mode, "lm", 1, 1)[-1], **SIZES)
    parameters = list(focus.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    with focus.routing("soft"):
        focus(
            torch.zeros(2, 8, dtype=torch.int64), labels=torch.ones(2, 8, dtype=torch.int64), use_cache=False
        ).loss.backward()
    optimizer.step()
    moments = [value for state in optimizer.state.values() for value in state.values() if value.ndim]
    assert estimate.weights == sum(parameter.nbytes for parameter in parameters)
    assert estimate.gradients == sum(parameter.grad.nbytes for parameter in trained)
    assert estimate.optimizer == sum(moment.nbytes for moment in moments)
    assert estimate.trained == sum(parameter.numel() for parameter in trained)
    assert "trained parameters" in estimate.sentence()


def test_sharding_divides_what_is_stored_and_not_what_is_computed():
    phase = phases("centroid-only", "mass", 1, 1)[0]
    whole = estimate_memory(LlamaConfig(**SHAPE), CONFIG, phase, **SIZES)
    eighth = estimate_memory(LlamaConfig(**SHAPE), CONFIG, phase, world_size=8, sharded=True, **SIZES)
    copies = estimate_memory(LlamaConfig(**SHAPE), CONFIG, phase, world_size=8, **SIZES)
    assert eighth.weights == whole.weights // 8
    assert eighth.activations == whole.activations == copies.activations
    assert 0 < eighth.gathered < whole.weights
    assert copies == whole


def test_activations_grow_as_they_should():
    def activations(objective, length, layers):
        config = GPT2Config(vocab_size=260, n_embd=32, n_head=4, n_layer=layers, n_positions=256)
        phase = phases("centroid-only", objective, 1, 1)[0]
        return estimate_memory(config, CONFIG, phase, length=length, micro_batch=1).activations

    # Logits between all pairs of one layer are the least that either objective holds at once.
    assert activations("mass", 128, 2) >= 4 * 128 * 128 * 4
    # The mass objective holds one layer at a time, the language-model loss all of them.
    assert activations("mass", 128, 4) < 1.1 * activations("mass", 128, 2)
    assert activations("lm", 128, 4) > 1.5 * activations("lm", 128, 2)
    assert activations("mass", 256, 2) > 3 * activations("mass", 128, 2)


_MEASURED = """
import json, sys, torch
from pathlib import Path
from transformers import AutoConfig, AutoModelForCausalLM
from focus_core import FocusConfig, retrofit
from focus_core.training.modes import TrainingTask
from focus_core.training.objectives import OBJECTIVES

def bytes_of(name):
    return next(int(line.split()[1]) * 1024 for line in Path("/proc/self/status").read_text().splitlines()
                if line.startswith(name))

def step(config, steps, length, rows):
    torch.manual_seed(0)
    focus = retrofit(AutoModelForCausalLM.from_config(config), FocusConfig(window=16))
    task = TrainingTask(focus, OBJECTIVES[sys.argv[2]].loss, everything=False)
    optimizer = torch.optim.AdamW(focus.trainable_parameters())
    with focus.routing("soft", balance="sequence"):
        for _ in range(steps):
            task(torch.randint(0, 999, (rows, length)))["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()

config, sizes = AutoConfig.from_pretrained(sys.argv[1]), map(int, sys.argv[3:])
small = {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 8, "num_hidden_layers": 1, "vocab_size": 999}
step(AutoConfig.from_pretrained(sys.argv[1], head_dim=8, **small), 2, 32, 2)  # what the first operations load stays
Path("/proc/self/clear_refs").write_text("5")  # forgets the peak of importing
before = bytes_of("VmRSS")
step(config, *sizes)
print(json.dumps(bytes_of("VmHWM") - before))
"""


MEDIUM = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 8}
DEFAULT = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}
"""The shape of SmolLM2-135M."""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads the peak memory from Linux")
@pytest.mark.parametrize(
    "shape, vocabulary, objective, steps, length, rows",
    [
        (MEDIUM, 8192, "lm", 2, 256, 2),
        (DEFAULT, 49152, "mass", 1, 512, 1),
    ],
)
def test_a_plan_has_the_memory_of_a_real_run(tmp_path, shape, vocabulary, objective, steps, length, rows):
    LlamaConfig(vocab_size=vocabulary, **shape).save_pretrained(tmp_path)
    environment = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, str(tmp_path), objective, *map(str, (steps, length, rows))],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    phase = phases("centroid-only", objective, 1, 1)[0]
    sizes = {"length": length, "micro_batch": rows, "dtype": torch.float32, "precision": "fp32"}
    plan = plan_training(str(tmp_path), 1, phase, FocusConfig(window=16), **sizes)
    assert plan.memory.total == pytest.approx(json.loads(done.stdout), rel=0.15)


def test_the_command_plans_for_many_gpus_without_weights(tmp_path):
    LlamaConfig(**SHAPE, num_key_value_heads=2).save_pretrained(tmp_path)
    command = ["train", "--plan", str(tmp_path), "--gpus", "8", "--length", "64", "-K", "4", "--objective", "lm"]
    done = CliRunner().invoke(cli.app, [*command, "--json"])
    assert done.exit_code == 0, done.output
    plan = json.loads(done.stdout)
    words = shlex.split(plan["command"])
    assert words[:6] == ["torchrun", "--nproc-per-node", "8", "-m", "focus_core.cli", "train"]
    options = dict(zip(words[7::2], words[8::2]))
    assert words[6] == "--shard"
    assert options == {
        "--model": str(tmp_path),
        "--dtype": "bfloat16",
        "--precision": "bf16",
        "--micro-batch": "1",
        "--batch-size": "8",
        "--data": "texts/",
        "--out": "runs/routers",
        "--length": "64",
        "--groups": "4",
        "--objective": "lm",
    }
    phase = phases("centroid-only", "lm", 1, 1)[0]
    bf16 = {"dtype": torch.bfloat16, "precision": "bf16", "length": 64, "micro_batch": 1}
    whole = estimate_memory(LlamaConfig(**SHAPE, num_key_value_heads=2), FocusConfig(num_groups=4), phase, **bf16)
    assert plan["memory"]["weights"] == pytest.approx(whole.weights / 8, rel=0.02)  # trained weights are float32
    layers = [plan["memory"]["gathered"], plan["host_bytes"]]
    assert layers[0] < layers[1]
    refused = CliRunner().invoke(cli.app, ["train", "--plan", str(tmp_path / "nothing")])
    assert refused.exit_code == 2 and "no configuration" in refused.output
    refused = CliRunner().invoke(cli.app, ["train"])
    assert refused.exit_code == 2 and "--data" in refused.output
