"""Member lists with signs: the same-group pairs by inclusion and exclusion.

Let N(X) be the tokens that are in all groups of a set X. A causal pass over N({c}) for every group c counts a pair once
per shared group. Subtracting N({c, d}) for all pairs of groups, adding triples, and so on, leaves every sharing pair
exactly once. docs/exact-attention.md has the proof.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch import Tensor


class MemberLists(NamedTuple):
    """The lists of one order: tokens in all groups of a set of that many groups.

    Attributes:
        sign: 1 for odd orders (added), -1 for even ones (subtracted).
        tokens: (N,) int64, the lists one after another, each in ascending order.
        lengths: number of tokens of each list; no list is empty.
        disjoint: whether every token is in at most one of the lists.
    """

    sign: int
    tokens: Tensor
    lengths: list[int]
    disjoint: bool


def member_lists(membership: Tensor) -> list[MemberLists]:
    """Signed member lists of every order that occurs, the added ones first.

    Args:
        membership: (T, K) bool, one row of the batch, real tokens only.

    Returns:
        One entry per order 1..(most groups of any token); the number of lists of order m is at most C(K, m).
    """
    total, num_groups = membership.shape
    per_token = membership.sum(1)
    most = int(per_token.max()) if total else 0
    # Group numbers of each token in ascending order, padded with num_groups.
    token, group = membership.nonzero(as_tuple=True)
    place = torch.arange(token.numel(), device=token.device) - (per_token.cumsum(0) - per_token)[token]
    numbers = torch.full((total, most), num_groups, device=membership.device)
    numbers[token, place] = group
    orders = []
    for order in range(1, most + 1):
        chosen = torch.tensor(list(itertools.combinations(range(most), order)), device=membership.device)
        # (T, C): one code per token and combination of its groups; valid if the last number is a group.
        picked = numbers[:, chosen]
        code = torch.zeros_like(picked[..., 0])
        for position in range(order):
            code = code * (num_groups + 1) + picked[..., position]
        token, place = (picked[..., -1] < num_groups).nonzero(as_tuple=True)
        code, rank = code[token, place].sort(stable=True)
        lengths = torch.unique_consecutive(code, return_counts=True)[1].tolist()
        orders.append(MemberLists(1 if order % 2 else -1, token[rank], lengths, len(chosen) == 1))
    return sorted(orders, key=lambda lists: -lists.sign)
