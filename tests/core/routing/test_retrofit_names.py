"""`retrofit` by name: "best", "published", a shipped name or a folder, against routers loaded by that very name."""

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from focus_core import FocusConfig, FocusError, FocusModel, retrofit, shipped
from focus_core.routing.attach import attach
from focus_core.routing.storage import routers_hash
from focus_core.shipped import DEFAULT, PUBLISHED, routers_made_for, shipped_routers

CONFIG = FocusConfig(num_groups=4, top_k=1, window=4, route_dim=8)


def hash_of(focus):
    found = routers_hash(focus.routers)
    focus.detach()
    return found


@pytest.fixture
def ships(tiny_llama, tmp_path, monkeypatch):
    """Ships routers of these names for the tiny model, in place of the project's own; the hash of each."""

    def ship(*names):
        hashes = {}
        for seed, name in enumerate(names, 1):
            focus = retrofit(tiny_llama.model, CONFIG, seed=seed)
            focus.save_pretrained(tmp_path / "data" / "routers" / name)
            hashes[name] = hash_of(focus)
        return hashes

    monkeypatch.setattr(shipped, "data_dir", lambda: tmp_path / "data")
    return ship


def test_best_is_the_default_and_published_the_published_form(tiny_llama, ships):
    hashes = ships("another", PUBLISHED, DEFAULT)
    assert len(set(hashes.values())) == 3
    best = retrofit(tiny_llama.model, "best")
    assert best.name == DEFAULT and best.config == CONFIG and best.current.mode == "hard"
    assert hash_of(best) == hashes[DEFAULT]
    assert hash_of(retrofit(tiny_llama.model, "published")) == hashes[PUBLISHED]
    assert hash_of(retrofit(tiny_llama.model, "another")) == hashes["another"]


def test_best_of_a_model_with_routers_of_its_own_is_what_commands_attach(tiny_llama, ships):
    hashes = ships("another")
    assert hash_of(retrofit(tiny_llama.model, "best")) == hashes["another"]
    assert hash_of(attach(tiny_llama, None, untrained=False)) == hashes["another"]
    with pytest.raises(FocusError, match="'published' are shipped for this LlamaForCausalLM: run focus fit"):
        retrofit(tiny_llama.model, "published")


@pytest.mark.parametrize("name", ["routers.safetensors", "focus_config.json"])
def test_damage_of_shipped_routers_is_said(tiny_llama, ships, tmp_path, name):
    ships(DEFAULT, PUBLISHED)
    damaged = next(tmp_path.rglob(f"{DEFAULT}/{name}"))
    damaged.write_bytes(damaged.read_bytes()[:40])
    for attached in (lambda: retrofit(tiny_llama.model, "best"), lambda: attach(tiny_llama, None, untrained=False)):
        with pytest.raises(FocusError, match=rf"{name} is .*\.$"):
            attached()


def test_a_folder_is_taken_too(tiny_llama, tmp_path):
    focus = retrofit(tiny_llama.model, CONFIG, seed=7)
    focus.save_pretrained(tmp_path / "mine")
    expected = hash_of(focus)
    assert hash_of(retrofit(tiny_llama.model, tmp_path / "mine")) == expected
    assert hash_of(retrofit(tiny_llama.model, str(tmp_path / "mine"))) == expected


def test_refusals_are_one_sentence_and_leave_the_model_as_it_was(tiny_llama):
    for form in ("best", "published"):
        with pytest.raises(FocusError, match=r"^No routers .* run focus fit [^.]*\.$"):
            retrofit(tiny_llama.model, form)
    with pytest.raises(FocusError, match="There are no saved routers at 'bets'"):
        retrofit(tiny_llama.model, "bets")
    with pytest.raises(FocusError, match="belong to another model"):
        retrofit(tiny_llama.model, DEFAULT)
    focus = retrofit(tiny_llama.model, CONFIG)
    with pytest.raises(FocusError, match="already has routers"):
        retrofit(tiny_llama.model, "best")
    focus.detach()


def test_the_default_model_has_both_forms(default_model):
    for form, name in (("best", DEFAULT), ("published", PUBLISHED)):
        named = FocusModel.from_pretrained(default_model.model, name)
        config, expected = named.config, hash_of(named)
        focus = retrofit(default_model.model, form)
        assert (focus.name, focus.config, focus.trained, focus.base_matches) == (name, config, True, True)
        assert hash_of(focus) == expected


def test_names_of_models_lead_to_the_routers_made_for_them():
    ours, qwen = routers_made_for("HuggingFaceTB/SmolLM2-135M-Instruct"), "qwen2.5-coder-0.5b-narrow64"
    assert ours[0] == DEFAULT and sorted([*ours, qwen]) == sorted(shipped_routers())
    assert routers_made_for("Qwen/Qwen2.5-Coder-0.5B-Instruct") == [qwen]
    assert routers_made_for("models/qwen2.5-coder-0.5b-instruct.gguf") == [qwen]
    assert routers_made_for("openai-community/gpt2") == []


def test_best_of_another_architecture_is_its_own_and_other_weights_are_said(caplog):
    """Weights of Qwen2.5-Coder-0.5B's shapes of attention, at random; what routers do not see is small."""
    heads = {"num_attention_heads": 14, "num_key_value_heads": 2}
    torch.manual_seed(0)
    config = Qwen2Config(hidden_size=896, num_hidden_layers=24, intermediate_size=16, vocab_size=64, **heads)
    model = Qwen2ForCausalLM(config).eval()
    focus = retrofit(model, "best")
    assert (focus.name, focus.trained, focus.base_matches) == ("qwen2.5-coder-0.5b-narrow64", True, False)
    assert "qwen2.5-coder-0.5b-narrow64 were made for other weights" in caplog.text and "focus fit" in caplog.text
    with torch.inference_mode(), focus.routing("hard"):
        assert bool(torch.isfinite(focus(input_ids=torch.arange(600)[None] % 64).logits).all())
    focus.detach()


def test_nothing_is_said_where_the_weights_are_those(tiny_llama, ships, caplog):
    ships(DEFAULT)
    retrofit(tiny_llama.model, "best").detach()
    assert not caplog.records
