"""The links of one key/value head as masks over all pairs, and attention by them; for texts of some 1,000 tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from focus_core.attention import AttentionOutput
from focus_core.attention.reference import attention_logits
from focus_core.errors import FocusError
from focus_core.routing.narrow.attention import narrow_reads
from focus_core.routing.narrow.directions import key_features, key_spread, query_features
from focus_core.routing.narrow.reading import Reading
from focus_core.routing.rules import AttentionCall

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


ROWS = 64
"""Queries whose means of pages are made at once."""


class Links(NamedTuple):
    """The pairs of the G query heads that share a key/value head.

    Attributes:
        exact: (G, T, T) bool, queries by keys: pairs that are attended exactly.
        summarised: (G, T, T) bool: keys that a query knows through the summary of their page alone.
    """

    exact: Bool[Tensor, "G T T"]
    summarised: Bool[Tensor, "G T T"]


@dataclass(frozen=True, eq=False)
class Site:
    """All that decides the attention of one key/value head over one text.

    Attributes:
        query: (G, T, D), position-encoded.
        key: (T, D), position-encoded.
        value: (T, Dv).
        members: (T, K) bool, the groups that tokens are in.
        readers: (T, K) bool, the groups that tokens read; None where queries choose by summaries.
        own_groups: whether tokens read the groups they are in.
        reading: window, sinks, borders and budget.
        sliding_window: the model's own window, None without.
        scale: factor of the dot products.
        softcap: logits become softcap * tanh(logits / softcap); None without.
    """

    query: Float[Tensor, "G T D"]
    key: Float[Tensor, "T D"]
    value: Float[Tensor, "T Dv"]
    members: Bool[Tensor, "T K"]
    readers: Bool[Tensor, "T K"] | None
    own_groups: bool
    reading: Reading
    sliding_window: int | None
    scale: float
    softcap: float | None

    @classmethod
    def of(cls, call: AttentionCall, head: int) -> Site:
        """One key/value head of a call with one text.

        Raises:
            FocusError: several texts or padding, no such head, or narrow groups in a layer with a window of its own.
        """
        routing = call.routing
        router, heads = routing.router, routing.router.num_heads
        if len(routing.hidden_states) != 1 or bool((call.positions < 0).any()):
            raise FocusError("Interventions take one text at a time, without padding.")
        key_heads = heads if heads > 1 else call.key.shape[1]
        if not 0 <= head < key_heads:
            raise FocusError(f"Key/value head {head} is not there: choose 0 to {key_heads - 1}.")
        if router.from_keys and call.geometry.sliding_window is not None:
            raise FocusError(
                f"Layer {routing.layer} reads its own window of the model whatever the groups: choose another layer."
            )
        row, place = (head, 0) if heads > 1 else (0, head)
        return cls(
            query=call.query[row].unflatten(0, (call.key.shape[1], -1))[place],
            key=call.key[row, place],
            value=call.value[row, place],
            members=call.groups.keys[row],
            readers=None if router.from_keys else call.groups.queries[row],
            own_groups=router.reads_own_groups,
            reading=routing.reading(call.config).of_row(row, call.query.shape[1] // call.key.shape[1]),
            sliding_window=call.geometry.sliding_window,
            scale=call.geometry.scale,
            softcap=call.geometry.softcap,
        )

    @property
    def length(self) -> int:
        """T."""
        return len(self.key)

    def distant(self, queries: Tensor | None = None) -> Bool[Tensor, "Tq T"]:
        """Causal pairs beyond the window whose key is no sink: the pairs that groups decide about.

        Args:
            queries: (Tq,) places of queries; all when None.
        """
        index = torch.arange(self.length, device=self.key.device)
        apart = (index if queries is None else queries)[:, None] - index
        found = (apart > self.reading.window) & (index >= self.reading.sink_tokens)
        return found if self.sliding_window is None else found & (apart < self.sliding_window)

    def links(self, queries: Tensor | None = None) -> Links:
        """The links that routing gives, (G, Tq, T).

        Args:
            queries: (Tq,) places of queries; all when None.
        """
        index = torch.arange(self.length, device=self.key.device)
        asking = index if queries is None else queries
        causal = asking[:, None] >= index
        if self.readers is not None:
            shared = self.readers[asking].float() @ self.members.float().mT > 0
            if self.sliding_window is not None:
                causal = causal & (asking[:, None] - index < self.sliding_window)
            exact = (causal & (shared | ~self.distant(asking))).expand(len(self.query), -1, -1)
            return Links(exact, torch.zeros_like(exact))
        pages, reads = self._pages()
        border = self.reading.borders(asking)
        beyond = (index < border[:, None]) & (index >= self.reading.sink_tokens)
        read = reads[:, asking][:, :, pages]
        return Links(causal & (~beyond | read), beyond & ~read)

    def pages(self) -> Int[Tensor, " T"]:
        """The part of each key that a summary stands for: a page of narrow groups; one for all without summaries."""
        if self.readers is not None:
            return torch.zeros(self.length, dtype=torch.int64, device=self.key.device)
        return self._pages()[0]

    def _pages(self) -> tuple[Tensor, Tensor]:
        groups = self.members.to(torch.int8).argmax(-1)
        parts, reads = narrow_reads(
            self.query[None],
            self.key[None, None],
            groups[None, None],
            self.members.shape[-1],
            self.reading,
            scale=self.scale,
            softcap=self.softcap,
        )
        return parts[0, 0], reads[0]

    def swapped(self, first: int, second: int) -> Site:
        """The site with the groups of two tokens exchanged; queries then choose anew.

        Raises:
            FocusError: no such token.
        """
        check_tokens(self.length, first, second)
        order = torch.arange(self.length, device=self.key.device)
        order[[first, second]] = order[[second, first]]
        members = self.members[order]
        readers = members if self.own_groups else self.readers
        return replace(self, members=members, readers=readers)


def check_tokens(length: int, *tokens: int) -> None:
    """Refuse places that are not in the text.

    Raises:
        FocusError: one of them.
    """
    for token in tokens:
        if not 0 <= token < length:
            raise FocusError(f"There is no token {token}: choose 0 to {length - 1}.")


def link_weights(site: Site, links: Links) -> tuple[Float[Tensor, "G T T"], Float[Tensor, "G T"]]:
    """The weight of every key in the attention of a site, summaries spread over their keys, and the log-sum-exp.

    The summary of n keys has the logit of their mean key plus log n and what their spread adds, and their mean value,
    so that each has 1 / n of its weight. Rows sum to 1. Computes in float32 (float64 for float64 inputs).
    """
    compute = torch.promote_types(site.query.dtype, torch.float32)
    query, key = site.query.to(compute), site.key.to(compute)
    products = attention_logits(query, key, site.scale, None)
    logits = _capped(products, site.softcap).masked_fill(~links.exact, float("-inf"))
    if not bool(links.summarised.any()):
        logsumexp = logits.logsumexp(-1)
        return (logits - logsumexp[..., None]).exp(), logsumexp
    pages = site.pages()
    member = F.one_hot(pages).to(compute)
    known = links.summarised.to(compute)
    counts = known @ member
    sizes = counts.clamp(min=1)
    means = _capped((products * known) @ member / sizes, site.softcap)
    means = means + _beyond_means(site, query, key, known, member)
    summary = (means + sizes.log()).masked_fill(counts == 0, float("-inf"))
    logsumexp = torch.logaddexp(logits.logsumexp(-1), summary.logsumexp(-1))
    share = (summary - logsumexp[..., None]).exp() / sizes
    return (logits - logsumexp[..., None]).exp() + known * share[..., pages], logsumexp


def attend_links(site: Site, links: Links) -> AttentionOutput:
    """Attention of a site under some links: output (G, T, Dv) in the query's dtype and log-sum-exp (G, T)."""
    weights, logsumexp = link_weights(site, links)
    return AttentionOutput((weights @ site.value.to(weights.dtype)).to(site.query.dtype), logsumexp)


