"""The tables of the Linguistics page."""

from __future__ import annotations

import numpy as np
import pandas as pd

from focus_core.analysis.families import SINGLE_COLORS
from focus_core.analysis.linguistics.alignment import Alignment
from focus_core.analysis.linguistics.cells import CellTests
from focus_core.analysis.linguistics.corpus.sample import WordSample
from focus_core.analysis.linguistics.corpus.words import TAG_SETS


def layer_table(found: Alignment) -> pd.DataFrame:
    """One row per layer: measures, interval, references, gaps and the tests' results."""
    rows = []
    for layer in found.layers:
        row: dict[str, object] = {"layer": layer.layer, "AMI": layer.measures.ami}
        if layer.interval is not None:
            row |= {"AMI low": layer.interval.low, "AMI high": layer.interval.high}
        row |= {
            "ARI": layer.measures.ari,
            "homogeneity": layer.measures.homogeneity,
            "completeness": layer.measures.completeness,
            "V": layer.measures.v_measure,
            "many-to-one": layer.measures.many_to_one,
            "one-to-one": layer.measures.one_to_one,
        }
        for name, band in (("chance", layer.chance), ("within type", layer.within_type), ("control", layer.control)):
            if band is not None:
                row |= {name: band.mean, f"{name} low": band.low, f"{name} high": band.high}
        row |= {"selectivity": layer.selectivity, "ceiling": found.ceiling}
        row |= layer.references
        if layer.gaps is not None:
            for name, gap in layer.gaps.items():
                row |= {f"gap to {name} low": gap.low, f"gap to {name} high": gap.high}
            row |= {
                "chance q": layer.chance_q,
                "within type q": layer.within_type_q,
                "beyond chance": layer.beyond_chance,
                "beyond balance": layer.beyond_balance,
                "beyond identity": layer.beyond_identity,
                "beyond context": layer.beyond_context,
            }
        rows.append(row)
    return pd.DataFrame(rows)


def residual_table(tests: CellTests, words: WordSample, row: int, tag_set: str) -> pd.DataFrame:
    """One row per group and tag that occurs, of one layer."""
    used = np.flatnonzero(tests.observed[row].sum(1))
    names = TAG_SETS[tag_set]
    return pd.DataFrame(
        [
            (
                words.layers[row],
                group,
                names[tag],
                int(tests.observed[row, tag, group]),
                float(tests.expected[row, tag, group]),
                float(tests.residual[row, tag, group]),
                float(tests.q_value[row, tag, group]),
            )
            for group in range(words.num_groups)
            for tag in used
        ],
        columns=["layer", "group", "tag", "observed", "expected", "residual", "q"],
    )


def largest_first(table: pd.DataFrame, words: WordSample, row: int) -> pd.DataFrame:
    """The rows of a table of groups in the order of their words, where there are many groups."""
    if words.num_groups <= SINGLE_COLORS:
        return table
    sizes = np.bincount(words.groups[row], minlength=words.num_groups)
    return table.iloc[np.argsort(-sizes[table["group"].to_numpy()], kind="stable")]


def word_lists(top: pd.DataFrame) -> pd.DataFrame:
    """One row per group: its words by PMI and by count, as running lists."""
    rows = []
    for group, part in top.groupby("group"):
        by = {
            name: [f"{word} ({count})" for word, count in zip(p["word"], p["count"])] for name, p in part.groupby("by")
        }
        rows.append((group, ", ".join(by.get("PMI", [])), ", ".join(by.get("count", []))))
    return pd.DataFrame(rows, columns=["group", "most associated (PMI)", "most frequent"])
