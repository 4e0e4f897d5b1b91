"""The stability study: every remedy does what its name says, and the loop watches what it should."""

import math

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from torch.nn import functional as F

from focus_core import FocusConfig, FocusError, retrofit
from focus_core.reproduce.studies import stability, variants
from focus_core.reproduce.studies.stability import StudySettings, train_variant, variant_loss
from focus_core.reproduce.studies.variants import Variant
from focus_core.training.objectives import language_model

ROWS = torch.from_numpy(np.random.default_rng(0).integers(1, 200, (2, 32)))
SETTINGS = StudySettings(
    steps=4, full_steps=4, batch_size=2, learning_rate=0.05, base_learning_rate=1e-3, probe_every=2, autocast=False
)
EVERY = variants.variants(recluster_every=2)


def published(**changes):
    return FocusConfig.paper(num_groups=4, top_k=1, window=4, route_dim=8, **changes)


@pytest.fixture
def make(tiny_llama):
    def fresh(**changes):
        return retrofit(tiny_llama.model, published(**changes), seed=1)

    return fresh


def test_sinkhorn_with_ten_rounds_is_the_published_objective(make):
    focus = make(**EVERY["sinkhorn-10"].settings)
    loss, penalty = variant_loss(focus, ROWS, EVERY["sinkhorn-10"])
    assert loss.item() == pytest.approx(language_model(focus, ROWS).item())
    assert float(penalty) == 0
    assert focus.config == published()


def test_softmax_rows_are_not_balanced(make):
    focus = make(**EVERY["softmax"].settings)
    watch = stability._Watch()
    variant_loss(focus, ROWS, EVERY["softmax"], watch)
    for layer, states in watch.states.items():
        expected = (focus.router(layer)(states) / focus.config.temperature).softmax(-1)
        torch.testing.assert_close(watch.assignments[layer], expected)


def test_the_losses_are_entropy_and_divergence_from_uniform():
    uniform, sure = torch.full((2, 8, 4), 0.25), F.one_hot(torch.arange(16).reshape(2, 8) % 4, 4).float()
    collapsed = F.one_hot(torch.zeros(2, 8, dtype=torch.long), 4).float()
    assert float(variants.entropy_loss(uniform)) == pytest.approx(math.log(4))
    assert float(variants.entropy_loss(sure)) == pytest.approx(0, abs=1e-6)
    assert float(variants.balance_loss(uniform)) == pytest.approx(0, abs=1e-6)
    assert float(variants.balance_loss(sure)) == pytest.approx(0, abs=1e-6)  # balanced, however sure
    assert float(variants.balance_loss(collapsed)) == pytest.approx(math.log(4))
    # Uniform shares are the minimum: any push away from them raises the loss.
    logits = torch.zeros(1, 1, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(variants.balance_loss(logits.softmax(-1)), logits)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient))
    for shift in torch.randn(5, 1, 1, 4, generator=torch.Generator().manual_seed(0)):
        assert float(variants.balance_loss((logits + shift).softmax(-1))) > 0


def test_five_times_the_balance_weight(make):
    focus = make(balance="none")
    watch = stability._Watch()
    once = variant_loss(focus, ROWS, EVERY["losses"], watch)[1]
    five = variant_loss(focus, ROWS, EVERY["balance-x5"])[1]
    extra = torch.stack([variants.balance_loss(each) for each in watch.assignments.values()]).mean()
    torch.testing.assert_close(five - once, 4 * variants.BALANCE_WEIGHT * extra)


def test_stop_gradient_inputs_carry_no_gradient_into_the_base(make):
    states = torch.randn(1, 6, 32, requires_grad=True)
    focus = make(balance="none")
    router = focus.router(1)
    router(states).sum().backward()
    assert states.grad is not None and bool(states.grad.any())
    states.grad = None
    handle = variants.stop_gradient(router)
    router(states).sum().backward()
    assert states.grad is None and bool(router.projection.grad.any())
    handle.remove()
    # In the whole model: the penalty alone reaches the base through the inputs, and no longer does.
    for name, reaches in (("losses", True), ("stop-gradient", False)):
        for layer in focus.layers:
            if EVERY[name].prepare:
                EVERY[name].prepare(focus.router(layer))
        weight = focus.model.get_input_embeddings().weight.requires_grad_(True)
        weight.grad = None
        variant_loss(focus, ROWS, EVERY[name])[1].backward()
        assert (weight.grad is not None and bool(weight.grad.any())) == reaches


