"""The error of a summary above which each query head reads the page: what heads lose at several, and the best for all.

A page is worth reading where much of a query's attention is on keys that are not alike, however many other pages there
are. So a head that looks for one token reads one page, a head that takes a mean reads none, and one that does both
reads more for some queries than for others. How much an error matters differs between heads by a factor of a hundred.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import root_scalar
from torch import Tensor

from focus_core.attention import AttentionOutput
from focus_core.errors import FocusError
from focus_core.progress import Progress, silent
from focus_core.routing.layer import reading_of
from focus_core.routing.model import FocusModel
from focus_core.routing.narrow.attention import NarrowOutput
from focus_core.routing.narrow.fitting.changes import (
    change_of,
    entering_states,
    output_projections,
    read_with,
    relative_squares,
)
from focus_core.routing.narrow.fitting.passes import FRESH, Kept, measured_calls, reading_layers
from focus_core.routing.narrow.fitting.plan import Plan, plan_levels
from focus_core.routing.narrow.fitting.recall import read_all
from focus_core.routing.narrow.reading import log_errors
from focus_core.routing.narrow.reads import CHUNKS_AT_ONCE, blocks_read, near_logsumexp
from focus_core.routing.routers.narrow import ALL, EVERYTHING, MEANS, NOTHING
from focus_core.routing.rules import AttentionCall

if TYPE_CHECKING:
    from jaxtyping import Float

LEVELS = (NOTHING, 1.0, 0.0, -0.7, -1.4, -2.0, -2.6, -3.2, -3.8, -4.4, -5.0, -5.7, -6.5, -7.5, -9.0, EVERYTHING)
"""Logs of errors at which heads are measured; the last stands for full attention."""
EDGES = tuple(np.linspace(-20, 6, 209).tolist())
"""Logs of errors above which pairs are counted in longer texts, where thresholds are lowered."""
PIECES = 8
"""Pieces of a text whose pairs are counted apart, about."""
LIMITS = (-20.0, 12.0)
"""What may be added to thresholds."""
EVERYWHERE = (-2, -1)
"""Fewer keys than any query has beyond the window, for `_shifts` that hold in all of a text."""
FALL = 1.25
"""Behind a measured length thresholds fall until there are so many times as many keys."""


class Measured(NamedTuple):
    """What the query heads of a layer lose and read at the `LEVELS`.

    Attributes:
        errors: summed over tokens, see `head_costs`.
        pairs: distant pairs that are attended exactly.
    """

    errors: Float[np.ndarray, "Hq S"]
    pairs: Float[np.ndarray, "Hq S"]


def plan_thresholds(
    focus: FocusModel,
    blocks: np.ndarray,
    by_layer: Mapping[int, float] | None,
    *,
    recall: Mapping[int, np.ndarray] | None = None,
    kept: Kept = FRESH,
    progress: Progress = silent,
) -> dict[float, float]:
    """Measure what each query head loses, and store its threshold for every mean share in the routers.

    Returns:
        The KL to the untouched model that the errors of all heads add up to in these texts, in nats per token, for each
        of the `MEANS`: as if each head erred alone. Empty where no head is measured.

    Args:
        focus: narrow routers with `by_error`, their groups fitted.
        blocks: (N, T) int64 token ids of broad text, longer than the window. They decide how heads differ.
        by_layer: what `layer_weights` returns. None for one threshold for all heads: nothing is measured but pairs.
        recall: what `recall_scores` returns; heads that recall then read everything (`read_all`). Only with `by_layer`.
        kept: what this fit measured before.
        progress: told the share done.
    """
    stored = _stored(focus)
    if not stored:  # every layer has a sliding window of its own, and reads nothing
        return {}
    if by_layer is None:
        none = np.array([NOTHING if mean <= 0 else EVERYTHING if mean >= 1 else 0.0 for mean in MEANS])
        read = errors_of_pages(focus, blocks, kept=kept, progress=progress)
        same = none + _shifts(read, np.repeat(none[:, None], len(read.above), 1), EVERYWHERE)
        for thresholds in stored:
            thresholds.copy_(torch.from_numpy(same)[:, None])
        return {}
    plan = _planned(focus, blocks, by_layer, recall or {}, kept, progress)
    for thresholds, own in zip(stored, torch.from_numpy(plan.levels).chunk(len(stored), 1)):
        thresholds.copy_(own)  # everywhere alike, as yet
    return dict(zip(MEANS, (plan.error_sums / blocks.shape[1]).tolist()))


def lower_thresholds(
    focus: FocusModel, texts: Sequence[np.ndarray], *, kept: Kept = FRESH, progress: Progress = silent
) -> None:
    """Lower all thresholds alike, until longer texts keep each mean share of their pairs.

    Args:
        focus: narrow routers after `plan_thresholds`; `FocusConfig.shares_at` has the `places_of` the length that was
            planned for and the lengths of these texts.
        texts: longer ones than those that were planned for, shorter ones first: (N, T) int64 token ids for each length.
        kept: what this fit measured before.
        progress: told the share done.

    Raises:
        FocusError: `shares_at` has places of more or fewer lengths.
    """
    stored, places = [_by_place(thresholds) for thresholds in _stored(focus)], focus.config.shares_at
    if len(places) // 2 != len(texts):
        raise FocusError(
            f"shares_at has {len(places)} places for texts of {len(texts)} longer lengths: give those of `places_of`."
        )
    for first, blocks in zip(count(1, 2), texts if stored else ()):  # two places a length
        read = errors_of_pages(focus, blocks, kept=kept, progress=progress)
        before = torch.cat([thresholds[first] for thresholds in stored], -1)
        shifts = torch.tensor(_shifts(read, before.double().cpu().numpy(), places[first - 1 : first + 1]))
        for thresholds in stored:
            thresholds[first:] += shifts[:, None].to(thresholds)


def _by_place(thresholds: Tensor) -> Float[Tensor, "A M Hq"]:
    """The same thresholds, with one place where there are no `FocusConfig.shares_at`."""
    return thresholds.view(-1, *thresholds.shape[-2:])


def places_of(lengths: Sequence[int], window: int) -> tuple[int, ...]:
    """`FocusConfig.shares_at` for texts of these lengths: thresholds fall soon after each of them, and then stay.

    An error costs the same wherever it is, so the best thresholds of a text are the same everywhere. Its beginning is a
    shorter text too, though, and has the thresholds of that one. None where there is one length.
    """
    ends = [lengths[0], *(length - window for length in lengths[1:])]
    places = [place for first, last in pairwise(ends) for place in (min(round(FALL * first), last - 1), last)]
    return (ends[0], *places) if places else ()


def _stored(focus: FocusModel) -> list[Any]:
    """Thresholds in the routers of the layers that read pages, to be written."""
    return [focus.router(layer).thresholds for layer in reading_layers(focus)]


def _planned(
    focus: FocusModel,
    blocks: np.ndarray,
    by_layer: Mapping[int, float],
    recall: Mapping[int, np.ndarray],
    kept: Kept,
    progress: Progress,
) -> Plan:
    """Thresholds of all heads, layer by layer, that make the sum of errors least, for each of the `MEANS`."""
    found = head_costs(focus, blocks, kept=kept, progress=progress)
    errors = np.concatenate([found[layer].errors * by_layer[layer] for layer in sorted(found)])
    pairs = np.concatenate([found[layer].pairs for layer in sorted(found)])
    budgets = np.array(MEANS) * pairs[:, -1].sum()
    if not recall:
        return plan_levels(errors, pairs, LEVELS, budgets)
    scores, kv_heads = zip(*((recall[layer], focus.router(layer).num_heads) for layer in sorted(found)))
    levels, sums = np.full((len(MEANS), len(pairs)), ALL), np.zeros(len(MEANS))
    for place, (mean, budget) in enumerate(zip(MEANS, budgets)):
        everything = read_all(scores, kv_heads, mean)
        rest = ~everything
        plan = plan_levels(errors[rest], pairs[rest], LEVELS, [budget - pairs[everything, -1].sum()])
        levels[place, rest], sums[place] = plan.levels[0], plan.error_sums[0]
    return Plan(levels, sums)


def head_costs(
    focus: FocusModel, blocks: np.ndarray, *, kept: Kept = FRESH, progress: Progress = silent
) -> dict[int, Measured]:
    """What each query head loses and reads at the `LEVELS`, means over blocks, by layer.

    The error of a head is the squared difference that its reading makes to the hidden states which the layer adds to,
    over their squared length, summed over tokens. It is taken token by token, because the first tokens of a text have
    states that are a thousand times as long as others. All layers see the states of the untouched model, so one pass
    over a text measures every head at every level. Layers with a window of their own are left out.

    Args:
        focus: narrow routers.
        blocks: (N, T) int64 token ids.
        kept: what this fit measured before.
        progress: told the share done.
    """
    with torch.inference_mode():
        outputs = output_projections(focus, torch.from_numpy(blocks[:1, :8]).to(focus.model.device))
    with entering_states(focus) as streams:

        def measure(call: AttentionCall, full: AttentionOutput) -> dict[str, Tensor]:
            def cost(level: float) -> tuple[Tensor, Tensor, Tensor]:
                """Errors, kept and all distant pairs of the heads; only one output is held at a time."""
                read = _read_above(call, level)
                change = change_of(AttentionOutput(*read[:2]), full)
                squares = relative_squares(change, streams[call.layer], outputs[call.layer])
                return squares.double().sum(-1), read.pairs.distant_kept.flatten(), read.pairs.distant.flatten()

            errors, kept, distant = zip(*(cost(level) for level in LEVELS[:-1]))
            columns = (*errors, torch.zeros_like(errors[0])), (*kept, distant[0])
            return dict(zip(Measured._fields, (torch.stack(each, -1) for each in columns)))

        label = f"Measuring what each head reads in {blocks.shape[1]:,} tokens"
        found: dict[int, Measured] = {}
        for text in measured_calls(focus, blocks, measure, name="heads", label=label, kept=kept, progress=progress):
            for layer, parts in text.items():
                own = Measured(*(parts[each].numpy() / len(blocks) for each in Measured._fields))
                before = found.get(layer)
                found[layer] = own if before is None else Measured(*(a + b for a, b in zip(before, own)))
    return found


def _read_above(call: AttentionCall, level: float) -> NarrowOutput:
    """Attention where every head has one threshold."""
    return read_with(call, thresholds=(level,) * call.query.shape[:2].numel(), shares_at=())


class Read(NamedTuple):
    """Pairs of a text, means over texts, in U pieces of it.

    Attributes:
        beyond: (U,) keys beyond the window of the queries of each piece, the mean.
        always: distant pairs of one head that are attended exactly whatever is read.
        distant: all distant pairs of one head.
        above: (heads, U, E) pairs with pages whose log error is above each of the `EDGES`, of all layers that read.
    """

    beyond: Float[np.ndarray, " U"]
    always: float
    distant: float
    above: Float[np.ndarray, "heads U E"]


def errors_of_pages(focus: FocusModel, blocks: np.ndarray, *, kept: Kept = FRESH, progress: Progress = silent) -> Read:
    """How many pairs are with pages above an error, under the untouched model's states.

    Args:
        focus: narrow routers.
        blocks: (N, T) int64 token ids.
        kept: what this fit measured before.
        progress: told the share done.
    """
    length, above = blocks.shape[1], dict.fromkeys(reading_layers(focus), 0.0)
    passes = measured_calls(
        focus, blocks, lambda call, _: {"above": _above(call)}, name=f"above-{length}", kept=kept,
        label=f"Counting pages of {length:,} tokens by error", progress=progress,
    )  # fmt: skip
    for text in passes:
        above = {layer: before + text[layer]["above"].numpy() / len(blocks) for layer, before in above.items()}
    reading = reading_of(focus.config, focus.config.top_k, share=0.0)
    query = torch.arange(length)
    beyond, already = (query - reading.window).clamp(min=0).double(), reading.already(query, reading.borders(query))
    pieces = beyond.split(_piece(length, reading.chunk))
    sizes = np.array([float(piece.mean()) for piece in pieces])
    return Read(sizes, float(already.sum()), float(beyond.sum()), np.concatenate(list(above.values())))


def _piece(length: int, chunk: int) -> int:
    """Tokens of a piece of a text, a multiple of a block's."""
    block = chunk * CHUNKS_AT_ONCE
    return max(1, length // (block * PIECES)) * block


def _above(call: AttentionCall) -> Float[Tensor, "Hq U E"]:
    """Pairs of one layer and text with pages above each of the `EDGES`: one block of a piece stands for all of it."""
    reading, scale, softcap = call.routing.reading(), call.geometry.scale, call.geometry.softcap
    reading = replace(reading, thresholds=(0.0,) * call.query.shape[:2].numel(), shares_at=())
    (query, key), length = (part.float() for part in call.together()[:2]), call.query.shape[2]
    parts, total = reading.parts(call.routing.key_groups.view(key.shape[:3]), call.config.num_groups)
    edges, chunk, piece = torch.tensor(EDGES, device=query.device), reading.chunk, _piece(length, reading.chunk)
    every = piece // (chunk * CHUNKS_AT_ONCE)
    found = torch.zeros(
        query.shape[:2].numel(), -(-length // piece), len(EDGES) + 1, dtype=torch.double, device=query.device
    )
    for block in blocks_read(query, key, parts, total, reading, scale=scale, softcap=softcap, every=every):
        stop = block.start + block.reads.shape[-2]
        near = near_logsumexp(query, key, reading, block.start, stop, scale, softcap)
        scores = reading.scores(block.logits, block.sizes)
        errors = log_errors(scores, block.sizes, near, block.variances)
        number = block.start // piece
        stands_for = (min((number + 1) * piece, length) - number * piece) / (stop - block.start)
        sizes = block.sizes.expand_as(errors).flatten(0, 2).flatten(1).double() * stands_for
        found[:, number].scatter_add_(1, torch.bucketize(errors, edges).flatten(0, 2).flatten(1), sizes)
    return found.flip(-1).cumsum(-1).flip(-1)[..., 1:]


def _shifts(read: Read, thresholds: Float[np.ndarray, "M heads"], places: Sequence[int]) -> list[float]:
    """What to add to the thresholds of all heads at one place, so that a text keeps each mean share of its pairs.

    Args:
        read: of the text.
        thresholds: at this place, as yet those of the place before.
        places: keys beyond the window, up to the first of which nothing is added, and all of it from the second on.
    """
    along = np.interp(read.beyond, places, (0, 1))
    heads = len(read.above)

    def excess(shift: float, levels: np.ndarray, mean: float) -> float:
        own = levels[:, None] + shift * along
        slot = np.interp(own, EDGES, np.arange(len(EDGES)))
        below = slot.astype(int).clip(0, len(EDGES) - 2)
        ends = (np.take_along_axis(read.above, (below + step)[..., None], -1)[..., 0] for step in (0, 1))
        more, fewer = ends
        pairs = more + (slot - below) * (fewer - more)
        return float(pairs.sum()) / heads + read.always - mean * read.distant

    found = []
    for mean, levels in zip(MEANS, thresholds):
        if not 0 < mean < 1:
            found.append(0.0)
        elif excess(LIMITS[1], levels, mean) >= 0:  # what is attended in any case is more
            found.append(LIMITS[1])
        elif excess(LIMITS[0], levels, mean) <= 0:  # too few queries have so many keys before them
            found.append(LIMITS[0])
        else:
            found.append(root_scalar(excess, (levels, mean), bracket=LIMITS, xtol=1e-3).root)
    return found
