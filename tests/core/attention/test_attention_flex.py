"""The analytic block mask against brute force, and FlexAttention under it against the dense reference."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from test_attention_backends import problems
from torch.nn.attention.flex_attention import flex_attention

import focus_core.attention.flex as flex
from focus_core.attention.inputs import kept_mask
from focus_core.attention.reference import dense
from focus_core.attention.validate import checked_inputs


def inputs_of(problem):
    (query, key, value), membership, options = problem
    options = {"scale": None, "softcap": None, "sliding_window": None} | options
    reads = options.pop("query_membership", None)
    reads = None if reads is None else reads[:, :, :62]
    positions = options.pop("positions")
    return checked_inputs(query, key, value, membership[:, :, :62], positions, query_membership=reads, **options)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problem=problems())
def test_block_mask_against_brute_force(problem):
    """Every kept pair is in a visited block, and a block called full holds kept pairs only."""
    inputs = inputs_of(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flex, "BLOCK", 16)
        layout = flex.block_layout(inputs)
    kept = kept_mask(inputs)
    kept = kept.gather(1, layout.queries[..., None].expand_as(kept))
    kept = kept.gather(2, layout.keys[:, None].expand_as(kept))
    size = [-(-length // 16) * 16 for length in kept.shape[1:]]
    for fill, mask in ((False, "some"), (True, "every")):
        blocks = torch.full((kept.shape[0], *size), fill)
        blocks[:, : kept.shape[1], : kept.shape[2]] = kept
        blocks = blocks.unflatten(2, (-1, 16)).unflatten(1, (-1, 16)).transpose(2, 3).flatten(3)
        if mask == "some":
            assert (layout.some | ~blocks.any(3)).all()
        else:
            assert (blocks.all(3) | ~layout.every).all()
    assert (layout.some | ~layout.every).all()


def test_block_mask_is_sparse():
    """At one group a token, a block sees its own group's past, and others only where positions come near."""
    generator = torch.Generator().manual_seed(0)
    membership = torch.nn.functional.one_hot(torch.randint(8, (1, 16384), generator=generator), 8).bool()
    query = torch.zeros(1, 1, 16384, 8)
    inputs = inputs_of(((query, query, query), membership, dict(window=64, sink_tokens=4, positions=None)))
    layout = flex.block_layout(inputs)
    assert layout.some.float().mean() < 0.3
    # 16 blocks a group, of which one or two are shared with a neighbour: about 8 * 15 * 14 / 2.
    assert layout.every.sum() > 700


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problem=problems())
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_agrees_with_the_dense_reference(problem):
    inputs = inputs_of(problem)
    result, reference = flex.run_flex(inputs, flex_attention), dense(inputs)
    torch.testing.assert_close(result.output, reference.output, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(result.logsumexp, reference.logsumexp, atol=1e-4, rtol=1e-4)
