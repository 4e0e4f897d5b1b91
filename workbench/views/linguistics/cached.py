"""Words, clusterings and agreement of the Linguistics page, cached between reruns."""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass, field

import numpy as np
import streamlit as st

from focus_core.analysis.linguistics.alignment import KMEANS, UNTRAINED, Alignment, align
from focus_core.analysis.linguistics.cells import CellTests, cell_tests
from focus_core.analysis.linguistics.corpus.sample import WordSample, word_sample
from focus_core.analysis.linguistics.corpus.tagging import load_tagger, tag_text, with_entities
from focus_core.analysis.linguistics.corpus.words import TAG_SETS, TaggedText
from focus_core.analysis.linguistics.explain import MIN_BLOCKS, Explained, explain_layers
from focus_core.analysis.linguistics.features import sentence_blocks
from focus_core.analysis.states import StateGroups, state_groups
from focus_core.analysis.statistics.agreement import contingency
from focus_core.analysis.tables import text_hash
from focus_core.progress import Progress, silent
from workbench.engine import cached, service
from workbench.engine.garbage import freeze_loaded
from workbench.engine.service import Analysis, Settings

_ENTRIES = 16


def tagged(analysis: Analysis) -> TaggedText:
    """The words of the text, with relations and entities.

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


def explained(analysis: Analysis, words: WordSample, row: int) -> Explained | None:
    """What explains the groups of one layer; None for a few sentences."""
    return _explained(cached.groups_key(analysis), words.rule, row, words)


def clusterings(
    analysis: Analysis, words: WordSample, model: str, routers: str, progress: Progress = silent
) -> StateGroups:
    """Balanced k-means and untrained routers on the hidden states that the routers read. Runs the model again.

    Args:
        analysis: of the text.
        words: the words to group.
        model: the model's name in `service.load_base`.
        routers: the routers' name there.
        progress: called with the progress if this session asks first; other sessions wait for it.
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
    """Every measure and reference, without the lift of pairs, which depends on k."""
    more = None if grouped is None else {UNTRAINED: grouped.untrained, KMEANS: grouped.kmeans}
    return _alignment(cached.groups_key(analysis), words.rule, tag_set, grouped is not None, words, more)


def tag_tests(analysis: Analysis, words: WordSample, tag_set: str) -> CellTests:
    """Tests of every pair of group and tag in every layer."""
    return _tag_tests(cached.groups_key(analysis), words.rule, tag_set, words)


@st.cache_resource(max_entries=_ENTRIES, show_spinner=False)
def _tagged(text_sha256: str, _text: str) -> TaggedText:
    _load_tagger()
    return with_entities(tag_text(_text))


@st.cache_resource(max_entries=32 * _ENTRIES, show_spinner=False)
def _explained(key: str, rule: str, row: int, _sample: WordSample) -> Explained | None:
    if sentence_blocks(_sample).max() + 1 < MIN_BLOCKS:
        return None
    return explain_layers(_sample, [row])[0]


@functools.cache
def _load_tagger() -> None:
    load_tagger()
    freeze_loaded()


@dataclass
class _Made:
    """A result that is computed outside of the cache function, where progress can be shown."""

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
def _tag_tests(key: str, rule: str, tag_set: str, _sample: WordSample) -> CellTests:
    tags, num_tags = _sample.codes(tag_set), len(TAG_SETS[tag_set])
    return cell_tests(contingency(tags, _sample.groups, num_tags, _sample.num_groups))
