"""k in words, with or without a plan, which has its own k for every layer (`focus plan`)."""

from __future__ import annotations

from focus_core.routing.config import FocusConfig

PLANNED = "planned"
"""Stands for the routers' plan among values of k."""


def chosen_k(config: FocusConfig) -> int | str:
    """k of all layers, or `PLANNED`."""
    return config.top_k if config.layer_top_k is None else PLANNED


def k_name(config: FocusConfig) -> str:
    """The setting in a few words: "k 2" or "planned k"."""
    return f"k {config.top_k}" if config.layer_top_k is None else "planned k"


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
