"""The sentences of the Explore page."""

from __future__ import annotations

import numpy as np
import pandas as pd

from focus_core.analysis import Trace
from workbench.tokens.reads import BEYOND, DROPPED, LOCAL, SAME_GROUP, SINK, PairShares


def layer_verdict(trace: Trace, layer: int, shares: PairShares) -> str:
    """The share of distant pairs that a layer keeps, then the balance of its groups."""
    num_groups = trace.config.num_groups
    largest = np.bincount(trace.groups[layer], minlength=num_groups).max() / len(trace.tokens)
    balance = (
        f"The largest of {num_groups} groups holds {largest:.0%} of the tokens; an even split is {1 / num_groups:.1%}."
    )
    where = f"In layer {trace.layers[layer]}"
    if shares.distant_sharing is None:
        return f"{where} routing drops nothing: the text is too short to have pairs beyond the window.\n\n{balance}"
    if trace.parts is not None:
        return (
            f"{where} {trace.reader} reads {shares.distant_sharing:.0%} of the distant pairs.\n\n"
            "These keys are in pages of groups that it reads, or just beyond its window; summaries stand for the "
            f"others. Pairs with a sink are not counted. {balance}"
        )
    way = "share a group" if trace.reads_own_groups else "are in a group that the later token reads"
    return (
        f"{where} routing keeps {shares.distant_sharing:.0%} of the distant pairs.\n\n"
        f"These pairs {way}; pairs with a sink are not counted. {balance}"
    )


def token_sentence(codes: np.ndarray, token: int, layer: int, *, chosen: bool = False, narrow: bool = False) -> str:
    """The tokens that one token reads in a layer.

    Args:
        codes: from `workbench.tokens.reads.relations`.
        token: its index.
        layer: the layer's number in the model.
        chosen: it reads other groups than the one it is in (routers per head).
        narrow: it reads pages of narrow groups, and summaries of the others.
    """
    local, sink, same, dropped = (int((codes == code).sum()) for code in (LOCAL, SINK, SAME_GROUP, DROPPED))
    if token == 0:
        return "The first token has nothing before it to read."
    before = local + sink + same + dropped
    way = "in groups it reads" if chosen else "by sharing a group"
    rest = f"The other {dropped:,} are dropped."
    if narrow:
        way, rest = "in pages it reads or just beyond its window", f"Summaries stand for the other {dropped:,}."
    beyond = int((codes == BEYOND).sum())
    own = f" No routing reads {beyond:,} more, beyond the model's own window." if beyond else ""
    return (
        f"In layer {layer} it reads **{local + sink + same:,} of the {before:,}** tokens before it. These are "
        f"{local:,} in its window, {sink:,} sinks and {same:,} {way}. {rest}{own}"
    )


def repeats_sentence(trace: Trace, layer: int, table: pd.DataFrame) -> str:
    """The share of repeated words whose last mention reads the first."""
    window = trace.config.window
    if not len(table):
        return f"No word of four letters or more returns beyond the window of {window} tokens."
    kept = int(table["kept"].to_numpy().sum())
    return (
        f"{len(table)} words return beyond the window of {window} tokens. In layer {trace.layers[layer]} the last "
        f"mention of **{kept} ({kept / len(table):.0%})** reads the first. Select a row to see the token."
    )
