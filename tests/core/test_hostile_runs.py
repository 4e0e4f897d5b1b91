"""Hostile options of commands with a model that loads: a result or one sentence, and JSON that is finite."""

from __future__ import annotations

import json
import os
import shutil
import sys
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from focus_core import FocusConfig, cli, retrofit

NUMBERS = ("0", "1", "2", "3", "7", "16", "31", "32", "64", "99", "512", "9999999", "-1", "0.5", "nan", "1e-300")
PLACES = (
    "text",
    "other",
    "empty",
    "folder",
    "pipe",
    "routers",
    "narrow",
    "model",
    "missing",
    "out[/]",
    "made/by/it",
    ".",
)
WORDS = (
    "head",
    "narrow",
    "layer",
    "lm",
    "mass",
    "routed",
    "untouched",
    "force",
    "links",
    "[/red]",
    "0/0",
    "1/9",
    "paper",
)
COMMANDS: dict[str, dict[str, tuple[str, ...]]] = {
    "eval -d text --length 32 --blocks 1": {
        **dict.fromkeys(("--stride", "-k", "--window", "--lengths", "--length-blocks"), NUMBERS),
        **dict.fromkeys(("--routers", "--data", "--out"), PLACES),
    },
    "train -d text --length 32 --steps 1 --eval-blocks 1 -o trained": {
        **dict.fromkeys(
            ("-K", "-k", "--window", "--sinks", "--batch-size", "--eval-top-k", "--learning-rate"), NUMBERS
        ),
        **dict.fromkeys(("--router", "--objective", "--recipe"), WORDS),
        **dict.fromkeys(("--start-from", "--held-out", "--out"), PLACES),
    },
    "analyze text": {
        **dict.fromkeys(("-k", "--head", "--query-head", "--length"), NUMBERS),
        **dict.fromkeys(("--routers", "--out"), PLACES),
        "--states": WORDS,
    },
    "effects text --layer 1 --draws 2 --tokens 24": {
        **dict.fromkeys(("--head", "--group", "--target", "--tokens", "--layer"), NUMBERS),
        **dict.fromkeys(("--kind", "--chance"), WORDS),
        **dict.fromkeys(("--routers", "--out"), PLACES),
    },
    "report text -o reported --no-tags": {
        **dict.fromkeys(("-k", "--head", "--layer", "--block", "--batch-size", "--examples"), NUMBERS),
        **dict.fromkeys(("--routers", "--out"), PLACES),
        "--states": WORDS,
    },
    "plan -d text --length 32 --blocks 1 --budget 0.5 -o planned": {
        **dict.fromkeys(("-k", "--budget", "--window", "--length"), NUMBERS),
        **dict.fromkeys(("--routers", "--costs", "--out"), PLACES),
    },
    "generate hello -n 2": {
        **dict.fromkeys(("--temperature", "--full-below", "--seed", "-n"), NUMBERS),
        **dict.fromkeys(("--routers", "-d"), PLACES),
    },
    "bench model --size 16 --decode 8 --repetitions 1 -o benched.json": {
        **dict.fromkeys(("--k", "--share", "--full-below", "--size"), NUMBERS),
        **dict.fromkeys(("--routers", "--data", "--out"), PLACES),
        "--dtype": WORDS,
    },
    "bench baseline streaming --data text --size 48 --window 4 --repetitions 1 -o based.json": {
        **dict.fromkeys(("--share", "--window", "--size", "--query-heads"), NUMBERS),
        **dict.fromkeys(("--head", "--setting"), WORDS),
        **dict.fromkeys(("--data", "--out"), PLACES),
    },
    "frontier -d text --train other --length 32 -w 4 --blocks 1 --baseline streaming -o front.json": {
        **dict.fromkeys(("-k", "--share", "--window", "--sinks", "--length"), NUMBERS),
        **dict.fromkeys(("--routers", "--data", "--speeds", "--out"), PLACES),
        "--baseline": WORDS,
    },
}
RUNS = int(os.environ.get("FOCUS_FUZZ", "24"))
"""More of them find more."""


