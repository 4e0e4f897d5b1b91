"""Parts of speech for reports: words of a text, the tokens that stand for them, and whether the text is English."""

from __future__ import annotations

import numpy as np

from focus_core.analysis.linguistics.tagging import ENGLISH_SHARE, english_share, load_tagger, tag_text
from focus_core.analysis.linguistics.words import UPOS, align_words, tag_codes
from focus_core.report.corpus import Section
from focus_core.text import Encoding

TAGS = UPOS


class SectionTagger:
    """Tags one section after the other, and counts what is needed to say how far to trust the tags.

    Raises:
        FocusError: spaCy or its model is not installed.
    """

    def __init__(self) -> None:
        _, tagger = load_tagger()
        self.tagger = tagger

    def __call__(self, section: Section, encoding: Encoding) -> tuple[np.ndarray, np.ndarray]:
        """(n,) tokens that stand for a word, its last one each, and (n,) codes of the words' tags in `TAGS`.

        A section that does not look like English gets none: the tagger would guess.
        """
        tagged = tag_text(section.text)
        share = english_share(tagged)
        if not share >= ENGLISH_SHARE:  # NaN, without any word, included
            none = np.zeros(0, dtype=np.int64)
            return none, none
        words = align_words(tagged, encoding.offsets)
        return words.tokens, tag_codes(tagged.tags)[words.words]

    def __str__(self) -> str:
        """Who tagged, for the report's head."""
        return f"{self.tagger} (a word goes where its last token goes; passages that are not English are left out)"
