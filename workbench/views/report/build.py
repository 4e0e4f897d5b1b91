"""The report of the analysed text, cached under everything it depends on."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import streamlit as st

from focus_core.analysis.tables import text_hash
from focus_core.errors import FocusError
from focus_core.report.corpus import Section
from focus_core.report.from_trace import report_from_trace
from focus_core.report.model import Report
from focus_core.report.tags import TAGS, SectionTagger
from focus_core.text import Encoding, token_bytes
from workbench.engine import service
from workbench.engine.cached import groups_key
from workbench.engine.service import STATES, Analysis

_tagging = threading.Lock()


def report_of(analysis: Analysis, *, model: str, examples: int, seed: int) -> Report:
    """The report on every group of every layer.

    With hidden states of the untouched model, k changes the members only, so only these are counted again.

    Args:
        analysis: of the text.
        model: the model's name in `service.load_base`.
        examples: of each kind, per card.
        seed: of the random examples and the intervals.
    """
    made = _report(groups_key(analysis), analysis.text_name, examples, seed, model, analysis)
    members = analysis.trace.membership.sum(1)
    rows = {layer: row for row, layer in enumerate(analysis.trace.layers)}
    cards = tuple(dataclasses.replace(card, members=int(members[rows[card.layer], card.group])) for card in made.cards)
    return dataclasses.replace(made, cards=cards, origin=analysis.origin)


@st.cache_resource(max_entries=16, show_spinner=False)
def _report(key: str, name: str, examples: int, seed: int, _model: str, _analysis: Analysis) -> Report:
    trace = _analysis.trace
    tokenizer = service.load_base(_model).tokenizer
    words, codes, tagger = _tagged(text_hash(trace.text), trace.provenance.model_revision, trace.text, trace.offsets)
    return report_from_trace(
        trace,
        lambda ids: [raw.decode("utf-8", "replace") for raw in token_bytes(tokenizer, ids)],
        vocabulary=max(len(tokenizer), int(trace.input_ids.max()) + 1),
        name=name,
        states=STATES[_analysis.states],
        tag=lambda section, encoding: (words, codes),
        tag_names=TAGS if len(words) else (),
        tagger=tagger,
        examples=examples,
        seed=seed,
    )


@st.cache_data(max_entries=32, show_spinner=False)
def _tagged(text_sha256: str, revision: str, _text: str, _offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray, str]:
    """Tokens that stand for words, the words' tags, and the tagger or the reason why there is none."""
    none = np.zeros(0, dtype=np.int64)
    try:
        with _tagging:  # one spaCy pipeline for all sessions
            tagger = SectionTagger()
            words, codes = tagger(Section(0, 0, 0, _text), Encoding(none, _offsets, ()))
    except FocusError as error:
        return none, none, f"none. {error}"
    if not len(words):
        return none, none, "none: the text does not look like English, which the tagger was made for"
    return words, codes, str(tagger)
