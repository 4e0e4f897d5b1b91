"""Edits of links: knock out keys, cut links, force keys, restore one link; and the groups of two tokens swapped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from focus_core.analysis.interventions.links import Links, Site, check_tokens
from focus_core.errors import FocusError

Edit = Callable[[Site, Links], Links]
"""Gives other links for a site. Only distant links change: the window and sinks are never edited."""


@dataclass(frozen=True)
class Intervention:
    """Changes of one key/value head in one layer, in their order: groups first, then links.

    Attributes:
        swaps: pairs of tokens that exchange their groups.
        edits: of the links that follow from the groups.
    """

    swaps: tuple[tuple[int, int], ...] = ()
    edits: tuple[Edit, ...] = ()

    def apply(self, site: Site) -> tuple[Site, Links]:
        """The site and its links under this intervention.

        Raises:
            FocusError: a token that is not in the text.
        """
        for first, second in self.swaps:
            site = site.swapped(first, second)
        links = site.links()
        for edit in self.edits:
            links = edit(site, links)
        return site, links


def knock_out(keys: np.ndarray | Sequence[int]) -> Edit:
    """No query beyond the window attends to these keys any more, neither exactly nor by a summary.

    All other links stay as they were: queries do not spend the freed budget. A page that loses some of its keys is
    summarised by the others.

    Args:
        keys: places of tokens; sinks among them stay.
    """
    chosen = _places(keys)

    def edit(site: Site, links: Links) -> Links:
        gone = site.distant() & _marked(site, chosen)
        return Links(links.exact & ~gone, links.summarised & ~gone)

    return edit


def cut(pairs: np.ndarray) -> Edit:
    """Remove single links.

    Args:
        pairs: (n, 3) int64: query head of the key/value head, query, key; pairs in the window stay.
    """
    chosen = np.asarray(pairs, dtype=np.int64).reshape(-1, 3)

    def edit(site: Site, links: Links) -> Links:
        gone = torch.zeros_like(links.exact)
        gone[tuple(torch.from_numpy(column) for column in chosen.T)] = True
        gone &= site.distant()
        return Links(links.exact & ~gone, links.summarised & ~gone)

    return edit


def force(keys: np.ndarray | Sequence[int]) -> Edit:
    """Every query beyond the window attends to these keys exactly, beside what it reads anyway.

    Args:
        keys: places of tokens.
    """
    chosen = _places(keys)

    def edit(site: Site, links: Links) -> Links:
        more = site.distant() & _marked(site, chosen)
        return Links(links.exact | more, links.summarised & ~more)

    return edit


def restore(query: int, key: int) -> Edit:
    """One query attends to one key exactly, in all query heads; after a `knock_out`, it gives one link back.

    Raises:
        FocusError: when applied, if the pair is no distant one.
    """

    def edit(site: Site, links: Links) -> Links:
        check_tokens(site.length, query, key)
        if not bool(site.distant()[query, key]):
            raise FocusError(
                f"Token {query} has no distant link to token {key}: choose a key that is more than "
                f"{site.reading.window} tokens before it and no sink."
            )
        exact, summarised = links.exact.clone(), links.summarised.clone()
        exact[:, query, key], summarised[:, query, key] = True, False
        return Links(exact, summarised)

    return edit


def _places(keys: np.ndarray | Sequence[int]) -> np.ndarray:
    return np.asarray(keys, dtype=np.int64).reshape(-1)


def _marked(site: Site, keys: np.ndarray) -> torch.Tensor:
    check_tokens(site.length, *keys.tolist())
    marked = torch.zeros(site.length, dtype=torch.bool)
    marked[torch.from_numpy(keys)] = True
    return marked.to(site.key.device)
