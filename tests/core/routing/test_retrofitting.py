"""Retrofitting against the unmodified Transformers models."""

import hashlib

import pytest
import torch
from transformers import (
    BertConfig,
    BertLMHeadModel,
    DynamicCache,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from focus_core import FocusConfig, FocusError, FocusModel, retrofit
from focus_core.routing.cache import CACHE_NAMES
from focus_core.training import TrainSettings, train

SMALL = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "eos_token_id": 96,
    "bos_token_id": 1,
}
HEAD = {"head_dim": 8}
FAMILIES = {
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=256)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SMALL, sliding_window=9)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SMALL)),
    "olmo2": lambda: Olmo2ForCausalLM(Olmo2Config(**SMALL)),
    "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(**SMALL, **HEAD, sliding_window=9)),
    "gpt_oss": lambda: GptOssForCausalLM(
        GptOssConfig(**SMALL, **HEAD, num_local_experts=2, num_experts_per_tok=1, sliding_window=9)
    ),
}
CONFIG = FocusConfig(num_groups=4, top_k=1, window=3, sink_tokens=1, route_dim=8)


@pytest.fixture(params=FAMILIES)
def model(request):
    torch.manual_seed(0)
    # eager is the definition of every family; sdpa does not take softcap or sink logits.
    model = FAMILIES[request.param]().eval()
    model.set_attn_implementation("eager")
    return model


@pytest.fixture(params=["layer", "head"])
def config(request):
    return CONFIG.replace(router=request.param)


def tokens(batch=2, length=24, seed=1):
    return torch.randint(2, 95, (batch, length), generator=torch.Generator().manual_seed(seed))


def logits(model, *args, **kwargs):
    with torch.no_grad():
        return model(*args, use_cache=False, **kwargs).logits


def digest(model):
    sha = hashlib.sha256()
    for tensor in model.state_dict().values():
        sha.update(tensor.numpy().tobytes())
    return sha.hexdigest()


def test_all_groups_or_a_wide_window_equal_the_untouched_model(model, config):
    expected = logits(model, tokens())
    focus = retrofit(model, config)
    for changes in ({"top_k": 4}, {"window": 24}):
        with focus.routing("hard", **changes):
            assert torch.allclose(logits(focus, tokens()), expected, atol=1e-5)
    with focus.routing("soft", window=24):
        assert torch.allclose(logits(focus, tokens()), expected, atol=1e-5)
    assert not torch.allclose(logits(focus, tokens()), expected, atol=1e-5)


def test_detach_restores_the_model_bit_for_bit(model):
    before, expected = digest(model), logits(model, tokens())
    focus = retrofit(model, CONFIG)
    logits(focus, tokens())
    with focus.routing("off"):
        assert torch.equal(logits(focus, tokens()), expected)
    base = focus.detach()
    assert base is model
    assert digest(base) == before
    assert torch.equal(logits(base, tokens()), expected)
    assert all(parameter.requires_grad for parameter in base.parameters())
    retrofit(base, CONFIG).detach()


def test_calibrated_routing_is_causal_and_sequence_is_not(model, config):
    focus = retrofit(model, config)
    before, after = tokens(1, 40), tokens(1, 40)
    after[:, 25:] = tokens(1, 15, seed=9)
    assert torch.allclose(logits(focus, before)[:, :25], logits(focus, after)[:, :25], atol=1e-6)
    with focus.routing("hard", balance="sequence"):
        assert not torch.allclose(logits(focus, before)[:, :25], logits(focus, after)[:, :25], atol=1e-6)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("balance", ["calibrated", "sequence"])
def test_padding_changes_nothing(model, config, side, balance):
    focus = retrofit(model, config)
    short, long = tokens(1, 17), tokens(1, 29, seed=2)
    padding = torch.zeros(1, 12, dtype=torch.long)
    ones = torch.ones(1, 17, dtype=torch.long)
    order = (lambda a, b: [b, a]) if side == "left" else (lambda a, b: [a, b])
    batch = torch.cat([torch.cat(order(short, padding), 1), long])
    mask = torch.cat([torch.cat(order(ones, padding), 1), torch.ones(1, 29, dtype=torch.long)])
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with focus.routing("hard", balance=balance):
        together = logits(focus, batch, attention_mask=mask, position_ids=positions)
        for row, text in enumerate((short, long)):
            assert torch.allclose(together[row][mask[row].bool()], logits(focus, text)[0], atol=1e-5)


def test_generation_with_a_cache_equals_recomputing(model, config):
    focus = retrofit(model, config)
    prompt = tokens(2, 20)
    mask = torch.ones_like(prompt)
    mask[0, :4] = 0
    options = {"max_new_tokens": 12, "do_sample": False, "attention_mask": mask, "pad_token_id": 0}
    cached = focus.generate(prompt, **options)
    assert torch.equal(cached, focus.generate(prompt, use_cache=False, **options))
    beams = focus.generate(prompt, num_beams=3, **options)
    assert torch.equal(beams, focus.generate(prompt, num_beams=3, use_cache=False, **options))


