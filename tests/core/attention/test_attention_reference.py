"""The dense reference against the definition in plain Python, the chunked fallback and the counts against it."""

import math

import pytest
import torch

from focus_core.attention import focus_attention, kept_pairs
from focus_core.errors import FocusError


def kept(i, j, positions, membership, reads, window, sink_tokens, sliding_window):
    if j > i or positions[i] < 0 or positions[j] < 0:
        return False
    distance = positions[i] - positions[j]
    if sliding_window is not None and distance >= sliding_window:
        return False
    shared = any(a and b for a, b in zip(reads[i], membership[j]))
    return distance <= window or positions[j] < sink_tokens or shared


CASES = [
    dict(total=1, window=0, sink_tokens=0),
    dict(total=9, window=0, sink_tokens=0),
    dict(total=23, window=3, sink_tokens=2),
    dict(total=23, window=50, sink_tokens=0),
    dict(total=23, window=3, sink_tokens=2, sliding_window=7),
    dict(total=23, window=6, sink_tokens=1, sliding_window=3),
    dict(total=23, window=3, sink_tokens=2, softcap=1.5, num_queries=5),
    dict(total=23, window=3, sink_tokens=2, padding="left"),
    dict(total=23, window=3, sink_tokens=2, padding="right"),
    dict(total=23, window=3, sink_tokens=2, padding="between", start=11, num_queries=7),
    dict(total=23, window=3, sink_tokens=13, padding="between", start=11, sliding_window=9),
]


def make(total, padding=None, start=0, num_queries=None, seed=0, batch=2, groups=4, **options):
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(batch, 4, num_queries or total, 8, generator=generator)
    key = torch.randn(batch, 2, total, 8, generator=generator)
    value = torch.randn(batch, 2, total, 6, generator=generator)
    membership = torch.rand(batch, total, groups, generator=generator) < 0.3
    real = torch.ones(batch, total, dtype=torch.bool)
    if padding == "left":
        real[0, :5], real[1, :] = False, False
    if padding == "right":
        real[0, -5:], real[1, 3:] = False, False
    if padding == "between":
        real = torch.rand(batch, total, generator=generator) < 0.7
    positions = torch.where(real, start + real.cumsum(1) - 1, -1)
    return (query, key, value, membership), dict(positions=positions, **options)