@pytest.fixture(scope="module")
def ground(tmp_path_factory, byte_tokenizer):
    """A folder with a model that loads, routers of three kinds, texts, and what is none."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("runs")
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(byte_tokenizer), **sizes)).eval()
    model.save_pretrained(folder / "model")
    byte_tokenizer.save_pretrained(folder / "model")
    kinds: dict[str, dict[str, Any]] = {"routers": {"num_groups": 4, "top_k": 1}, "narrow": {"read_share": 0.2}}
    kinds["narrow"] |= {"router": "narrow", "num_groups": 4, "top_k": 1, "chunk": 4}
    for name, values in kinds.items():
        focus = retrofit(model, FocusConfig(**values, window=8, sink_tokens=1))
        focus.trained = True
        focus.save_pretrained(folder / name)
        focus.detach()
    (folder / "text").write_text("The quick brown fox jumps over the lazy dog. " * 8)
    (folder / "other").write_text("Pack my box with five dozen liquor jugs, said the fox. " * 24)
    (folder / "empty").write_text("")
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    return folder


@settings(max_examples=RUNS, deadline=None, derandomize=True, suppress_health_check=[*HealthCheck])
@given(data=st.data())
def test_options_of_runs_that_begin_end_in_a_result_or_one_sentence(ground, monkeypatch, data):
    monkeypatch.chdir(ground)
    monkeypatch.setenv("FOCUS_CACHE", str(ground / "cache"))
    command = data.draw(st.sampled_from(sorted(COMMANDS)))
    options = COMMANDS[command]
    arguments = [*command.split(), "--model", "model", "--json"]
    chosen = data.draw(st.lists(st.sampled_from(sorted(options)), max_size=3, unique=True))
    if "--routers" in options and "--routers" not in chosen:
        chosen, options = [*chosen, "--routers"], options | {"--routers": ("routers", "narrow")}
    for option in chosen:
        arguments += [f"{option}={data.draw(st.sampled_from(options[option]))}" if option.startswith("--") else option]
        arguments += [] if option.startswith("--") else [data.draw(st.sampled_from(options[option]))]
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), (arguments, result.exc_info)
    assert result.exit_code in (0, 2) and "Traceback" not in result.output, arguments
    if result.exit_code == 0:
        json.loads(result.stdout, parse_constant=lambda name: pytest.fail(f"{name} in the JSON of {arguments}"))
    else:
        assert result.stdout == "" and result.stderr.rstrip().endswith((".", "╯")), (arguments, result.output)
    assert not [*ground.rglob("*.partial"), *ground.rglob("*.lock")], arguments


ODD = "na\udcffme"
"""A name with a byte that is no UTF-8, as Python spells it; Linux allows any."""


MORE = {"train": "--window 8", "analyze": "--length 64", "report": "--block 64"}
"""What commands need to come to an end, beside routers."""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have names in Unicode alone")
@pytest.mark.parametrize("command", [*COMMANDS, "align text --length 32 -o aligned.json", "fit -d other -o fitted"])
def test_names_that_are_no_unicode_are_names(ground, monkeypatch, command):
    monkeypatch.chdir(ground)
    monkeypatch.setenv("FOCUS_CACHE", str(ground / "cache"))
    (ground / ODD).mkdir(exist_ok=True)
    for name in ("text", "other"):
        shutil.copy(ground / name, ground / ODD / f"{name}.txt")
    name, *rest = command.split()
    out = f"{ODD}/{len(command)}.json" if command.endswith(".json") or name in ("eval", "effects") else f"out-{name}"
    places = {"text": f"{ODD}/text.txt", "other": f"{ODD}/other.txt"}
    arguments = [
        out if before in ("-o", "--out") else places.get(word, word) for before, word in pairwise((name, *rest))
    ]
    arguments = [name, *arguments, *MORE.get(name, "").split(), "--model", "model", "--json"]
    arguments += ["--out", out] * (name in ("eval", "analyze", "effects"))
    arguments += ["--routers", "narrow" if name == "generate" else "routers"] * (
        "--routers" in COMMANDS.get(command, {}) or name == "align"
    )
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 0, (arguments, result.output, result.exc_info)
    assert json.loads(result.stdout)
    if out in arguments and not out.endswith(".json"):
        refused = CliRunner().invoke(cli.app, [f"{ODD}/{out}" if each == out else each for each in arguments])
        assert refused.exit_code == 2 and "is not Unicode: name another folder" in refused.stderr
