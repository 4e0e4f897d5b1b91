"""Perplexity of a model under a routing, always with the kept share and the largest group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from focus_core.errors import FocusError
from focus_core.evaluation.exposure import exposure
from focus_core.evaluation.measure import BATCH, Measured, measure
from focus_core.evaluation.retention import RETENTION, Retention, Untouched
from focus_core.progress import Progress, silent
from focus_core.routing.config import FocusConfig
from focus_core.routing.model import FocusModel, Mode
from focus_core.routing.routers import ROUTERS

LARGEST_NLL = 700.0
"""Mean negative log-likelihood above which the perplexity no longer grows: its exponential is not finite."""


@dataclass(frozen=True)
class Evaluation:
    """One row of an evaluation.

    Attributes:
        routing: "off", "soft" or "hard".
        top_k: k, None unless hard and the same in all layers.
        balance: "none" when routing is off, else "calibrated" or "sequence" (which sees the future).
        perplexity: exp of the mean negative log-likelihood of the predicted tokens.
        tokens: predicted tokens.
        exposure: share of causal pairs that are distant: the pairs that routing could drop. Here and below, pairs are
            those inside the model's own sliding window, where it has one.
        kept_share: share of distant pairs that are kept, sinks included; 1 when off. Mean over layers, and over
            key/value heads where each has a router.
        causal_kept_share: share of all causal pairs that are computed, mean over layers.
        largest_group_share: share of all tokens in the largest group, by first groups. Worst layer, and worst key/value
            head where each has a router.
        largest_group_layer: that layer.
        removed_share: share of all causal pairs that routing removed, 1 - causal_kept_share; at most `exposure`.
        block_nll: mean negative log-likelihood of each block in nats, for paired comparisons over the same blocks.
        kl: mean KL(untouched || this routing) in nats per token, see `Retention`; None where it was not asked for.
        kl_last_quarter: the same over the last quarter of positions.
        top1_agreement: share of tokens with the untouched model's most likely token.
        block_kl: `kl` of each block.
        block_kl_last_quarter: `kl_last_quarter` of each block.
    """

    routing: str
    top_k: int | None
    balance: str
    perplexity: float
    tokens: int
    exposure: float
    kept_share: float
    causal_kept_share: float
    largest_group_share: float | None
    largest_group_layer: int | None
    removed_share: float = 0.0
    block_nll: tuple[float, ...] = ()
    kl: float | None = None
    kl_last_quarter: float | None = None
    top1_agreement: float | None = None
    block_kl: tuple[float, ...] = ()
    block_kl_last_quarter: tuple[float, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The row as plain values."""
        return asdict(self)


def evaluate(
    focus: FocusModel,
    blocks: np.ndarray,
    *,
    routing: Mode,
    top_k: int | None = None,
    balance: str | None = None,
    batch_size: int = BATCH,
    stride: int | None = None,
    progress: Progress = silent,
    untouched: Untouched | None = None,
    **changes: Any,
) -> Evaluation:
    """Measure perplexity on blocks of T tokens: context length T, with the last `stride` tokens of each block scored.

    Args:
        focus: model with routers.
        blocks: (N, T) int64 token ids.
        routing: "off", "soft" or "hard".
        top_k: k of hard routing; the configured one, or plan, when None.
        balance: "calibrated" (causal) or "sequence"; the configured one when None.
        batch_size: rows per forward pass; long blocks are evaluated one by one.
        stride: tokens scored per block, the distance between overlapping blocks. None for adjacent blocks: all tokens
            but the first are scored.
        progress: called with the share done.
        untouched: states of the untouched model for the same blocks; None to leave retention out. A routing is compared
            with them, and an untouched run adds to them.
        changes: other settings of `FocusConfig`, such as `window`.

    Returns:
        The row. The forward pass runs in the model's own dtype; likelihoods are float32.

    Raises:
        FocusError: settings that do not fit the routers.
    """
    settings = overrides(top_k, balance, changes)
    how: dict[str, Any] = {"batch_size": batch_size, "stride": stride, "progress": progress, "untouched": untouched}
    return evaluation_of(focus, measure(focus, blocks, routing, settings, **how), routing, settings)


