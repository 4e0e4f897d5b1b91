"""Predictions along a continuation, against plain forward passes of the model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from focus_core import FocusConfig, FocusError, retrofit
from focus_core.evaluation.continuation import predictions


@pytest.fixture
def focus(tiny_llama):
    return retrofit(tiny_llama.model, FocusConfig(num_groups=4, top_k=1, window=2, sink_tokens=1), seed=0)


def test_predictions_are_those_of_both_models(focus):
    ids = torch.randint(1, 90, (1, 24), generator=torch.Generator().manual_seed(0))
    found = predictions(focus, ids, 16)
    logs = []
    for mode in ("off", "hard"):
        with torch.inference_mode(), focus.routing(mode):
            logs.append(torch.log_softmax(focus(input_ids=ids, use_cache=False).logits[0, 15:-1].double(), -1).numpy())
    tokens = ids[0, 16:].numpy()
    assert (found.tokens == tokens).all()
    for model in (0, 1):
        np.testing.assert_allclose(found.log_probs[model], logs[model][np.arange(8), tokens], atol=1e-4)
        assert (found.top_ids[model, :, 0] == logs[model].argmax(-1)).all()
        np.testing.assert_allclose(found.top_log_probs[model], -np.sort(-logs[model], -1)[:, :10], atol=1e-4)
    untouched, routed = logs
    np.testing.assert_allclose(found.kl, (np.exp(untouched) * (untouched - routed)).sum(-1), atol=1e-4)
    np.testing.assert_allclose(found.change, found.log_probs[1] - found.log_probs[0])
    assert 0 < found.kept_pairs < found.causal_pairs == 3 * (24 * 25 // 2) * (found.causal_pairs // (3 * 300))


def test_a_wide_window_changes_nothing(focus):
    ids = torch.randint(1, 90, (1, 12), generator=torch.Generator().manual_seed(1))
    found = predictions(focus, ids, 4, changes={"window": 50})
    assert found.kept_pairs == found.causal_pairs
    np.testing.assert_allclose(found.kl, 0, atol=1e-6)


@pytest.mark.parametrize("prompt", [0, 12, 13])
def test_a_prompt_and_a_continuation_are_needed(focus, prompt):
    with pytest.raises(FocusError, match="at least one before and one after"):
        predictions(focus, torch.ones((1, 12), dtype=torch.long), prompt)
