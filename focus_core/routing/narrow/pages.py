"""Pages: the members of a narrow group in the order of their arrival, a few to a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Int


class Pages(NamedTuple):
    """A finer partition of the keys: each part is a page of one group.

    Attributes:
        of: (B, Hkv, T) int64, the page of each key. Pages of a group follow one another, the oldest first.
        total: number of pages, the largest over texts and heads.
    """

    of: Int[Tensor, "B Hkv T"]
    total: int


def pages(groups: Int[Tensor, "B Hkv T"], num_groups: int, size: int | None, first: int = 0) -> Pages:
    """Cut each group into pages of `size` keys, in O(T log T).

    A key's page depends on the keys before it alone, so later tokens never move it. The last page of a group holds as
    many keys as have arrived.

    Args:
        groups: of each key, 0 to K - 1.
        num_groups: K.
        size: keys of a page; None for whole groups.
        first: keys before this place fill no page.
    """
    if size is None or groups.shape[-1] <= first:
        return Pages(groups, num_groups)
    counted = groups[..., first:].long()
    order = counted.argsort(dim=-1, stable=True)
    sizes = torch.zeros(*counted.shape[:2], num_groups, dtype=torch.long, device=groups.device)
    sizes.scatter_add_(-1, counted, torch.ones_like(counted))
    starts = sizes.cumsum(-1) - sizes
    in_pages = (sizes + size - 1) // size
    earlier = in_pages.cumsum(-1) - in_pages
    place = torch.arange(counted.shape[-1], device=groups.device).expand_as(counted)
    rank = torch.empty_like(counted).scatter_(-1, order, place) - starts.gather(-1, counted)
    found = earlier.gather(-1, counted) + rank // size
    # Sinks belong to no summary; any page will do.
    return Pages(torch.cat([torch.zeros_like(groups[..., :first]).long(), found], -1), int(in_pages.sum(-1).max()))
