"""View models and sentences of the Compare page."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from focus_core.analysis import Trace
from focus_core.analysis.statistics.matching import WithinText, match_groups, matched_share, overlap, renumbered
from focus_core.analysis.tokens import context, margins, token_text
from workbench.engine.plans import share_name
from workbench.engine.service import Analysis
from workbench.tokens.reads import pair_shares

FEW_TOKENS = 100
"""Below this many tokens no agreement is claimed."""


@dataclass(frozen=True)
class Side:
    """One of the two compared routings.

    Attributes:
        analysis: the routing of its text.
        row: row of the traced layers that is compared.
    """

    analysis: Analysis
    row: int

    @property
    def trace(self) -> Trace:
        """Its trace."""
        return self.analysis.trace

    @property
    def layer(self) -> int:
        """Its layer's number in the model."""
        return self.trace.layers[self.row]


def same_tokens(first: Side, second: Side) -> bool:
    """Whether both sides route the same tokens, so that tokens can be compared one by one."""
    return np.array_equal(first.trace.input_ids, second.trace.input_ids)


def origin(first: Side, second: Side) -> dict[str, Any]:
    """A's origin, and B's under names that start with b_."""
    both = {**first.analysis.origin, "compared_layer": first.layer}
    other = {**second.analysis.origin, "compared_layer": second.layer}
    return both | {f"b_{name}": value for name, value in other.items()}


def side_table(first: Side, second: Side) -> pd.DataFrame:
    """One row per property, columns A and B: settings, group sizes and kept share."""
    columns = {}
    narrow = {side.trace.parts is not None for side in (first, second)}
    what, way = "of which a token joins k", "that share a group"
    if narrow == {True}:
        what, way = "and what a token reads", "that are read"
    elif narrow == {True, False}:
        what, way = "and what a token joins or reads", "that are kept"
    for name, side in (("A", first), ("B", second)):
        trace, config = side.trace, side.trace.config
        counts = np.bincount(trace.groups[side.row], minlength=config.num_groups)
        shares = pair_shares(trace, side.row)
        kept = 1 - shares.dropped
        sharing = shares.distant_sharing
        columns[name] = {
            "text": side.analysis.text_name,
            "tokens": f"{len(trace.tokens):,}",
            "routers": trace.provenance.routers if trace.provenance.trained else "untrained",
            "layer": str(side.layer),
            f"groups K, {what}": _groups_of(side),
            **({"head": trace.reader or ("all" if trace.head is None else str(trace.head))} if True in narrow else {}),
            "window, sinks": f"{config.window}, {config.sink_tokens}",
            "largest group": f"{counts.max() / counts.sum():.1%}",
            "smallest group": f"{counts.min() / counts.sum():.1%}",
            "kept share of causal pairs": f"{kept:.1%}",
            "bound on the speed-up, 1 / kept": f"{1 / kept:.2f}×",
            f"distant pairs {way}": "none distant" if sharing is None else f"{sharing:.1%}",
        }
    return pd.DataFrame(columns).rename_axis("property").reset_index()


def _groups_of(side: Side) -> str:
    config = side.trace.config
    if side.trace.query_head is not None:
        budget = f"k = {config.top_k_of(side.row)}"
        if config.read_share is not None:
            budget = f"budget {share_name(config.read_share)}"
        return f"{config.num_groups}, {budget}"
    text = f"{config.num_groups}, {config.key_top_k_of(side.row)}"
    return text if side.trace.head is None else f"{text} (reads {config.top_k_of(side.row)}; head {side.trace.head})"


def matched(first: Side, second: Side) -> tuple[np.ndarray, np.ndarray, Trace]:
    """Pair the groups of B with those of A on the same tokens.

    Returns:
        (K_A, K_B) counts with B's groups in the order of their partners, (K_B,) B's number of each column, and B's
        layer with its groups under A's numbers, in A's colours.
    """
    counts = overlap(first.trace, first.row, second.trace, second.row)
    partner = match_groups(counts)
    columns = np.argsort(partner)
    return counts[:, columns], columns, _in_colors_of(first, renumbered(second.trace, second.row, partner))


def _in_colors_of(first: Side, second: Trace) -> Trace:
    """B's layer under A's numbers, with the families of A's groups, which give colours; B's own beyond A's numbers."""
    ours, theirs = first.trace.families, second.families
    if ours is None and theirs is None:  # then a number has a colour of its own
        return second
    count, most = first.trace.config.num_groups, second.config.num_groups
    families = np.arange(most) if theirs is None else theirs[0].copy()
    families[:count] = (np.arange(count) if ours is None else ours[first.row])[:most]
    return dataclasses.replace(second, families=families[None])


