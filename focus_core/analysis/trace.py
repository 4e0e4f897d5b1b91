"""The routing trace of one text: which group each token joins, in every layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from focus_core.config import FocusConfig

if TYPE_CHECKING:
    from focus_core.retrofit import FocusModel


@dataclass(frozen=True)
class Provenance:
    """Where a trace comes from; shown beside every number.

    Attributes:
        model: name, folder or hub id of the base model.
        model_revision: hash that identifies its weights, short.
        routers: "untrained" or the name of the saved routers.
        routers_hash: hash of the router weights, short.
        trained: False for routers that were only initialised.
    """

    model: str
    model_revision: str
    routers: str
    routers_hash: str
    trained: bool


@dataclass(frozen=True)
class Trace:
    """Routing of one text, as CPU arrays.

    L layers with routers, T tokens, K groups.

    Attributes:
        text: the analysed text.
        input_ids: (T,) int64 token ids.
        offsets: (T, 2) int64 character span [start, end) of each token in `text`. Tokens that are parts of one
            character carry that character's span.
        tokens: (T,) the vocabulary's own spelling of each token.
        layers: (L,) index of each traced decoder layer in the model.
        scores: (L, T, K) float32 router scores before balancing.
        assignment: (L, T, K) float32 balanced soft assignment, rows sum to 1.
        membership: (L, T, K) bool, the top-k groups; sink tokens are not marked here.
        config: the settings in force.
        provenance: model and routers.
    """

    text: str
    input_ids: np.ndarray
    offsets: np.ndarray
    tokens: tuple[str, ...]
    layers: tuple[int, ...]
    scores: np.ndarray
    assignment: np.ndarray
    membership: np.ndarray
    config: FocusConfig
    provenance: Provenance

    @property
    def groups(self) -> np.ndarray:
        """(L, T) int64: each token's first group, the one with the largest assignment."""
        return self.assignment.argmax(axis=-1)


def analyze(focus: FocusModel, tokenizer: Any, text: str) -> Trace:
    """Route a text through every retrofitted layer and return what happened."""
    raise NotImplementedError
