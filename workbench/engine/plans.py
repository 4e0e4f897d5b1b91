"""k in words, with or without a plan, which has its own k for every layer (`focus plan`)."""

from __future__ import annotations

from focus_core.routing.config import FocusConfig

PLANNED = "planned"
"""Stands for the routers' plan among values of k."""
_SHARES = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0)


def shares(own: float) -> list[float]:
    """Shares of the distant pairs to choose from, that of the routers among them."""
    return sorted({*_SHARES, own})


def share_name(share: float) -> str:
    """A share as people read it, "15%"."""
    return f"{100 * share:g}%"


def chosen_k(config: FocusConfig) -> int | str:
    """k of all layers, `PLANNED`, or a share of the distant pairs such as "15%"."""
    if config.read_share is not None:
        return share_name(config.read_share)
    return config.top_k if config.layer_top_k is None else PLANNED


def k_name(config: FocusConfig) -> str:
    """The setting in a few words: "k 2", "planned k" or "budget 15%"; a text gets more of the pairs or less."""
    if config.read_share is not None:
        return f"budget {share_name(config.read_share)}"
    return f"k {config.top_k}" if config.layer_top_k is None else "planned k"


def budget_name(budget: int | str) -> str:
    """A value of `chosen_k` on its own: "k=2", "budget 15%" or "planned"."""
    if isinstance(budget, str):
        return f"budget {budget}" if budget.endswith("%") else budget
    return f"k={budget}"


def k_meaning(top_k: int, num_groups: int) -> str:
    """The pairs that a layer of a plan computes at its k, in words."""
    if top_k == 0:
        return "window and sinks alone"
    return "all pairs" if top_k == num_groups else f"k = {top_k}"


def plan_in_words(config: FocusConfig) -> str:
    """The layers of each k, such as "k = 1 in layers 0, 3; all pairs in layer 20"; empty without a plan."""
    plan = config.layer_top_k
    if plan is None:
        return ""
    layers = config.layers or range(len(plan))
    parts = []
    for top_k in sorted(set(plan)):
        own = [str(layer) for layer, k in zip(layers, plan) if k == top_k]
        parts.append(
            f"{k_meaning(top_k, config.num_groups)} in {'layer' if len(own) == 1 else 'layers'} {', '.join(own)}"
        )
    return "; ".join(parts)