def overlap_table(counts: np.ndarray, columns: np.ndarray) -> pd.DataFrame:
    """One row per pair of groups: tokens in both, and the share of A's group."""
    first, second = np.indices(counts.shape).reshape(2, -1)
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return pd.DataFrame(
        {
            "group of A": first,
            "group of B": columns[second],
            "tokens": counts.ravel(),
            "share of A's group": share.ravel(),
            "matched": first == second,
        }
    )


def differing(first: Side, second: Trace) -> np.ndarray:
    """(n,) tokens whose matched first group differs, the least alike first; with narrow groups the clearest in A first.

    Args:
        first: A.
        second: B's layer under A's numbers, from `matched`.
    """
    moved = np.flatnonzero(first.trace.groups[first.row] != second.groups[0])
    if by_margin(first, second):
        return moved[np.argsort(-margins(first.trace, first.row)[moved], kind="stable")]
    return moved[np.argsort(_affinity(first, second, moved), kind="stable")]


def by_margin(first: Side, second: Trace) -> bool:
    """Whether a side has narrow groups, whose weights decide nothing: tokens are then compared by their margins."""
    return first.trace.parts is not None or second.parts is not None


def _affinity(first: Side, second: Trace, tokens: np.ndarray) -> np.ndarray:
    ours, theirs = first.trace.assignment[first.row, tokens], second.assignment[0, tokens]
    width = min(ours.shape[1], theirs.shape[1])
    return (ours[:, :width] * theirs[:, :width]).sum(1)


DIFFERING_COLUMNS = {
    "token": ("token", 56),
    "text": ("text", 62),
    "in context": ("in context", 220),
    "group in A": ("group in A", 112),
    "group in B": ("group in B", 112),
}
"""Header and width in pixels of the columns of a `differing_table`, but for how sure A and B are."""
SURE_COLUMNS = {"affinity": ("affinity", 66), "margin in A": ("sure in A", 68), "margin in B": ("sure in B", 68)}
"""Of those columns; a table has the first of them or the others."""


def differing_table(first: Side, second: Trace, moved: np.ndarray) -> pd.DataFrame:
    """One row per token that differs.

    Args:
        first: A.
        second: B's layer under A's numbers, from `matched`.
        moved: the tokens, from `differing`.

    Returns:
        Columns token, text, in context, group in A, group in B (A's numbers), affinity: the dot product of the two
        soft assignments, 1 if both are sure of the same group. Where `by_margin`, the margins in A and in B instead.
    """
    here, there = first.trace.groups[first.row], second.groups[0]
    return pd.DataFrame(
        {
            "token": moved,
            "text": [token_text(first.trace, int(i)) for i in moved],
            "in context": [context(first.trace, int(i)) for i in moved],
            "group in A": here[moved],
            "group in B": there[moved],
            **_certainty(first, second, moved),
        }
    )


def _certainty(first: Side, second: Trace, moved: np.ndarray) -> dict[str, np.ndarray]:
    if not by_margin(first, second):
        return {"affinity": _affinity(first, second, moved)}
    here, there = margins(first.trace, first.row)[moved], margins(second, 0)[moved]
    return {"margin in A": here, "margin in B": there}


def same_text_verdict(counts: np.ndarray, agreement: WithinText) -> str:
    """The agreement of A and B on the same tokens, then its interval."""
    total = int(counts.sum())
    share = matched_share(counts)
    if total < FEW_TOKENS:
        return (
            f"Too short to tell: so few tokens match by chance alone.\n\n{share:.0%} of the tokens are in matched "
            f"groups ({total} in all). Take a text of {FEW_TOKENS} tokens or more."
        )
    low, high = agreement.interval
    score = agreement.ami
    if score > 0.999:
        words = "A and B form the same groups"
    elif low <= 0:
        words = "A and B agree no more than chance would"
    else:
        words = "A and B agree " + ("closely" if score > 0.7 else "in part" if score > 0.3 else "only a little")
    return (
        f"{words}: AMI {score:.2f}.\n\nThe 95% interval within this text is {low:.2f} to {high:.2f} (0: chance, 1: the "
        f"same groups). {share:.0%} of the tokens are in matched groups."
    )


def different_texts_verdict(first: Side, second: Side) -> str:
    """The kept share of both, then their largest groups."""
    kept, largest = [], []
    for name, side in (("A", first), ("B", second)):
        counts = np.bincount(side.trace.groups[side.row], minlength=side.trace.config.num_groups)
        kept.append(f"{name} keeps {1 - pair_shares(side.trace, side.row).dropped:.0%} of its causal pairs")
        largest.append(f"{counts.max() / counts.sum():.0%} of the tokens in {name}")
    return f"{'; '.join(kept)}.\n\nThe largest group holds {' and '.join(largest)}."
