"""Narrow groups as variable-length calls, call for call on CPU kernels, against the definition."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reading_budgets import budgets, directions

from focus_core import FocusConfig
from focus_core.attention import AttentionOutput
from focus_core.attention.packed.calls import Packed
from focus_core.attention.packed.published import cpu_packed
from focus_core.errors import FocusError
from focus_core.routing.narrow.attention import narrow_attention
from focus_core.routing.narrow.fitting.fit import fit_narrow
from focus_core.routing.narrow.packed import prefill as packed_prefill
from focus_core.routing.narrow.packed import reads as packed_reads
from focus_core.routing.narrow.packed.pages import PageSums, sorted_keys
from focus_core.routing.narrow.packed.prefill import PACKED, PackedBackend
from focus_core.routing.narrow.packed.reads import reader_lists
from focus_core.routing.narrow.reading import Reading
from focus_core.routing.narrow.reference import narrow_reference


class PlainKernel:
    """What a variable-length kernel computes, sequence by sequence, with a count of its calls."""

    def __init__(self) -> None:
        self.calls: list[Packed] = []

    def __call__(self, call, scale):
        self.calls.append(call)
        group = call.query.shape[1] // call.key.shape[1]
        output = call.query.new_full((*call.query.shape[:2], call.value.shape[-1]), math.nan)
        logsumexp = call.query.new_full(call.query.shape[:2], math.nan)
        query_starts, key_starts = call.query_starts.tolist(), call.key_starts.tolist()
        assert call.query_starts.dtype == call.key_starts.dtype == torch.int32
        assert (query_starts[-1], key_starts[-1]) == (len(call.query), len(call.key))
        lengths = []
        for first, last, begin, end in zip(query_starts, query_starts[1:], key_starts, key_starts[1:]):
            queries, keys = last - first, end - begin
            assert queries > 0 and keys > 0, "no sequence is empty"
            lengths.append((queries, keys))
            key, value = (part[begin:end].repeat_interleave(group, 1) for part in (call.key, call.value))
            logits = torch.einsum("qhd,khd->hqk", call.query[first:last], key) * scale
            if call.causal:
                later = torch.arange(keys) > torch.arange(queries)[:, None] + keys - queries
                logits = logits.masked_fill(later, float("-inf"))
            logsumexp[first:last] = logits.logsumexp(-1).T
            output[first:last] = torch.einsum("hqk,khd->qhd", logits.softmax(-1), value)
        assert (call.longest_query, call.longest_key) == tuple(map(max, zip(*lengths)))
        return AttentionOutput(output, logsumexp)


def on_cpu(kernel, *arguments, **options):
    """`narrow_attention` with this kernel in place of that of `varlen`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PACKED, "varlen", PackedBackend(kernel, lambda query, value: None))
        return narrow_attention(*arguments, **options, backend="varlen")


def problem(length, kv_heads=2, repeats=2, num_groups=4, seed=0, batch=2, value_size=6):
    dtype = torch.float64
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(batch, kv_heads * repeats, length, 8, generator=generator, dtype=dtype) * 2
    key = torch.randn(batch, kv_heads, length, 8, generator=generator, dtype=dtype)
    value = torch.randn(batch, kv_heads, length, value_size, generator=generator, dtype=dtype)
    groups = torch.randint(0, num_groups, (batch, kv_heads, length), generator=generator)
    return query, key, value, groups, num_groups


def numbers(heads):
    return st.lists(st.floats(0, 1, width=32), min_size=heads, max_size=heads).map(tuple)


