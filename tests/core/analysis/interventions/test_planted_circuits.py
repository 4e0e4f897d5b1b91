"""Interventions on a model whose answer needs one known distant pair: they must find it, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from planted import ASK_PLACE, GROUP, LENGTH, SECRET_PLACE, planted_model, planted_text

from focus_core.analysis.interventions import Experiment, Intervention, cut, force, knock_out, restore
from focus_core.analysis.interventions.groups import EffectSettings, group_effect, largest_groups

KINDS = ("layer", "head", "narrow")
ANSWER_LOSS = ASK_PLACE  # entry of the prediction of the token after the question
HEAD = 1


@pytest.fixture(scope="module", params=KINDS)
def planted(request):
    return planted_model(request.param)


@pytest.fixture(scope="module")
def experiment(planted):
    return Experiment(planted, planted_text(), 1, HEAD, untouched=True)


def test_the_circuit_answers_and_its_layer_keeps_the_pair(experiment):
    assert experiment.losses[ANSWER_LOSS] < 1e-3
    assert experiment.members(GROUP).tolist() == [SECRET_PLACE]
    assert experiment.links.exact[:, ASK_PLACE, SECRET_PLACE].any()


def test_knocking_out_the_group_takes_the_whole_answer(planted, experiment):
    found = experiment.run(Intervention(edits=(knock_out(experiment.members(GROUP)),)), untouched=True)
    # A text without the secret has the loss that is left when nothing is found.
    without = Experiment(planted, planted_text(secret=3), 1, HEAD).losses[ANSWER_LOSS]
    assert found.loss[ANSWER_LOSS] == pytest.approx(without - experiment.losses[ANSWER_LOSS], rel=0.05)
    assert found.loss[ANSWER_LOSS] > 3
    assert found.kl[ANSWER_LOSS] > 3
    assert found.untouched_kl is not None and found.untouched_kl[ANSWER_LOSS] > 3
    assert (np.delete(found.kl, ANSWER_LOSS) < 1e-4).all()


@pytest.mark.parametrize("group", [0, 1, 3])
def test_other_groups_do_nothing(experiment, group):
    members = experiment.members(group)
    assert len(members) > 3
    found = experiment.run(Intervention(edits=(knock_out(members),)))
    assert abs(found.loss[ANSWER_LOSS]) < 1e-3
    assert found.kl.max() < 1e-2


def test_restoring_the_one_link_gives_the_answer_back(experiment):
    gone = knock_out(experiment.members(GROUP))
    back = experiment.run(Intervention(edits=(gone, restore(ASK_PLACE, SECRET_PLACE))))
    assert abs(back.loss[ANSWER_LOSS]) < 1e-3
    elsewhere = experiment.run(Intervention(edits=(gone, restore(ASK_PLACE, SECRET_PLACE + 1))))
    assert elsewhere.loss[ANSWER_LOSS] > 3


def test_cutting_the_one_link_takes_the_answer(experiment):
    links = experiment.read_links()
    own = links[(links[:, 1] == ASK_PLACE) & (links[:, 2] == SECRET_PLACE)]
    assert experiment.run(Intervention(edits=(cut(own),))).loss[ANSWER_LOSS] > 3
    others = links[links[:, 2] != SECRET_PLACE]
    assert experiment.run(Intervention(edits=(cut(others),))).loss[ANSWER_LOSS] < 1e-2


def test_swapping_groups_hides_the_secret_from_routers_that_read_groups(planted, experiment):
    other = next(place for place in experiment.members(0) if place != SECRET_PLACE)
    found = experiment.run(Intervention(swaps=((SECRET_PLACE, int(other)),)))
    twice = experiment.run(Intervention(swaps=((SECRET_PLACE, int(other)),) * 2))
    assert np.abs(twice.loss).max() < 1e-6
    if planted.config.router != "narrow":  # narrow queries choose anew, and may find it in its new group
        assert found.loss[ANSWER_LOSS] > 3


def test_forcing_keys_opens_what_routing_had_dropped(planted):
    with planted.routing("hard", top_k=1, window=2):
        asked = Experiment(planted, planted_text(), 1, HEAD)
        with_all = asked.run(Intervention(edits=(force(np.arange(LENGTH)),)))
        links = asked.links.exact.sum()
    assert with_all.links > 0 and links > 0
    assert abs(with_all.loss[ANSWER_LOSS]) < 1e-2


def test_the_planted_group_is_the_only_significant_one(experiment):
    settings = EffectSettings(draws=199, seed=3, targets=(ASK_PLACE + 1,))
    effects = [group_effect(experiment, group, settings) for group in range(4)]
    assert max(effects, key=lambda each: each.kl.value).group == GROUP
    # One key in about forty: as many random keys meet the secret as often as chance says, not more.
    assert effects[GROUP].kl.p_value < 0.08
    for group in (0, 1, 3):
        assert effects[group].kl.p_value > 0.05
        assert effects[group].targets[0].value < 1e-3
    assert effects[GROUP].targets[0].value > 3


def test_random_links_do_not_answer(experiment):
    effect = group_effect(experiment, GROUP, EffectSettings(chance="links", draws=99, stop_after=None))
    assert effect.kl.value > effect.kl.high
    assert effect.kl.p_value < 0.1


def test_the_largest_groups_come_first(experiment):
    largest = largest_groups(experiment)
    sizes = [len(experiment.members(group)) for group in largest]
    assert sizes == sorted(sizes, reverse=True)
    assert GROUP in largest and len(largest_groups(experiment, 2)) == 2


def test_runs_leave_no_trace_on_the_model(planted, experiment):
    ids = torch.from_numpy(planted_text())[None]
    with torch.inference_mode():
        before = planted(ids, use_cache=False).logits
        experiment.run(Intervention(edits=(knock_out([SECRET_PLACE]),)))
        after = planted(ids, use_cache=False).logits
    assert torch.equal(before, after)
    assert not any("forward" in vars(module) for module in planted.model.modules())
