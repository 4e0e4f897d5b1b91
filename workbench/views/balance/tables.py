"""View models and sentences of the Balance page."""

from __future__ import annotations

import numpy as np
import pandas as pd

from focus_core.analysis import Trace
from focus_core.analysis.group_balance import (
    Balancing,
    effective_groups,
    flip_rate,
    future_flips,
    group_counts,
    normalised_entropy,
    prefix_lengths,
)
from focus_core.routing.balance import BALANCES
from workbench.widgets.page.markup import counted

FEW_TOKENS = 100
"""Below this many tokens no claim about balance is made."""
RAW, SEQUENCE = "raw scores", "sequence Sinkhorn"
NEAREST = "best score"
SHOWN = {"none": RAW, "sequence": SEQUENCE}
"""Balances that every trace is compared with; routing under another one is a row of its own."""


def routings(trace: Trace, balancing: Balancing | None) -> dict[str, np.ndarray]:
    """(L, T) first groups by name: of the raw scores, of sequence Sinkhorn, and of a third routing if in force.

    Of narrow groups those with the best score, and those in force; `balancing` is None.
    """
    if trace.parts is not None:  # narrow groups are never balanced over a text
        raw = trace.scores.argmax(-1)
        return {NEAREST: raw, trace.config.balance: trace.groups} if trace.config.balance != "none" else {NEAREST: raw}
    assert balancing is not None
    found = {RAW: balancing.raw, SEQUENCE: balancing.sequence}
    return found if trace.config.balance in SHOWN else found | {trace.config.balance: trace.groups}


def has_potentials(trace: Trace, balancing: Balancing) -> bool:
    """Whether the routers bring potentials of their own; without, calibrated routing is that of the raw scores."""
    return trace.config.balance == "calibrated" and bool((trace.groups != balancing.raw).any())


