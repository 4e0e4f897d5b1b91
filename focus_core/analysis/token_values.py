"""Values of every token beside its groups: its loss under both models, and the attention that routing leaves unread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from focus_core.analysis.interventions.experiment import Seen, attending
from focus_core.analysis.reading import kept_keys
from focus_core.analysis.sparsity import CHUNK_ELEMENTS, full_weights
from focus_core.analysis.trace import Trace
from focus_core.attention import AttentionOutput
from focus_core.evaluation.likelihood import losses_of_states, token_losses
from focus_core.routing.model import FocusModel
from focus_core.routing.rules import AttentionCall, Rule, attend_fully, attend_hard, hard_groups


class BothLosses(NamedTuple):
    """Negative log-likelihood of every token given those before it, in nats; NaN for the first, which has none.

    Attributes:
        untouched: (T,) float32, of the untouched model.
        routed: (T,) float32, under hard routing.
    """

    untouched: np.ndarray
    routed: np.ndarray

    @property
    def change(self) -> np.ndarray:
        """(T,) float32: above 0 where routing makes a token harder to predict."""
        return self.routed - self.untouched


def both_losses(focus: FocusModel, input_ids: np.ndarray) -> BothLosses:
    """Read a text once with each model.

    Args:
        focus: model with routers, under hard routing at the settings to measure; hold its lock.
        input_ids: (T,) int64.
    """
    return BothLosses(untouched_losses(focus, input_ids), routed_losses(focus, input_ids))


def _losses(focus: FocusModel, input_ids: np.ndarray) -> np.ndarray:
    losses = np.full(len(input_ids), np.nan, dtype=np.float32)
    if len(input_ids) > 1:
        losses[1:] = token_losses(focus, _batch(focus, input_ids))[0].cpu().numpy()
    return losses


def untouched_losses(focus: FocusModel, input_ids: np.ndarray) -> np.ndarray:
    """(T,) float32 losses of the untouched model, as in `BothLosses`; hold the lock of the model."""
    with focus.routing("off"):
        return _losses(focus, input_ids)


def routed_losses(focus: FocusModel, input_ids: np.ndarray) -> np.ndarray:
    """(T,) float32 losses under the hard routing in force, as in `BothLosses`; hold the lock of the model."""
    return _losses(focus, input_ids)


def losses_from_states(model: Any, input_ids: np.ndarray, states: np.ndarray) -> np.ndarray:
    """(T,) float32 losses, as in `BothLosses`, from the final states that `analyze` handed out.

    Args:
        model: the causal language model; hold its lock.
        input_ids: (T,) int64.
        states: (T, d) float32.
    """
    losses = np.full(len(input_ids), np.nan, dtype=np.float32)
    if len(input_ids) > 1:
        ids = torch.from_numpy(np.array(input_ids, dtype=np.int64))[None].to(model.device)
        final = torch.from_numpy(np.array(states))[None].to(model.device, model.dtype)
        losses[1:] = losses_of_states(model, ids, final)[0].cpu().numpy()
    return losses


def unread_attention(
    focus: FocusModel, trace: Trace, *, routed: bool = False, layers: Sequence[int] | None = None
) -> np.ndarray:
    """Share of each token's full attention on keys that the routing of a trace does not read exactly.

    Summaries, of narrow groups, do not count as read. The weights are those of full attention from the same queries and
    keys, mean over the query heads that share the traced groups; of the shown query head with narrow groups.

    Args:
        focus: model with routers, under hard routing at the trace's settings; hold its lock.
        trace: the routing.
        routed: whether layers read what earlier routed ones kept; else the model is untouched.
        layers: those of the trace to measure, all when None; the layers after the last of them are not run.

    Returns:
        (L, T) float32, 0 to 1, a row for each of `layers`.
    """
    rows = {layer: row for row, layer in enumerate(trace.layers)}
    places = {layer: place for place, layer in enumerate(trace.layers if layers is None else layers)}
    last = max(places)
    config, length = trace.config, len(trace.tokens)
    head, shown = trace.head or 0, slice(None)
    if trace.query_head is not None:
        shown = slice(trace.query_head, trace.query_head + 1)
    result = np.zeros((len(places), length), dtype=np.float32)

    def attend(call: AttentionCall) -> AttentionOutput:
        if call.layer in places:
            measure(call)
        if call.layer == last:
            raise Seen
        return attend_hard(call) if routed else attend_fully(call)

    def measure(call: AttentionCall) -> None:
        query, key, row = call.query[head, shown], call.key[head], rows[call.layer]
        step = max(1, CHUNK_ELEMENTS // (query.shape[0] * length))
        for start in range(0, length, step):
            picked = torch.arange(start, min(start + step, length), device=query.device)
            weights = full_weights(query[:, picked], key, picked, call.geometry).cpu().numpy()
            queries, keys = picked.cpu().numpy(), np.arange(length)
            far = (queries[:, None] - keys > config.window) & (keys >= config.sink_tokens)
            result[places[call.layer], queries] = (weights * (far & ~kept_keys(trace, row, queries))).sum(1)

    with torch.inference_mode(), attending(focus, Rule(attend, hard_groups)):
        focus.model.base_model(input_ids=_batch(focus, trace.input_ids), use_cache=False)
    return result


def _batch(focus: FocusModel, input_ids: np.ndarray) -> Tensor:
    return torch.from_numpy(np.array(input_ids, dtype=np.int64))[None].to(focus.model.device)
