"""Two prompts that differ by an edit: how the edit moves the predictions of the untouched and the routed model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import numpy as np
import torch

from focus_core.errors import FocusError
from focus_core.evaluation.continuation import Continuation, predictions
from focus_core.routing.model import FocusModel

MAX_TOKENS = 512
"""Longest prompt, without the document before it: every token has a prediction over the whole vocabulary."""


@dataclass(frozen=True, eq=False)
class MinimalPair:
    """Predictions of both models along two prompts.

    Attributes:
        along: predictions along the first and the second prompt; the first token of a text that opens one has none.
        following: the same for the token after each prompt, of which the lists of likeliest tokens hold.
        aligned: (m, 2) int64 places in `along` of tokens that stand for each other; -1 where a prompt has none.
    """

    along: tuple[Continuation, Continuation]
    following: tuple[Continuation, Continuation]
    aligned: np.ndarray

    @property
    def same(self) -> np.ndarray:
        """(m,) bool: whether both prompts have the same token there."""
        first, second = (along.tokens for along in self.along)
        return np.array([a >= 0 and b >= 0 and first[a] == second[b] for a, b in self.aligned], dtype=bool)

    @property
    def change(self) -> np.ndarray:
        """(2, m) float32: loss in the second prompt minus that in the first, untouched and routed; NaN for edits."""
        found = np.full((2, len(self.aligned)), np.nan, dtype=np.float32)
        first, second = self.aligned[self.same].T
        found[:, self.same] = self.along[0].log_probs[:, first] - self.along[1].log_probs[:, second]
        return found


def align_tokens(first: Sequence[int], second: Sequence[int]) -> np.ndarray:
    """(m, 2) int64 places of tokens that stand for each other, in order, by `difflib`; -1 where there is none.

    Args:
        first: token ids.
        second: token ids.
    """
    rows: list[tuple[int, int]] = []
    for _, a, a_end, b, b_end in SequenceMatcher(None, first, second, autojunk=False).get_opcodes():
        for step in range(max(a_end - a, b_end - b)):
            rows.append((a + step if a + step < a_end else -1, b + step if b + step < b_end else -1))
    return np.asarray(rows, dtype=np.int64).reshape(-1, 2)


def minimal_pair(
    focus: FocusModel,
    first: np.ndarray,
    second: np.ndarray,
    starts: tuple[int, int],
    *,
    changes: Mapping[str, Any] | None = None,
) -> MinimalPair:
    """Read two prompts once with each model, and align their tokens.

    Args:
        focus: model with routers.
        first: (T,) int64 ids of the first prompt with the document before it.
        second: (U,) int64 likewise.
        starts: tokens before each prompt, 1 or more.
        changes: settings of hard routing to change, as in `FocusModel.routing`.

    Raises:
        FocusError: a prompt of more than `MAX_TOKENS` tokens, or without tokens after `starts`.
    """
    found = []
    for ids, start in zip((first, second), starts):
        if len(ids) - start > MAX_TOKENS:
            raise FocusError(
                f"A prompt has {len(ids) - start:,} tokens: give at most {MAX_TOKENS}, and the rest as the document."
            )
        # The token after the prompt is predicted too; which token stands there does not matter.
        longer = torch.tensor(np.append(ids, ids[-1]))[None].to(focus.model.device)
        found.append(predictions(focus, longer, start, changes=changes))
    along = tuple(_part(each, slice(None, -1)) for each in found)
    return MinimalPair(
        (along[0], along[1]),
        (_part(found[0], slice(-1, None)), _part(found[1], slice(-1, None))),
        align_tokens(along[0].tokens.tolist(), along[1].tokens.tolist()),
    )


def _part(whole: Continuation, places: slice) -> Continuation:
    return Continuation(
        whole.tokens[places],
        whole.log_probs[:, places],
        whole.kl[places],
        whole.top_ids[:, places],
        whole.top_log_probs[:, places],
        whole.kept_pairs,
        whole.causal_pairs,
    )