@st.composite
def cases(draw):
    num_groups, kv_heads, repeats = draw(st.integers(1, 9)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    by_share, heads = draw(st.booleans()), kv_heads * repeats
    window, chunk = draw(st.integers(0, 30)), draw(st.integers(1, 24))
    reading = Reading(
        window=window,
        sink_tokens=draw(st.integers(0, 9) | st.just(40)),
        chunk=chunk,
        top_k=None if by_share else draw(st.integers(0, num_groups)),
        **(draw(budgets(heads)) if by_share else {}),
        spread=draw(st.none() | numbers(heads)),
        directions=draw(directions(kv_heads, 8)),
        count_weight=draw(st.sampled_from([0.0, 0.5, 1.0])),
        page_size=draw(st.none() | st.integers(1, 20)),
        full_below=draw(st.sampled_from([0, 0, 1, 20, 37, 100])),
    )
    # Texts shorter than a window, that end at a border or beside one, and any others.
    at_border = max(1, window // chunk * chunk + draw(st.integers(1, 3)) * chunk + draw(st.integers(-1, 1)))
    length = draw(st.integers(1, 70) | st.just(at_border))
    tensors = problem(length, kv_heads, repeats, num_groups, draw(st.integers(0, 99)), draw(st.integers(1, 3)))
    return tensors, reading, draw(st.integers(1, 80))


@settings(deadline=None, max_examples=120)
@given(case=cases(), small=st.booleans())
def test_calls_equal_the_definition(case, small):
    tensors, reading, span = case
    expected = narrow_reference(*tensors, reading, scale=0.4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_prefill, "SPAN", span)
        if small:
            patch.setattr(packed_reads, "CALL_ELEMENTS", 100)
            patch.setattr(packed_reads, "CALL_SEQUENCES", 3)
        found = on_cpu(PlainKernel(), *tensors, reading, scale=0.4)
    torch.testing.assert_close(found.output, expected.output, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(found.logsumexp, expected.logsumexp, atol=1e-9, rtol=1e-9)
    counted = narrow_attention(*tensors, reading, scale=0.4).pairs
    assert all(torch.equal(*each) for each in zip(found.pairs, counted))
    assert torch.equal(found.pairs.kept, expected.exact.sum((-1, -2)))


@settings(deadline=None, max_examples=40)
@given(case=cases(), dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_16_and_32_bits_are_close_to_the_chunked_form(case, dtype):
    """The kernel of `flash_merge` on CPUs takes the calls."""
    (query, key, _, groups, num_groups), reading, span = case
    query, key = query.to(dtype), key.to(dtype)
    value = torch.roll(key, 1, -1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_prefill, "SPAN", span)
        found = on_cpu(cpu_packed, query, key, value, groups, num_groups, reading, scale=0.4)
    expected = narrow_attention(query, key, value, groups, num_groups, reading, scale=0.4, backend="chunked")
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    assert (found.output.dtype, found.logsumexp.dtype) == (dtype, torch.float32)
    # In so few bits the choice of a page can fall otherwise: then pairs differ, and results by more than rounding.
    if all(torch.equal(*each) for each in zip(found.pairs, expected.pairs)):
        torch.testing.assert_close(found.output, expected.output, atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(found.logsumexp, expected.logsumexp, atol=tolerance, rtol=tolerance)


READING = Reading(window=20, sink_tokens=4, chunk=16, share=0.2, page_size=8, spread=(0.25,) * 4)


@pytest.mark.parametrize("num_groups", [4, 32])
def test_a_span_is_two_calls_whatever_its_pages_and_chunks(num_groups):
    kernel = PlainKernel()
    tensors = problem(600, num_groups=num_groups)
    found = on_cpu(kernel, *tensors, READING, scale=0.4)
    # Two spans of 512 and 88 queries.
    assert [call.causal for call in kernel.calls] == [True, False] * 2
    assert [len(call.query) for call in kernel.calls[::2]] == [2 * 512, 2 * 88]
    expected = narrow_attention(*tensors, READING, scale=0.4)
    torch.testing.assert_close(found.output, expected.output, atol=1e-9, rtol=1e-9)


def test_texts_within_the_window_are_one_causal_call():
    kernel = PlainKernel()
    on_cpu(kernel, *problem(36), READING, scale=0.4)
    assert [call.causal for call in kernel.calls] == [True]
    kernel = PlainKernel()
    full = Reading(window=20, sink_tokens=4, chunk=16, share=0.2, page_size=8, full_below=100)
    query, key, value, _, num_groups = problem(90)
    on_cpu(kernel, query, key, value, None, num_groups, full, scale=0.4)
    assert [(call.causal, call.longest_query, call.longest_key) for call in kernel.calls] == [(True, 90, 90)]


def test_limits_shorten_spans_and_split_calls():
    tensors = problem(300)
    whole = on_cpu(PlainKernel(), *tensors, READING, scale=0.4)
    kernel = PlainKernel()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_prefill, "WINDOW_ELEMENTS", 1)
        patch.setattr(packed_reads, "CALL_ELEMENTS", 4000)
        found = on_cpu(kernel, *tensors, READING, scale=0.4)
    assert {call.longest_query for call in kernel.calls if call.causal} == {16, 300 % 16}
    assert {len(call.query) for call in kernel.calls if call.causal} == {2 * 16, 2 * (300 % 16)}
    # A sequence that begins within the limit may end beyond it.
    reads = [call for call in kernel.calls if not call.causal]
    most = max(call.longest_query + call.longest_key for call in reads)
    assert len(reads) > len(kernel.calls) / 2
    assert all((len(call.query) + len(call.key)) * 8 <= 4000 + most * 8 for call in reads)
    torch.testing.assert_close(found.output, whole.output, atol=1e-12, rtol=1e-12)


def test_every_reader_of_a_page_is_in_its_list_once():
    generator = torch.Generator().manual_seed(0)
    reads = torch.rand(2, 3, 2, 10, 5, generator=generator) < 0.4
    counts = torch.randint(0, 3, (2, 3, 1, 10, 5), generator=generator).cumsum(3)
    reads &= counts > 0
    first = torch.arange(2 * 3 * 5).view(2, 3, 5) * 100
    lists = reader_lists(reads, counts.double(), first)
    found = torch.zeros(reads.shape, dtype=torch.int64)
    for readers, page, seen in zip(lists.readers.split(lists.lengths.tolist()), lists.first, lists.counts):
        head, column = divmod(int(page) // 100, 5)
        for row in readers.tolist():
            text, place = row // 60, row // 10 % 2
            assert row // 20 == head
            assert counts[text, head % 3, 0, row % 10, column] == seen
            found[text, head % 3, place, row % 10, column] += 1
    assert torch.equal(found, reads.long())


def test_pages_of_a_span_have_the_sums_of_their_keys_at_each_border():
    _, key, value, groups, num_groups = problem(100, num_groups=6)
    reading = Reading(window=3, sink_tokens=5, chunk=8, share=0.2, page_size=4)
    parts, total = reading.parts(groups, num_groups)
    lists = sorted_keys(key, value, parts, total, 5)
    sums = PageSums.of_none(key, value, parts, total, 5, torch.float64)
    for borders in ([0, 0, 8, 16], [24, 32, 40], [72], [88, 96]):
        span = sums.span(borders)
        for place in torch.cartesian_prod(torch.arange(2), torch.arange(2)).tolist():
            text, head = place
            growing = span.growing[text, head].tolist()
            for column, page in enumerate(span.pages[text, head].tolist()):
                members = [j for j in range(5, 100) if parts[text, head, j] == page]
                rows = lists.first[text, head, page] + torch.arange(len(members))
                assert torch.equal(lists.key[rows], key[text, head, members])
                assert torch.equal(lists.value[rows], value[text, head, members])
                for number, border in enumerate(borders):
                    seen = [j for j in members if j < border]
                    assert span.counts[text, head, number, column] == len(seen)
                    summary = [part[text, head] for part in span.before]
                    if column in growing:
                        summary = [part[text, head, number, growing.index(column)][None] for part in span.grown]
                        column_of = 0
                    else:
                        column_of = column
                    if seen:
                        assert torch.allclose(summary[1][column_of], key[text, head, seen].mean(0))
                        assert torch.allclose(summary[2][column_of], value[text, head, seen].mean(0))
            left = set(range(total)) - set(span.pages[text, head].tolist())
            assert not any(int(parts[text, head, j]) in left for j in range(5, borders[-1]))


def test_what_the_backends_refuse():
    query, key, value, groups, num_groups = (
        part.float() if isinstance(part, torch.Tensor) and part.is_floating_point() else part for part in problem(50)
    )
    rest = groups, num_groups, READING
    with pytest.raises(FocusError, match="'varlen' cannot run here: it needs tensors on a CUDA device"):
        narrow_attention(query, key, value, *rest, scale=0.4, backend="varlen")
    with pytest.raises(FocusError, match="'flash' cannot run here: it needs"):
        narrow_attention(query, key, value, *rest, scale=0.4, backend="flash")
    with pytest.raises(FocusError, match="narrow groups have auto, chunked, varlen, flash"):
        narrow_attention(query, key, value, *rest, scale=0.4, backend="flex")
    with pytest.raises(FocusError, match="it has no softcap"):
        on_cpu(PlainKernel(), query, key, value, *rest, scale=0.4, softcap=3.0)
    with pytest.raises(FocusError, match="has no gradients"):
        on_cpu(PlainKernel(), query.requires_grad_(), key, value, *rest, scale=0.4)


def test_the_backend_of_a_routed_model(tiny_llama):
    """Asked for, it computes the prefill, with padding row by row; a cache goes on as ever."""
    config = FocusConfig(router="narrow", num_groups=4, window=8, sink_tokens=2, chunk=8, read_share=0.2, page_size=4)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 200, (2, 70), generator=generator)
    focus = fit_narrow(tiny_llama.model, ids.numpy(), config)
    kernel = PlainKernel()
    padding = torch.ones_like(ids)
    padding[1, :30] = 0
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        expected = focus(input_ids=ids).logits
        padded = focus(input_ids=ids, attention_mask=padding).logits
        with focus.routing("hard", backend="varlen"), pytest.raises(FocusError, match="'varlen' cannot run here"):
            focus(input_ids=ids)
        patch.setitem(PACKED, "varlen", PackedBackend(kernel, lambda query, value: None))
        with focus.routing("hard", backend="varlen"):
            torch.testing.assert_close(focus(input_ids=ids).logits, expected, atol=1e-4, rtol=1e-4)
            assert len(kernel.calls) == 2 * 3
            found = focus(input_ids=ids, attention_mask=padding).logits
            torch.testing.assert_close(found[padding > 0], padded[padding > 0], atol=1e-4, rtol=1e-4)
            kernel.calls.clear()
            first = focus(input_ids=ids[:, :60], use_cache=True)
            assert len(kernel.calls) == 2 * 3
            rest = focus(input_ids=ids[:, 60:], past_key_values=first.past_key_values, use_cache=True).logits
            assert len(kernel.calls) == 2 * 3
            torch.testing.assert_close(rest, expected[:, 60:], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("backend", ["varlen", "flash"])
def test_what_libraries_are_given(backend, monkeypatch):
    """Stand-ins with the signatures of PyTorch's varlen_attn and of flash-attn, as both document them."""
    kernel, seen = PlainKernel(), []

    def computed(query, key, value, query_starts, key_starts, longest_query, longest_key, causal, scale):
        assert all(part.is_contiguous() for part in (query, key, value))
        seen.append(causal)
        call = Packed(query, key, value, query_starts, key_starts, longest_query, longest_key, causal)
        output, logsumexp = kernel(call, scale)
        return output, logsumexp.T.contiguous()

    def varlen_attn(*given, return_aux, scale, window_size, enable_gqa):
        assert return_aux.lse and window_size in ((-1, 0), (-1, -1))
        assert enable_gqa == (given[0].shape[1] != given[1].shape[1])
        return computed(*given, window_size == (-1, 0), scale)

    def flash_attn_varlen_func(*given, softmax_scale, causal, return_attn_probs):
        assert return_attn_probs
        return *computed(*given, causal, softmax_scale), None

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_attn)
    monkeypatch.setitem(sys.modules, "flash_attn", SimpleNamespace(flash_attn_varlen_func=flash_attn_varlen_func))
    tensors = problem(120)
    found = on_cpu(PACKED[backend].kernel, *tensors, READING, scale=0.4)
    assert seen == [True, False]
    expected = narrow_attention(*tensors, READING, scale=0.4)
    torch.testing.assert_close(found.output, expected.output, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(found.logsumexp, expected.logsumexp, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("backend", ["varlen", "flash"])
def test_on_a_gpu(backend):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device is here")
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(2, heads, 1500, 64, generator=generator).to("cuda", torch.bfloat16) for heads in (6, 2, 2)
    )
    groups = torch.randint(0, 16, (2, 2, 1500), generator=generator).to("cuda")
    if PACKED[backend].obstacle(query, value) is not None:
        pytest.skip(f"{backend} {PACKED[backend].obstacle(query, value)}")
    reading = Reading(window=128, sink_tokens=4, chunk=16, share=0.15, page_size=16, spread=(0.2,) * 6)
    tensors = query, key, value, groups, 16, reading
    found = narrow_attention(*tensors, scale=0.125, backend=backend)
    expected = narrow_attention(*tensors, scale=0.125, backend="chunked")
    torch.testing.assert_close(found.output, expected.output, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(found.logsumexp, expected.logsumexp, atol=2e-2, rtol=2e-2)
    # Near ties may fall otherwise.
    assert (found.pairs.kept / expected.pairs.kept - 1).abs().max() < 1e-3
