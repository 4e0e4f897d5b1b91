"""What the untouched and the routed model predict along one continuation, token by token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from focus_core.errors import FocusError
from focus_core.evaluation.divergence import compare_logits
from focus_core.routing.layer import LayerRouting
from focus_core.routing.model import FocusModel, Mode

MODES: tuple[Mode, Mode] = ("off", "hard")
"""Order of the two models in every array: untouched, then routed."""
LISTED = 10


@dataclass(frozen=True, eq=False)
class Continuation:
    """Predictions of both models for the same n tokens after the same prompt.

    Attributes:
        tokens: (n,) int64 ids.
        log_probs: (2, n) float32, of each token given all before it; untouched, then routed.
        kl: (n,) float32, divergence of the routed prediction from the untouched one, in nats.
        top_ids: (2, n, 10) int64, the most likely tokens at each place.
        top_log_probs: (2, n, 10) float32.
        kept_pairs: pairs that routing computes over prompt and continuation, all layers and heads.
        causal_pairs: those of full attention.
    """

    tokens: np.ndarray
    log_probs: np.ndarray
    kl: np.ndarray
    top_ids: np.ndarray
    top_log_probs: np.ndarray
    kept_pairs: int
    causal_pairs: int

    @property
    def change(self) -> np.ndarray:
        """(n,) float32: log-probability under routing minus that of the untouched model."""
        return self.log_probs[1] - self.log_probs[0]


@torch.inference_mode()
def predictions(
    focus: FocusModel, input_ids: Tensor, prompt_tokens: int, *, changes: Mapping[str, Any] | None = None
) -> Continuation:
    """Read a prompt with its continuation once with each model.

    Args:
        focus: model with routers.
        input_ids: (1, T) int64, prompt and continuation.
        prompt_tokens: tokens of the prompt, 1 to T - 1.
        changes: settings of hard routing to change, as in `FocusModel.routing`.

    Raises:
        FocusError: no prompt or no continuation, or settings that need other routers.
    """
    length = input_ids.shape[1]
    if not 1 <= prompt_tokens < length:
        raise FocusError(f"The prompt has {prompt_tokens} of {length} tokens: give at least one before and one after.")
    count, kept, causal = length - prompt_tokens, 0, 0

    def record(routing: LayerRouting) -> None:
        nonlocal kept, causal
        pairs = routing.pair_counts()
        kept += int(pairs.kept.sum())
        causal += int(pairs.causal.sum())

    logs = []
    for mode in MODES:
        with focus.routing(mode, **(changes or {})), focus.observe(record if mode == "hard" else None):
            logits = focus(input_ids=input_ids, use_cache=False, logits_to_keep=count + 1).logits[0, :-1]
        logs.append(logits.float().log_softmax(-1).cpu())
    tokens = input_ids[0, prompt_tokens:].cpu()
    top = [log.topk(min(LISTED, log.shape[-1]), dim=-1) for log in logs]
    return Continuation(
        tokens=tokens.numpy(),
        log_probs=torch.stack([log.gather(1, tokens[:, None])[:, 0] for log in logs]).numpy(),
        kl=compare_logits(logs[1], logs[0], tokens).kl.numpy(),
        top_ids=torch.stack([each.indices for each in top]).numpy(),
        top_log_probs=torch.stack([each.values for each in top]).numpy(),
        kept_pairs=kept,
        causal_pairs=causal,
    )
