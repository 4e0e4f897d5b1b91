"""The scripts in examples/ run as their users run them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
STORY = ROOT / "data" / "samples" / "story.txt"
NEWS = ROOT / "data" / "samples" / "news.txt"


def run(name: str, *arguments: object) -> str:
    command = [sys.executable, ROOT / "examples" / name, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def tiny_folder(tiny_llama, tmp_path) -> Path:
    folder = tmp_path / "tiny"
    tiny_llama.model.save_pretrained(folder)
    tiny_llama.tokenizer.save_pretrained(folder)
    return folder


def test_every_example_is_listed_and_run_here():
    listed = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    tested = Path(__file__).read_text(encoding="utf-8")
    for path in EXAMPLES:
        assert f"({path.name})" in listed
        assert f'"{path.name}"' in tested


def test_retrofit_and_generate(default_model):
    printed = run("retrofit_and_generate.py", "Once upon a time", "--tokens", 4)
    assert [line.split(": ")[0] for line in printed.splitlines() if "Once upon a time" in line] == ["off", "hard"]


def test_train_routers(tiny_folder, tmp_path):
    small = ["--groups", 4, "--steps", 2, "--length", 96, "--router", "head"]
    printed = run(
        "train_routers.py", NEWS, "--held-out", STORY, "--model", tiny_folder, "--out", tmp_path / "out", *small
    )
    assert (tmp_path / "out" / "routers.safetensors").is_file()
    assert [line.split()[:2] for line in printed.splitlines()[1:6]] == [
        ["trained", "off"],
        ["trained", "hard"],
        ["trained", "hard"],
        ["untrained", "hard"],
        ["untrained", "hard"],
    ]
    assert "sequence" not in printed


def test_group_report(tiny_folder, tmp_path):
    out, text = tmp_path / "groups", tmp_path / "text.txt"
    text.write_text(NEWS.read_text(encoding="utf-8")[:400], encoding="utf-8")
    printed = run("group_report.py", text, "--model", tiny_folder, "--untrained", "--layer", 1, "--out", out)
    assert printed.startswith("8 groups in 1 layer")
    assert {path.name for path in out.iterdir()} == {"tokens.html", "tokens.csv", "report"}
    assert (out / "report" / "report.html").is_file()