def overrides(top_k: int | None, balance: str | None, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes of `FocusConfig` that a setting makes."""
    return {
        **changes,
        **({} if top_k is None else {"top_k": top_k}),
        **({"balance": balance} if balance else {}),
    }


def evaluation_of(focus: FocusModel, found: Measured, routing: Mode, settings: Mapping[str, Any]) -> Evaluation:
    """The row of what was measured.

    Args:
        focus: the model with routers, which need not have measured it.
        found: under the routing.
        routing: "off", "soft" or "hard".
        settings: see `overrides`.
    """
    with focus.routing(routing, **settings):
        config = focus.current.config
    return evaluation_in(found, routing, config, focus.sliding_windows)


def evaluation_in(found: Measured, routing: Mode, config: FocusConfig, sliding_windows: Any) -> Evaluation:
    """The row of what was measured, without the model.

    Args:
        found: under the routing.
        routing: "off", "soft" or "hard".
        config: of the routing in force.
        sliding_windows: those of `FocusModel`.
    """
    hard, off, pairs = routing == "hard", routing == "off", found.pairs
    largest, layer = (None, None) if off else found.largest_group()
    return Evaluation(
        routing=routing,
        top_k=config.one_top_k if hard else None,
        balance="none" if off else config.balance,
        perplexity=float(np.exp(min(sum(found.block_nll) / len(found.block_nll), LARGEST_NLL))),
        tokens=found.scored * len(found.block_nll),
        exposure=exposure(found.length, config, sliding_windows=sliding_windows).distant_share,
        kept_share=pairs.distant_kept / max(1, pairs.distant) if hard else 1.0,
        causal_kept_share=pairs.kept / max(1, pairs.causal) if hard else 1.0,
        largest_group_share=largest,
        largest_group_layer=layer,
        removed_share=1 - pairs.kept / max(1, pairs.causal) if hard else 0.0,
        block_nll=found.block_nll,
        **_retained(found.retention),
    )


def _retained(found: Retention | None) -> dict[str, Any]:
    """The fields of a row for its retention; none without it."""
    return {} if found is None else {name: getattr(found, name) for name in RETENTION}


def settings_for(config: FocusConfig, top_ks: Sequence[int] | None = None) -> list[tuple[Mode, int | None, str | None]]:
    """The rows of an evaluation of these routers, see `standard_settings`.

    Narrow groups have no soft gate, and their balance is causal as it is. They are evaluated at the share that they
    read, and at each k that is asked for.

    Args:
        config: settings of the routers.
        top_ks: k of hard routing; 1 and 2 when None, where k is the budget.
    """
    if ROUTERS[config.router].trained_by_gate:
        return standard_settings(config.num_groups, tuple(top_ks or (1, 2)), planned=config.one_top_k is None)
    own: list[int | None] = [None] if config.one_top_k is None else []
    asked = [top_k for top_k in top_ks or () if top_k <= config.num_groups]
    if not own and not asked:
        asked = [config.top_k]
    return [("off", None, None), *(("hard", top_k, "calibrated") for top_k in own + asked)]


def standard_settings(
    num_groups: int, top_ks: tuple[int, ...], *, planned: bool = False
) -> list[tuple[Mode, int | None, str | None]]:
    """The rows of every evaluation of routers: untouched, soft, and hard at each k, both balances.

    Routers with a plan (`planned`) also get rows at the planned k of every layer.

    Raises:
        FocusError: a k that these routers do not have.
    """
    for top_k in top_ks:
        if not 0 <= top_k <= num_groups:
            raise FocusError(f"top_k is {top_k} and these routers have {num_groups} groups: choose 1 to {num_groups}.")
    rows: list[tuple[Mode, int | None, str | None]] = [("off", None, None), ("soft", None, "sequence")]
    if planned:
        rows.append(("hard", None, "calibrated"))
    for balance in ("calibrated", "sequence"):
        for top_k in top_ks:
            rows.append(("hard", top_k, balance))
    return rows
