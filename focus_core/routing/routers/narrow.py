"""Many narrow groups per key/value head, of keys before position encoding; queries choose by running means.

Nothing of a query is stored: it ranks groups by the mean keys of the text so far (docs/method.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from focus_core.errors import FocusError
from focus_core.routing.narrow.directions import Directions
from focus_core.routing.routers.base import Router

if TYPE_CHECKING:
    from jaxtyping import Float

MEANS = (0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0)
"""Mean shares of pairs for which the thresholds of heads are stored."""
ALL = -1e4
"""Log of an error that every summary is above, even in float32."""
NOTHING, EVERYTHING, UNFITTED = 12.0, -20.0, -4.6
"""Logs of errors: one that no summary is above, one that nearly every summary is above, and 1%."""


class NarrowRouter(Router):
    """Scores keys against the centroids (H, K, D) of every key/value head; `fit_narrow` sets them.

    A model with L layers has L H K (D + 1) values, L Hq M more with thresholds, A times as many with A `shares_at`,
    L Hq with weights of spread, and L H D r with r directions of it.

    Attributes:
        thresholds: (M, Hq), the log of the error of a summary above which each query head reads the page, for each of
            the `MEANS`, or (A, M, Hq) with A `shares_at`; None without reading by error.
        spread: (Hq,), the weight of the spread of keys in each query head; None without it.
        directions: (H, D, r), in which spread is told apart; None where it counts as alike in all.
    """

    thresholds: Tensor | None
    spread: Tensor | None
    directions: Tensor | None

    reads_own_groups: ClassVar[bool] = False
    per_head: ClassVar[bool] = True
    from_keys: ClassVar[bool] = True
    trained_by_gate: ClassVar[bool] = False
    stored_dtype: ClassVar[torch.dtype] = torch.float16
    label: ClassVar[str] = "per head, narrow groups with summaries"

    def __init__(
        self,
        hidden_size: int,
        num_kv_heads: int,
        *,
        num_heads: int = 0,
        by_error: bool = False,
        by_spread: bool = False,
        directions: int = 0,
        shares_at: tuple[int, ...] = (),
        **settings: Any,
    ) -> None:
        super().__init__(hidden_size, num_kv_heads, **settings)
        shape = (len(shares_at),) if shares_at else ()
        errors = [NOTHING, *[UNFITTED] * (len(MEANS) - 2), EVERYTHING]
        same = torch.tensor(errors)[:, None].repeat(*shape, 1, num_heads)
        self.register_buffer("thresholds", same if by_error else None)
        self.register_buffer("spread", torch.zeros(num_heads) if by_spread else None)
        if directions > hidden_size:
            raise FocusError(f"spread_directions is {directions}: keys of this model have {hidden_size} components.")
        first = torch.eye(hidden_size, directions).expand(num_kv_heads, -1, -1).clone()
        self.register_buffer("directions", first if directions else None)
        self._spanned: tuple[tuple[int, int], Directions] | None = None
        self._asked: dict[str, tuple[tuple[float, int, int], tuple[float, ...]]] = {}

    def head_thresholds(self, mean: float) -> tuple[float, ...]:
        """See `Router.head_thresholds`; between two of the `MEANS` on the line through both."""
        if self.thresholds is None:
            return super().head_thresholds(mean)
        if mean >= 1:
            return (ALL,) * (self.thresholds.numel() // len(MEANS))
        return self._remembered("thresholds", self.thresholds, mean)

    def spread_weights(self) -> tuple[float, ...]:
        """See `Router.spread_weights`."""
        return super().spread_weights() if self.spread is None else self._remembered("spread", self.spread, 0.0)

    def directions_of_spread(self, count: int) -> Directions:
        """See `Router.directions_of_spread`; one object until they change, since settings are compared by it."""
        if self.directions is None or self.directions.shape[-1] != count:
            return super().directions_of_spread(count)
        key = self.directions._version, self.directions.data_ptr()
        if self._spanned is None or self._spanned[0] != key:
            self._spanned = key, Directions.spanning(self.directions)
        return self._spanned[1]

    def _remembered(self, name: str, buffer: Tensor, mean: float) -> tuple[float, ...]:
        """The numbers of a buffer: every decoded token asks in every layer, and they hardly ever change."""
        key = mean, buffer._version, buffer.data_ptr()
        if name not in self._asked or self._asked[name][0] != key:
            numbers = tuple((buffer.float() if name == "spread" else self._interpolated(buffer, mean)).tolist())
            self._asked[name] = key, numbers
        return self._asked[name][1]

    @staticmethod
    def _interpolated(buffer: Tensor, mean: float) -> Tensor:
        """(A Hq,): those of A numbers of keys one after another."""
        above = next(place for place, each in enumerate(MEANS) if each >= mean)
        below = max(0, above - 1)
        along = (mean - MEANS[below]) / (MEANS[above] - MEANS[below]) if above else 0.0
        first, last = buffer[..., below, :].double(), buffer[..., above, :].double()
        return ((1 - along) * first + along * last).flatten()

    def keep_heads(self, first: int, count: int) -> None:
        """See `Router.keep_heads`; thresholds and weights are of the query heads of these heads."""
        for name in ("thresholds", "spread"):
            values = getattr(self, name)
            if values is not None:
                kept = values.unflatten(-1, (self.num_heads, -1))[..., first : first + count, :]
                setattr(self, name, kept.flatten(-2).clone())
        if self.directions is not None:
            self.directions = self.directions[first : first + count].clone()
        super().keep_heads(first, count)

    def forward(self, hidden_states: Float[Tensor, "B H T D"]) -> Float[Tensor, "N T K"]:
        """Scores of keys before position encoding, float32: cosines, or "dot" for the nearest centroid.

        Args:
            hidden_states: the keys, not the states that they are made of.
        """
        key, centroids = hidden_states.float(), self.centroids.float()
        if self.cosine:
            return (F.normalize(key, dim=-1) @ F.normalize(centroids, dim=-1).mT).flatten(0, 1)
        return (key @ centroids.mT - centroids.square().sum(-1)[:, None] / 2).flatten(0, 1)

    def read(
        self, hidden_states: Float[Tensor, "B T d"], key_weights: Float[Tensor, "N T K"], temperature: float
    ) -> Float[Tensor, "N T K"]:
        """Refused: no weights of queries exist."""
        raise FocusError(
            "Queries of narrow groups choose by the text before them, not by weights of their own: "
            "use routers of another kind for what shows those weights."
        )