def test_moving_averages_equal_those_by_hand(make):
    router = make(balance="none").router(0)
    states = torch.randn(2, 5, 32)
    assignment = F.one_hot(torch.tensor([[0, 0, 1, 1, 1], [3, 3, 0, 1, 3]]), 4).float()  # group 2 is empty
    before = router.centroids.detach().clone()
    found = (states @ router.projection.detach()).reshape(-1, 8)
    groups = assignment.argmax(-1).reshape(-1)
    variants.move_to_mean(router, states, assignment, 1)
    for group in (0, 1, 3):
        expected = 0.9 * before[group] + 0.1 * found[groups == group].mean(0)
        torch.testing.assert_close(router.centroids[group].detach(), expected)
    assert torch.equal(router.centroids[2].detach(), before[2])


@pytest.mark.parametrize("score", ["dot", "cosine"])
def test_reclustering_finds_planted_groups_as_scikit_learn_does(make, score):
    router = make(balance="none", score=score).router(0)
    generator = torch.Generator().manual_seed(3)
    centres = 4 * torch.randn(4, 32, generator=generator)
    planted = torch.arange(60) % 4
    states = (centres[planted] + 0.01 * torch.randn(60, 32, generator=generator)).reshape(2, 30, 32)
    before = router.centroids.detach().clone()
    step = variants.recluster(10)
    step(router, states, torch.empty(2, 30, 4), 9)
    assert torch.equal(router.centroids.detach(), before)  # not yet
    step(router, states, torch.empty(2, 30, 4), 10)
    found = variants.routes(router, states).numpy()
    reference = KMeans(4, n_init=10, random_state=5).fit(found).cluster_centers_
    order = [int(np.abs(reference - found[planted == group].mean(0)).sum(1).argmin()) for group in range(4)]
    mine = router.centroids.detach().numpy()
    nearest = [int(np.abs(mine - reference[index]).sum(1).argmin()) for index in order]
    assert sorted(nearest) == [0, 1, 2, 3]
    np.testing.assert_allclose(mine[nearest], reference[order], atol=1e-4)
    if score == "dot":  # routes are what scores are made of
        torch.testing.assert_close(
            router(states).reshape(-1, 4), torch.from_numpy(found) @ router.centroids.detach().T, rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("name", EVERY)
def test_every_variant_trains_both_phases(make, name):
    variant = EVERY[name]
    focus = make(**variant.settings)
    weight = focus.model.get_input_embeddings().weight
    base, ended = weight.detach().clone(), []
    blocks = np.random.default_rng(1).integers(1, 200, (6, 32))

    def end(phase):
        ended.append((phase, torch.equal(weight.detach(), base)))

    points = train_variant(focus, blocks, ROWS, variant, SETTINGS, on_phase_end=end)
    assert ended == [("centroids", True), ("everything", False)]
    assert [(point.step, point.phase) for point in points] == [
        (0, "centroids"),
        (2, "centroids"),
        (4, "centroids"),
        (6, "everything"),
        (8, "everything"),
    ]
    assert points[0].stability is None and all(0 <= point.stability <= 1 for point in points[1:])
    assert all(0.25 <= point.largest <= point.worst <= 1 and math.isfinite(point.loss) for point in points)


def test_the_probe_is_what_it_says(make):
    focus = make()
    points = train_variant(focus, ROWS.numpy(), ROWS, EVERY["sinkhorn-10"], SETTINGS)
    with torch.no_grad(), focus.routing("soft"):
        watch = stability._Watch()
        with focus.observe(watch):
            focus(ROWS, use_cache=False)
    shares = [np.bincount(each.argmax(-1).flatten().numpy()).max() / 64 for each in watch.assignments.values()]
    assert points[-1].largest == pytest.approx(np.mean(shares)) and points[-1].worst == pytest.approx(max(shares))


def test_a_router_that_cannot_move_is_wholly_stable(make):
    settings = StudySettings(1, 1, 2, learning_rate=1e-12, base_learning_rate=1e-12, autocast=False)
    points = train_variant(make(), ROWS.numpy(), ROWS, Variant("still"), settings)
    assert [point.stability for point in points[1:]] == [1.0, 1.0]


def test_too_little_text_and_impossible_settings_are_refused(make):
    with pytest.raises(FocusError, match="fewer than one batch"):
        train_variant(make(), ROWS.numpy()[:1], ROWS, EVERY["softmax"], SETTINGS)
    with pytest.raises(FocusError, match="at least 1"):
        StudySettings(steps=0)
