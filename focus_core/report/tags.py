"""Parts of speech for reports: words of a text, the tokens that stand for them, and a check that it is English."""

from __future__ import annotations

import numpy as np

from focus_core.analysis.linguistics.corpus.tagging import ENGLISH_SHARE, english_share, load_tagger, tag_text
from focus_core.analysis.linguistics.corpus.words import UPOS, align_words, tag_codes
from focus_core.report.corpora.corpus import Section
from focus_core.text import Encoding

TAGS = UPOS


class SectionTagger:
    """Finds words and their parts of speech in one section after the other, where it is English prose.

    Raises:
        FocusError: spaCy or its model is not installed.
    """

    def __init__(self) -> None:
        _, tagger = load_tagger()
        self.tagger = tagger

    def __call__(self, section: Section, encoding: Encoding) -> tuple[np.ndarray, np.ndarray]:
        """(n,) tokens that stand for a word, its last one each, and (n,) codes of the words' tags in `TAGS`.

        A section that is not English prose gets none, since the tagger is English.
        """
        tagged = tag_text(section.text)
        share = english_share(tagged)
        if not share >= ENGLISH_SHARE:  # NaN, without any word, included
            none = np.zeros(0, dtype=np.int64)
            return none, none
        words = align_words(tagged, encoding.offsets)
        return words.tokens, tag_codes(tagged.tags)[words.words]

    def __str__(self) -> str:
        """Name of the tagger, for the report's head."""
        return f"{self.tagger} (a word counts for the group of its last token; only English passages)"
