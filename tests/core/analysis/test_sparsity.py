"""Masks, pair counts and attention mass against naive loops and Transformers' eager attention."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from focus_core import FocusConfig, FocusError, analyze, retrofit
from focus_core.analysis.sparsity import (
    mass_by_class,
    measured_queries,
    pair_table,
    pooled_mask,
)
from focus_core.routing.routers import LayerRouter


def random_membership(tokens: int, num_groups: int, top_k: int, seed: int) -> np.ndarray:
    rank = np.random.default_rng(seed).random((tokens, num_groups)).argsort(-1).argsort(-1)
    return rank < top_k


def classes(membership: np.ndarray, window: int, sinks: int, own: int | None = None) -> np.ndarray:
    """(T, T) the definition, pair by pair: 0 local, 1 sink, 2 same group, 3 dropped, -1 never read by the model."""
    tokens = len(membership)
    kinds = np.full((tokens, tokens), -1)
    for i in range(tokens):
        for j in range(i + 1):
            if own is not None and i - j >= own:
                continue
            if i - j <= window:
                kinds[i, j] = 0
            elif j < sinks:
                kinds[i, j] = 1
            else:
                kinds[i, j] = 2 if (membership[i] & membership[j]).any() else 3
    return kinds


@settings(max_examples=40, deadline=None)
@given(
    *(st.integers(1, 30), st.integers(0, 9), st.integers(0, 5), st.integers(1, 4), st.integers(1, 12)),
    st.none() | st.integers(1, 20),
)
def test_the_pooled_mask_is_the_mean_of_its_pairs(tokens, window, sinks, top_k, cells, own):
    membership = random_membership(tokens, 4, top_k, tokens)
    kinds = classes(membership, window, sinks, own)
    mask = pooled_mask(membership, window=window, sink_tokens=sinks, sliding_window=own, cells=cells)
    side = -(-tokens // mask.factor)
    assert side <= cells and mask.shares.shape == (side, side, 4)
    for row in range(side):
        for column in range(side):
            f = mask.factor
            cell = kinds[row * f : (row + 1) * f, column * f : (column + 1) * f]
            cell = cell[cell >= 0]
            if not cell.size:
                assert np.isnan(mask.shares[row, column]).all()
            else:
                expected = [(cell == kind).mean() for kind in range(4)]
                assert np.allclose(mask.shares[row, column], expected, atol=1e-6)


@pytest.mark.parametrize(("num_groups", "top_k"), [(4, 1), (4, 2), (4, 3), (8, 2), (5, 5)])
def test_random_sharing_is_the_share_of_sets_that_meet(num_groups, top_k):
    sets = [set(choice) for choice in combinations(range(num_groups), top_k)]
    meeting = np.mean([bool(first & second) for first in sets for second in sets])
    assert LayerRouter.random_kept(num_groups, top_k) == pytest.approx(meeting)


def gemma() -> Gemma3ForCausalLM:
    """Layers with a window of their own and layers without."""
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    settings = Gemma3TextConfig(
        **dict(vocab_size=260, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4),
        **dict(num_key_value_heads=2, head_dim=8, sliding_window=12, layer_types=kinds),
    )
    return Gemma3ForCausalLM(settings).eval()


@pytest.mark.parametrize("windowed", [False, True])
def test_pair_shares_follow_the_definition(tiny_llama, windowed):
    model = gemma() if windowed else tiny_llama.model
    focus = retrofit(model, FocusConfig(num_groups=4, top_k=1, window=3, sink_tokens=2))
    trace = analyze(focus, tiny_llama.tokenizer, "a text of forty tokens, one for each byte")
    table = pair_table(trace)
    assert trace.sliding_windows == ((12, None, 12) if windowed else (None, None, None))
    for row in range(len(trace.layers)):
        kinds = classes(trace.membership[row], 3, 2, trace.sliding_windows[row])
        pairs = (kinds >= 0).sum()
        shares = [(kinds == kind).sum() / pairs for kind in range(4)]
        assert table.loc[row, ["local", "sink", "same group", "dropped"]].tolist() == pytest.approx(shares)
        assert table["kept"][row] == pytest.approx(1 - shares[3])
        assert table["bound"][row] == pytest.approx(1 / (1 - shares[3]))
        assert table["exposure"][row] == pytest.approx(1 - shares[0])
        luck = shares[0] + shares[1] + (shares[2] + shares[3]) / 4
        assert table["random kept"][row] == pytest.approx(luck)


@pytest.mark.parametrize("max_queries", [1000, 7])
def test_mass_by_class_is_that_of_eager_attention(tiny_llama, max_queries):
    model, text = tiny_llama.model, "the attention of the untouched model, row by row"
    ids = torch.tensor(tiny_llama.tokenizer(text)["input_ids"])
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = model(input_ids=ids[None], output_attentions=True).attentions
    focus = retrofit(model, FocusConfig(num_groups=4, top_k=1, window=3, sink_tokens=2))
    patterns = [np.stack([random_membership(len(ids), 4, top_k, layer) for layer in range(3)]) for top_k in (1, 2)]
    found = mass_by_class(focus, ids.numpy(), patterns, window=3, sink_tokens=2, max_queries=max_queries)
    queries = measured_queries(len(ids), max_queries)
    for number, pattern in enumerate(patterns):
        for layer in range(3):
            mean = weights[layer][0].mean(0).double().numpy()[queries]
            kinds = classes(pattern[layer], 3, 2)[queries]
            expected = [(mean * (kinds == kind)).sum() / len(queries) for kind in range(4)]
            assert np.allclose(found[number, layer], expected, atol=1e-5)
    assert np.allclose(found.sum(-1), 1, atol=1e-5)


def test_measuring_leaves_the_model_as_it_was(tiny_llama):
    ids = torch.tensor(tiny_llama.tokenizer("as it was before")["input_ids"])
    with torch.no_grad():
        before = tiny_llama.model(input_ids=ids[None]).logits
        focus = retrofit(tiny_llama.model, FocusConfig(num_groups=4))
        pattern = np.stack([random_membership(len(ids), 4, 1, 0)] * 3)
        mass_by_class(focus, ids.numpy(), [pattern], window=2, sink_tokens=0)
        after = focus.detach()(input_ids=ids[None]).logits
    assert (before == after).all()


def test_measured_queries_span_the_text():
    assert measured_queries(5, 10).tolist() == [0, 1, 2, 3, 4]
    assert measured_queries(101, 3).tolist() == [0, 50, 100]
    assert measured_queries(1, 3).tolist() == [0]


def test_a_plan_gives_every_layer_its_own_k(tiny_llama):
    plan = (0, 3, 4)
    focus = retrofit(tiny_llama.model, FocusConfig(num_groups=4, window=2, sink_tokens=1, layer_top_k=plan), seed=1)
    trace = analyze(focus, tiny_llama.tokenizer, "one two three four five six seven eight nine ten eleven twelve")
    focus.detach()
    assert (trace.membership.sum(-1) == np.array(plan)[:, None]).all()
    for assignment, membership, k in zip(trace.assignment, trace.membership, plan):
        order = np.argsort(-assignment, axis=-1, kind="stable")[:, :k]
        assert np.take_along_axis(membership, order, 1).all()
    table = pair_table(trace)
    assert table["same group"][0] == 0 and table["random kept"][0] == pytest.approx(table["kept"][0])
    luck = LayerRouter.random_kept(4, 3) * (1 - table["local"][1] - table["sink"][1])
    assert table["random kept"][1] == pytest.approx(table["local"][1] + table["sink"][1] + luck)


def test_routers_per_head_are_traced_in_one_head(tiny_llama):
    """What a token reads and where it is found differ; every count follows a dense mask of that head."""
    focus = retrofit(
        tiny_llama.model, FocusConfig(router="head", num_groups=4, top_k=2, window=3, sink_tokens=1), seed=0
    )
    text = "a text of forty tokens, one for each byte"
    heads = [analyze(focus, tiny_llama.tokenizer, text, head=head) for head in range(2)]
    assert not np.array_equal(heads[0].groups, heads[1].groups)
    trace = heads[1]
    num_tokens = len(trace.tokens)
    distance = np.arange(num_tokens)[:, None] - np.arange(num_tokens)
    assert (trace.membership.sum(-1) == 1).all() and (trace.query_membership.sum(-1) == 2).all()
    table = pair_table(trace)
    for row in range(len(trace.layers)):
        shared = np.einsum("tk,sk->ts", trace.query_membership[row], trace.membership[row])
        kept = ((distance <= 3) | (np.arange(num_tokens) < 1) | shared) & (distance >= 0)
        assert table["kept"][row] == pytest.approx(kept.sum() / (distance >= 0).sum())
        mask = pooled_mask(trace.membership[row], query_membership=trace.query_membership[row], window=3, sink_tokens=1)
        assert mask.factor == 1
        assert np.array_equal(np.nan_to_num(mask.shares[..., 3]) == 1, ~kept & (distance >= 0))
    with focus.routing("hard", top_k=4, window=0, sink_tokens=0):
        reads = analyze(focus, tiny_llama.tokenizer, text, head=1).query_membership
    assert reads.all()
    ids = np.array(trace.input_ids)
    mass = mass_by_class(
        focus, ids, [trace.membership], query_memberships=[trace.query_membership], head=1, window=3, sink_tokens=1
    )
    tiny_llama.model.set_attn_implementation("eager")
    base = focus.detach()
    base.set_attn_implementation("eager")
    with torch.no_grad():
        weights = base(torch.from_numpy(ids)[None], output_attentions=True).attentions
    for row, weight in enumerate(weights):
        ours = weight[0].unflatten(0, (2, -1))[1].mean(0).numpy()
        shared = np.einsum("tk,sk->ts", trace.query_membership[row], trace.membership[row])
        same = (distance > 3) & (np.arange(num_tokens) >= 1) & shared
        assert mass[0, row, 2] == pytest.approx((ours * same).sum() / num_tokens, abs=1e-5)
    with pytest.raises(FocusError, match="Head 2 has no router: choose 0 to 1"):
        analyze(retrofit(base, focus.config), tiny_llama.tokenizer, text, head=2)
