"""Two prompts that differ by an edit, against plain predictions of each."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from focus_core import FocusConfig, FocusError, retrofit
from focus_core.evaluation.continuation import predictions
from focus_core.evaluation.minimal_pair import MAX_TOKENS, align_tokens, minimal_pair


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([1, 2, 3], [1, 2, 3], [(0, 0), (1, 1), (2, 2)]),
        ([1, 2, 3], [1, 9, 8, 3], [(0, 0), (1, 1), (-1, 2), (2, 3)]),
        ([1, 2, 3], [2, 3], [(0, -1), (1, 0), (2, 1)]),
        ([1], [2, 1], [(-1, 0), (0, 1)]),
    ],
)
def test_tokens_are_aligned(first, second, expected):
    assert align_tokens(first, second).tolist() == [list(row) for row in expected]


def test_changes_are_differences_of_plain_losses_and_none_before_the_edit(tiny_llama):
    focus = retrofit(
        tiny_llama.model, FocusConfig(num_groups=4, top_k=1, window=2, sink_tokens=1, balance="none"), seed=0
    )
    first = np.random.default_rng(0).integers(1, 90, 30)
    second = np.concatenate([first[:20], [91, 92], first[21:]])  # one token becomes two
    pair = minimal_pair(focus, first, second, (12, 12))
    assert pair.same.tolist() == [True] * 8 + [False] * 2 + [True] * 9
    one, two = (predictions(focus, torch.tensor(ids)[None], 12).log_probs for ids in (first, second))
    np.testing.assert_allclose(pair.change[:, :8], 0, atol=1e-5)
    np.testing.assert_allclose(pair.change[:, 10:], one[:, 9:] - two[:, 10:], atol=1e-5)
    assert np.isnan(pair.change[:, 8:10]).all() and (np.abs(pair.change[:, 10:]).max(1) > 1e-4).all()
    for mode, model in (("off", 0), ("hard", 1)):
        with torch.inference_mode(), focus.routing(mode):
            logits = focus(input_ids=torch.tensor(second)[None], use_cache=False).logits[0, -1]
        assert pair.following[1].top_ids[model, 0, 0] == logits.argmax()
    with pytest.raises(FocusError, match="give at most 512"):
        minimal_pair(focus, np.ones(MAX_TOKENS + 2, dtype=np.int64), second, (1, 1))
