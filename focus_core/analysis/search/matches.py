"""The tokens of a text that a search is about: a word, a pattern, a part of speech or an entity type."""

from __future__ import annotations

import time

import numpy as np
import regex

from focus_core.analysis.linguistics.corpus.tagging import Entities
from focus_core.analysis.linguistics.corpus.words import TaggedText
from focus_core.errors import FocusError
from focus_core.text import trim_offsets

SECONDS = 2.0
"""A pattern that needs longer for a text is refused; some patterns would need years."""
MAX_PATTERN = 200


def word_matches(text: str, word: str) -> np.ndarray:
    """(N, 2) int64 characters [start, end) of a word or phrase, whole words in any case.

    Raises:
        FocusError: the word is empty.
    """
    words = word.split()
    if not words:
        raise FocusError("There is no word to look for: type one.")
    spelt = r"\s+".join(regex.escape(each) for each in words)
    return _spans(text, rf"(?<!\w){spelt}(?!\w)", regex.IGNORECASE)


def pattern_matches(text: str, pattern: str) -> np.ndarray:
    """(N, 2) int64 characters [start, end) of the matches of a regular expression; empty matches are left out.

    Args:
        text: the text.
        pattern: in the syntax of the package `regex`, which has that of `re`; ^ and $ stand for the ends of lines.

    Raises:
        FocusError: it is empty, too long or invalid, or takes longer than `SECONDS`.
    """
    if not pattern:
        raise FocusError("There is no pattern to look for: type one.")
    if len(pattern) > MAX_PATTERN:
        raise FocusError(f"The pattern has {len(pattern):,} characters: give at most {MAX_PATTERN}.")
    return _spans(text, pattern, regex.MULTILINE)


def tag_matches(tagged: TaggedText, tag: str) -> np.ndarray:
    """(N, 2) int64 characters [start, end) of the words that have a universal part of speech."""
    return tagged.spans[np.asarray([each == tag for each in tagged.tags], dtype=bool)]


def entity_matches(found: Entities, kind: str) -> np.ndarray:
    """(N, 2) int64 characters [start, end) of the entities of a type."""
    return found.spans[np.asarray([each == kind for each in found.kinds], dtype=bool)]


def matching_tokens(text: str, offsets: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """(T,) bool: tokens that hold a character of a span; blanks around a token count for tokens of blanks alone.

    Args:
        text: the text.
        offsets: (T, 2) int64 characters of each token.
        spans: (N, 2) int64.
    """
    edges = np.zeros(len(text) + 1, dtype=np.int64)
    np.add.at(edges, spans[:, 0], 1)
    np.add.at(edges, spans[:, 1], -1)
    marked = np.concatenate(([0], np.cumsum(np.cumsum(edges[:-1]) > 0)))
    whole = np.asarray(offsets, dtype=np.int64)
    trimmed = trim_offsets(text, whole)
    blank = trimmed[:, 1] <= trimmed[:, 0]
    trimmed[blank] = whole[blank]
    return marked[trimmed[:, 1]] > marked[trimmed[:, 0]]


def _spans(text: str, pattern: str, flags: int) -> np.ndarray:
    """Matches that are not empty. Other threads run meanwhile, and the search ends in time whatever the pattern."""
    late = FocusError(
        f"The pattern needs more than {SECONDS:g} seconds for this text: avoid repeats within repeats, as in (a|aa)+."
    )
    found, end = [], time.monotonic() + SECONDS
    try:
        for match in regex.compile(pattern, flags).finditer(text, timeout=SECONDS, concurrent=True):
            if match.end() > match.start():
                found.append(match.span())
            if time.monotonic() > end:
                raise late
    except regex.error as error:
        raise FocusError(
            f"The pattern cannot be read ({error}): put a backslash before signs that are text."
        ) from error
    except TimeoutError as error:
        raise late from error
    return np.asarray(found, dtype=np.int64).reshape(-1, 2)
