"""The stored pages of a cache: compiled against PyTorch, copies, and keys and values in 8 bits."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reading_budgets import some_directions

from focus_core.routing.narrow.cache.attention import Near, attend_masked, attend_stored
from focus_core.routing.narrow.cache.pages import PageStore, rounded
from focus_core.routing.narrow.compiled.cache.storing import Stored
from focus_core.routing.narrow.reading import Reading


@pytest.mark.parametrize("bits", [None, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_code_reads_the_buffers_in_use_after_growth_and_in_a_copy(dtype, bits):
    key, value, groups = torch.randn(2, 90, 8), torch.randn(2, 90, 4), torch.randint(0, 3, (2, 90))
    key, value = key.to(dtype), value.to(dtype)
    pages = PageStore(key, value, 3, 4, bits)
    for new in (slice(0, 10), slice(10, 90)):
        pages.add(groups[:, new], key[:, new], value[:, new])
        pages.arrays()
        for store in (pages, pages.copy(), copy.deepcopy(pages)):
            stored = [getattr(store, name) for name in Stored._fields]
            assert [array.shape for array in store.arrays()] == [tuple(tensor.shape) for tensor in stored]
            held = [pair for pair in zip(store.arrays(), stored) if pair[1].numel()]
            assert all(array.__array_interface__["data"][0] == tensor.data_ptr() for array, tensor in held)
            assert len(held) == (8 if bits is None else 10)


@st.composite
def changes_of_pages(draw):
    """Keys that come, each with its group, and lengths to go back to."""
    pieces = draw(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20)), min_size=1, max_size=5))
    return draw(st.integers(1, 5)), draw(st.integers(1, 8)), pieces, draw(st.integers(0, 99))


@pytest.mark.parametrize("bits", [None, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@settings(deadline=None)
@given(changes=changes_of_pages())
def test_compiled_pages_are_those_of_pytorch(dtype, bits, changes):
    num_groups, size, pieces, seed = changes
    torch.manual_seed(seed)
    empty = torch.zeros(2, 0, 6, dtype=dtype), torch.zeros(2, 0, 5, dtype=dtype)
    directions = some_directions(2, 6, seed % 4, seed) if seed % 4 else None
    compiled, plain = (PageStore(*empty, num_groups, size, bits, directions) for _ in range(2))
    for new, back in pieces:
        groups = torch.randint(0, num_groups, (2, new))
        key, value = torch.randn(2, new, 6).to(dtype), torch.randn(2, new, 5).to(dtype)
        compiled.add(groups, key, value)
        plain._add(groups, key, value)
        for store in (compiled, plain):
            store.take_back(max(0, store.length - back))
        assert (compiled.length, compiled.used) == (plain.length, plain.used)
        for name, part in vars(plain).items():
            if isinstance(part, torch.Tensor):
                torch.testing.assert_close(getattr(compiled, name), part, rtol=1e-5, atol=1e-5, msg=name)


@settings(deadline=None)
@given(changes=changes_of_pages())
def test_pages_hold_the_keys_of_one_group_in_order(changes):
    num_groups, size, pieces, seed = changes
    random = np.random.default_rng(seed)
    store = PageStore(torch.zeros(1, 0, 1), torch.zeros(1, 0, 1), num_groups, size)
    came = []  # the group of each key; the keys themselves are counted from 1
    for new, back in pieces:
        groups = random.integers(num_groups, size=new).tolist()
        numbers = torch.arange(len(came), len(came) + new).view(1, -1, 1) + 1.0
        store.add(torch.tensor([groups], dtype=torch.long), numbers, -numbers)
        came += groups
        store.take_back(max(0, len(came) - back))
        del came[max(0, len(came) - back) :]
    members = {group: [1.0 + place for place, own in enumerate(came) if own == group] for group in range(num_groups)}
    pages = [members[group][first : first + size] for group in members for first in range(0, len(members[group]), size)]
    keys, values = store.restored(torch.tensor([[0]]), torch.arange(store.used)[None])
    counts = store.counts[0, : store.used].int().tolist()
    held = [page[:count, 0].tolist() for page, count in zip(keys[0], counts)]
    assert sorted(held) == sorted(pages)
    assert [(-page[:count, 0]).tolist() for page, count in zip(values[0], counts)] == held


@pytest.mark.parametrize(("length", "most"), [(1900, 1.05), (7800, 1.03)])
def test_a_text_of_many_pages_takes_little_more_than_its_keys(length, most):
    key, groups = torch.zeros(3, length, 64), torch.randint(64, (3, length), generator=torch.manual_seed(0))
    store = PageStore(key, key, 64, 16, directions=some_directions(3, 64, 5, 0))
    store.add(groups, key, key)
    assert store.keys.shape[1] <= length - int(store._pages.min()) + 64
    held = sum(part.nbytes for part in vars(store).values() if isinstance(part, torch.Tensor))
    assert held <= most * 2 * key.nbytes


@pytest.mark.parametrize("size", [1, 2, 5, 8, 16])
@pytest.mark.parametrize("count", [1, 7, 300])
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_last_key_of_a_page_comes_from_the_sums(dtype, compiled, count, size):
    # Means far from 0 and components of unlike size, as keys of real models have.
    draw = torch.Generator().manual_seed(size)
    scales = 10 ** torch.linspace(-2, 2, 6)
    key, value = (scales * (3 + torch.randn(2, 20 * size + 3, 6, generator=draw)) for _ in range(2))
    key, value, groups = key.to(dtype), value.to(dtype), torch.zeros(2, 20 * size + 3, dtype=torch.long)
    store = PageStore(key, value, 1, size)
    add = store.add if compiled else store._add
    for first in range(0, key.shape[1], count):
        new = slice(first, first + count)
        add(groups[:, new], key[:, new], value[:, new])
    rest = 3 % size if size > 1 else 0
    whole = store.used - (rest > 0)
    assert store.starts.shape[2] == size // 2
    assert int(store._taken[0]) - whole * (size - 1) in range(max(0, rest - 1), rest + 1)
    keys, values = store.restored(torch.arange(2)[:, None], torch.arange(store.used).expand(2, -1))
    found = store.take_back(0)
    for came, paged, left in ((key, keys, found[0]), (value, values, found[1])):
        for back in (paged.flatten(1, 2)[:, : came.shape[1]], left):
            if dtype in (torch.bfloat16, torch.float16):
                assert torch.equal(back, came)
            else:
                # The sum is `size` times a key, so its rounding is that much more of it.
                epsilon = torch.finfo(dtype).eps
                assert ((back - came).abs() <= size * epsilon * came.abs().amax(1, keepdim=True)).all()


@given(scale=st.floats(1e-30, 1e30), seed=st.integers(0, 99))
def test_a_rounded_vector_is_off_by_half_its_scale_at_most(scale, seed):
    vectors = scale * torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(seed))
    vectors[0, 0] = 0
    codes, scales = rounded(vectors)
    assert codes.dtype == torch.int8 and torch.allclose(scales, vectors.abs().amax(-1) / 127)
    assert ((codes * scales[..., None] - vectors).abs() <= 0.5001 * scales[..., None]).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_attention_over_rounded_pages_is_that_under_a_mask(dtype):
    torch.manual_seed(0)
    directions = some_directions(2, 8, 2)
    reading = Reading(6, 2, chunk=4, share=0.3, page_size=3, spread=(0.5,) * 4, directions=directions)
    key, value, groups = torch.randn(2, 90, 8), torch.randn(2, 90, 16), torch.randint(0, 5, (2, 90))
    key, value, query = key.to(dtype), value.to(dtype), torch.randn(4, 3, 8).to(dtype)
    border = reading.border(87)
    pages = PageStore(key, value, 5, 3, 8, directions)
    pages.add(groups[:, 2:border], key[:, 2:border], value[:, 2:border])
    near = [torch.cat([part[:, :2], part[:, border:]], 1) for part in (key, value)]
    call = query, pages, Near(*near, first=2, length=90, border=border, sinks=2), reading, 0.3, None
    found, expected = attend_stored(*call), attend_masked(*call)
    torch.testing.assert_close(found.logsumexp, expected.logsumexp, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.output, expected.output, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)
