"""How much the spread of a page's keys counts in its summary: one weight for each query head.

The mean key alone makes a summary too small, because exp is convex: keys that lie off their mean weigh more than it
says. How much more depends on how the queries of a head lie to its keys, so it is fitted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from focus_core.attention.reference import attention_logits
from focus_core.progress import Progress, silent
from focus_core.routing.model import FocusModel
from focus_core.routing.narrow.fitting.passes import FRESH, Kept, measured_calls
from focus_core.routing.narrow.reading import Reading
from focus_core.routing.narrow.reads import BlockRead, blocks_read
from focus_core.routing.rules import AttentionCall

if TYPE_CHECKING:
    from jaxtyping import Float

TRIED = torch.linspace(0, 2, 41)
"""Weights at which the slope of the divergence is taken; 1/2 is exact for keys spread alike in all directions."""

EVERY = 4
"""One query of so many is taken: neighbours have much the same pages before them."""


def fit_spread(focus: FocusModel, blocks: np.ndarray, *, kept: Kept = FRESH, progress: Progress = silent) -> None:
    """Store in the routers the weights that bring summaries closest to what they stand for.

    Args:
        focus: narrow routers with `count_spread`, their groups fitted.
        blocks: (N, T) int64 token ids of broad text, longer than the window.
        kept: what this fit measured before.
        progress: told the share done.
    """
    for layer, slopes in slopes_of_spread(focus, blocks, kept=kept, progress=progress).items():
        stored: Any = focus.router(layer).spread
        stored.copy_(least(slopes))


def least(slopes: Float[Tensor, "Hq S"]) -> Float[Tensor, " Hq"]:
    """Where convex functions are least within the `TRIED` weights, from their slopes there: the zero of the slope.

    Between two weights the slope lies on the line through both.
    """
    below = (slopes < 0).sum(-1).clamp(1, len(TRIED) - 1)
    low, high = (slopes.gather(-1, place[:, None])[:, 0] for place in (below - 1, below))
    along = (-low / (high - low).clamp(min=1e-30)).clamp(0, 1)
    tried = TRIED.to(slopes)
    return tried[below - 1] + along * (tried[below] - tried[below - 1])


def slopes_of_spread(
    focus: FocusModel, blocks: np.ndarray, *, kept: Kept = FRESH, progress: Progress = silent
) -> dict[int, Float[Tensor, "Hq S"]]:
    """Slopes of the divergence of summaries at the `TRIED` weights, by layer.

    Attention of a query is shared out among the pages that it does not read, one lump for all that it attends exactly.
    The divergence is that of the shares by summaries from those by the keys themselves, summed over one query of
    `EVERY`. It is convex in the weight. All heads read one share, as if nothing were spread, and all layers see the
    states of the untouched model. Layers with a window of their own are left out.

    Args:
        focus: narrow routers.
        blocks: (N, T) int64 token ids.
        kept: what this fit measured before.
        progress: told the share done.
    """
    slopes: dict[int, Tensor] = {}
    passes = measured_calls(
        focus, blocks, lambda call, _: {"slopes": _slopes(call)}, name="spread", label="Fitting how much spread counts",
        kept=kept, progress=progress, count_spread=False, by_error=False,
    )  # fmt: skip
    for found in passes:
        for layer, own in found.items():
            slopes[layer] = slopes.get(layer, 0) + own["slopes"]
    return slopes


def _slopes(call: AttentionCall) -> Float[Tensor, "Hq S"]:
    reading, scale, softcap = call.routing.reading(), call.geometry.scale, call.geometry.softcap
    query, key = (part.float() for part in call.together()[:2])
    parts, total = reading.parts(call.routing.key_groups.view(key.shape[:3]), call.config.num_groups)
    slopes = torch.zeros(query.shape[:2].numel(), len(TRIED), dtype=torch.float64)
    for block in blocks_read(query, key, parts, total, reading, scale=scale, softcap=softcap):
        places = torch.arange(block.start, block.start + block.reads.shape[-2], device=key.device)[::EVERY]
        taken = BlockRead(block.start, *(part[..., ::EVERY, :] for part in block[1:]))
        queries = query[:, :, places].unflatten(1, (key.shape[1], -1))
        stop = int(places[-1]) + 1
        logits = attention_logits(queries, key[:, :, None, :stop], scale, softcap)
        slopes += _slopes_of_block(taken, places, logits, parts[..., :stop], reading).cpu()
    return slopes


def _slopes_of_block(
    block: BlockRead, places: Tensor, logits: Tensor, parts: Tensor, reading: Reading
) -> Float[Tensor, "Hq S"]:
    """The part of some queries.

    Args:
        block: what they read.
        places: (n,) of the queries.
        logits: (B, Hkv, G, n, S) of all keys up to the last query.
        parts: (B, Hkv, S).
        reading: settings.
    """
    index, own = torch.arange(logits.shape[-1], device=logits.device), places[:, None]
    logits = logits.masked_fill(index > own, float("-inf"))
    total = logits.logsumexp(-1, keepdim=True)
    distant = (index >= reading.sink_tokens) & (index < reading.borders(own))
    weights = (logits - total).exp() * distant
    unread = ~block.reads & (block.sizes > 0)
    true = weights @ F.one_hot(parts, block.logits.shape[-1]).to(weights)[:, :, None] * unread
    exact = (1 - true.sum(-1, keepdim=True)).clamp(min=1e-9).log() + total
    # What one unit of weight adds to the logit of each summary; nothing to the rest.
    adds = block.variances.clamp(max=reading.most_counted)
    estimated = (block.logits + block.sizes.clamp(min=1).log()).masked_fill(~unread, float("-inf"))
    truly = (true * adds).sum(-1)
    # All weights at once: a block has few queries, and many small operations take longer than their arithmetic.
    summaries = estimated + TRIED.to(adds).view(-1, *[1] * adds.ndim) * adds
    shares = torch.cat([exact.expand(len(TRIED), *exact.shape), summaries], -1).softmax(-1)[..., 1:]
    return ((shares * adds).sum(-1) - truly).sum(-1).flatten(1).T.double()
