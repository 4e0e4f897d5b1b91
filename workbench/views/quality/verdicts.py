"""The sentences that answer the question of the Quality page."""

from __future__ import annotations

import pandas as pd

from workbench.views.quality.tables import FUTURE, TRAINED, UNTOUCHED, UNTRAINED


def quality_verdict(table: pd.DataFrame) -> str:
    """What causal routing with trained routers costs at each k, and how untrained routers compare.

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
    for top_k in sorted(set(trained["k"].dropna())):
        rows = trained.loc[trained["k"] == top_k]
        best = rows.loc[rows["relative"].idxmin()]
        parts.append(
            f"k = {int(top_k)} changes perplexity by {best['relative'] - 1:+.1%} and keeps "
            f"{best['distant kept']:.0%} of the distant pairs (largest group {best['largest group']:.0%})"
        )
    sentence = f"With trained, causal routing {'; '.join(parts[:4])}."
    return sentence + _untrained_sentence(causal, trained)


def _untrained_sentence(causal: pd.DataFrame, trained: pd.DataFrame) -> str:
    """How untrained routers fare at the smallest k that both were measured at."""
    untrained = causal.loc[(causal["kind"] == UNTRAINED) & causal["relative"].notna()]
    common = sorted(set(untrained["k"].dropna()) & set(trained["k"].dropna()))
    if not common:
        return ""
    rows = untrained.loc[untrained["k"] == common[0]]
    best = rows.loc[rows["relative"].idxmin()]
    return (
        f" Untrained routers at k = {int(common[0])}: {best['relative'] - 1:+.1%}, at {best['distant kept']:.0%} kept "
        f"(largest group {best['largest group']:.0%})."
    )
