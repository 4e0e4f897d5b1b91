"""Groups of keys from compiled code, against rotary embedding, scores and weights of PyTorch in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from focus_core import FocusConfig
from focus_core.routing.balance import assign
from focus_core.routing.narrow.grouping import groups_of_keys
from focus_core.routing.narrow.rotary import before_rotation


def embeddings(length, count, form, *, batch=1, factor=1.0, dtype=torch.float32):
    """Cosines and sines of `count` pairs, as families of models lay them out."""
    places = torch.arange(length)[None, :, None] + 7 * torch.arange(batch)[:, None, None]
    angles = places * 0.7 ** torch.arange(count)
    if form == "halves":
        angles = torch.cat([angles, angles], -1)
    elif form == "in a row":
        angles = angles.repeat_interleave(2, -1)
    return (angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype)


def rotated(plain, cos, sin, form):
    """Keys under rotary embedding, one pair after another."""
    key, count = plain.clone(), cos.shape[-1] // (1 if form == "compact" else 2)
    for pair in range(count):
        first, second = (2 * pair, 2 * pair + 1) if form == "in a row" else (pair, pair + count)
        angle = 2 * pair if form == "in a row" else pair
        c, s = cos[:, None, :, angle], sin[:, None, :, angle]
        key[..., first] = plain[..., first] * c - plain[..., second] * s
        key[..., second] = plain[..., second] * c + plain[..., first] * s
    return key


def routed(num_groups, heads, width, score, temperature=0.1, dtype=torch.float32):
    config = FocusConfig(
        router="narrow", num_groups=num_groups, top_k=1, score=score, temperature=temperature, balance="calibrated"
    )
    router = config.new_router(width, heads, torch.Generator().manual_seed(0), heads)
    router.potential.data.normal_(generator=torch.Generator().manual_seed(1))
    return config, router.to(dtype)


@st.composite
def cases(draw):
    form = draw(st.sampled_from(["halves", "in a row", "compact", None]))
    count = draw(st.integers(1, 9))
    return {
        "form": form,
        "count": count,
        "width": 2 * count + draw(st.integers(0, 5)),
        "length": draw(st.sampled_from([1, 3, 15, 16, 17, 33, 70, 600])),
        "batch": draw(st.integers(1, 2)),
        "heads": draw(st.integers(1, 3)),
        "num_groups": draw(st.integers(2, 40)),
        "score": draw(st.sampled_from(["dot", "cosine"])),
        "factor": draw(st.sampled_from([1.0, 1.3])),
        "dtype": draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16])),
    }


@settings(max_examples=60, deadline=None)
@given(case=cases())
def test_groups_have_the_largest_weight_of_keys_before_rotary_embedding(case):
    config, router = routed(case["num_groups"], case["heads"], case["width"], case["score"])
    generator = torch.Generator().manual_seed(case["length"])
    plain = torch.randn(case["batch"], case["length"], case["heads"], case["width"], generator=generator)
    plain, form, pe = plain.transpose(1, 2).double(), case["form"], None
    key = plain
    if form is not None:
        # One token at the start is turned by no angle, so it does not tell the layout.
        factor = case["factor"] if case["length"] > 1 else 1.0
        pe = embeddings(case["length"], case["count"], form, batch=case["batch"], factor=factor)
        key = rotated(plain, *pe, form)
        assert torch.allclose(before_rotation(key, pe), plain, atol=1e-6)
    key = key.to(case["dtype"])
    found = groups_of_keys(router, key, pe, config)
    assert found.shape == key.shape[:3] and found.dtype == torch.int64
    weights = assign(router, router(before_rotation(key.double(), pe)), config).unflatten(0, (-1, case["heads"]))
    chosen = weights.gather(-1, found[..., None])[..., 0]
    # A softmax of logits of size 30 in float32: equal but for rounding.
    assert (chosen >= weights.amax(-1) * (1 - 1e-3)).all()
    assert (found == weights.argmax(-1)).float().mean() >= 1 - 2 / found.numel() - 1e-3


def test_a_key_has_the_same_group_in_any_part_of_a_text():
    config, router = routed(64, 3, 64, "dot")
    pe = embeddings(900, 32, "halves")
    key = torch.randn(1, 900, 3, 64, generator=torch.Generator().manual_seed(0)).transpose(1, 2)
    whole = groups_of_keys(router, key, pe, config)
    for start, stop in ((0, 1), (5, 22), (511, 900), (899, 900)):
        part = slice(start, stop)
        rotation = tuple(each[:, part] for each in pe)
        assert torch.equal(groups_of_keys(router, key[:, :, part], rotation, config), whole[:, :, part])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_scores_give_the_first_group_and_other_dtypes_of_routers_are_read(dtype):
    config, router = routed(20, 1, 8, "dot", dtype=dtype)
    router.centroids.data[:] = router.centroids.data[:, :1]
    router.potential.data.zero_()
    key = torch.randn(1, 1, 30, 8, generator=torch.Generator().manual_seed(0))
    assert (groups_of_keys(router, key, None, config) == 0).all()


def test_a_balance_without_fixed_potentials_and_double_precision_are_those_of_pytorch():
    config, router = routed(8, 2, 16, "dot")
    key = torch.randn(1, 2, 50, 16, generator=torch.Generator().manual_seed(0))
    for changed, given_key in ((config.replace(balance="sequence"), key), (config, key.double())):
        expected = assign(router, router(given_key), changed).argmax(-1).unflatten(0, (-1, 2))
        assert torch.equal(groups_of_keys(router, given_key, None, changed), expected)
