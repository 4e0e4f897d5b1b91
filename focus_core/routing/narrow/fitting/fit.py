"""Narrow groups for a model without training: k-means of its keys on a sample of text, and even groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from focus_core.errors import FocusError
from focus_core.progress import Progress, silent
from focus_core.routing.config import FocusConfig
from focus_core.routing.model import FocusModel, retrofit
from focus_core.routing.narrow.fitting.directions import fit_directions
from focus_core.routing.narrow.fitting.groups import QUERY_POWER, fit_groups
from focus_core.routing.narrow.fitting.layers import layer_weights, probed
from focus_core.routing.narrow.fitting.passes import Kept
from focus_core.routing.narrow.fitting.recall import recall_scores
from focus_core.routing.narrow.fitting.spread import fit_spread
from focus_core.routing.narrow.fitting.thresholds import lower_thresholds, plan_thresholds
from focus_core.routing.routers import ROUTERS

KL_ENOUGH = 0.0005
"""Nats per token; where more is expected, smaller pages are tried."""


def fit_narrow(
    model: PreTrainedModel,
    blocks: np.ndarray,
    config: FocusConfig | None = None,
    *,
    num_groups: int = 64,
    need: Sequence[np.ndarray] = (),
    one_threshold: bool = False,
    recall: bool = False,
    page_sizes: Sequence[int] = (),
    query_power: float = QUERY_POWER,
    seed: int = 0,
    folder: Path | None = None,
    on_expected: Callable[[int | None, dict[float, float]], None] | None = None,
    on_recall: Callable[[dict[int, np.ndarray]], None] = lambda _: None,
    progress: Progress = silent,
) -> FocusModel:
    """Attach narrow routers whose groups fit the model's own keys; one forward pass, nothing is trained.

    With `spread_directions`, a second pass finds these directions (`fit_directions`), and with `count_spread` another
    how much the spread of keys counts for each query head (`fit_spread`). With `by_error`, more passes measure what
    each head loses where it does not read, one of them backward (`plan_thresholds`), in texts of the first length that
    keeps the share, and count pages in longer ones (`lower_thresholds`). With `recall` one more finds heads that look
    for one earlier token (`recall_scores`).

    Args:
        model: any causal language model that `retrofit` takes.
        blocks: (N, T) int64 token ids of broad text; 6,000 tokens or more. All blocks pass through the model together.
        config: settings with router="narrow"; the default budget reads 15% of the distant keys.
        num_groups: K, where no config says it.
        need: (N, T) token ids for these passes, one block at a time: an array for each length T, shorter ones first.
            The first serves to fit spread and to weigh layers. Those of the first of `shares_at` decide how heads
            differ, or the longest where there are no `shares_at`. `blocks` alone when empty.
        one_threshold: with `by_error`, the same threshold for every head.
        recall: with `by_error`, heads that recall read everything (`focus_core.routing.narrow.fitting.recall`); not
            with `one_threshold`.
        page_sizes: with `by_error`, pages to try in this order until no more KL than `KL_ENOUGH` is expected at
            `read_share`; the routers have the last that was tried. That of the settings alone when empty.
        query_power: with score="dot", how much queries decide which keys are alike (`seen_centroids`): 0 not at all.
        seed: of k-means.
        folder: of `io.unfinished.unfinished`, for a fit that resumes: what it measured is not measured again.
        on_expected: with `by_error`, told a page size and what `plan_thresholds` returns with it: the KL to expect at
            each mean share. Called for each page size that was tried.
        on_recall: told what `recall_scores` returns; nothing is in it without `recall`.
        progress: told the share done.

    Returns:
        The model with routers, in hard routing.

    Raises:
        FocusError: routers of another kind, too little text, settings that have no use for `recall`, or a model that
            cannot be retrofitted.
    """
    if config is None:
        config = FocusConfig(router="narrow", num_groups=num_groups, top_k=1, window=128, read_share=0.15)
    _check(config, blocks, recall and (one_threshold or not config.by_error))
    need = need or [blocks]
    planned, *longer = _at_share(need, config.shares_at)
    focus = retrofit(model, config, seed=seed)

    def groups() -> dict[str, Tensor]:
        return fit_groups(focus, blocks, seed, progress, query_power=query_power)

    def weights() -> dict[str, Tensor]:
        by_layer = layer_weights(focus, probed(need[0]), progress=progress)
        return {str(layer): torch.tensor(weight, dtype=torch.float64) for layer, weight in by_layer.items()}

    all_pages = kept = Kept(folder)
    try:
        focus.routers.load_state_dict(all_pages.one("groups", groups))
        texts = probed(need[0])
        scores = recall_scores(focus, texts, seed=seed, kept=all_pages, progress=progress) if recall else {}
        on_recall(scores)
        by_layer: dict[int, float] | None = None
        for page_size in page_sizes or (config.page_size,):
            focus.resettle(page_size=page_size)
            kept = Kept(folder, page_size)
            if config.spread_directions:
                fit_directions(focus, need[0], kept=kept, progress=progress)
            if config.count_spread:
                fit_spread(focus, need[0], kept=kept, progress=progress)
            if not config.by_error:
                break
            if by_layer is None and not one_threshold:  # hardly another with other pages, and a backward pass
                by_layer = {int(layer): float(weight) for layer, weight in all_pages.one("layers", weights).items()}
            expected = plan_thresholds(focus, planned, by_layer, recall=scores, kept=kept, progress=progress)
            if expected and on_expected is not None:
                on_expected(page_size, expected)
            if not expected or at_share(expected, config.read_share or 0.0) <= KL_ENOUGH:
                break
        if config.by_error:
            lower_thresholds(focus, longer, kept=kept, progress=progress)
    except BaseException:  # a fit that was stopped leaves no routers behind
        focus.detach()
        raise
    focus.trained = True
    return focus


def _check(config: FocusConfig, blocks: np.ndarray, useless_recall: bool) -> None:
    """Refuse what `fit_narrow` cannot fit."""
    if not ROUTERS[config.router].from_keys:
        raise FocusError(f"These settings are for router={config.router!r}: set router='narrow' to fit narrow groups.")
    usable = blocks.shape[0] * (blocks.shape[1] - config.sink_tokens)
    if usable < 2 * config.num_groups:
        raise FocusError(
            f"{blocks.size} tokens are too few to fit {config.num_groups} groups: give more text, 6,000 tokens or more."
        )
    if useless_recall:
        raise FocusError("With recall each head has a threshold of its own: set by_error=True, and no one_threshold.")


def _at_share(need: Sequence[np.ndarray], shares_at: Sequence[int]) -> Sequence[np.ndarray]:
    """The texts that are to keep the share, those that heads are measured in first."""
    lengths = [blocks.shape[1] for blocks in need]
    if not shares_at:
        return need[-1:]
    if shares_at[0] not in lengths:
        raise FocusError(
            f"The first of shares_at is {shares_at[0]:,}, and texts have {', '.join(f'{each:,}' for each in lengths)} "
            "tokens: give places_of the lengths that are to keep the share."
        )
    return need[lengths.index(shares_at[0]) :]


def at_share(expected: Mapping[float, float], share: float) -> float:
    """The KL to expect at a share, on the line between two of those that `plan_thresholds` gives."""
    shares, nats = zip(*sorted(expected.items()))
    return float(np.interp(share, shares, nats))
