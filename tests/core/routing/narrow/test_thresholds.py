"""Reading by error: the rule against plain loops, measured errors and pairs against the definition, kept shares."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tiny_narrow import FAMILIES, SMALL, assert_padding_and_a_cache_change_nothing, blocks, calls_of, model
from transformers import MistralConfig, MistralForCausalLM

from focus_core import FocusConfig, FocusError, FocusModel, retrofit
from focus_core.routing.narrow.attention import narrow_pairs
from focus_core.routing.narrow.compiled.levels import Levels, level_of, levels_between
from focus_core.routing.narrow.fitting import thresholds
from focus_core.routing.narrow.fitting.fit import at_share, fit_narrow
from focus_core.routing.narrow.fitting.layers import layer_weights
from focus_core.routing.narrow.fitting.thresholds import (
    EDGES,
    LEVELS,
    errors_of_pages,
    head_costs,
    places_of,
    plan_thresholds,
)
from focus_core.routing.narrow.reading import Reading, level_at
from focus_core.routing.narrow.reference import narrow_reference
from focus_core.routing.routers.narrow import MEANS, UNFITTED
from focus_core.routing.rules import attend_fully
from focus_core.routing.storage import routers_hash

CONFIG = FocusConfig(
    router="narrow", num_groups=6, top_k=1, window=5, sink_tokens=2, chunk=4, read_share=0.2, page_size=4,
    by_error=True, count_spread=True, count_weight=1.0, score="dot",
)  # fmt: skip
LENGTHS = (120, 240)


@pytest.fixture(scope="module")
def fitted():
    """A tiny model with thresholds for two lengths."""
    need = [blocks(6), blocks(3, LENGTHS[1], seed=4)]
    return fit_narrow(model(), blocks(6), CONFIG.replace(shares_at=places_of(LENGTHS, CONFIG.window)), need=need)


@settings(deadline=None)
@given(
    logits=st.lists(st.floats(-9, 9, width=32), min_size=4, max_size=4),
    variances=st.lists(st.floats(0, 30, width=32), min_size=4, max_size=4),
    counts=st.lists(st.integers(0, 16), min_size=4, max_size=4),
    near=st.floats(-9, 9, width=32),
    threshold=st.floats(-7.3, 1.3),
)
def test_a_part_is_read_where_its_summary_would_err(logits, variances, counts, near, threshold):
    reading = Reading(window=3, sink_tokens=0, share=0.1, thresholds=(threshold,), count_weight=1.0)
    sizes = torch.tensor(counts, dtype=torch.float64)
    scores = reading.scores(torch.tensor([logits], dtype=torch.float64), sizes)
    doubt = torch.tensor([near], dtype=torch.float64), torch.tensor([variances], dtype=torch.float64)
    found = reading.choose(scores[None], sizes, torch.zeros(1), *doubt)[0, 0]
    masses = [count * math.exp(logit) for count, logit in zip(counts, logits)]
    total = sum(masses) + math.exp(near)
    for reads, mass, spread, count in zip(found.tolist(), masses, variances, counts):
        error = mass / total * (1 + spread)
        if abs(error - math.exp(threshold)) > 1e-5 * error:
            assert reads == (count > 0 and error > math.exp(threshold))


def test_thresholds_need_a_share_and_one_of_every_head():
    with pytest.raises(FocusError, match="take the place of a share"):
        Reading(window=1, sink_tokens=0, top_k=1, thresholds=(0.0,))
    with pytest.raises(FocusError, match="2 shares_at need as many thresholds"):
        Reading(window=1, sink_tokens=0, share=0.1, thresholds=(0.0, 0.0, 0.0), shares_at=(3, 9))
    reading = Reading(window=1, sink_tokens=0, share=0.1, thresholds=tuple(np.arange(12) / 12), shares_at=(5, 9))
    assert reading.of_row(1, 2).thresholds == (2 / 12, 3 / 12, 8 / 12, 9 / 12)


@pytest.mark.parametrize("name", FAMILIES)
def test_errors_and_pairs_are_those_of_the_definition(name):
    focus, ids = retrofit(model(name), CONFIG, seed=0), torch.from_numpy(blocks(1))
    costs = head_costs(focus, ids.numpy())
    with torch.no_grad(), focus.routing("off"):
        states = focus.model(ids, use_cache=False, output_hidden_states=True).hidden_states
    index = torch.arange(120)
    distant = index[:, None] - index > CONFIG.window
    for layer, call in calls_of(focus, ids).items():
        module = focus.attention_modules[layer]
        project, full = getattr(module, "o_proj", None) or module.c_proj, attend_fully(call).output.flatten(0, 1)
        for place in (0, 4, 9):
            reading = Reading(
                CONFIG.window, CONFIG.sink_tokens, CONFIG.chunk, share=0.2, thresholds=(LEVELS[place],) * 4,
                spread=(0.0,) * 4, count_weight=1.0, page_size=4,
            )  # fmt: skip
            groups = call.groups.keys.int().argmax(-1)[None]
            expected = narrow_reference(*call.together(), groups, 6, reading, scale=call.geometry.scale)
            pairs = (expected.exact[0] & distant).sum((-1, -2))
            assert costs[layer].pairs[:, place].tolist() == pairs.tolist()
            for head in range(4):
                changed = full.clone()
                changed[head] = expected.output[0, head]
                with torch.no_grad():
                    difference = project(changed.transpose(0, 1).flatten(1)) - project(full.transpose(0, 1).flatten(1))
                error = (difference.square().sum(-1) / states[layer][0].square().sum(-1)).sum()
                assert costs[layer].errors[head, place] == pytest.approx(float(error), rel=1e-3, abs=1e-8)
        assert (costs[layer].errors[:, -1] == 0).all() and (costs[layer].pairs[:, -1] == int(distant.sum())).all()
        assert (np.diff(costs[layer].pairs, axis=1) >= 0).all()


def test_the_expected_kl_is_that_of_the_predictions_where_errors_are_small():
    ids, expected = blocks(6, 240, seed=1), {}
    focus = fit_narrow(model(), ids, CONFIG, on_expected=lambda _, kl: expected.update(kl))
    assert tuple(expected) == MEANS and expected[1.0] < 1e-12

    def predicted(row, mode, **changes):
        with torch.inference_mode(), focus.routing(mode, **changes):
            return focus(input_ids=row[None], use_cache=False).logits[0].double().log_softmax(-1)

    for share in (0.3, 0.5):
        measured = 0.0
        for row in torch.from_numpy(ids):
            full, ours = predicted(row, "off"), predicted(row, "hard", read_share=share)
            measured += float((full.exp() * (full - ours)).sum(-1).mean()) / len(ids)
        assert expected[share] == pytest.approx(measured, rel=0.3)


@pytest.mark.parametrize(("enough", "tried"), [(1.0, [4]), (0.0, [4, 2])])
def test_smaller_pages_are_tried_where_much_is_expected(monkeypatch, enough, tried):
    monkeypatch.setattr("focus_core.routing.narrow.fitting.fit.KL_ENOUGH", enough)
    need, expected = [blocks(1)], {}
    focus = fit_narrow(model(), blocks(6), CONFIG, need=need, page_sizes=(4, 2), on_expected=expected.__setitem__)
    assert list(expected) == tried and focus.config == CONFIG.replace(page_size=tried[-1]) == focus.current.config
    if len(tried) == 2:
        assert at_share(expected[2], 0.2) < at_share(expected[4], 0.2)
    by_layer = layer_weights(fit_narrow(model(), blocks(6), CONFIG, need=need), need[0])
    alone = fit_narrow(model(), blocks(6), focus.config, need=need)
    plan_thresholds(alone, need[0], by_layer)
    assert routers_hash(focus.routers) == routers_hash(alone.routers)


def test_pairs_above_an_error_are_those_that_a_threshold_reads(fitted):
    ids = blocks(1, 240, seed=9)
    read = errors_of_pages(fitted, ids)
    assert read.above.shape == (8, len(read.beyond), len(EDGES)) and len(read.beyond) == 4
    for place in (90, 120, 150):
        found = []
        for layer, call in sorted(calls_of(fitted, torch.from_numpy(ids)).items()):
            own = fitted.router(layer).spread_weights()
            reading = Reading(
                CONFIG.window, CONFIG.sink_tokens, CONFIG.chunk, share=0.2, thresholds=(EDGES[place],) * 4,
                spread=own, count_weight=1.0, page_size=4,
            )  # fmt: skip
            query, key, _ = call.together()
            groups = call.groups.keys.int().argmax(-1)[None]
            found.append(narrow_pairs(query, key, groups, 6, reading, scale=call.geometry.scale).distant_kept[0])
        assert (read.above[..., place].sum(1) + read.always).tolist() == torch.cat(found).tolist()


@settings(deadline=None)
@given(places=st.lists(st.integers(0, 4000), min_size=1, max_size=4, unique=True).map(sorted), data=st.data())
def test_a_threshold_lies_on_the_line_between_two_numbers_of_keys(places, data):
    levels = data.draw(arrays(np.float32, (len(places), 3), elements=st.floats(-9, 2, width=32)))
    beyond = data.draw(arrays(np.int64, 5, elements=st.integers(0, 5000))).astype(np.float32)
    expected = [np.interp(beyond, places, levels[:, head]) for head in range(3)]
    found = level_at(beyond, levels[..., None], places)
    assert found.dtype == np.float32 and np.allclose(found, expected, atol=1e-5)
    torch_too = level_at(torch.from_numpy(beyond), torch.from_numpy(levels[..., None]), places)
    assert np.array_equal(torch_too.numpy(), found)
    compiled = Levels(levels, *levels_between(tuple(places)))
    own = [[level_of(compiled, head, keys) for keys in beyond] for head in range(3)]
    assert np.array_equal(own, np.broadcast_to(found, (3, 5)))  # bit for bit: an ulp can move a page


def kept_share(focus, ids, mean):
    """Share of the distant pairs of some texts that are attended exactly, all heads and layers together."""
    kept = []
    with torch.no_grad(), focus.routing("hard", read_share=mean), focus.observe(lambda r: kept.append(r.pair_counts())):
        for row in torch.from_numpy(ids):
            focus.model(row[None], use_cache=False)
    return float(sum(counts.distant_kept.sum() for counts in kept) / sum(counts.distant.sum() for counts in kept))


@pytest.mark.parametrize("mean", [0.2, 0.3, 0.4, 0.7])
def test_texts_of_both_lengths_keep_the_share_that_is_asked_for(fitted, mean):
    assert kept_share(fitted, blocks(6), mean) == pytest.approx(mean, abs=0.01)
    assert kept_share(fitted, blocks(3, 240, seed=4), mean) == pytest.approx(mean, abs=0.02)


@pytest.mark.parametrize("lengths", [(120, 240), (240,)])
def test_a_text_shorter_than_those_at_the_share_keeps_more(lengths):
    need = [blocks(6, 60), *(blocks(3, length, seed=4) for length in lengths)]
    config = CONFIG.replace(shares_at=places_of(lengths, CONFIG.window))
    focus = fit_narrow(model(), blocks(6), config, need=need)
    shares = [kept_share(focus, ids, 0.3) for ids in need]
    assert shares[0] > 0.33 and shares[1:] == pytest.approx([0.3] * len(lengths), abs=0.02)
    thresholds = focus.router(0).thresholds
    assert thresholds.shape == ((3, len(MEANS), 4) if len(lengths) > 1 else (len(MEANS), 4))
    assert kept_share(focus, need[0], 1.0) == 1
    focus.detach()


def test_heads_are_measured_in_texts_of_the_first_length_that_keeps_the_share(monkeypatch):
    need, seen = [blocks(6, 60), blocks(3, 120, seed=4), blocks(3, 240, seed=5)], []
    monkeypatch.setattr(
        thresholds, "head_costs", lambda focus, ids, **known: seen.append(ids) or head_costs(focus, ids, **known)
    )
    fit_narrow(model(), blocks(6), CONFIG.replace(shares_at=places_of((120, 240), CONFIG.window)), need=need).detach()
    fit_narrow(model(), blocks(6), CONFIG, need=need).detach()
    assert [each.shape for each in seen] == [(3, 120), (3, 240)] and np.array_equal(seen[0], need[1])


def test_places_of_other_lengths_than_the_texts_are_refused():
    need = [blocks(6, 60), blocks(3, 120), blocks(3, 240)]
    with pytest.raises(FocusError, match="shares_at has 3 places for texts of 2 longer lengths"):
        fit_narrow(model(), blocks(6), CONFIG.replace(shares_at=places_of((60, 240), CONFIG.window)), need=need)
    with pytest.raises(FocusError, match="The first of shares_at is 100, and texts have 60, 120, 240 tokens"):
        fit_narrow(model(), blocks(6), CONFIG.replace(shares_at=places_of((100, 240), CONFIG.window)), need=need)


def test_thresholds_fall_soon_behind_each_length():
    assert places_of([2048], 128) == ()
    assert places_of([2048, 8192, 32768], 128) == (2048, 2560, 8064, 10080, 32640)


def test_one_threshold_for_all_heads_keeps_the_share_too():
    need = [blocks(6), blocks(3, LENGTHS[1], seed=4)]
    config = CONFIG.replace(shares_at=places_of(LENGTHS, CONFIG.window))
    focus = fit_narrow(model(), blocks(6), config, need=need, one_threshold=True)
    thresholds = torch.stack([focus.router(layer).thresholds for layer in focus.layers])
    assert bool((thresholds == thresholds[:1, ..., :1]).all())
    for ids in need:
        assert kept_share(focus, ids, 0.3) == pytest.approx(0.3, abs=0.02)
    focus.detach()


def test_a_share_of_one_is_the_untouched_model_and_a_larger_one_is_closer(fitted):
    ids = torch.from_numpy(blocks(2, 240, seed=7))
    with torch.no_grad():
        with fitted.routing("off"):
            untouched = fitted.model(ids, use_cache=False).logits
        distances = []
        for mean in (0.2, 0.5, 0.99, 1.0):
            with fitted.routing("hard", read_share=mean):
                distances.append(float((fitted.model(ids, use_cache=False).logits - untouched).square().mean()))
    assert distances == sorted(distances, reverse=True) and distances[-1] < 1e-8
    assert kept_share(fitted, ids.numpy(), 1.0) == 1


def test_padding_and_a_cache_change_nothing(fitted):
    assert_padding_and_a_cache_change_nothing(fitted)


def test_thresholds_are_stored_and_come_back(fitted, tmp_path):
    fitted.save_pretrained(tmp_path)
    again = FocusModel.from_pretrained(model(), tmp_path)
    assert again.config == fitted.config and again.config.by_error
    for layer in fitted.layers:
        ours, theirs = (each.router(layer).thresholds for each in (fitted, again))
        assert ours.shape == (3, len(MEANS), 4) and torch.equal(ours.half(), theirs.half())
    below, above = (np.array(again.router(0).head_thresholds(mean)) for mean in (0.3, 0.4))
    assert again.router(0).head_thresholds(0.34) == pytest.approx(0.6 * below + 0.4 * above)
    changed = json.loads((tmp_path / "focus_config.json").read_text())
    changed["routing"]["by_error"] = False
    (tmp_path / "focus_config.json").write_text(json.dumps(changed))
    with pytest.raises(FocusError, match=r"do not fit their own configuration at '0\.thresholds'"):
        FocusModel.from_pretrained(model(), tmp_path)


def test_less_is_lost_than_with_one_threshold(fitted):
    need = [blocks(6), blocks(3, LENGTHS[1], seed=4)]
    costs = head_costs(fitted, blocks(3, seed=9))
    own = fitted.router(0).thresholds.shape
    alike = fit_narrow(model(), blocks(6), fitted.config, need=need, one_threshold=True)

    def lost(focus):
        """Errors at 40% of the pairs, by the lines through those measured."""
        found = 0.0
        for layer, cost in costs.items():
            thresholds = focus.router(layer).thresholds[0, MEANS.index(0.4)]
            lines = zip(thresholds.tolist(), cost.errors)
            found += sum(np.interp(-threshold, -np.array(LEVELS), error) for threshold, error in lines)
        return found

    assert own == alike.router(0).thresholds.shape and lost(fitted) < lost(alike)
    alike.detach()


def test_layers_with_a_window_of_their_own_are_left_out():
    torch.manual_seed(0)
    own = MistralForCausalLM(MistralConfig(**SMALL, sliding_window=24)).eval()
    focus = fit_narrow(own, blocks(4), CONFIG)
    thresholds = focus.router(0).thresholds
    assert bool((thresholds[1:-1] == UNFITTED).all())


def test_wrong_settings_are_refused():
    with pytest.raises(FocusError, match="give rising numbers of keys"):
        FocusConfig(router="narrow", shares_at=(5, 5))
    with pytest.raises(FocusError, match="shares_at needs router='narrow'"):
        FocusConfig(shares_at=(5, 9))
    with pytest.raises(FocusError, match="by_error needs router='narrow'"):
        FocusConfig(by_error=True)
    plain = retrofit(model(), CONFIG.replace(by_error=False, count_spread=False))
    with pytest.raises(FocusError, match="have no thresholds"), plain.routing("hard", by_error=True):
        plain.model(torch.from_numpy(blocks(1)), use_cache=False)


def test_routers_that_were_not_fitted_read_by_one_threshold():
    focus = retrofit(model(), dataclasses.replace(CONFIG, count_spread=False))
    ids = blocks(1)
    shares = [kept_share(focus, ids, mean) for mean in (0.0, 0.1, 0.5, 1.0)]
    assert shares[0] < shares[1] == shares[2] < shares[3] == 1


def test_files_of_earlier_versions_still_load(fitted, tmp_path):
    fitted.save_pretrained(tmp_path)
    path = tmp_path / "focus_config.json"
    for earlier, wrong in [(False, None), (True, r"of an earlier version \(shares_by_need\): fit these routers again")]:
        changed = json.loads(path.read_text())
        changed["routing"]["shares_by_need"] = earlier
        path.write_text(json.dumps(changed))
        if wrong is None:
            assert FocusModel.from_pretrained(model(), tmp_path).config == fitted.config
        else:
            with pytest.raises(FocusError, match=wrong):
                FocusModel.from_pretrained(model(), tmp_path)