def _beyond_means(site: Site, query: Tensor, key: Tensor, known: Tensor, member: Tensor) -> Tensor | float:
    """(G, T, P): what the spread of the keys that a query knows by a summary adds to its logit; 0 without weights.

    Args:
        site: for its reading.
        query: (G, T, D).
        key: (T, D).
        known: (G, T, T), 1 for keys that are summarised.
        member: (T, P), 1 for the page of each key.
    """
    if site.reading.spread is None:
        return 0.0
    found, directions = [], site.reading.directions
    features = key_features(key[None], directions)[0]
    for asking, of_keys in zip(query.split(ROWS, 1), known.split(ROWS, 1)):
        # An intervention may give every query other keys of a page, so each has means of its own.
        counts = of_keys @ member
        means = torch.einsum("grt,tp,td->grpd", of_keys, member, key) / counts.clamp(min=1)[..., None]
        sums = torch.einsum("grt,tp,tf->grpf", of_keys, member, features)
        spread = key_spread(counts, sums, means, directions)
        of_query = query_features(asking[None], directions, site.scale)[0]
        found.append(site.reading.beyond_mean((spread @ of_query[..., None])[..., 0]))
    return torch.cat(found, 1)


def _capped(logits: Tensor, softcap: float | None) -> Tensor:
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)
