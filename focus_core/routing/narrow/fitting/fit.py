"""Narrow groups for a model without training: k-means of its keys on a sample of text, and even groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from sklearn.cluster import MiniBatchKMeans
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from focus_core.errors import FocusError
from focus_core.progress import Progress, silent
from focus_core.routing.config import FocusConfig
from focus_core.routing.layer import LayerRouting
from focus_core.routing.model import FocusModel, retrofit
from focus_core.routing.narrow.fitting.directions import fit_directions
from focus_core.routing.narrow.fitting.layers import layer_weights, probed
from focus_core.routing.narrow.fitting.passes import Kept
from focus_core.routing.narrow.fitting.recall import recall_scores
from focus_core.routing.narrow.fitting.spread import fit_spread
from focus_core.routing.narrow.fitting.thresholds import lower_thresholds, plan_thresholds
from focus_core.routing.routers import ROUTERS
from focus_core.routing.rules import Rule, attend_fully, hard_groups

if TYPE_CHECKING:
    from jaxtyping import Float

ROUNDS = 100
"""Steps of `even_potentials`."""
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
    seed: int = 0,
    folder: Path | None = None,
    on_expected: Callable[[int | None, dict[float, float]], None] | None = None,
    on_recall: Callable[[dict[int, np.ndarray]], None] = lambda _: None,
    progress: Progress = silent,
) -> FocusModel:
    """Attach narrow routers whose groups fit the model's own keys; one forward pass, nothing is trained.

    With `spread_directions`, a second pass finds these directions (`fit_directions`), and with `count_spread` another
    how much the spread of keys counts for each query head (`fit_spread`). With `by_error`, more passes measure what
    each head loses where it does not read, one of them backward (`plan_thresholds`), and count pages in longer texts
    (`lower_thresholds`). With `recall` one more finds heads that look for one earlier token (`recall_scores`).

    Args:
        model: any causal language model that `retrofit` takes.
        blocks: (N, T) int64 token ids of broad text; 6,000 tokens or more. All blocks pass through the model together.
        config: settings with router="narrow"; the default budget reads 15% of the distant keys.
        num_groups: K, where no config says it.
        need: (N, T) token ids for these passes, one block at a time: an array for each length T, shorter ones first.
            The first also serves to fit spread. `blocks` alone when empty.
        one_threshold: with `by_error`, the same threshold for every head.
        recall: with `by_error`, heads that recall read everything (`focus_core.routing.narrow.fitting.recall`); not
            with `one_threshold`.
        page_sizes: with `by_error`, pages to try in this order until no more KL than `KL_ENOUGH` is expected at
            `read_share`; the routers have the last that was tried. That of the settings alone when empty.
        seed: of k-means.
        folder: of `focus_core.unfinished.unfinished`, for a fit that resumes: what it measured is not measured again.
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
    focus = retrofit(model, config, seed=seed)

    def weights() -> dict[str, Tensor]:
        by_layer = layer_weights(focus, probed(need[0]), progress=progress)
        return {str(layer): torch.tensor(weight, dtype=torch.float64) for layer, weight in by_layer.items()}

    all_pages = kept = Kept(folder)
    try:
        focus.routers.load_state_dict(all_pages.one("groups", lambda: _groups(focus, blocks, seed, progress)))
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
            expected = plan_thresholds(focus, need[0], by_layer, recall=scores, kept=kept, progress=progress)
            if expected and on_expected is not None:
                on_expected(page_size, expected)
            if not expected or at_share(expected, config.read_share or 0.0) <= KL_ENOUGH:
                break
        if config.by_error:
            lower_thresholds(focus, need[1:], kept=kept, progress=progress)
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


def _groups(focus: FocusModel, blocks: np.ndarray, seed: int, progress: Progress) -> dict[str, Tensor]:
    """The routers' tensors with groups that fit the keys of these texts, in one pass."""
    config = focus.config

    def fit(routing: LayerRouting) -> None:
        progress("Fitting groups of keys", routing.layer / (1 + max(focus.layers)))
        assert routing.vectors is not None
        keys = routing.vectors.plain_key[:, :, config.sink_tokens :].transpose(0, 1).flatten(1, 2).float()
        router = routing.router
        router.centroids.copy_(torch.stack([_centroids(head, config, seed) for head in keys.cpu()]).half())
        # Scores of all sampled keys of a head, as one text without its sinks.
        potentials = even_potentials(router(keys[None]).cpu()) / config.temperature
        router.potential.copy_(potentials.half())

    untouched = Rule(attend_fully, hard_groups)
    with torch.inference_mode(), focus.routing("hard", rule=untouched), focus.observe(fit):
        focus.model.base_model(input_ids=torch.from_numpy(blocks).to(focus.model.device), use_cache=False)
    return focus.routers.state_dict()


def at_share(expected: Mapping[float, float], share: float) -> float:
    """The KL to expect at a share, on the line between two of those that `plan_thresholds` gives."""
    shares, nats = zip(*sorted(expected.items()))
    return float(np.interp(share, shares, nats))


def _centroids(keys: Float[Tensor, "n D"], config: FocusConfig, seed: int) -> Float[Tensor, "K D"]:
    if config.score == "cosine":
        keys = F.normalize(keys, dim=-1)
    means = MiniBatchKMeans(config.num_groups, random_state=seed, batch_size=4096, n_init="auto", max_iter=30)
    return torch.from_numpy(means.fit(keys.numpy()).cluster_centers_)


def even_potentials(scores: Float[Tensor, "H n K"], rounds: int = ROUNDS) -> Float[Tensor, "H K"]:
    """What to add to scores so that the best group of every token makes even groups.

    The groups are the optimal assignment to K places of n / K tokens each, up to ties. Each round lowers the potential
    of a group that is too large by the log of its excess, and raises that of one too small. Steps shrink, until no
    group has more than 1.02 times its share, and the most even potentials so far are returned.

    Args:
        scores: (H, n, K), each head on its own.
        rounds: steps at most.
    """
    num_tokens, num_groups = scores.shape[1:]
    best_two = scores.topk(2, -1).values
    scale = (best_two[..., 0] - best_two[..., 1]).mean(-1, keepdim=True)
    potential = best = torch.zeros_like(scores[:, 0])
    least = torch.full_like(scale, float("inf"))
    for step in range(rounds):
        groups = (scores + potential[:, None]).argmax(-1)
        sizes = torch.zeros_like(potential).scatter_add_(1, groups, torch.ones_like(groups, dtype=potential.dtype))
        excess = sizes * num_groups / num_tokens
        worst = excess.amax(1, keepdim=True)
        best, least = torch.where(worst < least, potential, best), torch.minimum(worst, least)
        if bool((least < 1.02).all()):
            break
        potential = potential - scale * excess.clamp(min=0.1).log() / (1 + step / 10)
    return best - best.mean(1, keepdim=True)
