"""Adapters of the LoRA comparison: what is trained, what is not, and resuming."""

from __future__ import annotations

import pytest

pytest.importorskip("peft", reason="peft is not installed: pip install 'focus-workbench[eval]'")
pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install 'focus-workbench[eval]'")

import torch
from torch import nn

from focus_core.errors import FocusError
from focus_core.reproduce.studies.lora import LoraSettings, target_modules, train_lora
from focus_core.reproduce.studies.lora_grid import Yardstick, run_grid
from focus_core.text import token_blocks
from focus_core.training.stream import TokenStream, find_sources

TEXT = "the cat sat on the mat and the dog ran off. " * 60


@pytest.fixture
def stream(tmp_path, byte_tokenizer):
    (tmp_path / "text.txt").write_text(TEXT)
    return lambda: TokenStream(find_sources([tmp_path / "text.txt"]), byte_tokenizer, 32)


def test_only_adapters_learn_and_the_loss_falls(tmp_path, tiny_llama, stream):
    before = {name: tensor.clone() for name, tensor in tiny_llama.model.state_dict().items()}
    settings = LoraSettings(4, 2e-2, steps=30, save_every=10)
    adapted, losses = train_lora(tiny_llama.model, stream(), settings, tmp_path / "run")
    assert len(losses) == 30 and sum(losses[-5:]) < sum(losses[:5]) - 0.5
    trained = [p for p in adapted.parameters() if p.requires_grad]
    # q: 32 to 32, k and v: 32 to 16, in 3 layers
    assert sum(p.numel() for p in trained) == 3 * 4 * ((32 + 32) + 2 * (32 + 16))
    after = {name.replace(".base_layer", ""): t for name, t in adapted.get_base_model().state_dict().items()}
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert (tmp_path / "run" / "adapter" / "adapter_model.safetensors").is_file()


def test_a_stopped_cell_goes_on_to_the_same_end(tmp_path, tiny_llama, stream):
    import copy

    class Stop(Exception):
        pass

    def stop(step, loss):
        if step == 7:
            raise Stop

    settings = LoraSettings(2, 1e-2, steps=10, save_every=3)
    models = [copy.deepcopy(tiny_llama.model) for _ in range(3)]
    whole, losses = train_lora(models[0], stream(), settings, tmp_path / "whole")
    with pytest.raises(Stop):
        train_lora(models[1], stream(), settings, tmp_path / "parts", on_step=stop)
    rest, resumed = train_lora(models[2], stream(), settings, tmp_path / "parts")
    assert resumed == pytest.approx(losses, abs=1e-4)
    for one, two in zip(whole.parameters(), rest.parameters()):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)


def test_a_model_without_projections_is_refused_by_name():
    with pytest.raises(FocusError, match="Linear"):
        target_modules(nn.Linear(2, 2))


def test_the_grid_measures_each_cell_once_against_the_untouched_model(tmp_path, tiny_llama, stream):
    import copy

    loads = []

    def load():
        loads.append(1)
        return tiny_llama._replace(model=copy.deepcopy(tiny_llama.model))

    yardstick = Yardstick(token_blocks(tiny_llama.tokenizer, [TEXT], 32, max_blocks=6), ["needle_200"], None, 3, TEXT)
    cells = [LoraSettings(2, 1e-5, steps=2), LoraSettings(2, 2e-2, steps=20)]
    found = run_grid(load, stream, cells, yardstick, {"seed": 0}, tmp_path / "grid")
    gentle, strong = found["results"]
    assert strong["perplexity"] < found["untouched"]["perplexity"] * 0.9
    assert strong["perplexity_difference"].high < 0
    assert abs(gentle["perplexity"] / found["untouched"]["perplexity"] - 1) < 0.01
    assert gentle["benchmarks"]["needle_200"]["items_scored"] == 3
    assert "gold_log_probability" in strong["benchmarks"]["needle_200"]["differences"]
    assert len(loads) == 3
    again = run_grid(load, stream, cells, yardstick, {"seed": 0}, tmp_path / "grid")
    assert len(loads) == 3 and again["results"][1]["perplexity"] == strong["perplexity"]
