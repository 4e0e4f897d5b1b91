"""The sentence of the Quality page on recorded perplexities: the answer first, then details and limits."""

from __future__ import annotations

import pandas as pd

from workbench.views.quality.record_verdicts import ADAPTATION, few_blocks
from workbench.views.quality.tables import FUTURE, TRAINED, UNTOUCHED, UNTRAINED


def quality_verdict(table: pd.DataFrame) -> str:
    """The change of perplexity by causal routing with trained routers at each budget, beside that of untrained ones.

    The first paragraph is the headline.

    Args:
        table: rows of `workbench.views.quality.tables` of one model, text, T and w.
    """
    causal = table.loc[(table["routing"] == "hard") & (table["remark"] != FUTURE)]
    trained = causal.loc[(causal["kind"] == TRAINED) & causal["relative"].notna()]
    if not len(trained):
        untouched = table.loc[table["kind"] == UNTOUCHED, "perplexity"]
        at = f" (untouched: {untouched.iloc[0]:.2f})" if len(untouched) else ""
        return f"No causal routing with trained routers has been recorded here{at}."
    parts = []
    by_k = [f"k={int(top_k)}" for top_k in sorted(set(trained["k"].dropna()))]
    others = sorted(set(trained.loc[trained["k"].isna(), "budget"]))
    for budget in (*by_k, *others):
        rows = trained.loc[trained["budget"] == budget]
        best = rows.loc[rows["relative"].idxmin()]
        spoken = budget.replace("=", " = ").replace("budget ", "a budget of ")
        parts.append(
            f"{spoken} changes perplexity by {best['relative'] - 1:+.1%} and keeps "
            f"{best['distant kept']:.0%} of the distant pairs (largest group {best['largest group']:.0%})."
        )
    rest = [*parts[1:4], _untrained_sentence(causal, trained)]
    rest += [ADAPTATION] if bool((trained["relative"] < 1).any()) else []
    rest += few_blocks(blocks_of(trained))
    return "\n\n".join(filter(None, (f"With trained, causal routing, {parts[0]}", " ".join(filter(None, rest)))))


def blocks_of(rows: pd.DataFrame) -> int:
    """The fewest blocks of text that any of these perplexities is over, from the number of scored tokens."""
    settings = zip(rows["tokens"], rows["T"], rows["stride"])
    return min(round(tokens / max(1, min(length - 1, stride))) for tokens, length, stride in settings)


def _untrained_sentence(causal: pd.DataFrame, trained: pd.DataFrame) -> str:
    """The same of untrained routers, at the smallest k that both were measured at."""
    untrained = causal.loc[(causal["kind"] == UNTRAINED) & causal["relative"].notna()]
    common = sorted(set(untrained["k"].dropna()) & set(trained["k"].dropna()))
    if not common:
        return ""
    rows = untrained.loc[untrained["k"] == common[0]]
    best = rows.loc[rows["relative"].idxmin()]
    return (
        f"Untrained routers at k = {int(common[0])} change it by {best['relative'] - 1:+.1%} and keep "
        f"{best['distant kept']:.0%} (largest group {best['largest group']:.0%})."
    )
