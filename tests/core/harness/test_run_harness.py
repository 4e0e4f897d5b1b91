"""The harness command and its function: every task under every routing once, one record."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install 'focus-workbench[eval]'")

from typer.testing import CliRunner

from focus_core.cli import app
from focus_core.errors import FocusError
from focus_core.harness.run import HarnessSettings, run_harness, task_limits
from focus_core.routing.config import FocusConfig
from focus_core.routing.model import retrofit


@pytest.fixture
def folder(tmp_path, tiny_llama):
    tiny_llama.model.save_pretrained(tmp_path / "model")
    tiny_llama.tokenizer.save_pretrained(tmp_path / "model")
    config = FocusConfig(num_groups=4, top_k=1, window=16, sink_tokens=1, route_dim=8)
    retrofit(tiny_llama.model, config, seed=1).save_pretrained(tmp_path / "routers")
    (tmp_path / "filler.txt").write_text("A boat went out. It came back at noon! Who saw it? Nobody did. " * 30)
    return tmp_path


def test_the_function_returns_the_record_and_resumes(folder):
    settings = HarnessSettings(
        data=None, limits={"needle_150": 3}, top_k=(1,), soft=False, filler=(folder / "filler.txt",)
    )
    inputs = {"model": str(folder / "model"), "routers": str(folder / "routers")}
    seen = []
    record = run_harness(settings, folder / "out", **inputs, progress=lambda message, share: seen.append(share))
    assert record == json.loads((folder / "out" / "summary.json").read_text(encoding="utf-8"))
    assert record["schema"] == "focus-harness/1" and record["settings"]["limits"] == {"needle_150": 3}
    assert [(row["task"], row["setting"]) for row in record["results"]] == [
        ("needle_150", "off"),
        ("needle_150", "hard-k1"),
    ]
    assert "differences" in record["results"][1] and max(seen) <= 1
    cells = sorted((folder / "out").glob("needle*.json"))
    assert [path.stem for path in cells] == ["needle_150--hard-k1", "needle_150--off"]
    before = [path.read_bytes() for path in cells]
    again = run_harness(settings, folder / "out", **inputs)
    assert again["results"] == record["results"] and [path.read_bytes() for path in cells] == before
    with pytest.raises(FocusError, match="other settings"):
        run_harness(HarnessSettings(**{**vars(settings), "seed": 1}), folder / "out", **inputs)


def test_the_command_prints_scores_beside_exposure(folder):
    arguments = ["harness", "--hub", "-t", "needle_150=2", "-k", "1", "--no-soft", "--filler", folder / "filler.txt"]
    arguments += ["--model", folder / "model", "--routers", folder / "routers", "--out", folder / "out"]
    result = CliRunner().invoke(app, [*map(str, arguments), "--record", str(folder / "kept.json")])
    assert result.exit_code == 0, result.output
    assert "hard-k1" in result.stdout and "removed" in result.stdout
    assert json.loads((folder / "kept.json").read_text(encoding="utf-8"))["schema"] == "focus-harness/1"
    nowhere = CliRunner().invoke(app, ["harness", "-t", "piqa"])
    assert nowhere.exit_code == 2 and nowhere.stderr.startswith("Say where the tasks come from")


def test_items_of_a_task():
    assert task_limits(["piqa", "gsm8k=5", "arc_easy=0"], 100) == {"piqa": 100, "gsm8k": 5, "arc_easy": None}
    assert task_limits(["piqa"], 0) == {"piqa": None}
    with pytest.raises(FocusError, match="write NAME or NAME=20"):
        task_limits(["piqa=some"], 100)
