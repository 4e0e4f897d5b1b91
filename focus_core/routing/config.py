"""`FocusConfig`: every setting of a retrofitted model, validated and JSON round-tripped."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from focus_core.errors import FocusError
from focus_core.io.files import to_json
from focus_core.io.reading import parse_json
from focus_core.io.schema import Wrong, array, flag, maybe, number, table, text, whole
from focus_core.routing.balance import BALANCES
from focus_core.routing.gate import GATES
from focus_core.routing.routers import ROUTERS, SCORES, Router

MOST_GROUPS, MOST_LAYERS, MOST_TOKENS, MOST_DIRECTIONS = 4096, 10_000, 2**31 - 1, 16
"""Largest settings that are accepted: far beyond any model, and small enough for every computation with them."""

RANGES = table(
    {
        "router": text(ROUTERS),
        "num_groups": whole(2, MOST_GROUPS),
        "top_k": whole(1, MOST_GROUPS),
        "window": whole(0, MOST_TOKENS),
        "sink_tokens": whole(0, MOST_TOKENS),
        "route_dim": whole(1, MOST_GROUPS),
        "score": text(SCORES),
        "temperature": number(1e-6, 1e6),
        "sinkhorn_rounds": whole(1, 100_000),
        "gate": text(GATES),
        "gate_sharpness": number(1e-6, 1e6),
        "gate_threshold": number(-1e6, 1e6),
        "balance": text(BALANCES),
        "layers": maybe(array(whole(0, MOST_LAYERS), longest=MOST_LAYERS)),
        "layer_top_k": maybe(array(whole(0, MOST_GROUPS), longest=MOST_LAYERS)),
        "chunk": whole(1, MOST_TOKENS),
        "read_share": maybe(number(0, 1)),
        "count_weight": number(-1e6, 1e6),
        "page_size": maybe(whole(1, MOST_TOKENS)),
        "by_error": flag,
        "shares_at": array(whole(0, MOST_TOKENS), longest=MOST_GROUPS),
        "count_spread": flag,
        "spread_directions": whole(0, MOST_DIRECTIONS),
        "full_below": whole(0, MOST_TOKENS),
        "cache_bits": maybe(whole(8, 8)),
    }
)
"""The range of every setting, by its name."""

OF_NARROW = (
    ("read_share", "set top_k"),
    *(
        (name, "leave it out")
        for name in ("by_error", "shares_at", "count_spread", "spread_directions", "full_below", "cache_bits")
    ),
)
"""Settings of narrow groups alone, and what to do about them with other routers."""

RETIRED = "shares_by_need"
"""A setting of earlier versions, which files still have; False changes nothing."""


@dataclass(frozen=True)
class FocusConfig:
    """Settings of the routers and of the attention pattern they produce.

    Defaults are the recipe that trained the shipped routers. `FocusConfig.paper` gives the published one
    (arXiv 2604.03260); where the two differ, docs/method.md says why.

    Attributes:
        router: "layer", "head" or "narrow". "layer", as published: one set of groups for all heads of a layer, and a
            token reads the groups it is in. "head": one set per key/value head; a token is in one group as a key, and
            chooses k groups as a query. "narrow": many groups per key/value head, of keys before position encoding; a
            query chooses by the running mean keys of groups, and summaries stand for the others.
        num_groups: K, groups per layer, or per key/value head; at least 2.
        top_k: k, groups each token joins in hard routing, or reads where routers are per head, 1..K.
        window: w, a pair (i, j) with 0 <= i - j <= w is local: always attended, never gated.
        sink_tokens: number of tokens at the start of a text that are in every group; the paper has none.
        route_dim: d_g, width of the routing space.
        score: "cosine" (normalised hidden states and centroids, scores in [-1, 1]) or "dot" (as published, eq. 1).
        temperature: tau of the softmax over groups and of Sinkhorn.
        sinkhorn_rounds: N, column and row normalisations.
        gate: training gate, "log" or "paper" (eq. 2).
        gate_sharpness: lambda of the gate.
        gate_threshold: theta of the log gate, the affinity at which a pair is half open.
        balance: "calibrated" (causal: frozen column potentials), "sequence" (as published, sees the whole text)
            or "none" (softmax of the scores).
        layers: decoder layers that get a router, None for all.
        layer_top_k: k of each routed layer in their order, in place of `top_k`; None for one k everywhere. 0 leaves
            local pairs and sinks, K is full attention. `focus plan` chooses it; a `top_k` for one call replaces it.
        chunk: C, tokens between the borders at which narrow groups are summed.
        read_share: share of its distant keys that a query reads in narrow groups, in place of k groups; None for k. A
            `top_k` for one call replaces it.
        count_weight: weight of the log of a narrow group's size in its score; see docs/method.md.
        page_size: P, keys of a page of a narrow group; with a `read_share` queries read pages. None for whole groups.
        by_error: each query head reads the pages whose summaries are likely to err by more than a threshold of its own,
            as `focus fit` measured; `read_share` is then the share of the pairs of texts as long as those it measured.
        shares_at: with `by_error`, rising numbers of keys beyond the window for which the thresholds of heads are
            stored; between two of them they lie on the line through both. Empty where they hold for all.
        count_spread: summaries of narrow groups count how far their keys are spread about the mean, with a weight for
            each query head that `focus fit` found.
        spread_directions: r, directions in which the spread of the keys of narrow groups is told apart; `focus fit`
            finds them for each key/value head. 0 where it counts as alike in all.
        full_below: with narrow groups, tokens at earlier places attend to everything. Below some length this is faster:
            `focus_core.crossover` measures it.
        cache_bits: 8 keeps the distant keys and values of narrow groups in 8 bits in the cache, which then takes less
            memory; tokens that follow read them so. None for as they are.
    """

    router: str = "layer"
    num_groups: int = 8
    top_k: int = 2
    window: int = 64
    sink_tokens: int = 4
    route_dim: int = 16
    score: str = "cosine"
    temperature: float = 0.1
    sinkhorn_rounds: int = 30
    gate: str = "log"
    gate_sharpness: float = 10.0
    gate_threshold: float = 0.5
    balance: str = "calibrated"
    layers: tuple[int, ...] | None = None
    layer_top_k: tuple[int, ...] | None = None
    chunk: int = 64
    read_share: float | None = None
    count_weight: float = 0.0
    page_size: int | None = 16
    by_error: bool = False
    shares_at: tuple[int, ...] = ()
    count_spread: bool = False
    spread_directions: int = 0
    full_below: int = 0
    cache_bits: int | None = None

    def __post_init__(self) -> None:
        for name in ("layers", "layer_top_k", "shares_at"):
            value = getattr(self, name)
            if isinstance(value, Iterable) and not isinstance(value, (str, dict)):
                object.__setattr__(self, name, tuple(value))
        try:
            RANGES({field.name: getattr(self, field.name) for field in dataclasses.fields(self)}, "")
        except Wrong as error:
            raise FocusError(f"{error}.") from error
        if self.layers is not None:
            object.__setattr__(self, "layers", tuple(sorted(set(self.layers))))
        if self.top_k > self.num_groups:
            raise FocusError(
                f"top_k is {self.top_k} with num_groups {self.num_groups}: choose a top_k from 1 to {self.num_groups}."
            )
        wrong = [top_k for top_k in self.layer_top_k or () if top_k > self.num_groups]
        if wrong:
            raise FocusError(f"layer_top_k holds {wrong[0]}: every layer takes 0 to {self.num_groups} groups a token.")
        if list(self.shares_at) != sorted(set(self.shares_at)):
            raise FocusError(f"shares_at is {list(self.shares_at)}: give rising numbers of keys.")
        for name, remedy in () if ROUTERS[self.router].from_keys else OF_NARROW:
            if getattr(self, name) != getattr(type(self), name):
                raise FocusError(f"{name} needs router='narrow', and this is router={self.router!r}: {remedy}.")

    @classmethod
    def paper(cls, **changes: Any) -> FocusConfig:
        """The recipe of arXiv 2604.03260: dot-product scores, printed gate, sequence Sinkhorn, no sinks."""
        published: dict[str, Any] = {
            "num_groups": 4,
            "top_k": 2,
            "window": 128,
            "sink_tokens": 0,
            "score": "dot",
            "sinkhorn_rounds": 10,
            "gate": "paper",
            "balance": "sequence",
        }
        return cls(**{**published, **changes})

    def replace(self, **changes: Any) -> FocusConfig:
        """A copy with some settings changed, validated like any other; a `top_k` alone is the budget of all layers."""
        names = [field.name for field in dataclasses.fields(self)]
        if unknown := [name for name in changes if name not in names]:
            raise FocusError(f"{unknown[0]} is no setting of FocusConfig: choose one of {', '.join(names)}.")
        if "top_k" in changes:
            changes = {"layer_top_k": None, "read_share": None, **changes}
        return dataclasses.replace(self, **changes)

    def changes_from(self, other: FocusConfig) -> dict[str, Any]:
        """Settings for which `other.replace` gives these."""
        changes = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        changes = {name: value for name, value in changes.items() if value != getattr(other, name)}
        kept = {"layer_top_k": self.layer_top_k, "read_share": self.read_share} if "top_k" in changes else {}
        return kept | changes

    @property
    def one_top_k(self) -> int | None:
        """k where it alone is the budget of every layer; None with a plan, or a share of the pairs."""
        return self.top_k if self.layer_top_k is None and self.read_share is None else None

    @property
    def budget(self) -> str:
        """The budget in force, for tables: "k=2", "budget 15%" or "as planned"."""
        if self.read_share is not None:
            start = f" from token {self.full_below:,} on" if self.full_below else ""
            return f"budget {100 * self.read_share:g}%{start}"
        return "as planned" if self.layer_top_k is not None else f"k={self.top_k}"

    def top_k_of(self, place: int) -> int:
        """k of one layer, `place` counting the routed ones; 0 leaves local pairs and sinks."""
        return self.top_k if self.layer_top_k is None else self.layer_top_k[place]

    def key_top_k_of(self, place: int) -> int:
        """Groups that a token is in, in one layer: k where it reads the groups it is in, else one."""
        return ROUTERS[self.router].key_top_k(self.top_k_of(place))

    def head_of(self, head: int) -> int | None:
        """The head that a record of one head names; None where all heads of a layer share the groups."""
        return head if ROUTERS[self.router].per_head else None

    def new_router(
        self, hidden_size: int, num_kv_heads: int, generator: torch.Generator, num_heads: int | None = None
    ) -> Router:
        """An untrained router of this kind for one layer.

        Args:
            hidden_size: d, width of the hidden states that enter the attention block; of a key where `from_keys`.
            num_kv_heads: key/value heads of the layer.
            generator: source of the initial values (CPU).
            num_heads: query heads of the layer; needed with `by_error`, `count_spread` or `spread_directions`.
        """
        own: dict[str, Any] = {}
        if self.by_error or self.count_spread or self.spread_directions:
            own = {"num_heads": num_heads, "by_spread": self.count_spread, "directions": self.spread_directions}
            own |= {"by_error": self.by_error, "shares_at": self.shares_at}
        return ROUTERS[self.router](
            hidden_size,
            num_kv_heads,
            num_groups=self.num_groups,
            route_dim=self.route_dim,
            score=self.score,
            generator=generator,
            **own,
        )

    def to_json(self) -> str:
        """The settings as a JSON object, keys in the order of the attributes."""
        return to_json(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, content: str) -> FocusConfig:
        """Settings from the JSON of `to_json`.

        Raises:
            FocusError: not JSON, an unknown setting, or a value out of range.
        """
        return cls.from_values(parse_json(content, "The router configuration"), "The router configuration")

    @classmethod
    def from_values(cls, values: Any, name: str) -> FocusConfig:
        """Settings from a JSON object of a file.

        Args:
            values: the object.
            name: of the file, in errors.

        Raises:
            FocusError: no object, an unknown setting, or a value out of range.
        """
        if isinstance(values, dict) and RETIRED in values:
            if values[RETIRED]:
                raise FocusError(
                    f"{name} is of an earlier version ({RETIRED}): fit these routers again with focus fit."
                )
            values = {key: value for key, value in values.items() if key != RETIRED}
        known = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(values, dict) or not set(values) <= known:
            unknown = sorted(set(values) - known) if isinstance(values, dict) else [type(values).__name__]
            raise FocusError(f"{name} has settings this version does not know: {', '.join(unknown)[:80]}.")
        try:
            return cls(**values)
        except FocusError as error:
            raise FocusError(f"{name} is damaged: {error}") from error
