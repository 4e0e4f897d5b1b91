"""A server over an exported folder, as an OpenAI client sees it, beside `FocusModel.generate`."""

import json
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
import serving_load
import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig
from typer.testing import CliRunner

from focus_core import FocusConfig, FocusModel, cli, retrofit
from focus_core.errors import FocusError
from focus_core.io.locks import claim_file
from focus_core.serving.folder import export_model, load_export
from focus_core.serving.server import register, serve

ROUTERS = "smollm2-135m-narrow64"
NARROW = FocusConfig(
    router="narrow", num_groups=5, top_k=2, window=6, sink_tokens=2, chunk=4, read_share=0.3, page_size=3
)
TOKENS = 6
NOWHERE = {
    "model_type": "focus",
    "format": 2,
    "base": {"model": "nowhere/at/all", "revision": "a", "configuration": ""},
    "files": {},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The default model and its routers, exported by the command, with routing from the first token on."""
    path = tmp_path_factory.mktemp("serving") / "served"
    done = CliRunner().invoke(cli.app, ["export", "default", ROUTERS, str(path), "--full-below", "0"])
    assert done.exit_code == 0, done.output
    return path


@pytest.fixture(scope="module")
def server(folder):
    """The address of `focus serve`, in a process of its own."""
    with serving_load.served(folder) as (address, _):
        yield address


def test_concurrent_streams_bring_the_tokens_of_generate_and_none_is_lost_or_mixed(server, folder, default_model):
    model, tokenizer = default_model.model, default_model.tokenizer
    prompts = serving_load.prompts(4)
    focus = FocusModel.from_pretrained(model, ROUTERS)
    try:
        expected = [_generated(focus, tokenizer, prompt) for prompt in prompts]
    finally:
        focus.detach()
    assert len(set(expected)) == len(expected)
    client = openai.OpenAI(base_url=server, api_key="none", max_retries=0)

    def stream(prompt):
        chunks = list(
            client.completions.create(
                model=str(folder), prompt=prompt, temperature=0, max_tokens=TOKENS, stream=True, timeout=60
            )
        )
        assert len({chunk.id for chunk in chunks}) == 1
        return "".join(chunk.choices[0].text for chunk in chunks), chunks[-1].id, chunks[-1].usage.completion_tokens

    with ThreadPoolExecutor(len(prompts)) as pool:
        found = list(pool.map(stream, prompts))
    assert [text for text, _, _ in found] == expected
    assert len({name for _, name, _ in found}) == len(prompts)
    assert {tokens for _, _, tokens in found} == {TOKENS}


def _generated(focus, tokenizer, prompt):
    ids = tokenizer(prompt, return_tensors="pt")
    with torch.inference_mode():
        out = focus.generate(**ids, max_new_tokens=TOKENS, do_sample=False, pad_token_id=tokenizer.eos_token_id)
    return tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)


def test_a_chat_is_answered_and_a_wrong_model_is_refused(server, folder):
    client = openai.OpenAI(base_url=server, api_key="none", max_retries=0)
    messages = [{"role": "user", "content": "Name a colour."}]
    found = client.chat.completions.create(model=str(folder), messages=messages, temperature=0, max_tokens=4)
    assert found.choices[0].message.content
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="gpt2", messages=messages)
    assert "pinned" in refused.value.response.text


def test_auto_classes_load_the_folder_with_routing_and_no_remote_code(folder, default_model):
    register()
    served = AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.randint(0, 4000, (1, 400), generator=torch.Generator().manual_seed(0))
    assert not list(folder.rglob("*.py"))
    focus = FocusModel.from_pretrained(default_model.model, ROUTERS)
    try:
        with torch.inference_mode():
            found, routed = served(ids).logits, focus(ids).logits
            with focus.routing("off"):
                untouched = focus(ids).logits
    finally:
        focus.detach()
    assert torch.equal(found, routed)
    assert not torch.allclose(found, untouched, atol=1e-3)
    assert type(served) is type(default_model.model)
    # The paged path of continuous batching has no place for groups, so Transformers refuses it at the start.
    plain = ContinuousBatchingConfig(auto_switch_to_flash=False)
    with pytest.raises(ValueError, match="not supported for continuous batching"):
        served.init_continuous_batching(continuous_batching_config=plain)


def test_a_copy_needs_no_base_model_elsewhere_and_changed_weights_are_refused(tiny_llama, tmp_path):
    focus = retrofit(tiny_llama.model, FocusConfig(num_groups=4, top_k=1, window=4, route_dim=8))
    focus.save_pretrained(tmp_path / "routers")
    focus.detach()
    export_model(tiny_llama, tmp_path / "routers", tmp_path / "served", copy=True)
    _, found = load_export(tmp_path / "served")
    ids = torch.randint(0, 256, (1, 64), generator=torch.Generator().manual_seed(0))
    again = FocusModel.from_pretrained(tiny_llama.model, tmp_path / "routers")
    with torch.inference_mode():
        assert torch.equal(found(ids).logits, again(ids).logits)
    with torch.no_grad():
        again.detach().lm_head.weight.add_(1)
    tiny_llama.model.save_pretrained(tmp_path / "served" / "base")
    with pytest.raises(FocusError, match=r"base/.* is not the file that was exported"):
        load_export(tmp_path / "served")


def test_a_folder_says_how_the_cache_is_kept(tiny_llama, model_folder, tmp_path):
    """Tokens that follow are those of the same routers with the same `cache_bits`."""
    with pytest.raises(FocusError, match="cache_bits"):
        export_model(model_folder, model_folder / "routers", tmp_path / "refused", full_below=0, cache_bits=8)
    assert not (tmp_path / "refused").exists()
    routers = tmp_path / "narrow"
    focus = retrofit(tiny_llama.model, NARROW)
    focus.save_pretrained(routers)
    focus.detach()
    export_model(model_folder, routers, tmp_path / "served", full_below=0, cache_bits=8)
    ids = torch.randint(0, 256, (1, 60), generator=torch.Generator().manual_seed(0))

    def written(focus):
        with torch.inference_mode():
            found = focus.model.generate(
                ids, max_new_tokens=8, do_sample=False, output_scores=True, return_dict_in_generate=True
            )
        return torch.stack(found.scores)

    focus = load_export(tmp_path / "served")[1]
    as_exported = written(focus)
    with focus.routing("hard", cache_bits=8):
        rounded = written(focus)
    with focus.routing("hard", cache_bits=None):
        exact = written(focus)
    assert torch.equal(as_exported, rounded)
    assert not torch.equal(rounded, exact)

    retrofit(tiny_llama.model, NARROW.replace(cache_bits=8)).save_pretrained(tmp_path / "rounded")
    export_model(model_folder, tmp_path / "rounded", tmp_path / "as_routers_say", full_below=0)
    assert torch.equal(written(load_export(tmp_path / "as_routers_say")[1]), rounded)


@pytest.mark.parametrize("tokens", [39, 40, 60])
def test_a_measured_full_below_is_for_shorter_prompts_and_a_given_one_for_all(
    tiny_llama, model_folder, tmp_path, monkeypatch, tokens
):
    monkeypatch.setattr("focus_core.serving.folder.crossover", lambda *_, **__: 40)
    focus = retrofit(tiny_llama.model, NARROW)
    focus.save_pretrained(tmp_path / "narrow")
    focus.detach()
    ids = torch.randint(0, 256, (2, tokens), generator=torch.Generator().manual_seed(0))

    def exported(name, full_below):
        export_model(model_folder, tmp_path / "narrow", tmp_path / name, full_below=full_below)
        return load_export(tmp_path / name)[1]

    def written(served, *given, **named):
        how = {"max_new_tokens": 12, "do_sample": False, "output_scores": True, "return_dict_in_generate": True}
        how |= {"attention_mask": torch.ones_like(ids), "pad_token_id": 0}
        with torch.inference_mode():
            return torch.stack(served.model.generate(*given, **named, **how).scores)

    measured, given = exported("measured", None), exported("given", 40)
    expected = {}
    for full_below in (0, 40):
        with given.routing("hard", full_below=full_below):
            expected[full_below] = written(given, ids)
    assert not torch.equal(expected[0], expected[40])
    for found in (written(measured, ids), written(measured, input_ids=ids)):
        assert torch.equal(found, expected[40 if tokens < 40 else 0])
    assert torch.equal(written(given, ids), expected[40])
    changed = {"top_k": 3, "read_share": 0.5}  # other settings in force are kept
    with measured.routing("hard", full_below=40, **changed):
        found = written(measured, ids)
    with given.routing("hard", full_below=40 if tokens < 40 else 0, **changed):
        assert torch.equal(found, written(given, ids))
    with measured.routing("off"), given.routing("off"):
        assert torch.equal(written(measured, ids), written(given, ids))


@pytest.mark.parametrize(
    "name", ["routers/routers.safetensors", "routers/focus_config.json", "tokenizer.json", "x.jinja"]
)
def test_a_folder_of_which_a_file_was_changed_is_refused(model_folder, tmp_path, name):
    export_model(model_folder, model_folder / "routers", tmp_path / "served", full_below=0)
    load_export(tmp_path / "served")
    place = tmp_path / "served" / name
    place.write_bytes((place.read_bytes() if place.exists() else b"") + b" ")
    with pytest.raises(FocusError, match=f"{name} is not the file that was exported"):
        load_export(tmp_path / "served")


@pytest.mark.parametrize("change", ["weights", "configuration"])
def test_a_base_model_that_was_changed_is_refused(model_folder, tmp_path, tiny_llama, change):
    export_model(model_folder, model_folder / "routers", tmp_path / "served", full_below=0)
    if change == "weights":
        next(tiny_llama.model.parameters()).data.add_(1)
        tiny_llama.model.save_pretrained(model_folder)
    else:
        config = json.loads((model_folder / "config.json").read_text())
        (model_folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5}))
    with pytest.raises(FocusError, match="export it again"):
        load_export(tmp_path / "served")


@pytest.mark.parametrize(
    ("write", "sentence"),
    [
        (None, "name a folder that focus export wrote"),
        ({"model_type": "llama"}, "is not an exported folder"),
        ({"model_type": "focus", "format": 9, "base": {"model": None, "revision": "a"}}, "has format 9"),
        ({"model_type": "focus", "format": "2"}, "has format '2'"),
        ({"model_type": "focus", "format": 2}, "base"),
        (NOWHERE, "no model folder"),
        (
            NOWHERE | {"files": {"routers/focus_config.json": "0"}},
            "focus_config.json is not the file that was exported",
        ),
    ],
)
def test_folders_that_cannot_be_served_get_one_sentence(tmp_path, write, sentence):
    if write is not None:
        (tmp_path / "config.json").write_text(json.dumps(write))
    with pytest.raises(FocusError, match=sentence):
        load_export(tmp_path)
    if "nowhere" not in str(write):  # the server says the same before it starts
        with pytest.raises(FocusError, match=sentence):
            serve(tmp_path)


def test_the_server_refuses_a_dtype_and_an_address_before_it_loads(folder):
    with pytest.raises(FocusError, match="choose float32, bfloat16, float16"):
        serve(folder, dtype="bool")
    with socket.socket() as taken, pytest.raises(FocusError, match="name another --host or --port"):
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        serve(folder, host="127.0.0.1", port=taken.getsockname()[1])
    with pytest.raises(FocusError, match=r"Nothing can listen at 999\.1\.1\.1"):
        serve(folder, host="999.1.1.1", port=8000)


def test_one_export_at_a_time_writes_a_folder_and_one_that_fails_leaves_nothing(tmp_path):
    with claim_file(tmp_path / ".out.partial"), pytest.raises(FocusError, match="is being written by process"):
        export_model("default", ROUTERS, tmp_path / "out")
    with pytest.raises(FocusError):
        export_model("default", tmp_path / "no routers", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_export_writes_into_no_folder_that_has_files(tmp_path):
    (tmp_path / "mine.txt").write_text("kept")
    with pytest.raises(FocusError, match="not empty"):
        export_model("default", ROUTERS, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_transformers_alone_refuses_the_folder_instead_of_serving_the_base_model(folder):
    code = f"from transformers import AutoModelForCausalLM as M; M.from_pretrained({str(folder)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "focus" in done.stderr
