"""Seconds of routing itself in one layer, by the functions that routed models run."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch

from focus_core.bench.timing import alternate
from focus_core.routing.config import FocusConfig
from focus_core.routing.head_router import HeadRouter
from focus_core.routing.router import Router, top_k_membership


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
        repetitions: timed runs after one warm-up, at least.
        device: "cpu" or "cuda".
        seed: of hidden states and routers.

    Returns:
        ``projection`` (scores of keys, and of queries where those choose), ``calibrated`` (softmax with frozen
        potentials), ``sinkhorn_N_rounds``, ``top_k`` (membership) and ``sort`` (tokens by group).
    """
    generator = torch.Generator().manual_seed(seed)
    per_head = config.router == "head"
    router = HeadRouter(width, kv_heads, config, generator) if per_head else Router(width, config, generator)
    router = router.to(device)
    hidden = torch.randn(1, tokens, width, generator=generator).to(device)
    causal, sequence = config.replace(balance="calibrated"), config.replace(balance="sequence")

    def project() -> Any:
        return router(hidden), router.read(hidden, config)

    scores = router(hidden)
    assignment = router.assign(scores, causal)
    groups = assignment.topk(config.joined(0), dim=-1).indices.flatten(1)
    calls: dict[str, Callable[[], Any]] = {
        "projection": project,
        "calibrated": lambda: router.assign(scores, causal),
        f"sinkhorn_{config.sinkhorn_rounds}_rounds": lambda: router.assign(scores, sequence),
        "top_k": lambda: top_k_membership(assignment, config.joined(0)),
        "sort": lambda: groups.sort(dim=1, stable=True),
    }
    runs = alternate(calls, max(3, repetitions), device)
    return {name: statistics.median(times) for name, times in runs.items()}
