"""Seconds of routing in one layer, measured with the functions of routed models."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch

from focus_core.bench.measures.timing import alternate
from focus_core.routing.balance import assign
from focus_core.routing.config import FocusConfig
from focus_core.routing.layer import top_k_membership


def choosing_seconds(steps: dict[str, float]) -> float:
    """Seconds of causal routing at inference, from the result of `routing_seconds`: all but Sinkhorn."""
    return sum(seconds for name, seconds in steps.items() if not name.startswith("sinkhorn"))


@torch.inference_mode()
def routing_seconds(
    config: FocusConfig,
    tokens: int,
    *,
    width: int,
    kv_heads: int,
    repetitions: int,
    device: str,
    seed: int,
) -> dict[str, float]:
    """Median seconds of each step of routing one layer, float32.

    Args:
        config: settings of the routers.
        tokens: T.
        width: d, width of the hidden states.
        kv_heads: key/value heads, each with a router if `config.router` is "head".
        repetitions: smallest number of timed runs, after one warm-up.
        device: "cpu" or "cuda".
        seed: of hidden states and routers.

    Returns:
        ``projection`` (scores of keys, and of queries where those choose), ``calibrated`` (softmax with frozen
        potentials), ``sinkhorn_N_rounds``, ``top_k`` (membership) and ``sort`` (tokens by group).
    """
    generator = torch.Generator().manual_seed(seed)
    router = config.new_router(width, kv_heads, generator).to(device)
    hidden = torch.randn(1, tokens, width, generator=generator).to(device)
    causal, sequence = config.replace(balance="calibrated"), config.replace(balance="sequence")

    scores = router(hidden)
    assignment = assign(router, scores, causal)

    def project() -> Any:
        return router(hidden), router.read(hidden, assignment, config.temperature)

    groups = assignment.topk(config.key_top_k_of(0), dim=-1).indices.flatten(1)
    calls: dict[str, Callable[[], Any]] = {
        "projection": project,
        "calibrated": lambda: assign(router, scores, causal),
        f"sinkhorn_{config.sinkhorn_rounds}_rounds": lambda: assign(router, scores, sequence),
        "top_k": lambda: top_k_membership(assignment, config.key_top_k_of(0)),
        "sort": lambda: groups.sort(dim=1, stable=True),
    }
    runs = alternate(calls, max(3, repetitions), device)
    return {name: statistics.median(times) for name, times in runs.items()}
