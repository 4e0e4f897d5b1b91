"""Every backend against the dense float32 reference, on shapes and routings that hypothesis picks."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import focus_core.attention.cpu.backend as cpu_backend
import focus_core.attention.registry as registry
from focus_core.attention import BACKENDS, focus_attention
from focus_core.attention.lists import member_lists
from focus_core.attention.packed.calls import packed_attention
from focus_core.attention.packed.published import cpu_bias, cpu_packed
from focus_core.errors import FocusError

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}


@st.composite
def problems(draw):
    """Arguments of focus_attention: any routing, padding, windows, head counts and sizes."""
    total = draw(st.one_of(st.integers(1, 40), st.integers(41, 420)))
    batch = draw(st.integers(1, 3))
    kv_heads = draw(st.sampled_from([1, 2, 3]))
    heads = kv_heads * draw(st.sampled_from([1, 2, 3]))
    head_dim = draw(st.sampled_from([32, 64, 80, 256]))
    num_queries = draw(st.one_of(st.just(total), st.integers(1, total)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    groups = draw(st.sampled_from([1, 2, 4, 8, 16, 64]))
    routing = draw(st.sampled_from(["top_k", "any", "sparse", "dominant", "none"]))
    scores = torch.rand(batch, total, groups, generator=generator)
    if routing == "top_k":
        top_k = draw(st.integers(1, groups))
        membership = torch.zeros_like(scores, dtype=torch.bool).scatter_(2, scores.topk(top_k).indices, True)
    elif routing == "any":
        membership = scores < 0.5
    elif routing == "sparse":
        membership = scores < 1.2 / groups
    elif routing == "dominant":
        membership = scores < 0.05
        membership[:, :, 0] = scores[:, :, 0] < 0.95
    else:
        membership = torch.zeros_like(scores, dtype=torch.bool)
    padding = draw(st.sampled_from(["none", "left", "right", "between"]))
    real = torch.ones(batch, total, dtype=torch.bool)
    for row in range(batch):
        cut = draw(st.integers(0, total))
        if padding == "left":
            real[row, :cut] = False
        elif padding == "right":
            real[row, cut:] = False
        elif padding == "between":
            real[row] = torch.rand(total, generator=generator) < 0.8
    start = draw(st.sampled_from([0, 0, 0, 3, 200]))
    positions = torch.where(real, start + real.cumsum(1) - 1, -1)
    if padding == "none" and start == 0:
        positions = None
    reads = None
    if draw(st.booleans()):
        reads = torch.rand(batch, num_queries, groups, generator=generator) < draw(st.sampled_from([0.0, 0.3, 1.0]))
        if draw(st.booleans()):
            membership = membership & (membership.cumsum(2) == 1)
    scale = draw(st.sampled_from([None, 0.3]))
    tensors = [
        torch.randn(batch, count, length, head_dim, generator=generator)
        for count, length in ((heads, num_queries), (kv_heads, total), (kv_heads, total))
    ]
    return (
        tensors,
        membership,
        dict(
            window=draw(st.sampled_from([0, 1, 7, 64, 128, 1000])),
            sink_tokens=draw(st.sampled_from([0, 1, 4, 50])),
            positions=positions,
            query_membership=reads,
            sliding_window=draw(st.sampled_from([None, None, 1, 20, 300])),
            scale=scale,
            softcap=draw(st.sampled_from([None, None, 5.0])),
        ),
    )


def agree(tensors, membership, options, backend, dtype):
    query, key, value = (tensor.to(dtype) for tensor in tensors)
    result = focus_attention(query, key, value, membership, backend=backend, **options)
    reference = focus_attention(query.float(), key.float(), value.float(), membership, backend="dense", **options)
    assert result.output.dtype == dtype and result.logsumexp.dtype == torch.float32
    tolerance = dict(atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    torch.testing.assert_close(result.output.float(), reference.output, **tolerance)
    torch.testing.assert_close(result.logsumexp, reference.logsumexp, **tolerance)


@pytest.mark.parametrize("backend", ["auto", "chunked", "cpu"])
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problem=problems(), dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_agrees_with_the_dense_reference(backend, problem, dtype):
    tensors, membership, options = problem
    if backend == "cpu":
        options = options | dict(softcap=None)
    agree(tensors, membership, options, backend, dtype)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problem=problems(), dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_decode_agrees_with_the_dense_reference(problem, dtype):
    (query, key, value), membership, options = problem
    if options["query_membership"] is not None:
        options = options | dict(query_membership=options["query_membership"][:, -32:])
    agree((query[:, :, -32:], key, value), membership, options, "decode", dtype)


def test_decode_reads_only_the_keys_it_keeps():
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, 1, 16, generator=generator)
    key, value = (torch.randn(2, 2, 50, 16, generator=generator) for _ in range(2))
    membership = torch.rand(2, 50, 4, generator=generator) < 0.3
    options = dict(window=5, sink_tokens=2)
    before = focus_attention(query, key, value, membership, **options)
    kept = (membership & membership[:, -1:]).any(2)
    kept[:, :2] = kept[:, -6:] = True
    for tensor in (key, value):
        tensor.masked_fill_(~kept[:, None, :, None], float("nan"))
    after = focus_attention(query, key, value, membership, **options)
    assert torch.equal(before.output, after.output) and torch.equal(before.logsumexp, after.logsumexp)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problem=problems(), dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_published_form_agrees_with_the_dense_reference(problem, dtype):
    tensors, membership, options = problem
    options = options | dict(softcap=None, sliding_window=None, query_membership=None)
    agree(tensors, membership & (membership.cumsum(2) == 1), options, "flash_merge", dtype)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problem=problems(), dtype=st.sampled_from([torch.float32, torch.bfloat16]), small=st.booleans())
def test_packing_for_cuda_agrees_when_cpu_kernels_run_it(problem, dtype, small):
    """What `varlen` and `flash` hand to their kernels, for any number of groups per token."""
    tensors, membership, options = problem
    options = options | dict(softcap=None, sliding_window=None, query_membership=None)
    membership = membership & (membership.cumsum(2) <= (4 if dtype == torch.float32 else 2))
    packed = registry.Backend(lambda inputs: packed_attention(inputs, cpu_packed, cpu_bias))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.BACKENDS, "packed", packed)
        if small:
            patch.setattr("focus_core.attention.packed.calls.BIAS_ELEMENTS", 1)
        agree(tensors, membership, options, "packed", dtype)


@pytest.mark.parametrize(
    "backend, words",
    [
        ("varlen", "needs tensors on a CUDA device"),
        ("flash", "flash-attn"),
        ("flash_merge", "one group per token"),
    ],
)
def test_backends_that_cannot_run_here_say_why(backend, words):
    tensors = [torch.randn(1, 2, 10, 16) for _ in range(3)]
    with pytest.raises(FocusError, match=words) as caught:
        focus_attention(*tensors, torch.ones(1, 10, 2, dtype=torch.bool), window=2, backend=backend)
    assert f"'{backend}'" in str(caught.value)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    problem=problems(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    small=st.booleans(),
    singly=st.sampled_from([1, 1 << 23]),
)
def test_sparse_passes_agree_whatever_they_cost(problem, dtype, small, singly):
    """The estimate would send these short texts another way: take it away, and let every size be split."""
    tensors, membership, options = problem
    options = options | dict(softcap=None, sliding_window=None)
    separate = options["query_membership"] is not None
    membership = membership & (membership.cumsum(2) <= (1 if separate else cpu_backend.MOST_GROUPS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            cpu_backend,
            "_worthwhile_lists",
            lambda inputs, rows, sinks, num_queries: member_lists(rows[sinks:]),
        )
        patch.setattr(cpu_backend, "_worthwhile_reads", lambda *given: True)
        if small:
            patch.setattr("focus_core.attention.cpu.reads.ONE_CALL_KEYS", 3)
            patch.setattr("focus_core.attention.cpu.reads.BLOCK_ROWS", 16)
            patch.setattr("focus_core.attention.cpu.reads.SINK_QUERIES", 50)
            patch.setattr("focus_core.attention.cpu.parts.BIAS_ELEMENTS", 1)
            patch.setattr("focus_core.attention.cpu.parts.BUCKET_PAIRS", 10)
            patch.setattr("focus_core.attention.cpu.parts.block_tokens", lambda total, group, batch: (16, 48))
            patch.setattr(cpu_backend, "HEAD_ELEMENTS", 1)
            patch.setattr(cpu_backend, "GROUP_ELEMENTS", singly)
        agree(tensors, membership, options, "cpu", dtype)


@given(
    routing=st.integers(1, 5).flatmap(
        lambda groups: st.lists(st.lists(st.booleans(), min_size=groups, max_size=groups), min_size=1, max_size=12)
    )
)
@settings(max_examples=60, deadline=None)
def test_signed_lists_cover_sharing_pairs_once(routing):
    """Disjointness and coverage: the signed count of every pair is 1 if the two share a group, else 0."""
    membership = torch.tensor(routing)
    count = torch.zeros(len(routing), len(routing), dtype=torch.int64)
    for lists in member_lists(membership):
        assert lists.disjoint == (lists.tokens.unique().numel() == lists.tokens.numel()) or not lists.disjoint
        for tokens in lists.tokens.split(lists.lengths):
            assert tokens.numel() and (tokens.diff() > 0).all()
            count[tokens[:, None], tokens] += lists.sign
    assert torch.equal(count, (membership.long() @ membership.long().T > 0).long())


def test_auto_takes_an_added_backend_on_its_device():
    """After those before it in the registry, and where gradients are needed only if it has them."""
    membership = torch.ones(1, 10, 2, dtype=torch.bool)
    drawn = [torch.randn(1, 2, 10, 16) for _ in range(3)]
    ran = []

    def added(inputs):
        ran.append(True)
        return BACKENDS["dense"].run(inputs)

    def auto(differentiable, devices, **options):
        ran.clear()
        with pytest.MonkeyPatch.context() as patch:
            entry = registry.Backend(added, differentiable=differentiable, devices=devices)
            patch.setitem(registry.BACKENDS, "added", entry)
            focus_attention(*drawn, membership, window=2, **options)
        return bool(ran)

    assert auto(False, ("cpu",), softcap=5.0)
    assert not auto(False, ("cpu",)) and not auto(False, ("cuda",), softcap=5.0) and not auto(False, (), softcap=5.0)
    for tensor in drawn:
        tensor.requires_grad_()
    assert auto(True, ("cpu",)) and not auto(False, ("cpu",), softcap=5.0)


def test_backends_without_gradients_say_so():
    tensors = [torch.randn(1, 2, 10, 16, requires_grad=True) for _ in range(3)]
    membership = torch.ones(1, 10, 2, dtype=torch.bool)
    for name, backend in BACKENDS.items():
        if backend.differentiable:
            continue
        with pytest.raises(FocusError, match="has no gradients"):
            focus_attention(*tensors, membership, window=2, backend=name)
    focus_attention(*tensors, membership, window=2).output.sum().backward()
    assert all(tensor.grad is not None for tensor in tensors)


def test_positions_with_gaps_take_another_way():
    tensors = [torch.randn(1, 2, 6, 16) for _ in range(3)]
    membership = torch.eye(6, dtype=torch.bool)[None]
    positions = torch.tensor([[0, 1, 7, 8, 9, 20]])
    with pytest.raises(FocusError, match="without gaps"):
        focus_attention(*tensors, membership, window=2, positions=positions, backend="cpu")
    agree(tensors, membership, dict(window=2, sink_tokens=1, positions=positions), "auto", torch.float32)


def test_imports_with_torch_alone():
    import subprocess
    import sys

    code = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name.split('.')[0] in ('transformers', 'numpy', 'jaxtyping', 'streamlit', 'pandas', 'scipy'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "import focus_core.attention\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
