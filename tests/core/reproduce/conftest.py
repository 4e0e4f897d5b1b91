"""A tiny model on the disk with routers and texts, and the inputs of experiments at their smallest."""

import numpy as np
import pytest

from focus_core import FocusConfig, retrofit
from focus_core.reproduce.context import Context, Scale

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "one", "dog", "run", "past", "it", "then", "slept"]
SCALE = Scale(steps=2, full_steps=2, length=64, batch_size=2, blocks=3, window=8, limit=2)


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("FOCUS_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


@pytest.fixture
def folder(tmp_path, tiny_llama):
    """A model on the disk, with routers, training text and held-out text."""
    tiny_llama.model.save_pretrained(tmp_path / "model")
    tiny_llama.tokenizer.save_pretrained(tmp_path / "model")
    for name, seed in (("train.txt", 0), ("held.txt", 1)):
        (tmp_path / name).write_text(" ".join(np.random.default_rng(seed).choice(WORDS, 900)))
    focus = retrofit(tiny_llama.model, FocusConfig(num_groups=4, top_k=1, window=8, sink_tokens=1, route_dim=8))
    focus.trained = True
    focus.save_pretrained(tmp_path / "routers")
    focus.detach()
    return tmp_path


@pytest.fixture
def context(folder):
    return Context(
        SCALE,
        folder,
        data=[folder / "train.txt"],
        held_out=[folder / "held.txt"],
        models=[str(folder / "model")],
        routers=str(folder / "routers"),
    )
