"""Known properties of words that their groups may follow, and blocks of sentences to hold out."""

from __future__ import annotations

import numpy as np

from focus_core.analysis.linguistics.corpus.sample import WordSample, type_codes

BLOCKS = 32
"""Blocks of one text, about."""
MIN_DOCUMENTS = 16
"""As many documents or more are the blocks themselves."""
FEATURES = {
    "token identity": "the exact spelling of the word, as its tokens",
    "previous token": "the spelling of the word before",
    "part of speech": "the universal tag",
    "dependency relation": "what the word is to the word that it depends on, such as subject or object",
    "entity": "the kind of name that the word is part of, or none",
    "frequency": "how often the word occurs here, in powers of two",
    "position": "eighths of the document, and the place in the sentence",
}
"""The features, and what each one is in plain words."""
_EIGHTHS = 8


def word_features(sample: WordSample) -> dict[str, np.ndarray]:
    """(n, C) int64 codes of each feature in `FEATURES`; those with one value or none are left out.

    Args:
        sample: the words, in order.
    """
    first = np.diff(sample.documents, prepend=-1) != 0
    before = np.where(first, sample.types.max() + 1, np.roll(sample.types, 1))
    place = _within(sample.sentences)
    lengths = np.bincount(sample.documents, minlength=int(sample.documents.max()) + 1)[sample.documents]
    found = {
        "token identity": sample.types,
        "previous token": before,
        "part of speech": sample.codes("upos"),
        "dependency relation": type_codes(sample.relations),
        "entity": type_codes(sample.entities),
        "frequency": np.log2(np.bincount(sample.types)[sample.types]).astype(np.int64),
        "position": np.stack(
            (_EIGHTHS * _within(sample.documents) // lengths, np.log2(place + 1).astype(np.int64)), axis=1
        ),
    }
    return {name: codes.reshape(len(sample), -1) for name, codes in found.items() if len(np.unique(codes)) > 1}


def sentence_blocks(sample: WordSample) -> np.ndarray:
    """(n,) int64: blocks of consecutive sentences with about as many words each; the documents where these are many."""
    if sample.num_documents >= MIN_DOCUMENTS:
        return np.unique(sample.documents, return_inverse=True)[1].reshape(-1)
    starts = np.flatnonzero(np.diff(sample.sentences, prepend=-1))
    wanted = (starts * BLOCKS // len(sample)) + BLOCKS * sample.documents[starts]
    of_sentence = np.repeat(wanted, np.diff(starts, append=len(sample)))
    return np.unique(of_sentence, return_inverse=True)[1].reshape(-1)


def _within(units: np.ndarray) -> np.ndarray:
    """(n,) int64 place of each word in its unit, of units in order."""
    starts = np.flatnonzero(np.diff(units, prepend=-1))
    return np.arange(len(units)) - np.repeat(starts, np.diff(starts, append=len(units)))
