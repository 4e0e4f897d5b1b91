"""The routing trace of one text: which group each token joins, in every layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from focus_core.errors import FocusError
from focus_core.routing.config import FocusConfig
from focus_core.routing.layer import LayerRouting, top_k_membership
from focus_core.routing.routers import ROUTERS
from focus_core.routing.storage import routers_hash, weights_fingerprint
from focus_core.text import encode, token_bytes

if TYPE_CHECKING:
    import pandas as pd

    from focus_core.analysis.display.notebook import TokenStrip
    from focus_core.routing.model import FocusModel


@dataclass(frozen=True)
class Provenance:
    """Where a trace comes from; shown beside every number.

    Attributes:
        model: name, folder or hub id of the base model.
        model_revision: hash that identifies its weights, short.
        routers: "untrained" or the name of the saved routers.
        routers_hash: hash of the router weights, short.
        trained: False for routers that were only initialised.
        base_matches: False for routers that were trained on other weights of the same architecture.
    """

    model: str
    model_revision: str
    routers: str
    routers_hash: str
    trained: bool
    base_matches: bool = True


@dataclass(frozen=True)
class Trace:
    """Routing of one text, as CPU arrays.

    L layers with routers, T tokens, K groups. Routers per key/value head are traced in one head at a time: there a
    token is in one group as a key, and reads others as a query.

    Attributes:
        text: the analysed text.
        input_ids: (T,) int64 token ids.
        offsets: (T, 2) int64 character span [start, end) of each token in `text`. Tokens that are parts of one
            character carry that character's span; the tokenizer's own opening (a `<bos>`) has empty ones.
        tokens: (T,) the vocabulary's own spelling of each token.
        layers: (L,) index of each traced decoder layer in the model.
        scores: (L, T, K) float32 router scores before balancing.
        assignment: (L, T, K) float32 balanced soft assignment, rows sum to 1.
        membership: (L, T, K) bool, the groups that each token is in (`config.key_top_k_of(row)` of them); sink tokens
            are not marked here.
        config: the settings in force.
        provenance: model and routers.
        head: the traced key/value head of routers per head, else None.
        query_weights: (L, T, K) float32, how much each token reads each group, rows sum to 1; `assignment` itself where
            tokens read the groups they are in, as when left out.
        token_bytes: (T,) the bytes of each token; empty if they are not known.
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
    head: int | None = None
    query_weights: np.ndarray = None  # type: ignore[assignment]
    token_bytes: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        if self.query_weights is None:
            object.__setattr__(self, "query_weights", self.assignment)

    @property
    def reads_own_groups(self) -> bool:
        """Whether tokens read the groups they are in, as published."""
        return ROUTERS[self.config.router].reads_own_groups

    @cached_property
    def query_membership(self) -> np.ndarray:
        """(L, T, K) bool, read-only: the groups that each token reads."""
        if self.reads_own_groups:
            return self.membership
        reads = query_memberships(self.query_weights, self.config)
        reads.setflags(write=False)
        return reads

    @cached_property
    def groups(self) -> np.ndarray:
        """(L, T) int64, read-only: each token's first group, the one with the largest assignment."""
        groups = self.assignment.argmax(axis=-1)
        groups.setflags(write=False)
        return groups

    def show(self, layer: int | None = None, *, first: int = 0) -> TokenStrip:
        """The text with every token coloured by its group, for a notebook or, with `save`, a file.

        Args:
            layer: the model's layer that is shown first; by default the middle one of `layers`.
            first: a token of the part that is shown, where the text is too long for one strip.

        Raises:
            FocusError: the layer has no router, or there is no such token.
        """
        from focus_core.analysis.display.notebook import show

        return show(self, layer, first)

    def to_dataframe(self) -> pd.DataFrame:
        """One row per layer and token; the columns are those of `focus_core.analysis.tables.token_rows`."""
        from focus_core.analysis.tables import token_rows

        return token_rows(self)

    def _repr_html_(self) -> str:
        return self.show()._repr_html_()

    def __repr__(self) -> str:
        return f"Trace({len(self.tokens)} tokens, {len(self.layers)} layers, {self.config.num_groups} groups)"


