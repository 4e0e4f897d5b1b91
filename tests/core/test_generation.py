"""Text that a routed model writes, against Transformers' own generation."""

from __future__ import annotations

import json
import os

import pytest
import torch
from typer.testing import CliRunner

from focus_core import FocusConfig, retrofit
from focus_core.cli import app
from focus_core.errors import FocusError
from focus_core.generation import COLDEST, Written, first_difference, generate_text, prompt_ids, write
from focus_core.models import LoadedModel, default_model, load_model
from focus_core.routing.attach import attached

real_model = pytest.mark.skipif(not default_model.is_cached(), reason="the default model has not been fetched")
PROMPT = "The keeper climbed the stairs, and"


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model()


@real_model
def test_the_untouched_model_writes_what_transformers_writes(loaded):
    ids = prompt_ids(loaded, PROMPT)
    expected = loaded.model.generate(input_ids=ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :]
    pieces = []
    with attached(loaded) as (_, focus):
        found = write(focus, loaded.tokenizer, ids, mode="off", max_new_tokens=12, on_text=pieces.append)
    assert found.tokens == tuple(expected.tolist()) and found.budget == "all"
    assert "".join(pieces) == found.text == loaded.tokenizer.decode(expected, skip_special_tokens=True)
    assert len(pieces) > 2 and found.prefill_seconds > 0 and found.tokens_per_second is not None


@real_model
def test_the_routed_model_writes_what_it_writes_without_a_cache(loaded):
    # Longer than window and chunk, so that pages are read.
    ids = prompt_ids(loaded, "A lamp, a stair and a door. The keeper saw the sea. " * 20)
    with attached(loaded) as (_, focus):
        found = write(focus, loaded.tokenizer, ids, max_new_tokens=6)
        with focus.routing("hard"):
            expected = focus.generate(input_ids=ids, max_new_tokens=6, do_sample=False, use_cache=False)
    assert found.tokens == tuple(expected[0, ids.shape[1] :].tolist()) and found.budget == "budget 15%"


def test_settings_of_a_checkpoint_change_nothing_and_broken_ones_are_one_sentence(model_folder):
    given = {"model": str(model_folder), "routers": str(model_folder / "routers"), "max_new_tokens": 6}
    (expected,) = generate_text("Some words", **given)
    for values in ({"num_beams": 4}, {"repetition_penalty": "x"}, {"guidance_scale": 3.0}, {"bad_words_ids": [[65]]}):
        (model_folder / "generation_config.json").write_text(json.dumps(values))
        (found,) = generate_text("Some words", **given)
        assert found.tokens == expected.tokens, values
    (model_folder / "tokenizer_config.json").write_text(
        json.dumps(json.loads((model_folder / "tokenizer_config.json").read_text()) | {"chat_template": "{% for %}"})
    )
    with pytest.raises(FocusError, match="chat template of model cannot be used"):
        list(generate_text("Some words", **given, chat=True))
    config = json.loads((model_folder / "config.json").read_text())
    (model_folder / "config.json").write_text(
        json.dumps(config | {"rope_parameters": {"rope_type": "default", "rope_theta": 0}})
    )
    with pytest.raises(FocusError, match="not finite"):
        list(generate_text("Some words", **given))


@real_model
def test_the_distant_text_is_kept_in_8_bits_where_groups_are_narrow(loaded):
    given = {"model": loaded, "full_below": 0, "max_new_tokens": 4}
    with attached(loaded) as (_, focus):
        seen = []
        handle = focus.model.register_forward_hook(lambda model, args, found: seen.append(found.past_key_values))
        (found,) = generate_text(PROMPT * 60, routers=focus, cache_bits=8, **given)
        handle.remove()
    assert len(found.tokens) == 4
    assert {text.pages.keys.dtype for layer in seen[-1].layers for text in layer.texts} == {torch.int8}
    with pytest.raises(FocusError, match="cache_bits needs router='narrow', and this is router='layer': leave it out"):
        list(generate_text(PROMPT, routers="smollm2-135m-k8", cache_bits=8, **given))


@real_model
def test_sampling_follows_its_seed(loaded):
    ids = prompt_ids(loaded, PROMPT)
    with attached(loaded) as (_, focus):
        one, same, other = (
            write(focus, loaded.tokenizer, ids, max_new_tokens=8, temperature=1.5, seed=seed).tokens
            for seed in (1, 1, 2)
        )
    assert one == same != other


@real_model
def test_a_document_comes_before_the_prompt_and_a_chat_around_both(loaded, tmp_path):
    document = tmp_path / "report.txt"
    document.write_text("The tower is old.", encoding="utf-8")
    text = "The tower is old.\n\nHow old?"
    ids = prompt_ids(loaded, "How old?", document)
    assert torch.equal(ids, loaded.tokenizer(text, return_tensors="pt").input_ids)
    said = loaded.tokenizer.decode(prompt_ids(loaded, "How old?", document, chat=True)[0])
    assert text in said and said.rstrip().endswith("assistant")


