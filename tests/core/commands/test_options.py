"""Options: every number has a range where it is declared, and no value is ignored."""

from __future__ import annotations

import json
import math
import os
from typing import Annotated, get_args, get_origin, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from focus_core import FocusConfig, cli, retrofit
from focus_core.commands.evidence.bench import bench
from focus_core.frontier.speeds import read_speeds

FUNCTIONS = [each.callback for each in (*cli.app.registered_commands, *bench.registered_commands)]
NUMBERS = {
    f"{function.__module__.rpartition('.')[2]} {name}": (int if "int" in str(get_args(hint)[0]) else float, option)
    for function in FUNCTIONS
    if function is not None
    for name, hint in get_type_hints(function, include_extras=True).items()
    if get_origin(hint) is Annotated and any(kind in str(get_args(hint)[0]) for kind in ("int", "float"))
    for option in get_args(hint)[1:]
}
"""Every option of a number, with its type and its declaration."""


def run(*arguments: object):
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture
def folder(tmp_path, tiny_llama):
    tiny_llama.model.save_pretrained(tmp_path / "model")
    tiny_llama.tokenizer.save_pretrained(tmp_path / "model")
    config = FocusConfig(num_groups=4, top_k=1, window=8, sink_tokens=1, route_dim=8)
    retrofit(tiny_llama.model, config).save_pretrained(tmp_path / "routers")
    (tmp_path / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 30)
    return tmp_path


def evaluated(folder, *more: object):
    given = ("--data", folder / "text.txt", "--model", folder / "model", "--routers", folder / "routers")
    return run("eval", *given, "--length", 64, "--blocks", 2, *more)


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_has_a_range(name):
    kind, option = NUMBERS[name]
    if kind is int:
        assert option.min is not None and option.max is not None and option.max < 2**40
        return
    for value in ("nan", "inf", "-inf", "1e999", "x", "-1"):
        with pytest.raises(typer.BadParameter, match=r"must be|no number"):
            option.parser(value)


def test_all_numbers_are_found():
    assert len(NUMBERS) > 60 and {kind for kind, _ in NUMBERS.values()} == {int, float}


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "--data", "t", "--seed", "-1"),
        ("train", "--data", "t", "--seed", "9" * 30),
        ("train", "--data", "t", "--learning-rate", "nan"),
        ("train", "--data", "t", "--learning-rate", "inf"),
        ("train", "--data", "t", "--window", str(10**20)),
        ("train", "--data", "t", "--groups", str(10**12)),
        ("train", "--data", "t", "--trainer", "--length", "0"),
        ("train", "--data", "t", "--eval-blocks", "-1"),
        ("eval", "--data", "t", "--stride", "0"),
        ("eval", "--data", "t", "--length-blocks", "-1"),
        ("bench", "attention", "--share", "nan"),
        ("bench", "model", "--share", "inf"),
        ("bench", "baseline", "--share", "2"),
        ("bench", "baseline", "--head", "0/0"),
        ("bench", "attention", "--size", "9999999999999"),
        ("bench", "attention", "--device", "tpu"),
        ("harness", "--hub", "--device", "tpu"),
        ("reproduce", "k-sweep", "--device", "tpu"),
        ("eval", "--data", "t", "--model", ""),
    ],
)
def test_numbers_out_of_range_are_refused(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t").write_text("Some text.")
    result = run(*arguments)
    assert result.exit_code == 2 and result.stdout == "" and result.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("-k", "99"), "top_k is 99 and these routers have 4 groups"),
        (("--window", "63"), "no pair beyond the window of 63"),
        (("--length", "9"), "no pair beyond the window of 8"),
        (("--lengths", "8", "--lengths", "64"), "no pair beyond the window of 8"),
        (("--length-blocks", "3"), "--length-blocks changes nothing here: give --lengths"),
        (("--untrained",), "exclude each other"),
    ],
)
def test_settings_that_change_nothing_are_refused(folder, options, words):
    result = evaluated(folder, *options)
    assert (result.exit_code, result.stdout) == (2, "") and words in result.stderr
    assert result.stderr.strip().splitlines()[-1].endswith(".")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("eval -d t --top-k 0", "--top-k must be a whole number from 1 to 4,096."),
        ("eval -d t --length long", "--length must be a whole number from 2 to 16,777,216."),
        ("generate t --cache-bits 4", "--cache-bits must be 8."),
        ("fit -d t --share 2", "--share: it is 2.0 and must be a finite number from 0 to 1."),
        ("harness --hub --device tpu", "--device: 'tpu' is none: choose cpu or cuda."),
        ("generate t --full-below x", "--full-below: 'x' is no number of tokens: give one, or measured."),
        ("eval", "Missing option '--data' / '-d': see focus eval --help."),
        ("eval -d t --nope", "No such option: --nope (Possible options: --model, --top-k): see focus eval --help."),
        ("analyze t u", "Got unexpected extra argument(s) (u): see focus analyze --help."),
        ("bench dance", "No such command 'dance': see focus bench --help."),
        ("dance", "No such command 'dance': see focus --help."),
        ("--nope", "No such option: --nope: see focus --help."),
    ],
)
def test_a_wrong_command_line_is_one_sentence(arguments, sentence):
    result = run(*arguments.split())
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", sentence + "\n")


def test_a_model_that_is_nowhere_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    result = run("scale", "-m", "nope")
    assert result.exit_code == 2 and result.stderr.startswith("Cannot get 'nope': it is no local folder, and the hub")
    for name in (tmp_path, tmp_path / "nope"):
        assert "There is no configuration of a causal language model at" in run("scale", "-m", name).stderr


