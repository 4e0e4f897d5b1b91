"""The data of a token strip, JSON-ready for its script.

The text is passed as data and drawn with `textContent`, so no part of it is ever read as HTML. The workbench and
notebooks share this data, the script and the style in this folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from focus_core.analysis.display.palette import group_colors, ink
from focus_core.analysis.tokens import group_order, margins, token_text
from focus_core.routing.config import FocusConfig

if TYPE_CHECKING:
    from focus_core.analysis.routed_text import RoutedText

_MAX_LISTED = 4
_FOLDER = Path(__file__).parent


def asset(name: str) -> str:
    """A script or style sheet of this folder, as text."""
    return (_FOLDER / name).read_text(encoding="utf-8")


def token_facts(trace: RoutedText, token_bytes: Sequence[bytes], token: int) -> list[Any]:
    """Facts of a token that hold in every layer: index, text, id, bytes in hex, first and one past last character.

    The text is what a person sees of it; a token without characters has the vocabulary's spelling.

    Args:
        trace: the routing.
        token_bytes: bytes of each token; empty where they are not known.
        token: its index.
    """
    start, end = trace.offsets[token].tolist()
    raw = token_bytes[token].hex(" ") if token_bytes else ""
    return [token, token_text(trace, token), int(trace.input_ids[token]), raw, start, end]


def drawn_groups(config: FocusConfig, row: int) -> int:
    """Groups that colour a token: those it joins; the first one where a plan lets it join none."""
    return max(config.key_top_k_of(row), 1)


def listed_groups(config: FocusConfig, row: int) -> int:
    """Groups that the card of a token lists: those it joins and the runner-up, limited to a few."""
    k = config.key_top_k_of(row)
    return min(config.num_groups, max(k + 1, 2), k + _MAX_LISTED)


def legend(trace: RoutedText, row: int) -> list[dict[str, Any]]:
    """Number, colours and share of tokens of every group of a layer."""
    share = np.bincount(trace.groups[row], minlength=trace.config.num_groups) / len(trace.tokens)
    return [
        {"number": group, "fill": color, "ink": ink(color), "share": float(share[group])}
        for group, color in enumerate(group_colors(trace, row))
    ]


def token_groups(trace: RoutedText, row: int, tokens: Sequence[int] | np.ndarray) -> list[list[Any]]:
    """Routing of tokens in one layer: [[group, weight], ...], the margin or None, and the groups read or None.

    Groups are listed from the largest weight, narrow ones from the best score (`margin_of` says which). Groups that a
    token reads are listed where routers are per head; elsewhere a token reads the groups it is in.
    """
    chosen = np.asarray(tokens, dtype=np.int64)
    order = group_order(trace, row)[chosen, : listed_groups(trace.config, row)]
    weights = np.take_along_axis(trace.assignment[row][chosen], order, axis=1).round(3)
    margin = margins(trace, row)[chosen]
    read = trace.groups_read(row)[chosen] if trace.head is not None else None
    return [
        [
            [[group, round(weight, 3)] for group, weight in zip(groups, weighed)],
            None if np.isinf(rest) else round(float(rest), 4),
            None if read is None else np.flatnonzero(read[place]).tolist(),
        ]
        for place, (groups, weighed, rest) in enumerate(zip(order.tolist(), weights.tolist(), margin))
    ]
