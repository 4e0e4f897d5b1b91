"""The sentences that answer a page's question."""

from __future__ import annotations

import numpy as np
import pandas as pd

from focus_core.analysis import Trace
from workbench.tokens.reads import DROPPED, LOCAL, SAME_GROUP, SINK, PairShares


def layer_verdict(trace: Trace, layer: int, shares: PairShares) -> str:
    """How even the groups of a layer are, and how many distant pairs they keep."""
    num_groups = trace.config.num_groups
    largest = np.bincount(trace.groups[layer], minlength=num_groups).max() / len(trace.tokens)
    start = (
        f"In layer {trace.layers[layer]} the largest of {num_groups} groups holds {largest:.0%} of the "
        "tokens "
        f"(an even split is {1 / num_groups:.1%})"
    )
    if shares.distant_sharing is None:
        return f"{start}; the text is too short to have pairs beyond the window."
    way = "share a group" if trace.reads_own_groups else "are in a group that the later token reads"
    return f"{start}; {shares.distant_sharing:.0%} of the distant pairs {way}."


def token_sentence(codes: np.ndarray, token: int, layer: int, *, chosen: bool = False) -> str:
    """Whom one token reads in a layer.

    Args:
        codes: from `workbench.tokens.reads.relations`.
        token: its index.
        layer: the layer's number in the model.
        chosen: it reads other groups than the one it is in (routers per head).
    """
    local, sink, same, dropped = (int((codes == code).sum()) for code in (LOCAL, SINK, SAME_GROUP, DROPPED))
    if token == 0:
        return "The first token has nothing before it to read."
    before = local + sink + same + dropped
    way = "in groups it reads" if chosen else "by sharing a group"
    return (
        f"In layer {layer} it reads **{local + sink + same:,} of the {before:,}** tokens before it: "
        f"{local:,} in its "
        f"window, {sink:,} sinks, {same:,} {way}; {dropped:,} are dropped."
    )


def repeats_sentence(trace: Trace, layer: int, table: pd.DataFrame) -> str:
    """Whether words that return far apart keep sight of their first mention."""
    window = trace.config.window
    if not len(table):
        return f"No word of four letters or more returns beyond the window of {window} tokens."
    kept = int(table["kept"].to_numpy().sum())
    return (
        f"{len(table)} words return beyond the window of {window} tokens; in layer {trace.layers[layer]} "
        "the last mention "
        f"of **{kept} ({kept / len(table):.0%})** still reads the first. Select a row to see the token."
    )
