"""View models and sentences of the Layers page."""

from __future__ import annotations

import numpy as np
import pandas as pd

from focus_core.analysis import Trace
from focus_core.analysis.persistence import Churn
from focus_core.analysis.statistics.matching import match_groups, overlap
from focus_core.analysis.tokens import context, token_text
from workbench.widgets.page.markup import counted

FEW_TOKENS = 100
"""Below this many tokens agreement of layers is noise, and the page claims none."""


def agreement_table(trace: Trace, agreement: np.ndarray) -> pd.DataFrame:
    """One row per pair of layers: columns layer, other layer, AMI."""
    first, second = np.triu_indices(len(agreement), 1)
    layers = np.asarray(trace.layers)
    return pd.DataFrame({"layer": layers[first], "other layer": layers[second], "AMI": agreement[first, second]})


def flow(trace: Trace, row: int, other: int) -> tuple[np.ndarray, np.ndarray]:
    """How the groups of one layer spread over those of another.

    Returns:
        (K, K) counts, rows the groups of `row`, columns those of `other` in the order of their partners; and the
        (K,) group number behind each column.
    """
    counts = overlap(trace, row, trace, other)
    columns = np.argsort(match_groups(counts))
    return counts[:, columns], columns


def flow_table(trace: Trace, row: int, other: int) -> pd.DataFrame:
    """One row per pair of groups of two layers: tokens, share of the first layer's group, and whether they match."""
    counts, columns = flow(trace, row, other)
    first, second = np.indices(counts.shape).reshape(2, -1)
    return pd.DataFrame(
        {
            "layer": trace.layers[row],
            "group": first,
            "other layer": trace.layers[other],
            "other group": columns[second],
            "tokens": counts.ravel(),
            "share of group": (counts / np.maximum(counts.sum(1, keepdims=True), 1)).ravel(),
            "matched": first == second,
        }
    )


def step_table(trace: Trace, churn: Churn, agreement: np.ndarray) -> pd.DataFrame:
    """One row per step between neighbouring layers: share of tokens that change, by chance, and AMI."""
    return pd.DataFrame(
        {
            "from layer": trace.layers[:-1],
            "to layer": trace.layers[1:],
            "tokens that change": churn.of_steps,
            "by chance": churn.by_chance,
            "AMI": np.diagonal(agreement, 1),
        }
    )


def churn_order(churn: Churn) -> np.ndarray:
    """(T,) token indices, the most stable first, ties in the order of the text."""
    return np.argsort(churn.of_tokens, kind="stable")


def token_churn(trace: Trace, churn: Churn, row: int, tokens: np.ndarray) -> pd.DataFrame:
    """One row per token: share of layer steps at which it changes its matched group.

    Args:
        trace: the routing.
        churn: of all its tokens.
        row: layer whose group is listed.
        tokens: the tokens to list, in this order.
    """
    share, order = churn.of_tokens, tokens
    return pd.DataFrame(
        {
            "token": order,
            "text": [token_text(trace, int(i)) for i in order],
            "in context": [context(trace, int(i)) for i in order],
            "changes": churn.changed.sum(0)[order],
            "churn": share[order],
            f"group in layer {trace.layers[row]}": trace.groups[row][order],
        }
    )


def verdict(trace: Trace, churn: Churn, agreement: np.ndarray) -> str:
    """Whether groups persist over depth, then the measures."""
    if len(trace.layers) < 2:
        return "Only one layer has a router, so there is no depth over which groups could persist."
    if len(trace.tokens) < FEW_TOKENS:
        return (
            f"Too short to tell: over {counted(len(trace.tokens), 'token')} layers agree or differ by chance.\n\n"
            f"Take a text of {FEW_TOKENS} tokens or more."
        )
    changed, chance = float(churn.of_steps.mean()), float(churn.by_chance.mean())
    near, far = float(np.diagonal(agreement, 1).mean()), float(agreement[0, -1])
    kept = 1 - changed / chance if chance > 0 else 0.0
    words = "largely persist" if kept > 0.75 else "partly persist" if kept > 0.25 else "hardly persist"
    if kept <= 0.02:
        words = "do not persist beyond chance"
    return (
        f"From one layer to the next groups {words}.\n\n"
        f"A token changes its matched group at {changed:.0%} of the steps ({chance:.0%} by chance). Neighbouring "
        f"layers agree with a mean AMI of {near:.2f}, and layers {trace.layers[0]} and {trace.layers[-1]} with "
        f"{far:.2f} (0: chance, 1: the same groups)."
    )


def flow_sentence(trace: Trace, row: int, other: int, band: tuple[float, float], agreement: float) -> str:
    """The agreement of two layers, beside that of shuffled groups."""
    counts, _ = flow(trace, row, other)
    matched = f"**{np.trace(counts) / counts.sum():.0%}** of the tokens are in matched groups"
    start = f"Layers {trace.layers[row]} and {trace.layers[other]}: "
    return (
        f"{start}AMI **{agreement:.3f}**. Groups shuffled over the tokens give {band[0]:+.3f} to {band[1]:+.3f} "
        f"(95% of 200 shuffles, seed 0). {matched}."
    )
