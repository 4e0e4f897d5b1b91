"""The routing trace of one text: which group each token joins, in every layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from focus_core.analysis.display.notebook import TokenStrip, token_strip
from focus_core.analysis.families import group_families
from focus_core.analysis.reading import PartsRead
from focus_core.analysis.routed_text import Provenance, RoutedText, key_memberships, query_memberships
from focus_core.errors import FocusError
from focus_core.routing.config import FocusConfig
from focus_core.routing.layer import LayerRouting
from focus_core.routing.routers import ROUTERS, Router
from focus_core.routing.storage import routers_hash, weights_fingerprint
from focus_core.text import Encoding, check_length, encode, token_bytes

if TYPE_CHECKING:
    import pandas as pd

    from focus_core.routing.model import FocusModel, Observer

__all__ = ["Provenance", "RoutedLayer", "Trace", "analyze", "key_memberships", "query_memberships"]


@dataclass(frozen=True, repr=False)
class Trace(RoutedText):
    """The routing of one text, ready for a notebook; its arrays are those of `RoutedText`."""

    def show(self, layer: int | None = None, *, first: int = 0) -> TokenStrip:
        """The text with every token coloured by its group, for a notebook or, with `save`, a file.

        Args:
            layer: the model's layer that is shown first; by default the middle one of `layers`.
            first: a token of the part that is shown, where the text is too long for one strip.

        Raises:
            FocusError: the layer has no router, or there is no such token.
        """
        return token_strip(self, layer, first)

    def to_dataframe(self) -> pd.DataFrame:
        """One row per layer and token; the columns are those of `focus_core.analysis.tables.token_rows`."""
        from focus_core.analysis.tables import token_rows  # brings pandas

        return token_rows(self)

    def _repr_html_(self) -> str:
        return self.show()._repr_html_()

    def __repr__(self) -> str:
        return f"Trace({len(self.tokens)} tokens, {len(self.layers)} layers, {self.config.num_groups} groups)"


@dataclass(frozen=True, eq=False)
class RoutedLayer:
    """The groups of one layer, told as soon as they are known, while the layers after it still run.

    Attributes:
        layer: index of the decoder layer.
        done: layers that are known by now, this one included.
        count: layers with a router.
        groups: (T,) int64, each token's first group in the traced head.
        families: (K,) int64 family of each group, as in `RoutedText.families`; its own number for 16 groups or fewer.
    """

    layer: int
    done: int
    count: int
    groups: np.ndarray
    families: np.ndarray


def analyze(
    focus: FocusModel,
    tokenizer: Any,
    text: str,
    *,
    head: int = 0,
    query_head: int = 0,
    encoding: Encoding | None = None,
    also: Observer | None = None,
    on_layer: Callable[[RoutedLayer], None] | None = None,
    on_states: Callable[[np.ndarray], None] | None = None,
) -> Trace:
    """Route a text and return scores, assignments and groups of every token in every layer with a router.

    Runs one forward pass under the routing in force, so later layers read the output of routed earlier ones.

    Args:
        focus: model with routers.
        tokenizer: its tokenizer.
        text: the text; the model reads it after the tokenizer's own opening, if that has one.
        head: the key/value head to trace where each has a router.
        query_head: the query head to show where groups are narrow, counted among those of the key/value head.
        encoding: the text's tokens if they are known, from `focus_core.text.encode` with `opening=True`; the text is
            tokenised here otherwise.
        also: told of the routing of every layer, too.
        on_layer: handed the groups of each layer as soon as they are known, in the order of the layers.
        on_states: handed the (T, d) float32 final states, of which `losses_of_states` makes the losses.

    Returns:
        CPU arrays; nothing is kept on the model.

    Raises:
        FocusError: no text or an empty one, text longer than the model's positions, no such head or query head,
            or routing is off.
    """
    if not isinstance(text, str):
        raise FocusError(f"text is a {type(text).__name__}: give the text itself, a string.")
    if focus.current.mode == "off":
        raise FocusError("Routing is off, so there are no groups: analyze in hard or soft mode.")
    num_heads = min(focus.router(layer).num_heads for layer in focus.layers)
    if not 0 <= head < num_heads:
        raise FocusError(f"Head {head} has no router: choose 0 to {num_heads - 1}.")
    limit = getattr(focus.model.config.get_text_config(), "max_position_embeddings", None)
    if encoding is None:
        encoding = encode(tokenizer, text, max_tokens=limit, opening=True)
    check_length(len(encoding.input_ids), limit)
    narrow = ROUTERS[focus.config.router].from_keys
    if narrow:
        _check_query_head(focus, query_head, num_heads)
    seen: dict[int, tuple[Tensor, ...]] = {}
    parts: dict[int, PartsRead | None] = {}
    head_groups: dict[int, np.ndarray] = {}

    def record(routing: LayerRouting) -> None:
        found = routing.scores, routing.key_weights, *([] if narrow else [routing.query_weights])
        seen[routing.layer] = tuple(part[head].float().cpu() for part in found)
        head_groups[routing.layer] = routing.key_groups.to(torch.int16).cpu().numpy()
        if narrow and routing.sliding_window is None:
            parts[routing.layer] = PartsRead.of(*routing.narrow_reads(head), routing.reading())
        if also is not None:
            also(routing)
        if on_layer is not None:
            groups = seen[routing.layer][1].numpy().argmax(-1)
            families = group_families([_of_head(routing.router.centroids, head)])
            families = np.arange(focus.config.num_groups) if families is None else families[0]
            on_layer(RoutedLayer(routing.layer, len(seen), len(focus.layers), groups, families))

    input_ids = torch.tensor(encoding.input_ids)[None].to(focus.model.device)
    with torch.inference_mode(), focus.observe(record):
        # The logits are not needed; without them a long text costs no (T, vocabulary) array.
        decoded: Any = focus.model.base_model(input_ids=input_ids, use_cache=False)
    if on_states is not None:
        on_states(decoded.last_hidden_state[0].float().cpu().numpy())
    layers = tuple(sorted(seen))
    scores, assignment, *query_weights = (torch.stack(found) for found in zip(*(seen[layer] for layer in layers)))
    windows = dict(zip(focus.layers, focus.sliding_windows))
    config, kind = focus.current.config, ROUTERS[focus.config.router]
    routers = [focus.router(layer) for layer in layers]
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
        head=config.head_of(head),
        query_weights=weights if kind.reads_own_groups else query_weights[0].numpy() if query_weights else None,
        token_bytes=tuple(token_bytes(tokenizer, encoding.input_ids)),
        sliding_windows=tuple(windows[layer] for layer in layers),
        parts=tuple(parts.get(layer) for layer in layers) if narrow else None,
        query_head=query_head if narrow else None,
        potentials=_potentials(routers, head, config) if narrow else None,
        families=group_families([_of_head(router.centroids, head) for router in routers]),
        head_groups=np.stack([head_groups[layer] for layer in layers]),
    )


def _of_head(values: Tensor, head: int) -> np.ndarray:
    """The part of a router's values, (K, ...) or (H, K, ...), that belongs to one head."""
    own = values[head] if values.ndim == 3 else values
    return own.detach().float().cpu().numpy()


def _potentials(routers: list[Router], head: int, config: FocusConfig) -> np.ndarray | None:
    """(L, K) that balance adds to scores / tau; None where it depends on the text."""
    if config.balance == "none":
        return np.zeros((len(routers), config.num_groups), dtype=np.float32)
    if config.balance != "calibrated":
        return None
    return np.stack([router.potential[head].float().cpu().numpy() for router in routers])


def _check_query_head(focus: FocusModel, query_head: int, num_heads: int) -> None:
    sharing = focus.model.config.get_text_config().num_attention_heads // num_heads
    if not 0 <= query_head < sharing:
        raise FocusError(
            f"Query head {query_head} is not there: {sharing} share a key/value head, choose 0 to {sharing - 1}."
        )


def _model_name(focus: FocusModel) -> str:
    """The hub id, or the last part of a folder's path: a trace is shown to others."""
    name = str(getattr(focus.model.config, "_name_or_path", "") or type(focus.model).__name__)
    return Path(name).name if Path(name).exists() else name
