"""Changes of the recipe: what each does, against what it is defined by."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from torch.nn import functional as F

from focus_core import FocusConfig, retrofit
from focus_core.reproduce.studies.candidates import (
    CANDIDATES,
    at_share,
    attention_outputs,
    bias_to_recent_and_rare,
    candidate_config,
    colder,
    next_token_logits,
    sharper_gate,
    start_at_means,
    train_candidate,
)
from focus_core.training import TrainSettings

LENGTH = 48


@pytest.fixture
def blocks(tiny_llama):
    vocabulary = tiny_llama.model.config.vocab_size
    return np.random.default_rng(0).zipf(1.5, (8, LENGTH)) % vocabulary


def routed(tiny_llama, **settings):
    config = FocusConfig(
        **{"router": "head", "window": 4, "num_groups": 4, "route_dim": 4, "sink_tokens": 1, **settings}
    )
    return retrofit(tiny_llama.model, config)


@pytest.mark.parametrize("name", CANDIDATES)
def test_every_candidate_trains_routers_alone(tiny_llama, blocks, name):
    candidate = CANDIDATES[name]
    config = candidate_config(candidate, window=4)
    focus = retrofit(tiny_llama.model, config)
    before = {key: value.clone() for key, value in tiny_llama.model.state_dict().items()}
    start = {key: value.clone() for key, value in focus.routers.state_dict().items()}
    losses = []
    train_candidate(focus, blocks, candidate, TrainSettings(steps=3), lambda step, loss: losses.append(loss))
    assert len(losses) == 3 and np.isfinite(losses).all()
    assert focus.config == config  # what was annealed is back
    assert all(torch.equal(value, before[key]) for key, value in focus.model.state_dict().items())
    moved = focus.routers.state_dict()
    assert all(not torch.equal(moved[key], value) for key, value in start.items())


@pytest.mark.parametrize("objective", [attention_outputs, next_token_logits])
def test_distillation_has_nothing_to_learn_where_every_pair_is_local(tiny_llama, blocks, objective):
    rows = torch.from_numpy(blocks[:2])
    assert float(objective(routed(tiny_llama, window=LENGTH), rows).detach()) == pytest.approx(0, abs=1e-5)


def test_distillation_from_outputs_leaves_the_layers_their_input(tiny_llama, blocks):
    focus, seen = routed(tiny_llama), []
    rows = torch.from_numpy(blocks[:2])
    with torch.no_grad(), focus.routing("off"):
        expected = focus.model.base_model(input_ids=rows).last_hidden_state
    handle = focus.model.base_model.register_forward_hook(lambda *call: seen.append(call[-1].last_hidden_state))
    loss = attention_outputs(focus, rows)
    handle.remove()
    assert torch.allclose(seen[0], expected, atol=1e-4) and float(loss) > 0
    loss.backward()
    assert all(parameter.grad is not None for parameter in focus.trainable_parameters())


def test_divergence_is_that_of_the_two_distributions(tiny_llama, blocks):
    focus, rows = routed(tiny_llama), torch.from_numpy(blocks[:2])
    with torch.no_grad():
        with focus.routing("off"):
            target = focus(input_ids=rows).logits.double().softmax(-1)
        with focus.routing("soft", balance="sequence"):
            found = focus(input_ids=rows).logits.double().softmax(-1)
    expected = (target * (target.log() - found.log())).sum(-1).mean()
    assert float(next_token_logits(focus, rows)) == pytest.approx(float(expected), rel=1e-3)


def test_centroids_start_at_the_means_of_the_routes(tiny_llama, blocks):
    focus, states = routed(tiny_llama), {}
    start_at_means(focus, blocks)
    with torch.no_grad(), focus.routing("off"):
        embedded = focus.model.get_input_embeddings()(torch.from_numpy(blocks))
    states = tiny_llama.model.model.layers[0].input_layernorm(embedded).flatten(0, 1)
    router = focus.router(0)
    for head in range(router.num_heads):
        flat = F.layer_norm(states.float(), states.shape[-1:])
        routes = F.normalize(flat @ router.projection[head], dim=-1).detach().numpy()
        truth = KMeans(4, random_state=0).fit(routes).cluster_centers_
        assert np.allclose(router.centroids[head].detach().numpy(), truth, atol=1e-4)


def test_a_bias_of_zero_changes_nothing_and_one_of_rarity_moves_rare_tokens(tiny_llama, blocks):
    focus, rows = routed(tiny_llama), torch.from_numpy(blocks[:2])

    def scores():
        found = []
        with torch.no_grad(), focus.observe(lambda routing: found.append(routing.scores)):
            focus.model.base_model(input_ids=rows)
        return found[0]

    plain = scores()
    bias_to_recent_and_rare(focus, blocks)
    assert torch.equal(scores(), plain)
    focus.router(0).get_parameter("bias").data[:, 1, 1] = -1.0
    raised = (scores() - plain)[0, :, 1]
    counts = np.bincount(blocks.ravel(), minlength=rows.max() + 1)[rows[0].numpy()]
    assert raised[int(counts.argmin())] > raised[int(counts.argmax())]
    assert torch.equal(scores()[..., [0, 2, 3]], plain[..., [0, 2, 3]])


def test_annealing_ends_at_what_it_says():
    assert sharper_gate(0.0)["gate_sharpness"] == pytest.approx(2) and sharper_gate(1.0)[
        "gate_sharpness"
    ] == pytest.approx(30)
    assert colder(0.0)["temperature"] == pytest.approx(0.5) and colder(1.0)["temperature"] == pytest.approx(0.1)


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=6, unique=True),
    st.integers(1, 4),
    st.floats(0, 1),
)
def test_losses_are_read_on_straight_lines(shares, num_blocks, share):
    shares = np.array(shares)
    losses = np.random.default_rng(0).normal(size=(len(shares), num_blocks))
    found = at_share(shares, losses, share)
    if not shares.min() <= share <= shares.max():
        assert found is None
        return
    order = np.argsort(shares)
    truth = [np.interp(share, shares[order], column) for column in losses[order].T]
    assert found is not None and np.allclose(found, truth)
