"""Sinkhorn against an independent optimal-transport solver, and its numerical promises."""

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from focus_core.routing.sinkhorn import column_potentials, marginal_error, potential_softmax, sinkhorn


@pytest.mark.parametrize(("num_tokens", "num_groups"), [(40, 4), (33, 8), (64, 16)])
def test_agrees_with_pot(num_tokens, num_groups):
    scores = torch.rand(1, num_tokens, num_groups, generator=torch.Generator().manual_seed(0)).double()
    ours = sinkhorn(scores, temperature=0.1, rounds=500)[0].numpy()
    plan = ot.sinkhorn(
        np.full(num_tokens, 1 / num_tokens),
        np.full(num_groups, 1 / num_groups),
        -scores[0].numpy(),
        reg=0.1,
        stopThr=1e-13,
        numItermax=5000,
    )
    assert np.allclose(ours, plan * num_tokens, atol=1e-7)


@given(
    st.integers(1, 40),
    st.integers(2, 12),
    st.sampled_from([0.01, 0.1, 1.0]),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.integers(0, 2**31),
)
@settings(max_examples=40, deadline=None)
def test_rows_sum_to_one_and_stay_finite(num_tokens, num_groups, temperature, dtype, seed):
    scores = torch.randn(2, num_tokens, num_groups, generator=torch.Generator().manual_seed(seed)).to(dtype)
    assignment = sinkhorn(scores, temperature=temperature, rounds=10)
    assert assignment.dtype == torch.float32
    assert torch.isfinite(assignment).all()
    assert torch.allclose(assignment.sum(-1), torch.ones(2, num_tokens), atol=1e-5)


def test_columns_converge_to_their_fair_share():
    scores = torch.rand(3, 64, 8, generator=torch.Generator().manual_seed(1))
    assert marginal_error(sinkhorn(scores, temperature=0.1, rounds=300)).max() < 1e-3
    assert marginal_error(sinkhorn(scores, temperature=0.1, rounds=1)).max() > 1e-3


def test_gradcheck():
    scores = torch.rand(1, 6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2), requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: sinkhorn(x, temperature=0.1, rounds=10), scores)


def test_padding_takes_no_part():
    scores = torch.rand(1, 20, 4, generator=torch.Generator().manual_seed(3))
    padded = torch.cat([torch.full((1, 5, 4), 9.0), scores], dim=1).requires_grad_()
    valid = torch.arange(25)[None] >= 5
    result = sinkhorn(padded, temperature=0.1, rounds=10, valid=valid)
    assert torch.allclose(result[:, 5:], sinkhorn(scores, temperature=0.1, rounds=10), atol=1e-6)
    result[:, 5:].sum().backward()
    assert torch.isfinite(padded.grad).all()


def test_potentials_are_all_a_token_needs():
    scores = torch.rand(2, 30, 5, generator=torch.Generator().manual_seed(4))
    potential = column_potentials(scores, temperature=0.1, rounds=10)
    assert torch.equal(potential_softmax(scores, potential, 0.1), sinkhorn(scores, temperature=0.1, rounds=10))
