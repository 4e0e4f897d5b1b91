"""What one token really reads, against the whole attention of the rule and of the untouched model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_experiment import IDS, LENGTH, focus  # noqa: F401

from focus_core import FocusError
from focus_core.analysis.interventions import Site, link_weights
from focus_core.analysis.interventions.attention import token_attention
from focus_core.routing.rules import AttentionCall, Rule, attend_fully, attend_hard, hard_groups


@pytest.mark.parametrize("routed", [True, False])
@pytest.mark.parametrize("token", [LENGTH - 1, 77])
def test_the_weights_of_a_token_are_its_row_of_the_attention(focus, token, routed):  # noqa: F811
    sites: list[Site] = []

    def attend(call: AttentionCall):
        if call.layer == 1:
            sites.append(Site.of(call, 1))
        return attend_hard(call) if routed else attend_fully(call)

    with torch.inference_mode(), focus.routing("hard", rule=Rule(attend, hard_groups)):
        focus.model(torch.from_numpy(IDS)[None], use_cache=False)
    site = sites[0]
    links = site.links()
    found = token_attention(focus, IDS, 1, 1, token, routed=routed)
    assert np.allclose(found.weights, link_weights(site, links)[0][:, token, : token + 1].numpy(), atol=1e-5)
    assert np.array_equal(found.exact, links.exact[:, token, : token + 1].numpy())
    plain = (site.query[:, token] * site.scale) @ site.key[: token + 1].T
    assert np.allclose(found.full, plain.softmax(-1).numpy(), atol=1e-5)
    assert np.allclose(found.full.sum(1), 1, atol=1e-5) and np.allclose(found.weights.sum(1), 1, atol=1e-5)
    kept = found.kept + found.dropped + (found.full * found.summarised).sum(1)
    assert np.allclose(kept, 1, atol=1e-5)
    ours, theirs = found.weights @ site.value[: token + 1].numpy(), found.full @ site.value[: token + 1].numpy()
    assert np.allclose(found.change, np.linalg.norm(ours - theirs, axis=1) / np.linalg.norm(theirs, axis=1), atol=1e-4)


def test_a_token_inside_the_window_loses_nothing(focus):  # noqa: F811
    found = token_attention(focus, IDS, 1, 0, 15)
    assert found.exact.all() and not found.dropped.any() and (found.change < 1e-5).all()


def test_refusals(focus):  # noqa: F811
    with pytest.raises(FocusError, match="no token 500"):
        token_attention(focus, IDS, 1, 0, 500)
    with pytest.raises(FocusError, match="Layer 9"):
        token_attention(focus, IDS, 9, 0, 5)


def test_the_layers_after_the_asked_one_are_not_run(focus):  # noqa: F811
    whole = token_attention(focus, IDS, 1, 0, 60)
    ran: list[int] = []
    handles = [
        block.register_forward_pre_hook(lambda module, args, number=number: ran.append(number))
        for number, block in focus.decoder_layers.items()
    ]
    found = token_attention(focus, IDS, 1, 0, 60)
    for handle in handles:
        handle.remove()
    assert ran == [0, 1] and len(focus.layers) > 2
    assert np.array_equal(found.weights, whole.weights) and focus.current.rule is None
    with torch.inference_mode():  # the model is as before
        assert torch.isfinite(focus.model(torch.from_numpy(IDS)[None], use_cache=False).logits).all()
