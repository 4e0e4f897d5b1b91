"""What the Linguistics page computes and keeps, and the tables it shows."""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import streamlit as st

from focus_core.analysis.agreement import contingency
from focus_core.analysis.linguistics.alignment import KMEANS, UNTRAINED, Alignment, align
from focus_core.analysis.linguistics.cells import CellTests, cell_tests
from focus_core.analysis.linguistics.sample import WordSample, word_sample
from focus_core.analysis.linguistics.tagging import load_tagger, tag_text
from focus_core.analysis.linguistics.words import TAG_SETS, TaggedText
from focus_core.analysis.states import StateGroups, state_groups
from focus_core.analysis.tables import text_hash
from focus_core.progress import Progress, silent
from workbench.engine import cached, service
from workbench.engine.lasting import keep
from workbench.engine.service import Analysis, Settings

_ENTRIES = 16


def tagged(analysis: Analysis) -> TaggedText:
    """The words of the text.

    Raises:
        FocusError: spaCy or its model is not installed.
    """
    return _tagged(text_hash(analysis.trace.text), analysis.trace.text)


def sample(analysis: Analysis, model: str, rule: str) -> WordSample:
    """The words with their groups at the setting.

    Raises:
        FocusError: the text has no words.
    """
    special = service.load_base(model).tokenizer.all_special_ids
    return word_sample([analysis.trace], [tagged(analysis)], rule=rule, special_ids=special)


def clusterings(
    analysis: Analysis, words: WordSample, model: str, routers: str, progress: Progress = silent
) -> StateGroups:
    """Balanced k-means and untrained routers on the hidden states that the routers read; runs the model again.

    Args:
        analysis: of the text.
        words: the words to group.
        model: the model's name in `service.load_base`.
        routers: the routers' name there.
        progress: told what is done, if this session is the first to ask; the others wait for it.
    """
    config = analysis.trace.config
    setting = service.settings_of(analysis, model, routers)
    if analysis.states == "untouched":
        setting = Settings(model, routers, config.num_groups, config.num_groups, 0, 0)
    made = _clusterings(cached.groups_key(analysis), words.rule, setting)
    with made.lock:
        if made.groups is None:
            chosen = [(np.array(analysis.trace.input_ids), words.tokens)]
            base = service.load_base(setting.model)
            with base.lock:
                made.groups = service.routed(
                    base, setting, lambda focus: state_groups(focus, chosen, progress=progress)
                )
        return made.groups


def alignment(analysis: Analysis, words: WordSample, tag_set: str, grouped: StateGroups | None) -> Alignment:
    """Every measure and reference but the lift of pairs, which depends on k."""
    more = None if grouped is None else {UNTRAINED: grouped.untrained, KMEANS: grouped.kmeans}
    return _alignment(cached.groups_key(analysis), words.rule, tag_set, grouped is not None, words, more)


def cells(analysis: Analysis, words: WordSample, tag_set: str) -> CellTests:
    """Tests of every cell of every layer."""
    return _cells(cached.groups_key(analysis), words.rule, tag_set, words)


def layer_table(found: Alignment) -> pd.DataFrame:
    """One row per layer: measures, interval, references, gaps and verdicts."""
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


def cell_table(tests: CellTests, words: WordSample, row: int, tag_set: str) -> pd.DataFrame:
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


def word_lists(top: pd.DataFrame) -> pd.DataFrame:
    """One row per group: its words by PMI and by count, as running lists."""
    rows = []
    for group, part in top.groupby("group"):
        by = {
            name: [f"{word} ({count})" for word, count in zip(p["word"], p["count"])] for name, p in part.groupby("by")
        }
        rows.append((group, ", ".join(by.get("PMI", [])), ", ".join(by.get("count", []))))
    return pd.DataFrame(rows, columns=["group", "most associated (PMI)", "most frequent"])


@st.cache_resource(max_entries=_ENTRIES, show_spinner=False)
def _tagged(text_sha256: str, _text: str) -> TaggedText:
    _load_tagger()
    return tag_text(_text)


@functools.cache
def _load_tagger() -> None:
    load_tagger()
    keep()


@dataclass
class _Made:
    """A result that is made outside of the cache, where the maker can show progress."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    groups: StateGroups | None = None


@st.cache_resource(max_entries=_ENTRIES, show_spinner=False)
def _clusterings(key: str, rule: str, setting: Settings) -> _Made:
    return _Made()


@st.cache_resource(max_entries=_ENTRIES, show_spinner=False)
def _alignment(
    key: str,
    rule: str,
    tag_set: str,
    with_clusterings: bool,
    _sample: WordSample,
    _more: dict[str, np.ndarray] | None,
) -> Alignment:
    return align(_sample, tag_set=tag_set, more=_more, sharing=False)


@st.cache_resource(max_entries=_ENTRIES, show_spinner=False)
def _cells(key: str, rule: str, tag_set: str, _sample: WordSample) -> CellTests:
    tags, num_tags = _sample.codes(tag_set), len(TAG_SETS[tag_set])
    return cell_tests(contingency(tags, _sample.groups, num_tags, _sample.num_groups))
