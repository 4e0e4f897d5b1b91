"""Labels of groups: the user's own names, else guesses from the words of the text, tagged behind the pages."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import streamlit as st

from focus_core.analysis import Trace
from focus_core.analysis.linguistics.corpus.tagging import ENGLISH_SHARE, english_share, tag_text
from focus_core.analysis.linguistics.corpus.words import align_words, tag_codes
from focus_core.analysis.tables import text_hash
from focus_core.analysis.tokens import spelled
from focus_core.errors import FocusError
from focus_core.report.from_trace import report_from_trace
from focus_core.report.labels import guess, named
from focus_core.report.model import Report
from focus_core.report.tags import TAGS, SectionTagger
from focus_core.text import token_bytes
from workbench.engine import service
from workbench.engine.cached import groups_key
from workbench.engine.service import STATES, Analysis
from workbench.runs import notes

Words = Mapping[str, tuple[str, ...]]
"""The words of a group by their tag, the most telling first."""
_tagging = threading.Lock()


@dataclass(frozen=True, eq=False)
class Tagged:
    """The tagged words of a text; none where there is no tagger, or where the text is not English.

    Attributes:
        tokens: (n,) int64 token that stands for each word, its last one.
        codes: (n,) int64 the words' tags, indices into `TAGS`.
        words: (n,) their spelling.
        tagger: its name, or the reason why there are no tags.
    """

    tokens: np.ndarray
    codes: np.ndarray
    words: tuple[str, ...]
    tagger: str


@dataclass
class _Made:
    """Tags that are being made, at most once."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    started: bool = False
    tags: Tagged | None = None


def notes_key(trace: Trace) -> str:
    """The routers that notes are about: their hash, with the head where heads have groups of their own."""
    routers = trace.provenance.routers_hash
    return f"{routers}/head-{trace.head}" if trace.head else routers


def tags_of(trace: Trace) -> Tagged:
    """The tagged words of the text; waits for them."""
    return _tag(_made(text_hash(trace.text), trace.provenance.model_revision), trace)


def tags_ready(trace: Trace) -> bool:
    """Whether `tags_of` returns at once. The first call starts the tagger behind the page."""
    made = _made(text_hash(trace.text), trace.provenance.model_revision)
    if made.tags is None and not made.started:
        made.started = True
        threading.Thread(target=_tag, args=(made, trace), daemon=True).start()
    return made.tags is not None


def labels(analysis: Analysis, row: int, model: str, head: int | None = None) -> dict[int, str]:
    """A few words for the groups of one layer: own names, else guesses; groups without either are left out.

    Guesses are there once the words are tagged; nothing is waited for.

    Args:
        analysis: of the text.
        row: row of its traced layers.
        model: the model's name in `service.load_base`.
        head: another key/value head than the one on show.
    """
    trace = analysis.trace
    if head is not None and trace.head_groups is not None and head != trace.head:
        trace = dataclasses.replace(trace, head=head, query_head=0)
    shown = dataclasses.replace(analysis, trace=trace)
    found = dict(_guesses(groups_key(shown), row, trace.head or 0, model, shown)) if tags_ready(trace) else {}
    for place, note in notes.read(notes_key(trace)).items():
        layer, _, group = place.partition("/")
        if (name := named(note)[0]) and layer == str(trace.layers[row]):
            found[int(group)] = name
    return found


def words_of(trace: Trace, row: int) -> dict[int, Words]:
    """The words of every group of one layer by tag, those that are most its own first; waits for the tags.

    A word is its group's own by its number there times the share of its places, under that tag, that are there.
    """
    return _words(tags_of(trace), trace.groups[row])


def _words(tags: Tagged, groups: np.ndarray) -> dict[int, Words]:
    counts: dict[int, dict[tuple[int, str], list[Any]]] = {}
    everywhere: dict[tuple[int, str], int] = {}
    for token, code, word in zip(tags.tokens.tolist(), tags.codes.tolist(), tags.words):
        kind = (code, word.casefold())
        everywhere[kind] = everywhere.get(kind, 0) + 1
        own = counts.setdefault(int(groups[token]), {}).setdefault(kind, [0, word])
        own[0] += 1
    found: dict[int, Words] = {}
    for group, kinds in counts.items():
        ranked = sorted(kinds.items(), key=lambda item: (-(item[1][0] ** 2) / everywhere[item[0]], item[0]))
        by_tag: dict[str, list[str]] = {}
        for (code, _), (_, word) in ranked:
            by_tag.setdefault(TAGS[code], []).append(word)
        found[group] = {tag: tuple(words) for tag, words in by_tag.items()}
    return found


def make_report(analysis: Analysis, model: str, *, name: str, examples: int, seed: int) -> Report:
    """The report on the groups of a trace with its tags; waits for them."""
    trace, tokenizer, tags = analysis.trace, service.load_base(model).tokenizer, tags_of(analysis.trace)
    opening = int((trace.offsets[:, 0] == trace.offsets[:, 1]).sum())  # the tokenizer's own, left out of reports
    return report_from_trace(
        trace,
        lambda ids: [spelled(raw) for raw in token_bytes(tokenizer, ids)],
        vocabulary=max(len(tokenizer), int(trace.input_ids.max()) + 1),
        name=name,
        states=STATES[analysis.states],
        tag=lambda section, encoding: (tags.tokens - opening, tags.codes),
        tag_names=TAGS if len(tags.tokens) else (),
        tagger=tags.tagger,
        examples=examples,
        seed=seed,
    )


@st.cache_resource(max_entries=32, show_spinner=False)
def _made(text_sha256: str, revision: str) -> _Made:
    return _Made()


@st.cache_resource(max_entries=256, show_spinner=False)
def _guesses(key: str, row: int, head: int, model: str, _analysis: Analysis) -> dict[int, str]:
    trace = _analysis.trace
    groups = trace.groups[row] if trace.head_groups is None else np.asarray(trace.head_groups[row, head])
    joined = np.arange(trace.config.num_groups) == groups[:, None]  # labels rest on first groups alone
    one = dataclasses.replace(
        trace,
        layers=(trace.layers[row],),
        assignment=joined[None].astype(np.float32),
        membership=joined[None],
        potentials=None,
    )
    report = make_report(dataclasses.replace(_analysis, trace=one), model, name="", examples=0, seed=0)
    words = _words(tags_of(trace), groups)
    found = {card.group: guess(card, words.get(card.group)).short for card in report.cards}
    return {group: label for group, label in found.items() if label}


def _tag(made: _Made, trace: Trace) -> Tagged:
    with made.lock:
        made.started = True
        if made.tags is None:
            made.tags = _tagged(trace)
        return made.tags


def _tagged(trace: Trace) -> Tagged:
    none = np.zeros(0, dtype=np.int64)
    try:
        with _tagging:  # one spaCy pipeline for all sessions
            tagger, tagged = str(SectionTagger()), tag_text(trace.text)
    except FocusError as error:
        return Tagged(none, none, (), f"none. {error}")
    if not english_share(tagged) >= ENGLISH_SHARE:  # NaN, without any word, included
        return Tagged(none, none, (), "none: the text does not look like English, which the tagger was made for")
    words = align_words(tagged, np.asarray(trace.offsets))
    spelling = tagged.words
    return Tagged(
        words.tokens,
        tag_codes(tagged.tags)[words.words],
        tuple(spelling[word] for word in words.words.tolist()),
        tagger,
    )
