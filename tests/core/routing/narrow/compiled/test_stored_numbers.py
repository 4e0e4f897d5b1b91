"""Numbers as compiled code writes them, against PyTorch's rounding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numba import njit

from focus_core.routing.narrow.attention import narrow_attention
from focus_core.routing.narrow.compiled import prefill as compiled
from focus_core.routing.narrow.compiled.machine.memory import as_array
from focus_core.routing.narrow.compiled.machine.widening import narrow
from focus_core.routing.narrow.reading import Reading


@njit
def _write(numbers, out):
    for place in range(len(numbers)):
        out[place] = narrow(numbers[place], out[place])


def written(numbers, dtype):
    out = torch.zeros(len(numbers), dtype=dtype)
    _write(as_array(numbers), as_array(out))
    return out


def test_float32_is_written_as_it_is_and_bfloat16_rounded_as_pytorch_rounds():
    bits = np.random.default_rng(0).integers(0, 1 << 32, 100_000, dtype=np.uint32)
    # As near to one number as to the next: both the odd and the even one come first.
    ties = np.arange(0, 1 << 32, 1 << 20, dtype=np.uint64).astype(np.uint32) | np.uint32(0x8000)
    special = np.float32([0.0, -0.0, np.inf, -np.inf, np.nan]).view(np.uint32)
    numbers = torch.from_numpy(np.concatenate([bits, ties, special]).view(np.float32).copy())
    assert torch.equal(written(numbers, torch.float32).view(torch.int32), numbers.view(torch.int32))
    found, expected = written(numbers, torch.bfloat16), numbers.bfloat16()
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(0.0), expected.nan_to_num(0.0))


@pytest.mark.parametrize("batch", [1, 2])
def test_results_have_the_dtype_of_queries_with_the_heads_of_a_token_side_by_side(monkeypatch, batch):
    monkeypatch.setattr(compiled, "_in_half", lambda *parts: False)
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(batch, 200, 6, 32, generator=generator).bfloat16().transpose(1, 2)
    key, value = torch.randn(2, batch, 2, 200, 32, generator=generator).bfloat16()
    groups = torch.randint(0, 5, (batch, 2, 200), generator=generator)
    reading = Reading(40, 4, 16, share=0.2, page_size=16)
    found = narrow_attention(query, key, value, groups, 5, reading, scale=0.2)
    wide = narrow_attention(query.float(), key.float(), value.float(), groups, 5, reading, scale=0.2)
    assert torch.equal(found.output, wide.output.bfloat16())
    assert found.output.transpose(1, 2).is_contiguous() and wide.output.transpose(1, 2).is_contiguous()
