"""Shares by need: the plan against linear programming, measured errors against the model's own modules."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linprog
from tiny_narrow import FAMILIES, SMALL, assert_padding_and_a_cache_change_nothing, blocks, calls_of, model
from transformers import MistralConfig, MistralForCausalLM

from focus_core import FocusConfig, FocusError, FocusModel, retrofit
from focus_core.attention import AttentionOutput
from focus_core.evaluation.exposure import budget_exposure
from focus_core.routing.narrow.compiled.choice import Shares, share_of, shares_between
from focus_core.routing.narrow.fitting.fit import fit_narrow
from focus_core.routing.narrow.fitting.gradients import calls_with_gradients
from focus_core.routing.narrow.fitting.need import MEASURED, PROBED, head_errors, layer_weights
from focus_core.routing.narrow.fitting.plan import place_weights, plan_shares
from focus_core.routing.narrow.reading import Reading, share_at
from focus_core.routing.narrow.reference import narrow_reference
from focus_core.routing.routers.narrow import MEANS
from focus_core.routing.rules import Rule, attend_fully, hard_groups

CONFIG = FocusConfig(
    router="narrow", num_groups=6, top_k=1, window=5, sink_tokens=2, chunk=16, read_share=0.2, page_size=4,
    shares_by_need=True, score="dot",
)  # fmt: skip
curves = st.integers(1, 6).flatmap(
    lambda heads: st.lists(st.lists(st.floats(0, 10), min_size=5, max_size=5), min_size=heads, max_size=heads)
)


@settings(deadline=None)
@given(curves=curves, prices=st.lists(st.floats(0.1, 9), min_size=6, max_size=6), mean=st.floats(0, 1))
def test_the_plan_is_the_optimum(curves, prices, mean):
    places = np.array([0.0, 0.1, 0.2, 0.5, 1.0])
    errors = np.minimum.accumulate(np.array(curves), axis=1)
    heads = len(errors)
    costs = np.array(prices[:heads])[:, None] * (0.3 + places)
    budget = costs[:, 0].sum() + mean * (costs[:, -1] - costs[:, 0]).sum()
    shares = plan_shares(errors, costs, places, [budget])[0]
    assert ((shares >= 0) & (shares <= 1)).all()
    spent = [np.interp(share, places, cost) for share, cost in zip(shares, costs)]
    assert sum(spent) == pytest.approx(budget, abs=1e-9)

    # A head is a mixture of its measured points; the least sum of errors for the budget, by linear programming.
    each = np.kron(np.eye(heads), np.ones(5))
    best = linprog(errors.ravel(), A_eq=np.vstack([each, costs.ravel() / budget]), b_eq=np.append(np.ones(heads), 1.0))
    assert best.success
    hulls = [
        linprog(error, A_eq=np.vstack([np.ones(5), places]), b_eq=[1, share]).fun
        for error, share in zip(errors, shares)
    ]
    assert sum(hulls) == pytest.approx(best.fun, abs=1e-6)


def test_no_head_reads_less_where_the_budget_is_larger():
    errors = np.random.default_rng(0).exponential(size=(30, len(MEASURED)))
    costs = np.broadcast_to(np.maximum(MEASURED, 0.03), errors.shape)  # what is read anyway costs nothing more
    shares = plan_shares(errors, costs, MEASURED, 30 * np.array(MEANS))
    assert (np.diff(shares, axis=0) >= -1e-12).all()
    assert (shares[:2] == 0).all() and np.allclose(shares[-1], 1)


def test_a_place_weighs_as_its_share_counts_on_the_line_between():
    places, window = (8, 30, 70), 5
    weights = place_weights(places, 100, window)
    shares = np.array([0.9, 0.4, 0.1])
    beyond = (np.arange(100) - window).clip(0)
    assert np.allclose(weights.sum(0), 1) and np.allclose(shares @ weights, np.interp(beyond, places, shares))
    assert (place_weights([100], 100, window) == 1).all()


def sparse_output(call, share):
    """(4, T, Dv), by the definition."""
    reading = Reading(CONFIG.window, CONFIG.sink_tokens, CONFIG.chunk, share=share, page_size=4)
    groups = call.groups.keys.int().argmax(-1)[None]
    return narrow_reference(*call.together(), groups, 6, reading, scale=call.geometry.scale).output[0]


def projections(focus):
    """The output projection of every layer."""
    return {
        layer: getattr(module, "o_proj", None) or module.c_proj for layer, module in focus.attention_modules.items()
    }


def states_of(focus, ids):
    """The hidden states that enter each decoder layer, (T, d) by layer."""
    with torch.no_grad(), focus.routing("off"):
        return [states[0] for states in focus.model(ids, use_cache=False, output_hidden_states=True).hidden_states]


@pytest.mark.parametrize("name", FAMILIES)
def test_an_error_is_the_difference_in_the_stream(name):
    focus, ids = retrofit(model(name), CONFIG, seed=0), torch.from_numpy(blocks(1))
    weights = np.random.default_rng(0).random((2, 120))
    weights[:, 40:70] = 0
    errors, states = head_errors(focus, ids.numpy(), weights=weights), states_of(focus, ids)
    for layer, call in calls_of(focus, ids).items():
        project, full = projections(focus)[layer], attend_fully(call).output.flatten(0, 1)
        for place, share in [(0, 0.0), (5, MEASURED[5]), (9, MEASURED[9])]:
            sparse = sparse_output(call, share)
            for head in range(4):
                changed = full.clone()
                changed[head] = sparse[head]
                with torch.no_grad():
                    difference = project(changed.transpose(0, 1).flatten(1)) - project(full.transpose(0, 1).flatten(1))
                expected = weights @ (difference.square().sum(-1) / states[layer].square().sum(-1)).numpy()
                assert errors[layer][head, :, place] == pytest.approx(expected, rel=1e-3, abs=1e-8)
        assert errors[layer].shape == (4, 2, len(MEASURED)) and (errors[layer][..., -1] == 0).all()


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_are_those_of_one_backward_pass(name):
    focus, ids = retrofit(model(name), CONFIG, seed=0), torch.from_numpy(blocks(1))
    found = dict(
        (call.layer, gradient)
        for call, gradient in calls_with_gradients(focus, ids, generator=torch.Generator().manual_seed(5))
    )
    assert list(found) == [1, 0] and not any(focus.model.get_input_embeddings().weight.grad or [])
    focus.model.get_input_embeddings().weight.requires_grad_(True)
    outputs = {}
    for layer, project in projections(focus).items():
        project.register_forward_pre_hook(lambda _, args, layer=layer: outputs.update({layer: args[0]}))
    with focus.routing("off"):
        chances = focus.model(ids, use_cache=False).logits[0].log_softmax(-1)
    tokens = torch.multinomial(chances.detach().exp(), 1, generator=torch.Generator().manual_seed(5))
    gradients = torch.autograd.grad(chances.gather(-1, tokens).sum(), list(outputs.values()))
    for layer, gradient in zip(outputs, gradients):
        expected = gradient[0].unflatten(-1, (4, 8)).transpose(0, 1)
        assert torch.allclose(found[layer].flatten(0, 1), expected, rtol=1e-3, atol=1e-5)


def test_fewer_drawn_predictions_stand_for_all(monkeypatch):
    focus, ids = retrofit(model(), CONFIG, seed=0), torch.from_numpy(blocks(1))

    def squares():
        draws = [calls_with_gradients(focus, ids, generator=torch.Generator().manual_seed(seed)) for seed in range(40)]
        return np.mean([[float(gradient.square().sum()) for _, gradient in each] for each in draws], 0)

    every = squares()
    monkeypatch.setattr("focus_core.routing.narrow.fitting.gradients.MOST_LOGITS", 97 * 40)
    assert squares() == pytest.approx(every, rel=0.2)


def test_a_layer_weighs_what_its_error_does_to_predictions():
    """Of one layer whose heads change a little, over many draws, beside the divergence of predictions."""
    focus, ids = retrofit(model(), CONFIG, seed=0), torch.from_numpy(blocks(1))
    weights = [layer_weights(focus, ids.numpy(), seed=seed) for seed in range(40)]

    def predictions(changed, head, share):
        def attend(call):
            found = attend_fully(call)
            if call.layer == changed:
                output = found.output.flatten(0, 1).clone()
                output[head] += 0.05 * (sparse_output(call, share)[head] - output[head])
                return AttentionOutput(output.view_as(found.output), found.logsumexp)
            return found

        with torch.no_grad(), focus.routing("hard", rule=Rule(attend, hard_groups)):
            return focus(ids, use_cache=False).logits[0].double().log_softmax(-1)

    for layer in (0, 1):
        before, moved = predictions(None, 0, 0), 0.0
        errors = head_errors(focus, ids.numpy(), (*PROBED, 1.0), weights=np.ones((1, 120)))[layer][:, 0, :-1]
        for head in range(4):
            for share in PROBED:
                after = predictions(layer, head, share)
                moved += float((before.exp() * (before - after)).sum()) / 0.05**2
        assert np.mean([each[layer] for each in weights]) == pytest.approx(moved / errors.sum(), rel=0.15)


@pytest.fixture(scope="module")
def fitted():
    return fit_narrow(model(), blocks(6), CONFIG)


@pytest.mark.parametrize(
    ("places", "lengths"), [((), (240,)), ((10, 30, 80, 150), (240,)), ((10, 30, 80, 150), (120, 240))]
)
def test_a_text_of_each_measured_length_reads_the_wanted_share(places, lengths):
    need = [blocks(2, length, seed=length) for length in lengths]
    focus = fit_narrow(model(), blocks(6), CONFIG.replace(shares_at=places), need=need)
    shares = torch.stack([focus.router(layer).shares for layer in focus.layers])
    assert shares.shape == (2, *((4,) if places else ()), len(MEANS), 4)
    for length in lengths:
        # Later queries of a short text are on the line to a place that it has not measured.
        shares_at = tuple(place for place in places if place <= length)
        for mean in (0.4, 0.5, 0.7):  # sinks and keys up to the border alone are 17% of a short text
            head_shares = [focus.router(layer).head_shares(mean) for layer in focus.layers]
            readings = [
                Reading(
                    CONFIG.window, CONFIG.sink_tokens, CONFIG.chunk, share=mean, page_size=4,
                    head_shares=own[: 4 * max(1, len(shares_at))], shares_at=shares_at,
                )
                for own in head_shares
            ]  # fmt: skip
            kept = budget_exposure(length, CONFIG, readings)
            assert 1 - kept.removed / kept.distant == pytest.approx(mean, abs=0.01)
    focus.detach()


def test_blocks_shorter_than_a_place_are_refused():
    with pytest.raises(FocusError, match="shares_at has 130 keys, and blocks of need have 120 tokens at most"):
        fit_narrow(model(), blocks(6), CONFIG.replace(shares_at=(40, 130)), need=[blocks(6)])


@settings(deadline=None)
@given(places=st.lists(st.integers(0, 4000), min_size=1, max_size=4, unique=True).map(sorted), data=st.data())
def test_a_share_lies_on_the_line_between_two_numbers_of_keys(places, data):
    shares = data.draw(arrays(np.float32, (len(places), 3), elements=st.floats(0, 1, width=32)))
    beyond = data.draw(arrays(np.int64, 5, elements=st.integers(0, 5000))).astype(np.float32)
    expected = [np.interp(beyond, places, shares[:, head]) for head in range(3)]
    found = share_at(beyond, shares[..., None], places)
    assert found.dtype == np.float32 and np.allclose(found, expected, atol=1e-5)
    torch_too = share_at(torch.from_numpy(beyond), torch.from_numpy(shares[..., None]), places)
    assert np.array_equal(torch_too.numpy(), found)
    compiled = Shares(shares, *shares_between(tuple(places)))
    own = [[share_of(compiled, head, keys) for keys in beyond] for head in range(3)]
    assert np.array_equal(own, np.broadcast_to(found, (3, 5)))  # bit for bit: an ulp can move a page


def test_one_row_of_a_reading_has_its_own_shares_at_every_place():
    reading = Reading(window=1, sink_tokens=0, share=0.1, head_shares=tuple(np.arange(12) / 12), shares_at=(5, 9))
    assert reading.num_heads == 6
    row = reading.of_row(1, 2)
    assert row.head_shares == (2 / 12, 3 / 12, 8 / 12, 9 / 12) and row.shares_at == (5, 9)
    assert torch.equal(row.shares(4), reading.shares(6)[:, [2, 3, 2, 3]])


def test_shares_by_need_are_stored_and_come_back(fitted, tmp_path):
    fitted.save_pretrained(tmp_path)
    again = FocusModel.from_pretrained(model(), tmp_path)
    assert again.config == fitted.config and again.config.shares_by_need
    stored = torch.stack([fitted.router(layer).shares for layer in fitted.layers])
    assert torch.equal(stored.half(), torch.stack([again.router(layer).shares for layer in again.layers]).half())
    assert stored.shape == (2, len(MEANS), 4)
    assert stored[:, 11].std() > 0.01 and (stored[:, 0] == 0).all() and (stored[:, -1] == 1).all()
    below, above = (again.router(0).head_shares(mean) for mean in (0.3, 0.4))
    assert again.router(0).head_shares(0.34) == pytest.approx(0.6 * np.array(below) + 0.4 * np.array(above))


def test_a_share_of_one_is_the_untouched_model(fitted):
    ids = torch.from_numpy(blocks(1, seed=7))
    with torch.no_grad():
        with fitted.routing("off"):
            expected = fitted(ids, use_cache=False).logits
        with fitted.routing("hard", read_share=1.0):
            assert torch.allclose(fitted(ids, use_cache=False).logits, expected, atol=2e-4)
        for settings_ in ({"read_share": 0.2}, {"read_share": 0.2, "shares_by_need": False}):
            with fitted.routing("hard", **settings_):
                assert not torch.allclose(fitted(ids, use_cache=False).logits, expected, atol=2e-4)


def test_padding_and_a_cache_change_nothing(fitted):
    assert_padding_and_a_cache_change_nothing(fitted)


def test_less_is_lost_than_with_one_share(fitted):
    errors = {
        layer: found[:, 0] for layer, found in head_errors(fitted, blocks(3, seed=9), weights=np.ones((1, 120))).items()
    }
    even = sum(error[:, MEASURED.index(0.4)].sum() for error in errors.values())
    planned = sum(
        np.interp(share, MEASURED, error)
        for layer, found in errors.items()
        for share, error in zip(fitted.router(layer).head_shares(0.4), found)
    )
    assert planned < even


def test_layers_with_a_window_of_their_own_are_left_out():
    torch.manual_seed(0)
    own = MistralForCausalLM(MistralConfig(**SMALL, sliding_window=24)).eval()
    focus = fit_narrow(own, blocks(4), CONFIG)
    assert torch.allclose(focus.router(0).shares.mean(1), torch.tensor(MEANS))


def test_what_cannot_be_used_is_refused(tmp_path, fitted):
    with pytest.raises(FocusError, match="give rising numbers of keys"):
        FocusConfig(router="narrow", shares_at=(5, 5))
    with pytest.raises(FocusError, match="shares_at needs router='narrow'"):
        FocusConfig(shares_at=(5, 9))
    with pytest.raises(FocusError, match="shares_by_need needs router='narrow'"):
        FocusConfig(shares_by_need=True)
    plain = retrofit(model(), CONFIG.replace(shares_by_need=False))
    with pytest.raises(FocusError, match="have no shares by need"), plain.routing("hard", shares_by_need=True):
        plain(torch.from_numpy(blocks(1)), use_cache=False)
    with pytest.raises(FocusError, match=r"is 1\.5"):
        Reading(window=1, sink_tokens=0, share=0.1, head_shares=(0.1, 1.5))
    fitted.save_pretrained(tmp_path)
    config = tmp_path / "focus_config.json"
    changed = json.loads(config.read_text())
    changed["routing"]["shares_by_need"] = False
    config.write_text(json.dumps(changed))
    with pytest.raises(FocusError, match=r"do not fit their own configuration at '0\.shares'"):
        FocusModel.from_pretrained(model(), tmp_path)
