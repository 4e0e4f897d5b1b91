"""A text is never longer than the model's positions: one sentence, before any work."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel
from typer.testing import CliRunner

from focus_core import FocusConfig, retrofit
from focus_core.bench.baselines import BaselineBenchSettings
from focus_core.bench.reading import read_text_with
from focus_core.cli import app
from focus_core.errors import FocusError
from focus_core.models import check_positions, load_model
from focus_core.models.positions import has_position_table
from focus_core.training.fit import fit_routers, narrow_config

WORDS = "She rowed to the island and the old man was glad of it. " * 60


@pytest.fixture
def folder(byte_tokenizer, tmp_path):
    """GPT-2 with 64 learned positions, routers of it, and a text."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(byte_tokenizer), **sizes)).eval()
    model.save_pretrained(tmp_path / "gpt2")
    byte_tokenizer.save_pretrained(tmp_path / "gpt2")
    focus = retrofit(model, FocusConfig(num_groups=4, top_k=1, window=4, sink_tokens=1, route_dim=8))
    focus.trained = True
    focus.save_pretrained(tmp_path / "routers")
    (tmp_path / "text.txt").write_text(WORDS)
    (tmp_path / "train.txt").write_text(WORDS[7:])
    return tmp_path


@pytest.mark.parametrize(
    "line",
    [
        "eval -d text.txt -r routers --length 128 --blocks 1",
        "eval -d text.txt -r routers --length 32 --lengths 128 --blocks 1",
        "effects text.txt -r routers --layer 1 --tokens 128",
        "plan --budget 0.5 -d text.txt -r routers --length 128 -o out",
        "train -d text.txt --length 128 --steps 1 -o out",
        "frontier -d text.txt --train train.txt -r routers --length 128 -o out.json",
        "frontier --kinds texts --train train.txt -r routers --length 128 -o out.json",
        "bench model -r routers --size 128 --decode 8 -o out.json",
        "bench model -r routers --size 8 --decode 60 -o out.json",
        "bench baseline quest --data text.txt --size 128 -o out.json",
        "reproduce k-sweep --held-out text.txt -r routers --length 128 -o out",
        "reproduce lengths --held-out text.txt -r routers --length 128 -o out",
        "align text.txt -r routers --length 128",
    ],
)
def test_a_length_past_the_positions_is_refused(folder, monkeypatch, line):
    monkeypatch.chdir(folder)
    (folder / "texts").mkdir()
    (folder / "texts" / "one.txt").write_text(WORDS[3:])
    found = CliRunner().invoke(app, [*line.split(), "-m", "gpt2"])
    length = "70" if "decode 60" in line else "128"
    assert found.exit_code == 2, found.output
    assert f"gpt2 has 64 positions, so it cannot read {length} tokens at once" in found.stderr
    assert "Traceback" not in found.output and not (folder / "out.json").exists()


def test_models_without_a_table_are_refused_as_well(tiny_llama):
    check_positions(tiny_llama, 512, 64)
    with pytest.raises(FocusError, match=r"tiny has 512 positions, so it cannot read 1,024 tokens at once"):
        check_positions(tiny_llama, 64, 1024)
    assert not has_position_table(tiny_llama.model)


def test_sizes_that_nobody_names_keep_within_the_positions(folder):
    loaded = load_model(folder / "gpt2")
    assert has_position_table(loaded.model)
    config = narrow_config(num_groups=4, window=8, page_size=4, chunk=4)
    record = fit_routers(folder / "text.txt", folder / "out", model=loaded, config=config, tokens=256)
    assert (record["settings"]["length"], record["settings"]["need"][0]["length"]) == (64, 64)
    reading = read_text_with(str(folder / "gpt2"), data=folder / "text.txt", sizes=(48,))
    assert reading.positions == 64 < BaselineBenchSettings.fitted_tokens