def key_memberships(assignment: Tensor | np.ndarray, config: FocusConfig) -> np.ndarray:
    """(L, T, K) bool: the groups that tokens are in under hard routing, every layer at its own k.

    Args:
        assignment: (L, T, K) float, of all routed layers in their order.
        config: k, or the plan of it.
    """
    return _memberships(assignment, [config.key_top_k_of(row) for row in range(len(assignment))])


def query_memberships(query_weights: Tensor | np.ndarray, config: FocusConfig) -> np.ndarray:
    """(L, T, K) bool: the groups that tokens read under hard routing, every layer at its own k.

    Args:
        query_weights: (L, T, K) float, of all routed layers in their order.
        config: k, or the plan of it.
    """
    return _memberships(query_weights, [config.top_k_of(row) for row in range(len(query_weights))])


def _memberships(weights: Tensor | np.ndarray, top_k: list[int]) -> np.ndarray:
    layers = torch.tensor(weights) if isinstance(weights, np.ndarray) else weights
    return torch.cat([top_k_membership(each[None], k) for each, k in zip(layers, top_k)]).numpy()


def analyze(focus: FocusModel, tokenizer: Any, text: str, *, head: int = 0) -> Trace:
    """Route a text through every retrofitted layer and return what happened.

    Runs one forward pass under the routing in force, so later layers see what hard routing left of earlier ones.
    Under `focus.routing("off")` there is no routing to see.

    Args:
        focus: model with routers.
        tokenizer: its tokenizer.
        text: the text; the model reads it after the tokenizer's own opening, if that has one.
        head: the key/value head to trace where each has a router.

    Returns:
        CPU arrays; nothing is kept on the model.

    Raises:
        FocusError: empty text, text longer than the model's positions, no such head, or routing is off.
    """
    if focus.current.mode == "off":
        raise FocusError("Routing is off, so there are no groups to show: analyse in hard or soft mode.")
    num_heads = min(focus.router(layer).num_heads for layer in focus.layers)
    if not 0 <= head < num_heads:
        raise FocusError(f"There is no router for head {head}: choose 0 to {num_heads - 1}.")
    limit = getattr(focus.model.config.get_text_config(), "max_position_embeddings", None)
    encoding = encode(tokenizer, text, max_tokens=limit, opening=True)
    seen: dict[int, tuple[Tensor, ...]] = {}

    def record(routing: LayerRouting) -> None:
        parts = routing.scores, routing.key_weights, routing.query_weights
        seen[routing.layer] = tuple(part[head].float().cpu() for part in parts)

    input_ids = torch.from_numpy(encoding.input_ids)[None].to(focus.model.device)
    with torch.inference_mode(), focus.observe(record):
        # The logits are not needed; without them a long text costs no (T, vocabulary) array.
        focus.model.base_model(input_ids=input_ids, use_cache=False)
    layers = tuple(sorted(seen))
    scores, assignment, query_weights = (torch.stack([seen[layer][part] for layer in layers]) for part in range(3))
    config, kind = focus.current.config, ROUTERS[focus.config.router]
    return Trace(
        text=text,
        input_ids=encoding.input_ids,
        offsets=encoding.offsets,
        tokens=tuple(encoding.tokens),
        layers=layers,
        scores=scores.numpy(),
        assignment=(weights := assignment.numpy()),
        membership=key_memberships(assignment, config),
        config=config,
        provenance=Provenance(
            model=_model_name(focus),
            model_revision=weights_fingerprint(focus.model),
            routers=focus.name,
            routers_hash=routers_hash(focus.routers),
            trained=focus.trained,
            base_matches=focus.base_matches,
        ),
        head=head if kind.per_head else None,
        query_weights=weights if kind.reads_own_groups else query_weights.numpy(),
        token_bytes=tuple(token_bytes(tokenizer, encoding.input_ids)),
    )


def _model_name(focus: FocusModel) -> str:
    """The hub id, or the last part of a folder's path: a trace is shown to others."""
    name = str(getattr(focus.model.config, "_name_or_path", "") or type(focus.model).__name__)
    return Path(name).name if Path(name).exists() else name
