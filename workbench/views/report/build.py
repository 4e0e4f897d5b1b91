"""The report of the analysed text, cached under everything it depends on."""

from __future__ import annotations

import dataclasses

import streamlit as st

from focus_core.report.model import Report
from workbench.engine.cached import groups_key
from workbench.engine.labels import make_report
from workbench.engine.service import Analysis


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
    return make_report(_analysis, _model, name=name, examples=examples, seed=seed)