def balance_table(trace: Trace, balancing: Balancing | None) -> pd.DataFrame:
    """One row per layer and routing: largest and smallest group, normalised entropy, effective number of groups."""
    parts = []
    for name, groups in routings(trace, balancing).items():
        counts = group_counts(groups, trace.config.num_groups)
        parts.append(
            pd.DataFrame(
                {
                    "layer": trace.layers,
                    "routing": name,
                    "largest group": counts.max(1) / len(trace.tokens),
                    "smallest group": counts.min(1) / len(trace.tokens),
                    "entropy": normalised_entropy(counts),
                    "effective groups": effective_groups(counts),
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def round_table(trace: Trace, balancing: Balancing) -> pd.DataFrame:
    """One row per layer and Sinkhorn round: the marginal error after it; round 0 is before the first."""
    layers, rounds = balancing.errors.shape
    return pd.DataFrame(
        {
            "layer": np.repeat(trace.layers, rounds),
            "round": np.tile(np.arange(rounds), layers),
            "marginal error": balancing.errors.ravel(),
        }
    )


def flip_table(trace: Trace, balancing: Balancing | None) -> pd.DataFrame:
    """One row per layer: share of tokens whose first group differs between two routings."""
    if balancing is None:
        first, *others = routings(trace, None).items()
        changes = {f"{first[0]} → {name}": flip_rate(first[1], groups) for name, groups in others}
        return pd.DataFrame({"layer": trace.layers, **changes})
    columns = {"layer": trace.layers, f"{RAW} → {SEQUENCE}": flip_rate(balancing.raw, balancing.sequence)}
    own = trace.config.balance
    if own not in SHOWN:
        columns[f"{RAW} → {own}"] = flip_rate(balancing.raw, trace.groups)
        columns[f"{SEQUENCE} → {own}"] = flip_rate(balancing.sequence, trace.groups)
    return pd.DataFrame(columns)


def future_table(trace: Trace, row: int) -> pd.DataFrame:
    """One row per prefix length: share of its tokens whose group in one layer depends on the rest of the text."""
    lengths = prefix_lengths(len(trace.tokens))
    config = trace.config
    flips = future_flips(trace.scores[row], lengths, temperature=config.temperature, rounds=config.sinkhorn_rounds)
    return pd.DataFrame({"prefix tokens": lengths, "changed by later tokens": flips})


def verdict(trace: Trace, table: pd.DataFrame) -> str:
    """Whether Sinkhorn balances this text, and whether the routing in force does.

    Args:
        trace: the routing.
        table: from `balance_table`.
    """
    num_tokens, even = len(trace.tokens), 1 / trace.config.num_groups
    if num_tokens < FEW_TOKENS:
        return (
            f"Too short to tell: {counted(num_tokens, 'token')} cannot fill {trace.config.num_groups} groups evenly."
            "\n\n"
            f"Take a text of {FEW_TOKENS} tokens or more."
        )
    if trace.parts is not None:
        return _narrow_verdict(trace, table)
    names = table["routing"].to_numpy()
    largest = {name: table["largest group"].to_numpy()[names == name] for name in dict.fromkeys(names)}
    mean = {name: float(values.mean()) for name, values in largest.items()}
    worst = {name: float(values.max()) for name, values in largest.items()}
    answer = "balances" if worst[SEQUENCE] < 2 * even else "does not fully balance"
    start = (
        f"Sequence Sinkhorn {answer} this text.\n\n"
        f"Its largest group holds {mean[SEQUENCE]:.0%} of the tokens on average over layers, and {worst[SEQUENCE]:.0%} "
        f"at worst. Without balance the average is {mean[RAW]:.0%}; an even split is {even:.1%}."
    )
    own = trace.config.balance
    if SHOWN.get(own) == SEQUENCE:
        return f"{start} This routing is in force, and its groups depend on later tokens."
    if SHOWN.get(own) == RAW:
        return f"{start} The routing in force is not balanced."
    sight = "does not depend" if BALANCES[own].causal else "depends"
    return (
        f"{start} {own.capitalize()} routing is in force and {sight} on later tokens: {mean[own]:.0%} on average, "
        f"{worst[own]:.0%} at worst."
    )


def _narrow_verdict(trace: Trace, table: pd.DataFrame) -> str:
    even = 1 / trace.config.num_groups
    by_name = {str(name): part for name, part in table.groupby("routing")}
    own = by_name.get(trace.config.balance, by_name[NEAREST])
    mean, worst = float(own["largest group"].to_numpy().mean()), float(own["largest group"].to_numpy().max())
    plain = float(by_name[NEAREST]["largest group"].to_numpy().mean())
    balanced = trace.config.balance != "none"
    effective = float(own["effective groups"].to_numpy().mean())
    return (
        f"The {trace.config.num_groups} groups fill as evenly as {effective:.0f} groups of equal size would.\n\n"
        f"That is the mean over layers. The largest group holds {mean:.1%} on average, and {worst:.1%} at worst"
        + (f"; without calibration the average is {plain:.1%}" if balanced else "")
        + f". An even split is {even:.1%}. A large group costs no more pairs: the budget is a share of them."
        * (trace.config.read_share is not None)
    )


def layer_sentence(trace: Trace, row: int) -> str:
    """The load of one layer under the routing in force."""
    counts = group_counts(trace.groups[row], trace.config.num_groups)
    return (
        f"Layer {trace.layers[row]} as routed ({trace.config.balance}): largest group "
        f"**{counts.max() / counts.sum():.1%}**, smallest **{counts.min() / counts.sum():.1%}**, normalised entropy "
        f"**{float(normalised_entropy(counts)):.3f}**, effective number of groups "
        f"**{float(effective_groups(counts)):.1f}** of {trace.config.num_groups}."
    )


def future_sentence(trace: Trace, row: int, table: pd.DataFrame) -> str:
    """The share of tokens whose group depends on later tokens under sequence balance, in one layer.

    Args:
        trace: the routing.
        row: row of its traced layers.
        table: from `future_table`.
    """
    if len(table) < 2:
        return "The text is too short: no prefix of it can be compared with the whole."
    lengths, flips = table["prefix tokens"].to_numpy(), table["changed by later tokens"].to_numpy()
    middle = int(np.abs(lengths - len(trace.tokens) / 2).argmin())
    return (
        f"Of the first {lengths[middle]:,} tokens, **{flips[middle]:.1%}** would be in another group of layer "
        f"{trace.layers[row]} if the text ended there. So groups under sequence Sinkhorn depend on later tokens, which "
        "a causal model cannot know."
    )