def other_groups(membership):
    """Groups to read that have nothing to do with those tokens are in."""
    return torch.rand(membership.shape, generator=torch.Generator().manual_seed(1)) < 0.3


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("backend", ["dense", "chunked"])
@pytest.mark.parametrize("separate", [False, True])
def test_against_the_definition(case, backend, separate, monkeypatch):
    monkeypatch.setattr("focus_core.attention.chunked.CHUNK_ELEMENTS", 500)
    (query, key, value, membership), options = make(**case)
    total, num_queries = key.shape[2], query.shape[2]
    reads = other_groups(membership) if separate else membership
    given = reads[:, total - num_queries :] if separate else None
    output, logsumexp = focus_attention(
        query, key, value, membership, query_membership=given, backend=backend, **options
    )
    for b in range(2):
        positions, groups = options["positions"][b].tolist(), membership[b].tolist()
        for row in range(num_queries):
            i = total - num_queries + row
            keys = [
                j
                for j in range(total)
                if kept(
                    i,
                    j,
                    positions,
                    groups,
                    reads[b].tolist(),
                    options["window"],
                    options["sink_tokens"],
                    options.get("sliding_window"),
                )
            ]
            for h in range(4):
                if not keys:
                    assert output[b, h, row].abs().max() == 0 and logsumexp[b, h, row] == -math.inf
                    continue
                logits = key[b, h // 2, keys].double() @ query[b, h, row].double() / math.sqrt(8)
                if (cap := options.get("softcap")) is not None:
                    logits = cap * torch.tanh(logits / cap)
                expected = torch.softmax(logits, 0) @ value[b, h // 2, keys].double()
                torch.testing.assert_close(output[b, h, row].double(), expected, atol=1e-5, rtol=1e-5)
                torch.testing.assert_close(logsumexp[b, h, row].double(), logits.logsumexp(0), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("elements", [1, 1 << 22])
@pytest.mark.parametrize("separate", [False, True])
def test_counts_against_the_definition(case, elements, separate, monkeypatch):
    monkeypatch.setattr("focus_core.attention.counting.CHUNK_ELEMENTS", elements)
    case = {name: value for name, value in case.items() if name != "softcap"}
    (query, _, _, membership), options = make(**case)
    num_queries, total = query.shape[2], membership.shape[1]
    other = other_groups(membership) if separate else None
    counts = kept_pairs(membership, query_membership=other, num_queries=num_queries, **options)
    sliding = options.get("sliding_window")
    for b in range(2):
        positions, groups = options["positions"][b].tolist(), membership[b].tolist()
        reads = groups if other is None else other[b].tolist()
        pairs = [(i, j) for i in range(total - num_queries, total) for j in range(i + 1)]
        everything = [pair for pair in pairs if kept(*pair, positions, groups, reads, 10**9, 0, sliding)]
        local = [p for p in everything if positions[p[0]] - positions[p[1]] <= options["window"]]
        rule = (positions, groups, reads, options["window"], options["sink_tokens"], sliding)
        computed = [p for p in everything if kept(*p, *rule)]
        assert counts.causal[b] == len(everything)
        assert counts.local[b] == len(local)
        assert counts.distant[b] == len(everything) - len(local)
        assert counts.kept[b] == len(computed)
        far_sinks = [p for p in set(everything) - set(local) if positions[p[1]] < options["sink_tokens"]]
        assert counts.distant_sink[b] == len(far_sinks)
        assert counts.kept_share[b] == (len(computed) / len(everything) if everything else 1)


def test_gradients_in_float64(monkeypatch):
    (query, key, value, membership), options = make(
        total=7, window=2, sink_tokens=1, padding="left", softcap=2.0, sliding_window=5
    )
    tensors = [tensor.double().requires_grad_() for tensor in (query, key, value)]

    def call(query, key, value, backend="dense"):
        result = focus_attention(query, key, value, membership, backend=backend, **options)
        return result.output, result.logsumexp.masked_fill(result.logsumexp.isinf(), 0.0)

    assert torch.autograd.gradcheck(call, tensors)

    monkeypatch.setattr("focus_core.attention.chunked.CHUNK_ELEMENTS", 150)
    gradients = [
        torch.autograd.grad(sum((part * part.sin()).sum() for part in call(*tensors, backend)), tensors)
        for backend in ("dense", "chunked")
    ]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(window=-1), "window is -1"),
        (dict(sink_tokens=-2), "sink_tokens is -2"),
        (dict(sliding_window=0), "sliding_window is 0"),
        (dict(softcap=0.0), "softcap is 0.0"),
        (dict(backend="magic"), "backend is 'magic'"),
        (dict(membership=torch.ones(2, 9, 3)), "membership is (2, 9, 3) torch.float32"),
        (
            dict(membership=torch.ones(2, 8, 3, dtype=torch.bool), positions=None),
            "membership is (2, 8, 3) on cpu",
        ),
        (dict(positions=torch.zeros(2, 9, dtype=torch.int64)), "do not increase"),
        (dict(positions=torch.zeros(2, 8, dtype=torch.int64)), "positions is (2, 8)"),
        (dict(key=torch.randn(2, 3, 9, 8), value=torch.randn(2, 3, 9, 8)), "4 query heads and 3 key heads"),
        (dict(value=torch.randn(2, 2, 9, 8).bfloat16()), "value is torch.bfloat16"),
        (dict(query=torch.randn(2, 4, 10, 8)), "10 queries and 9 keys"),
        (dict(query=torch.randn(2, 4, 9, 16)), "do not fit"),
        (dict(query=torch.randn(4, 9, 16)), "query is (4, 9, 16)"),
        (dict(query_membership=torch.ones(2, 8, 4, dtype=torch.bool)), "query_membership is (2, 8, 4)"),
    ],
)
def test_refusals_are_one_sentence(change, message):
    (query, key, value, membership), options = make(total=9, window=2)
    arguments = dict(query=query, key=key, value=value, membership=membership, **options) | change
    with pytest.raises(FocusError) as caught:
        focus_attention(**arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")


def test_counting_long_text_is_quick_enough_to_run():
    membership = torch.rand(1, 8192, 64) < 0.1
    counts = kept_pairs(membership, window=64, sink_tokens=4)
    assert counts.causal[0] == 8192 * 8193 // 2
    assert 0.4 < counts.kept_share[0] < 0.55
