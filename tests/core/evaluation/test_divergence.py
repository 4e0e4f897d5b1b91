"""Losses, divergence and agreement of logits against float64, at a large vocabulary and at odd ones."""

import pytest
import torch
from torch.nn import functional as F

from focus_core.evaluation.divergence import compare_logits


@pytest.mark.parametrize("vocabulary", [2, 90, 2048, 50_001])
@pytest.mark.parametrize("noise", [0.0, 0.03, 3.0])
def test_comparison_is_that_of_float64(vocabulary, noise):
    generator = torch.Generator().manual_seed(0)
    full = torch.randn(40, vocabulary, generator=generator) * 4 + 10
    sparse = full + noise * torch.randn(full.shape, generator=generator) - 25 * bool(noise)
    targets = torch.randint(vocabulary, (40,), generator=generator)
    found = compare_logits(sparse, full, targets)
    log_sparse, log_full = sparse.double().log_softmax(-1), full.double().log_softmax(-1)
    kl = F.kl_div(log_sparse, log_full, reduction="none", log_target=True).sum(-1)
    assert torch.allclose(found.kl.double(), kl, atol=3e-6, rtol=1e-5)
    assert float(found.kl.double().mean()) == pytest.approx(float(kl.mean()), abs=2e-7, rel=1e-5)
    assert torch.allclose(found.losses.double(), F.nll_loss(log_sparse, targets, reduction="none"), atol=3e-6)
    assert torch.equal(found.agrees, (sparse.argmax(-1) == full.argmax(-1)).float())
    if not noise:
        assert not bool(found.kl.any())


def test_equal_largest_logits_agree_on_the_first():
    sparse, full = torch.tensor([[1.0, 3.0, 3.0], [3.0, 3.0, 1.0]]), torch.tensor([[0.0, 5.0, 5.0], [0.0, 5.0, 5.0]])
    found = compare_logits(sparse, full, torch.tensor([0, 0])).agrees
    assert torch.equal(found, (sparse.argmax(-1) == full.argmax(-1)).float())
