"""Groups, k and window of every layer, chosen by the loss of that layer routed alone: a candidate recipe.

`focus plan` chooses k alone and is an option of the package; this is a candidate of `focus reproduce recipes`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from torch import nn

from focus_core.attention import AttentionOutput
from focus_core.evaluation import Evaluation, evaluate
from focus_core.evaluation.plan import cheapest
from focus_core.routing.model import FocusModel
from focus_core.routing.rules import AttentionCall, Rule, attend_hard


@dataclass(frozen=True)
class Choice:
    """Settings of one layer: K groups, of which a token reads k, and a window."""

    num_groups: int
    top_k: int
    window: int


def choices_of(options: Mapping[str, Sequence[int]]) -> list[Choice]:
    """All combinations of lists of `num_groups`, `top_k` and `window`."""
    return [Choice(*each) for each in product(options["num_groups"], options["top_k"], options["window"])]


def evaluate_choices(
    focus: FocusModel, routers: Mapping[int, nn.ModuleDict], chosen: Sequence[Choice], blocks: np.ndarray
) -> Evaluation:
    """Perplexity, calibrated, where every layer has its own K, k and window.

    Kept shares refer to the pairs beyond the window of the model's settings, so that they compare with one window in
    all layers. Pairs that a narrower window leaves out are subtracted; pairs that a wider one adds are added.

    Args:
        focus: model with routers.
        routers: trained and calibrated routers of all layers by their K.
        chosen: one for each routed layer, in their order.
        blocks: (N, T) int64 token ids.
    """
    places = dict(zip(focus.layers, chosen))
    window = focus.config.window
    kept = causal = local = 0

    def attend(call: AttentionCall) -> AttentionOutput:
        nonlocal kept, causal, local
        choice = places[call.layer]
        own = call.config.replace(window=choice.window)
        counts = call.routing.pair_counts(own, choice.top_k)
        kept, causal = kept + int(counts.kept.sum()), causal + int(counts.causal.sum())
        beyond = max(0, call.key.shape[2] - 1 - window)
        local += int(counts.causal.sum()) - len(call.key) * beyond * (beyond + 1) // 2
        return attend_hard(replace(call, config=own, groups=call.routing.membership(choice.top_k)))

    rule = Rule(attend)
    before = dict(focus.routers.items())
    try:
        focus.routers.update({str(layer): routers[each.num_groups][str(layer)] for layer, each in places.items()})
        found = evaluate(focus, blocks, routing="hard", top_k=1, balance="calibrated", rule=rule)
    finally:
        focus.routers.update(before)
    return replace(
        found,
        top_k=None,
        kept_share=(kept - local) / max(1, causal - local),
        causal_kept_share=kept / causal,
        removed_share=1 - kept / causal,
    )


def choose(
    focus: FocusModel,
    routers: Mapping[int, nn.ModuleDict],
    options: Sequence[Choice],
    blocks: np.ndarray,
    budgets: Sequence[float],
    progress: Callable[[int, float], None] = lambda layer, share: None,
) -> list[list[Choice]]:
    """The best choice for every layer under each budget, by the loss of each with full attention in all other layers.

    Args:
        focus: model with routers.
        routers: by their K.
        options: choices for a layer, beside full attention at no loss.
        blocks: (N, T) int64 training blocks.
        budgets: shares of distant pairs, mean over layers.
        progress: told the layer and the share done.
    """
    full = replace(options[0], window=blocks.shape[1])
    every = [full] * len(focus.layers)
    untouched = evaluate_choices(focus, routers, every, blocks)
    loss = np.zeros((len(every), len(options) + 1))
    share = np.ones_like(loss)
    for place, layer in enumerate(focus.layers):
        for number, option in enumerate(options):
            found = evaluate_choices(focus, routers, [*every[:place], option, *every[place + 1 :]], blocks)
            loss[place, number] = max(0.0, float(np.mean(found.block_nll) - np.mean(untouched.block_nll)))
            share[place, number] = found.kept_share * len(every) - (len(every) - 1)
        progress(layer, (place + 1) / len(every))
    return [[[*options, full][number] for number in cheapest(loss, share, budget)] for budget in budgets]
