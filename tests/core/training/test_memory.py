"""The memory estimate against the bytes of a real model and a real step."""

import pytest
import torch
from transformers import GPT2Config, LlamaConfig, LlamaForCausalLM

from focus_core import FocusConfig, retrofit
from focus_core.training.memory import estimate_memory
from focus_core.training.modes import phases

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
