"""`--routers` takes a folder or a shipped name, in every command alike."""

from __future__ import annotations

import json

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from focus_core import cli
from focus_core.shipped import shipped_routers

SHIPPED = "smollm2-135m-k8"
UNKNOWN = (
    "There are no saved routers at 'nowhere': give a folder that focus train wrote, or one of "
    f"{', '.join(shipped_routers())}."
)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("She rowed to the island, and the old man was glad of it. " * 40)
    return path


def focus(*arguments: object):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


@pytest.mark.parametrize(
    "command",
    [
        ("eval", "--length", 96, "--blocks", 1, "-k", 1, "--data"),
        ("analyze",),
        ("report", "--no-tags", "--layer", 3, "--out", "OUT"),
        ("align", "--length", 64, "--passages", 2, "--repeats", 20),
    ],
    ids=lambda command: command[0],
)
def test_a_shipped_name_is_found_by_every_command(default_model, text, tmp_path, command):
    filled = [tmp_path / "out" if part == "OUT" else part for part in command]
    result = focus(*filled, text, "--routers", SHIPPED, "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    found = record.get("settings", {}).get("routers") or record.get("origin", {}).get("routers")
    assert (found or record["settings"]["provenance"]["routers"]) == SHIPPED


@pytest.mark.parametrize(
    "command",
    [
        ("eval", "--length", 32, "--data", "TEXT"),
        ("analyze", "TEXT"),
        ("align", "TEXT"),
        ("report", "--no-tags", "--out", "OUT", "TEXT"),
        ("plan", "--length", 32, "--out", "OUT", "--budget", 0.5, "--data", "TEXT"),
    ],
    ids=lambda command: command[0],
)
def test_an_unknown_name_is_answered_with_the_known_ones(tiny_llama, text, tmp_path, command):
    tiny_llama.model.save_pretrained(tmp_path / "model")
    tiny_llama.tokenizer.save_pretrained(tmp_path / "model")
    filled = [{"TEXT": text, "OUT": tmp_path / "out"}.get(part, part) for part in command]
    result = focus(*filled, "--model", tmp_path / "model", "--routers", "nowhere")
    assert result.exit_code == 2 and result.stderr.splitlines()[-1] == UNKNOWN
    result = focus("train", "-d", text, "-m", tmp_path / "model", "--start-from", "nowhere", "-o", tmp_path / "new")
    assert result.exit_code == 2 and result.stderr.splitlines()[-1] == UNKNOWN


def test_every_routers_option_names_a_shipped_example():
    commands = get_command(cli.app).commands
    found = [
        parameter.help
        for command in commands.values()
        for parameter in command.params
        if "--routers" in parameter.opts and parameter.metavar == "FOLDER-OR-NAME"
    ]
    assert len(found) >= 5 and all("smollm2-135m-narrow64" in text for text in found)
