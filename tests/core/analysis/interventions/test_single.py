"""One restored link, and two tokens with exchanged groups: as the experiment gives them, and beside chance."""

from __future__ import annotations

import numpy as np
import pytest
from planted import ASK_PLACE, GROUP, SECRET_PLACE, planted_model, planted_text

from focus_core import FocusError
from focus_core.analysis.interventions import Experiment, Intervention, restore
from focus_core.analysis.interventions.single import restore_effect, swap_effect

ANSWER = ASK_PLACE + 1


@pytest.fixture(scope="module", params=["layer", "head", "narrow"])
def experiment(request):
    return Experiment(planted_model(request.param), planted_text(), 1, 1)


def test_a_link_that_is_dropped_comes_back(experiment):
    unread = (experiment.site.distant()[ASK_PLACE] & ~experiment.links.exact[:, ASK_PLACE].any(0)).nonzero()[:, 0]
    key = int(unread[0])
    found = restore_effect(experiment, ASK_PLACE, key, draws=9)
    alone = experiment.run(Intervention(edits=(restore(ASK_PLACE, key),)))
    assert found.links == alone.links > 0
    assert np.array_equal(found.trial.change.kl, alone.kl) and found.kl.value == pytest.approx(alone.kl.mean())
    assert found.at(ANSWER).value == pytest.approx(alone.loss[ANSWER - 1])
    assert 1 <= found.kl.draws <= 9 and found.kl.low <= found.kl.high and 0 < found.kl.p_value <= 1


def test_a_link_that_is_read_changes_little_and_one_in_the_window_is_refused(experiment):
    found = restore_effect(experiment, ASK_PLACE, SECRET_PLACE, draws=9)
    assert abs(found.at(ANSWER).value) < 1e-3
    with pytest.raises(FocusError, match="no distant link"):
        restore_effect(experiment, ASK_PLACE, ASK_PLACE - 1)
    with pytest.raises(FocusError, match="is not predicted"):
        found.at(0)


def test_the_secret_in_the_group_of_a_filler_is_lost_and_chance_is_not(experiment):
    other = next(int(place) for place in experiment.members(0) if place != SECRET_PLACE)
    found = swap_effect(experiment, other, SECRET_PLACE, draws=19)
    alone = experiment.run(Intervention(swaps=((other, SECRET_PLACE),)))
    assert np.array_equal(found.trial.change.loss, alone.loss) and found.links == alone.links > 0
    if experiment.site.readers is not None:  # narrow queries choose anew, and may find it in its new group
        assert found.at(ANSWER).value > 3 and found.at(ANSWER).p_value == pytest.approx(1 / 20)
    assert GROUP in range(4)
    with pytest.raises(FocusError, match="no token 999"):
        swap_effect(experiment, 999, 3)