@real_model
@pytest.mark.parametrize(
    ("prompt", "settings", "said"),
    [
        (" ", {}, "The prompt is empty"),
        ("x", {"max_new_tokens": 9000}, "8,192 positions"),
        ("x", {"max_new_tokens": 0}, "at least 1"),
        ("x", {"temperature": -1.0}, "temperature"),
        ("x", {"temperature": float("nan")}, "temperature"),
    ],
)
def test_wrong_input_is_named(loaded, prompt, settings, said):
    with pytest.raises(FocusError, match=said):
        list(generate_text(prompt, model=loaded, **settings))


@pytest.mark.parametrize("temperature", [1e-300, 1e-9, COLDEST / 2])
def test_a_temperature_that_logits_cannot_be_divided_by_is_refused_before_the_work(temperature):
    with pytest.raises(FocusError, match=r"The temperature is .*: choose 0 .* from 0\.001 on"):
        list(generate_text("x", model="./nowhere", temperature=temperature))


def test_the_coldest_temperature_writes_the_likeliest_tokens(tiny_llama):
    ids = prompt_ids(tiny_llama, "A lamp")
    with attached(tiny_llama, untrained=True) as (_, focus):
        found = [
            write(focus, tiny_llama.tokenizer, ids, max_new_tokens=3, temperature=each).tokens for each in (0, COLDEST)
        ]
    assert found[0] == found[1]


def test_bytes_that_are_no_text_are_named(tiny_llama):
    with pytest.raises(FocusError, match="half of a surrogate pair"):
        prompt_ids(tiny_llama, os.fsdecode(b"h\xff"))


def test_the_first_difference_is_a_place():
    def made(*tokens: int) -> Written:
        return Written("hard", "", 1, tokens, "", 1.0, None)

    assert first_difference(made(1, 2, 3), made(1, 5, 3)) == 1
    assert first_difference(made(1, 2), made(1, 2)) is None
    assert first_difference(made(1, 2), made(1, 2, 3)) == 2


@real_model
def test_tokens_before_the_switch_are_those_of_the_untouched_model(loaded):
    prompt = "A lamp, a stair and a door. The keeper saw the sea. " * 20
    with attached(loaded) as (_, focus):
        routed, full, later = (
            next(iter(generate_text(prompt, model=loaded, routers=focus, max_new_tokens=6, full_below=full_below)))
            for full_below in (0, 2000, 302)
        )
        untouched = write(focus, loaded.tokenizer, prompt_ids(loaded, prompt), mode="off", max_new_tokens=6)
        with focus.routing("hard", full_below=302):
            ids = prompt_ids(loaded, prompt)
            assert ids.shape[1] == 301  # the switch is at 304, the end of a chunk
            expected = focus.generate(input_ids=ids, max_new_tokens=6, do_sample=False, use_cache=False)
    assert full.tokens == untouched.tokens and full.budget == "budget 15% from token 2,000 on"
    assert later.tokens == tuple(expected[0, ids.shape[1] :].tolist())
    assert routed.budget == "budget 15%"


@pytest.mark.parametrize("more", [1, 0, -9])
def test_a_prompt_as_long_as_the_measured_place_is_routed_from_its_start(tiny_llama, monkeypatch, more):
    prompt = "A lamp, a stair and a door. " * 3
    length = prompt_ids(tiny_llama, prompt).shape[1]
    monkeypatch.setattr("focus_core.bench.crossover.crossover", lambda *_, **__: length + more)
    config = FocusConfig(router="narrow", num_groups=8, top_k=2, window=4, chunk=4, read_share=0.25, page_size=4)
    focus = retrofit(tiny_llama.model, config)
    try:
        (found,) = generate_text(prompt, model=tiny_llama, routers=focus, max_new_tokens=2)
    finally:
        focus.detach()
    assert found.prompt_tokens == length
    assert found.budget == (f"budget 25% from token {length + 1:,} on" if more > 0 else "budget 25%")


@real_model
def test_the_command_compares_and_prints_json():
    done = CliRunner().invoke(app, ["generate", PROMPT, "-n", "4", "--compare", "--full-below", "0"])
    assert done.exit_code == 0 and "[sparse]" in done.stdout and "[untouched]" in done.stdout
    assert "tokens/s" in done.stdout and "budget 15%:" in done.stdout
    done = CliRunner().invoke(app, ["generate", PROMPT, "-n", "4", "--compare", "--json", "--full-below", "64"])
    found = json.loads(done.stdout)
    assert [text["routing"] for text in found["texts"]] == ["hard", "off"]
    assert all(len(text["tokens"]) == 4 for text in found["texts"])
