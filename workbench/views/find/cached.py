"""Groups of all heads, entities and searches, cached between reruns."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import pandas as pd
import streamlit as st

from focus_core.analysis.linguistics.corpus.tagging import Entities, tag_entities
from focus_core.analysis.search.gathering import Gathering, gathering, groups_of, lift_intervals
from focus_core.analysis.search.matches import (
    entity_matches,
    matching_tokens,
    pattern_matches,
    tag_matches,
    word_matches,
)
from focus_core.analysis.tables import text_hash
from workbench.engine.cached import groups_key
from workbench.engine.service import Analysis
from workbench.views.linguistics.cached import tagged

LISTED = 50
"""Groups of the ranking that have intervals, beside the first of each layer and head."""


@dataclass(frozen=True, eq=False)
class Search:
    """A search of one text.

    Attributes:
        found: the groups of all layers and heads, ranked.
        listed: the first groups, and the first of each layer and head, with intervals of their lift, in that order.
        places: places in the text that match; one may have several tokens.
        matches: (T,) bool, the tokens of these places.
        searched: groups of all layers and heads.
    """

    found: Gathering
    listed: pd.DataFrame
    places: int
    matches: np.ndarray
    searched: int


def entities(analysis: Analysis) -> Entities:
    """The entities of the text.

    Raises:
        FocusError: spaCy or its model is not installed.
    """
    return _entities(text_hash(analysis.trace.text), analysis.trace.text)


def spans_of(analysis: Analysis, by: str, query: str) -> np.ndarray:
    """(N, 2) int64 characters of what is looked for.

    Args:
        analysis: of the text.
        by: "word", "pattern", "tag" or "entity".
        query: the word, the pattern, or the name of the tag or type.

    Raises:
        FocusError: a word or pattern that cannot be used, or spaCy is missing.
    """
    text = analysis.trace.text
    if by == "word":
        return word_matches(text, query)
    if by == "pattern":
        return pattern_matches(text, query)
    return tag_matches(tagged(analysis), query) if by == "tag" else entity_matches(entities(analysis), query)


def search(analysis: Analysis, spans: np.ndarray) -> Search:
    """The groups of all layers and heads that hold more of some tokens than chance.

    Args:
        analysis: of the text.
        spans: from `spans_of`.

    Raises:
        FocusError: no token matches, or every one does.
    """
    every = dataclasses.replace(analysis.trace, head=0, query_head=0)
    key = groups_key(dataclasses.replace(analysis, trace=every))
    return _search(key, spans.tobytes(), analysis, spans)


@st.cache_resource(max_entries=16, show_spinner=False)
def _entities(text_sha256: str, _text: str) -> Entities:
    return tag_entities(_text)


@st.cache_resource(max_entries=32, show_spinner=False)
def _search(key: str, spans_seen: bytes, _analysis: Analysis, _spans: np.ndarray) -> Search:
    heads, offsets = groups_of(_analysis.trace), np.asarray(_analysis.trace.offsets)
    counted = offsets[:, 1] > offsets[:, 0]  # the tokenizer's own opening is no text
    matches = matching_tokens(_analysis.trace.text, offsets, _spans)
    found = gathering(heads, matches, counted)
    first = found.table.drop_duplicates(["layer", "head"])
    rows = found.table.loc[sorted({*found.table.index[:LISTED], *first.index})]
    return Search(found, lift_intervals(heads, matches, rows, counted), len(_spans), matches, heads.searched)