def test_a_record_of_another_run_is_never_overwritten(folder):
    out = folder / "eval.json"
    assert evaluated(folder, "--out", out, "-k", 1).exit_code == 0
    before = out.read_bytes()
    for change in (("-k", 2), ("-k", 1, "--window", 4), ("-k", 1, "--data", folder / "model" / "config.json")):
        result = evaluated(folder, "--out", out, *change)
        assert (result.exit_code, result.stdout) == (
            2,
            "",
        ) and "eval.json holds the result of another run" in result.stderr
    assert out.read_bytes() == before
    again = evaluated(folder, "--out", out, "-k", 1)
    assert again.exit_code == 0 and json.loads(out.read_text())["results"] == json.loads(before)["results"]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--precision", "bf16"),
        ("--save-every", "5"),
        ("--micro-batch", "1"),
        ("--dtype", "bfloat16"),
        ("--full-steps", "5"),
        ("--base-learning-rate", "0.1"),
        ("--gpus", "2"),
    ],
)
def test_options_of_trainer_are_refused_without_it(option, value, tmp_path):
    (tmp_path / "t").write_text("Some text.")
    result = run("train", "--data", tmp_path / "t", "--out", tmp_path / "out", option, value)
    assert result.exit_code == 2 and f"{option} changes nothing here" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("damage", ["missing", "text", "another record", "null points", "a zero"])
def test_speeds_that_were_named_are_read_or_refused(tmp_path, damage, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t").write_text("Some text.")
    point = {"dtype": "float32", "tokens": 64, "num_groups": 4, "top_k": 1, "speedup": 2.0, "kept_share": 0.5}
    record = {"schema": "focus-bench/2", "settings": {"window": 8}, "points": [point]}
    content = {
        "text": "some text",
        "another record": json.dumps({"schema": "focus-frontier/1", "points": []}),
        "null points": json.dumps(record | {"points": None}),
        "a zero": json.dumps(record | {"points": [point | {"speedup": 0}]}),
    }
    if damage != "missing":
        (tmp_path / "s.json").write_text(content[damage])
    result = run("frontier", "--data", "t", "--train", "t", "--out", "f.json", "--speeds", "s.json")
    assert result.exit_code == 2 and "s.json is" in result.stderr and result.stderr.count("\n") == 1
    if damage in ("missing", "text", "another record"):
        assert read_speeds([tmp_path / "s.json"]).points == ()


def test_brackets_in_names_are_text(folder, tmp_path):
    place = tmp_path / "a[" / "]b"  # together [/], which closes nothing
    place.mkdir(parents=True)
    (folder / "routers").rename(place / "[red]r")
    given = ("--data", folder / "text.txt", "--model", folder / "model", "--routers", place / "[red]r")
    result = run("eval", *given, "--length", 64, "--blocks", 2, "--out", place / "e[i].json")
    assert result.exit_code == 0, result.stderr
    assert "[red]r" in result.stdout and (place / "e[i].json").is_file()
    result = run("bench", "attention", "--size", 32, "--routing", "4/1", "--repetitions", 1, "--out", place / "b.json")
    assert result.exit_code == 0 and f"Written to {place / 'b.json'}." in result.stdout


def test_a_model_with_weights_that_are_not_finite_is_refused(folder, tiny_llama):
    parameter = next(tiny_llama.model.parameters())
    parameter.data[3, 3] = math.nan
    tiny_llama.model.save_pretrained(folder / "model")
    result = evaluated(folder, "--json")
    assert (result.exit_code, result.stdout) == (2, "") and "weights that are not finite" in result.stderr


@pytest.mark.parametrize("name", ["pipe", "/dev/zero", "deep", "layers"])
def test_files_that_never_end_or_fill_the_memory(folder, name):
    os.mkfifo(folder / "pipe")
    place = {"pipe": folder / "pipe", "/dev/zero": "/dev/zero"}.get(name)
    if place is not None:
        for arguments in (("analyze", place), ("eval", "--data", place), ("report", place, "--out", folder / "r")):
            result = run(*arguments, "--model", folder / "model", "--routers", folder / "routers")
            assert result.exit_code == 2 and "regular file" in result.stderr
        result = run("analyze", folder / "text.txt", "--model", place)
        assert result.exit_code == 2
        return
    config = json.loads((folder / "model" / "config.json").read_text())
    content = "[" * 200_000 if name == "deep" else json.dumps(config | {"num_hidden_layers": 10**6})
    (folder / "model" / "config.json").write_text(content)
    result = run("analyze", folder / "text.txt", "--model", folder / "model", "--routers", folder / "routers")
    assert result.exit_code == 2 and "config.json is" in result.stderr and result.stderr.count("\n") == 1


def test_a_terminal_without_unicode_gets_tables_and_valid_json(folder, monkeypatch):
    name = folder / "rouß→ters"
    (folder / "routers").rename(name)
    for more in ((), ("--json",)):
        given = ("--data", folder / "text.txt", "--model", folder / "model", "--routers", name)
        arguments = [str(each) for each in ("eval", *given, "--length", 64, "--blocks", 2, *more)]
        result = CliRunner(charset="latin-1").invoke(cli.app, arguments)
        assert result.exit_code == 0, result.exception
        if more:
            assert json.loads(result.stdout)["settings"]["routers"].endswith("rouß→ters")
