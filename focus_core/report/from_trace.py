"""The report of one text from its trace."""

from __future__ import annotations

import numpy as np

from focus_core.analysis.tables import origin, text_hash
from focus_core.analysis.tokens import margins
from focus_core.analysis.trace import Trace
from focus_core.report.build import Spell, build_report
from focus_core.report.corpora.corpus import Section
from focus_core.report.corpora.statistics import Block, Statistics
from focus_core.report.corpora.stream import TagSection
from focus_core.report.model import Document, Report
from focus_core.text import Encoding


def report_from_trace(
    trace: Trace,
    spell: Spell,
    *,
    vocabulary: int,
    name: str,
    states: str,
    tag: TagSection | None = None,
    tag_names: tuple[str, ...] = (),
    tagger: str = "no parts of speech",
    examples: int = 5,
    seed: int = 0,
) -> Report:
    """All cards of a text; the same numbers as streaming it in one block.

    Args:
        trace: the routing.
        spell: names of token types.
        vocabulary: V, token types of the model.
        name: name of the text.
        states: the model that made the hidden states, "untouched model" or "routed model".
        tag: finds words and parts of speech; None for none.
        tag_names: parts of speech that `tag` knows.
        tagger: name of the tagger, or the reason why there are no parts of speech.
        examples: of each kind, per card.
        seed: of the random examples and the intervals.
    """
    none = np.zeros(0, dtype=np.int64)
    first = int((trace.offsets[:, 0] == trace.offsets[:, 1]).sum())  # the tokenizer's own opening is not text
    encoding = Encoding(trace.input_ids[first:], trace.offsets[first:], trace.tokens[first:])
    words, tags = (none, none) if tag is None else tag(Section(0, 0, 0, trace.text), encoding)
    statistics = Statistics(
        len(trace.layers),
        trace.config.num_groups,
        vocabulary,
        characters=len(trace.text),
        num_tags=len(tag_names),
        examples=examples,
        seed=seed,
    )
    statistics.add(
        Block(
            document=0,
            text=trace.text,
            text_start=0,
            corpus_start=0,
            input_ids=encoding.input_ids,
            offsets=encoding.offsets,
            assignment=trace.assignment[:, first:],
            membership=trace.membership[:, first:],
            tagged=words,
            tags=tags,
            strength=_strength(trace, first),
        )
    )
    return build_report(
        statistics,
        spell,
        layers=trace.layers,
        heads=(trace.head,),
        documents=(Document(name, len(trace.text), text_hash(trace.text)),),
        origin=origin(trace, states),
        title=f"Groups in {name}",
        block_length=len(trace.tokens),
        tag_names=tag_names,
        tagger=tagger,
    )


def _strength(trace: Trace, first: int) -> np.ndarray | None:
    """(L, T) margins of narrow groups from a token on; None where the assignment says it."""
    if trace.potentials is None:
        return None
    return np.stack([margins(trace, row)[first:] for row in range(len(trace.layers))])
