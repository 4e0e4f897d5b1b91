"""Routed documents as files: their words in memory when they are needed, their states one layer at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save_file
from torch import Tensor

from focus_core.analysis.linguistics.corpus.sample import DocumentWords
from focus_core.analysis.linguistics.corpus.words import TaggedText, Tagger, WordTokens
from focus_core.io.reading import parse_json, read_tensors
from focus_core.io.schema import table

_STATES = "states of layer "
_PLAIN = "plain"


class RoutedDocument(NamedTuple):
    """What an alignment needs of one document.

    Attributes:
        words: with their groups.
        states: (m, d) float16 of each layer, those of the words' tokens.
    """

    words: DocumentWords
    states: Mapping[int, Tensor]


@dataclass(frozen=True)
class StoredStates(Mapping[int, Tensor]):
    """States in a file of `save_document`, read when they are asked for and not kept.

    Attributes:
        path: the file.
        layers: of the states.
    """

    path: Path
    layers: tuple[int, ...]

    def __getitem__(self, layer: int) -> Tensor:
        (states,) = read_tensors(self.path, lambda name: name == f"{_STATES}{layer}")[1].values()
        return states

    def __iter__(self) -> Iterator[int]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)


def save_document(document: RoutedDocument, path: Path) -> None:
    """Write a document to a safetensors file."""
    words, tagged, found = document.words, document.words.tagged, document.words.found
    arrays = {
        "spans": tagged.spans,
        "sentences": tagged.sentences,
        "groups": words.groups,
        "membership": words.membership,
        "words": found.words,
        "tokens": found.tokens,
        "first": found.first,
        "last": found.last,
        **{f"{_STATES}{layer}": states.numpy() for layer, states in document.states.items()},
    }
    plain: dict[str, Any] = {
        **{name: getattr(tagged, name) for name in ("text", "tags", "relations", "entities")},
        "tagger": asdict(tagged.tagger),
        **{name: getattr(found, name) for name in ("num_words", "exact", "coverage")},
        **{name: getattr(words, name) for name in ("spelt", "layers")},
        "states": list(document.states),
    }
    save_file({name: np.ascontiguousarray(each) for name, each in arrays.items()}, path, {_PLAIN: json.dumps(plain)})


def load_document(path: Path) -> RoutedDocument:
    """The document of a file, its states still there.

    Raises:
        FocusError: the file is damaged.
    """
    metadata, tensors = read_tensors(path, lambda name: not name.startswith(_STATES))
    plain = parse_json(metadata[_PLAIN], str(path), table())
    arrays = {name: tensor.numpy().copy() for name, tensor in tensors.items()}  # nothing holds the file
    tagged = TaggedText(
        text=plain["text"],
        spans=arrays["spans"],
        tags=tuple(plain["tags"]),
        sentences=arrays["sentences"],
        tagger=Tagger(**plain["tagger"]),
        relations=tuple(plain["relations"]),
        entities=tuple(plain["entities"]),
    )
    found = WordTokens(
        **{name: arrays[name] for name in ("words", "tokens", "first", "last")},
        **{name: plain[name] for name in ("num_words", "exact", "coverage")},
    )
    spelt = tuple(tuple(each) if isinstance(each, list) else each for each in plain["spelt"])
    words = DocumentWords(tagged, found, spelt, tuple(plain["layers"]), arrays["groups"], arrays["membership"])
    return RoutedDocument(words, StoredStates(path, tuple(plain["states"])))
