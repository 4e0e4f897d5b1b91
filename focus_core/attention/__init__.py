"""Exact attention over the pairs that hard routing keeps: local, sink and same-group pairs.

Imports with torch alone. `focus_attention` checks its arguments, picks a backend and calls it; each backend is one
file and one line in `BACKENDS`, and `focus_core.attention.reference.dense` defines the result.
"""

from __future__ import annotations

import torch
from torch import Tensor

from focus_core.attention.counting import PairCounts, kept_pairs
from focus_core.attention.inputs import AttentionOutput
from focus_core.attention.registry import BACKENDS, resolve
from focus_core.attention.validate import checked_inputs

__all__ = ["BACKENDS", "AttentionOutput", "PairCounts", "focus_attention", "kept_pairs"]


def focus_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    membership: Tensor,
    *,
    query_membership: Tensor | None = None,
    window: int,
    sink_tokens: int = 0,
    positions: Tensor | None = None,
    sliding_window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    backend: str = "auto",
) -> AttentionOutput:
    """Softmax attention over exactly the kept pairs.

    Query i keeps key j, both real tokens and j not after i, iff one of these holds:

    - the pair is local: ``pos_i - pos_j <= window``;
    - the key is a sink: ``pos_j < sink_tokens``;
    - i reads a group of j. A query reads the groups it is in, unless ``query_membership`` is given.

    With a ``sliding_window``, ``pos_i - pos_j < sliding_window`` must hold as well. This is the hard routing of
    arXiv 2604.03260, section 3, with sinks added.

    Args:
        query: (B, H, Tq, D) floating point; the queries are the last Tq of the T tokens (Tq = T in training and
            prefill, 1 in decoding).
        key: (B, Hkv, T, D), H a multiple of Hkv, dtype and device of the query.
        value: (B, Hkv, T, Dv).
        membership: (B, T, K) bool, the groups of every key; any number per token, none included.
        query_membership: (B, Tq, K) bool, the groups that each query reads; None where it reads those it is in.
        window: w, in tokens; at least 0.
        sink_tokens: number of tokens at the start of a text that all later ones see.
        positions: (B, T) int64, index of each token among the real tokens of its text. Padding has -1, on either side
            or in between. Other positions increase along a row and may start above 0. Default 0..T-1.
        sliding_window: the model's own window (Mistral, Gemma), None without.
        scale: factor of the dot products; default ``D ** -0.5``.
        softcap: logits become ``softcap * tanh(logits / softcap)`` before the mask (Gemma 2), None without.
        backend: "auto" or a key of `BACKENDS`.

    Returns:
        ``output`` (B, H, Tq, Dv) in the query's dtype, 0 for padding queries. ``logsumexp`` (B, H, Tq) in float32
        (float64 for float64 inputs), -inf for padding queries.

    Raises:
        FocusError: arguments that do not fit together, or a named backend that does not support them.
    """
    inputs = checked_inputs(
        query,
        key,
        value,
        membership,
        positions,
        query_membership=query_membership,
        window=window,
        sink_tokens=sink_tokens,
        sliding_window=sliding_window,
        scale=scale,
        softcap=softcap,
    )
    if not query.numel():
        compute = torch.promote_types(query.dtype, torch.float32)
        output = query.new_zeros(*query.shape[:3], value.shape[-1])
        return AttentionOutput(output, query.new_full(query.shape[:3], float("-inf"), dtype=compute))
    _, chosen = resolve(backend, inputs)
    # The kernels are called with biases and parts of their own dtypes, which autocast would change in some places only.
    with torch.autocast(query.device.type, enabled=False):
        return chosen.run(inputs)