@pytest.mark.parametrize("name", CACHE_NAMES)
def test_a_cache_goes_by_its_older_and_its_newer_name(model, config, name):
    focus, ids, kept = retrofit(model, config), tokens(1, 20), DynamicCache(config=model.config)
    expected = logits(focus, ids)
    with torch.no_grad():
        focus(ids[:, :15], **{name: kept, "use_cache": True})
        found = focus(ids[:, 15:], **{name: kept, "use_cache": True}).logits
    assert kept.get_seq_length() == 20 and torch.allclose(found, expected[:, 15:], atol=1e-5)


def test_saved_routers_come_back(model, config, tmp_path):
    focus = retrofit(model, config, seed=3)
    for router in focus.routers.values():
        router.potential.normal_()
    expected = logits(focus, tokens())
    focus.save_pretrained(tmp_path / "routers")
    again = FocusModel.from_pretrained(focus.detach(), tmp_path / "routers")
    assert again.config == config
    assert again.base_matches
    assert torch.equal(logits(again, tokens()), expected)


@pytest.mark.parametrize("objective", ["mass", "lm"])
def test_training_lowers_the_loss_and_changes_no_byte_of_the_base(model, config, objective, tmp_path):
    before = digest(model)
    focus = retrofit(model, config)
    settings = TrainSettings(steps=12, batch_size=8, learning_rate=0.05, objective=objective, autocast=False)
    history = train(focus, tokens(8, 32).numpy(), settings, tmp_path / "routers")
    assert history[-1].loss < history[0].loss
    expected = logits(focus, tokens())
    base = focus.detach()
    assert digest(base) == before
    again = FocusModel.from_pretrained(base, tmp_path / "routers")
    assert again.trained
    assert torch.equal(logits(again, tokens()), expected)


def test_gpt2_has_the_published_number_of_parameters():
    focus = retrofit(GPT2LMHeadModel(GPT2Config()), FocusConfig(num_groups=4))
    assert sum(parameter.numel() for parameter in focus.trainable_parameters()) == 148_224
    assert [p for p in focus.parameters() if p.requires_grad] == list(focus.trainable_parameters())


def llama(**changes):
    return LlamaForCausalLM(LlamaConfig(**{**SMALL, **changes})).eval()


def test_refusals_are_one_sentence(tmp_path):
    with pytest.raises(FocusError, match="decoder-only"):
        retrofit(BertLMHeadModel(BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2)))
    focus = retrofit(llama(), CONFIG)
    with pytest.raises(FocusError, match="already has routers"):
        retrofit(focus.model)
    with pytest.raises(FocusError, match="Packed texts"):
        focus(tokens(1, 6), position_ids=torch.tensor([[0, 1, 2, 0, 1, 2]]), use_cache=False)
    with focus.routing("hard", balance="sequence"), pytest.raises(FocusError, match="calibrated"):
        focus.generate(tokens(1, 8), max_new_tokens=2, do_sample=False)
    with pytest.raises(FocusError, match="top_k"), focus.routing("hard", top_k=9):
        pass
    focus.save_pretrained(tmp_path)
    with pytest.raises(FocusError, match="another model"):
        FocusModel.from_pretrained(llama(hidden_size=64), tmp_path)
    other = llama()
    assert not FocusModel.from_pretrained(other, tmp_path).base_matches


@pytest.mark.parametrize("damage", ["truncate", "json", "missing", "shape"])
def test_damaged_routers_are_refused(tmp_path, damage):
    focus = retrofit(llama(), CONFIG)
    focus.save_pretrained(tmp_path)
    base = focus.detach()
    weights, config = tmp_path / "routers.safetensors", tmp_path / "focus_config.json"
    if damage == "truncate":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif damage == "json":
        config.write_text(config.read_text()[:50])
    elif damage == "missing":
        weights.unlink()
    else:
        config.write_text(config.read_text().replace('"num_groups": 4', '"num_groups": 5'))
    with pytest.raises(FocusError):
        FocusModel.from_pretrained(base, tmp_path)
    retrofit(base).detach()


@pytest.mark.parametrize("layers", [None, (1,)])
@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_autocast_may_leave_query_key_and_value_in_different_dtypes(tiny_llama, layers, mode):
    focus = retrofit(tiny_llama.model, FocusConfig(num_groups=4, window=4, route_dim=8, layers=layers))
    ids = torch.randint(1, 200, (1, 48), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), focus.routing(mode):
        expected = focus(ids, use_cache=False).logits
        with torch.autocast("cpu", torch.bfloat16):
            found = focus(ids, use_cache=False).logits
    assert torch.allclose(found.float(), expected, atol=0.05)
