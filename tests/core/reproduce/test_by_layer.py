"""K, k and window of every layer, against one setting everywhere, single layers routed alone and a dense count."""

from itertools import product

import numpy as np
import pytest
import torch

from focus_core import FocusConfig, retrofit
from focus_core.evaluation import evaluate
from focus_core.reproduce.studies.by_layer import Choice, choices_of, choose, evaluate_choices
from focus_core.training.calibrate import calibrate

WINDOW, SINKS, LENGTH = 4, 2, 40
BLOCKS = np.random.default_rng(0).integers(1, 90, (2, LENGTH))


@pytest.fixture(params=["layer", "head"])
def focus(request, tiny_llama):
    return routed(tiny_llama, 4, router=request.param)


def routed(tiny_llama, num_groups, **settings):
    config = FocusConfig(num_groups=num_groups, top_k=1, window=WINDOW, sink_tokens=SINKS, route_dim=8, **settings)
    focus = retrofit(tiny_llama.model, config, seed=num_groups)
    calibrate(focus, torch.from_numpy(BLOCKS))
    return focus


@pytest.mark.parametrize("top_k", [1, 2])
def test_one_choice_everywhere_is_that_setting(focus, top_k):
    same = evaluate_choices(focus, {4: focus.routers}, [Choice(4, top_k, WINDOW)] * 3, BLOCKS)
    expected = evaluate(focus, BLOCKS, routing="hard", top_k=top_k, balance="calibrated")
    assert same.block_nll == pytest.approx(expected.block_nll, abs=1e-6)
    for name in ("kept_share", "causal_kept_share", "removed_share", "largest_group_share"):
        assert getattr(same, name) == pytest.approx(getattr(expected, name)), name
    other = evaluate_choices(focus, {4: focus.routers}, [Choice(4, top_k, 9)] * 3, BLOCKS)
    expected = evaluate(focus, BLOCKS, routing="hard", top_k=top_k, balance="calibrated", window=9)
    assert other.block_nll == pytest.approx(expected.block_nll, abs=1e-6)
    assert other.causal_kept_share == pytest.approx(expected.causal_kept_share)


def test_one_layer_with_a_window_of_its_own_is_that_layer_routed_alone(focus):
    chosen = [Choice(4, 1, LENGTH), Choice(4, 1, 9), Choice(4, 1, LENGTH)]
    found = evaluate_choices(focus, {4: focus.routers}, chosen, BLOCKS)
    expected = evaluate(focus, BLOCKS, routing="hard", balance="calibrated", layer_top_k=(4, 1, 4), window=9)
    assert found.block_nll == pytest.approx(expected.block_nll, abs=1e-6)
    assert found.causal_kept_share == pytest.approx(expected.causal_kept_share)


@pytest.mark.parametrize("window", [1, WINDOW, 12])
def test_shares_are_of_the_pairs_beyond_the_common_window(focus, window):
    seen = []
    with focus.observe(seen.append):
        found = evaluate_choices(focus, {4: focus.routers}, [Choice(4, 1, window)] * 3, BLOCKS)
        with torch.inference_mode(), focus.routing("hard", top_k=1, balance="calibrated", window=window):
            seen.clear()
            focus(torch.from_numpy(BLOCKS), use_cache=False)
    distance = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
    kept = local = causal = 0
    for routing in seen:
        groups = routing.key_weights
        member = torch.nn.functional.one_hot(groups.argmax(-1), 4).float()
        reads = torch.nn.functional.one_hot(routing.query_weights.argmax(-1), 4).float()
        pairs = (reads @ member.mT > 0) | (distance <= window) | (torch.arange(LENGTH) < SINKS)
        kept += int((pairs & (distance >= 0)).sum())
        causal += int((distance >= 0).sum()) * len(groups)
        local += int(((distance >= 0) & (distance <= WINDOW)).sum()) * len(groups)
    assert found.causal_kept_share == pytest.approx(kept / causal)
    assert found.kept_share == pytest.approx((kept - local) / (causal - local))


def test_layers_may_differ_in_their_groups(tiny_llama):
    many = routed(tiny_llama, 8, router="head")
    many.detach()
    few = routed(tiny_llama, 4, router="head")
    routers = {4: few.routers, 8: many.routers}
    expected = {n: evaluate_choices(few, routers, [Choice(n, 1, WINDOW)] * 3, BLOCKS) for n in routers}
    mixed = evaluate_choices(few, routers, [Choice(8, 1, WINDOW), Choice(4, 1, WINDOW), Choice(8, 1, WINDOW)], BLOCKS)
    assert all(len(few.router(layer).centroids[0]) == 4 for layer in few.layers)
    assert expected[8].kept_share < mixed.kept_share < expected[4].kept_share


def test_what_is_chosen_fits_the_budget_and_is_the_best_that_does(focus):
    options = choices_of({"num_groups": [4], "top_k": [1, 2], "window": [2, WINDOW]})
    assert options == [Choice(4, *each) for each in product((1, 2), (2, WINDOW))]
    told = []
    routers, budgets = {4: focus.routers}, (0.3, 0.6, 1.0)
    plans = choose(focus, routers, options, BLOCKS, budgets, lambda layer, share: told.append((layer, share)))
    assert told == [(0, pytest.approx(1 / 3)), (1, pytest.approx(2 / 3)), (2, 1.0)]
    shares = [evaluate_choices(focus, routers, plan, BLOCKS).kept_share for plan in plans]
    assert shares == sorted(shares) and shares[0] < 0.4 and shares[1] < 0.7
    untouched = np.mean(evaluate(focus, BLOCKS, routing="off").block_nll)
    full = Choice(4, 1, LENGTH)
    for place, choice in enumerate(plans[2]):
        alone = evaluate_choices(focus, routers, [choice if n == place else full for n in range(3)], BLOCKS)
        assert np.mean(alone.block_nll) <= untouched + 1e-6
