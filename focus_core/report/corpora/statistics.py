"""Sums over routed tokens, the basis of cards: memory does not grow with the length of the corpus."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from focus_core.errors import FocusError
from focus_core.io.reading import parse_json

MAX_UNITS = 1024
"""Largest number of stretches (or documents) that intervals resample."""
CHARACTERS_PER_UNIT = 120
"""Length of the stretches of a short corpus, about a sentence each."""
CONTEXT = 60
"""Characters of context on either side of an example."""

_LARGEST_TABLE = 2**31  # bytes of the count of token types


class Occurrence(NamedTuple):
    """A token that may become an example.

    Attributes:
        rank: the smallest are kept; for random examples a random number, for the strongest the negated weight.
        tie: decides between equal ranks; a random number.
        token_id: in the vocabulary.
        weight: soft assignment to its first group, or the block's `strength`.
        document: index of the text.
        start: character in that text.
        before: text in front of it.
        token: its characters.
        after: text behind it.
    """

    rank: float
    tie: float
    token_id: int
    weight: float
    document: int
    start: int
    before: str
    token: str
    after: str


@dataclass(frozen=True)
class Block:
    """Routed tokens of one document, T of them.

    Attributes:
        document: its index in the corpus.
        text: the text that `offsets` point into.
        text_start: where that text starts in the document.
        corpus_start: where that text starts in the whole corpus, counted in characters.
        input_ids: (T,) int64.
        offsets: (T, 2) int64 characters of each token in `text`.
        assignment: (L, T, K) float32 soft assignment.
        membership: (L, T, K) bool groups joined.
        tagged: (n,) int64 tokens that stand for a word, as indices into the block; empty without tags.
        tags: (n,) int64 code of each of these words' part of speech.
        strength: (L, T) float32, how clearly a token is in its first group; the assignment to it when None.
    """

    document: int
    text: str
    text_start: int
    corpus_start: int
    input_ids: np.ndarray
    offsets: np.ndarray
    assignment: np.ndarray
    membership: np.ndarray
    tagged: np.ndarray
    tags: np.ndarray
    strength: np.ndarray | None = None


class Part(NamedTuple):
    """Sums and examples of some blocks, without the zeros; see `Statistics.merge`.

    Attributes:
        sums: by name of the array, indices of the flat array and the values there.
        random: random examples of each layer and group.
        strongest: those with the largest assignment.
    """

    sums: dict[str, tuple[np.ndarray, np.ndarray]]
    random: list[list[Occurrence]]
    strongest: list[list[Occurrence]]


class Statistics:
    """Running sums over the blocks of a corpus.

    Each value is a count, a sum, or a sample with the smallest of random numbers, which a block's place in the corpus
    decides. The result is therefore the same after any number of interruptions, and in any order but for the rounding
    of sums. Parts that were summed apart add up to it.

    Args:
        num_layers: L.
        num_groups: K.
        vocabulary: V, token types.
        characters: in the whole corpus.
        num_documents: in the corpus.
        num_tags: G, parts of speech; 0 for none.
        examples: of each kind, per card.
        seed: of the random examples.
        num_heads: H, heads of each layer with groups of their own. They take the place of layers: L is H times as
            many below, a layer's heads beside each other.

    Attributes:
        counts: (L, K, V) int32 tokens of each type by first group.
        joint: (H, L / H K, L / H K) int64 tokens in first group a of one layer and b of another, of the same head.
        members: (L, K) int64 tokens that joined the group.
        documents: (D,) int64 tokens of each document.
        weight: (L, K) float64 sum of the assignment to the first group, or of the blocks' `strength`.
        units: (U, L, K) int32 tokens by stretch of text and first group.
        unit_tags: (U, L, K, G) int32 words by stretch, first group and part of speech.
        random: the random examples of each layer and group, unsorted.
        strongest: those with the largest assignment, one of each token type.
        failed: documents by index that are in no sum, with the reason.

    Raises:
        FocusError: the counts would need too much memory.
    """

    def __init__(
        self,
        num_layers: int,
        num_groups: int,
        vocabulary: int,
        *,
        characters: int,
        num_documents: int = 1,
        num_tags: int = 0,
        examples: int = 5,
        seed: int = 0,
        num_heads: int = 1,
    ) -> None:
        num_layers *= num_heads
        if num_layers * num_groups * vocabulary * 4 > _LARGEST_TABLE:
            raise FocusError(
                f"Counting {vocabulary:,} token types in {num_groups} groups of {num_layers} layers needs more than "
                "2 GiB: choose fewer layers."
            )
        self.by_document = num_documents >= 10
        self.num_documents = num_documents
        self.characters = max(1, characters)
        self.examples = examples
        self.seed = seed
        wanted = num_documents if self.by_document else characters // CHARACTERS_PER_UNIT
        num_units = max(1, min(MAX_UNITS, wanted))
        places = num_layers * num_groups
        self.counts = np.zeros((num_layers, num_groups, vocabulary), np.int32)
        self.joint = np.zeros((num_heads, places // num_heads, places // num_heads), np.int64)
        self.members = np.zeros((num_layers, num_groups), np.int64)
        self.documents = np.zeros(num_documents, np.int64)
        self.weight = np.zeros((num_layers, num_groups))
        self.units = np.zeros((num_units, num_layers, num_groups), np.int32)
        self.unit_tags = np.zeros((num_units, num_layers, num_groups, num_tags), np.int32)
        self.random: list[list[Occurrence]] = [[] for _ in range(places)]
        self.strongest: list[list[Occurrence]] = [[] for _ in range(places)]
        self.failed: dict[int, str] = {}

    @property
    def num_tokens(self) -> int:
        """Tokens counted so far."""
        return int(self.documents.sum())

    def add(self, block: Block) -> None:
        """Count the tokens of one block."""
        num_layers, num_tokens, num_groups = block.assignment.shape
        groups = block.assignment.argmax(-1)
        weights = block.strength
        if weights is None:
            weights = np.take_along_axis(block.assignment, groups[..., None], -1)[..., 0]
        layer = np.arange(num_layers)[:, None]
        np.add.at(self.counts, (layer, groups, block.input_ids[None]), 1)
        for head in range(len(self.joint)):
            of_head = groups[head :: len(self.joint), :, None]
            one_hot = (of_head == np.arange(num_groups)).transpose(1, 0, 2).reshape(num_tokens, -1)
            one_hot = one_hot.astype(np.float32)  # exact: a block has far fewer than 2^24 tokens
            self.joint[head] += (one_hot.T @ one_hot).astype(np.int64)
        self.members += block.membership.sum(1)
        self.documents[block.document] += num_tokens
        np.add.at(self.weight, (layer, groups), weights.astype(np.float64))
        unit = self._units(block)
        np.add.at(self.units, (unit[None], layer, groups), 1)
        if len(block.tagged):
            place = (unit[block.tagged][None], layer, groups[:, block.tagged], block.tags[None])
            np.add.at(self.unit_tags, place, 1)
        place = [self.seed, block.document, block.text_start + int(block.offsets[0, 0])]
        draws = np.random.default_rng(place).random((2, num_layers, num_tokens))
        self._sample(block, groups, weights, draws)

    def _units(self, block: Block) -> np.ndarray:
        """(T,) index of each token's stretch of the corpus, or document."""
        num_units = len(self.units)
        if self.by_document:
            return np.full(len(block.input_ids), block.document * num_units // self.num_documents)
        position = block.corpus_start + block.offsets[:, 0]
        return np.minimum(position * num_units // self.characters, num_units - 1)

    def _sample(self, block: Block, groups: np.ndarray, weights: np.ndarray, draws: np.ndarray) -> None:
        num_groups, keep = self.members.shape[1], self.examples
        for place in range(len(self.random)):
            layer, group = divmod(place, num_groups)
            inside = np.flatnonzero(groups[layer] == group)
            if not len(inside) or not keep:
                continue
            draw, tie, weight = draws[0, layer, inside], draws[1, layer, inside], weights[layer, inside]
            held = self.random[place]
            limit = held[-1].rank if len(held) == keep else np.inf
            chosen = [i for i in _smallest(draw, keep) if draw[i] < limit]
            if chosen:
                found = [_occurrence(block, int(inside[i]), draw[i], tie[i], weight[i]) for i in chosen]
                self._keep_random(place, found)
            held = self.strongest[place]
            limit = held[-1].rank if len(held) == keep else np.inf
            able = np.flatnonzero(-weight <= limit)
            able = able[np.lexsort((tie[able], -weight[able]))]
            _, first = np.unique(block.input_ids[inside[able]], return_index=True)  # the best of each token type
            chosen = able[np.sort(first)[:keep]]
            if len(chosen):
                found = [
                    _occurrence(block, int(inside[i]), -float(weight[i]), float(tie[i]), float(weight[i]))
                    for i in chosen
                ]
                self._keep_strongest(place, found)

    def _keep_random(self, place: int, found: Sequence[Occurrence]) -> None:
        self.random[place] = sorted([*self.random[place], *found])[: self.examples]

    def _keep_strongest(self, place: int, found: Sequence[Occurrence]) -> None:
        best: dict[int, Occurrence] = {}
        for occurrence in sorted([*self.strongest[place], *found]):
            best.setdefault(occurrence.token_id, occurrence)
        self.strongest[place] = list(best.values())[: self.examples]

    def part(self) -> Part:
        """The sums and examples as a small value, to be added to others elsewhere."""
        sums = {}
        for name, array in self.arrays().items():
            flat = array.reshape(-1)
            where = np.flatnonzero(flat)
            kind = np.int32 if flat.size < 2**31 else np.int64
            sums[name] = where.astype(kind), flat[where]
        return Part(sums, self.random, self.strongest)

    def merge(self, part: Part) -> None:
        """Add what was summed apart over other blocks of the same corpus, with the same settings."""
        for name, array in self.arrays().items():
            where, values = part.sums[name]
            array.reshape(-1)[where] += values
        for place in range(len(self.random)):
            self._keep_random(place, part.random[place])
            self._keep_strongest(place, part.strongest[place])

    def arrays(self) -> dict[str, np.ndarray]:
        """The sums by name, for saving; the same arrays, not copies."""
        return {
            "counts": self.counts,
            "joint": self.joint,
            "members": self.members,
            "documents": self.documents,
            "weight": self.weight,
            "units": self.units,
            "unit_tags": self.unit_tags,
        }

    def samples(self) -> str:
        """Examples as JSON, for saving beside `arrays`."""
        return json.dumps({"random": self.random, "strongest": self.strongest})

    def restore(self, arrays: dict[str, np.ndarray], samples: str) -> None:
        """Resume from saved `arrays` and `samples`.

        Raises:
            FocusError: they do not fit these sums.
        """
        try:
            values: dict[str, Any] = parse_json(samples, "The saved state")
            random, strongest = (
                [[Occurrence(*o) for o in place] for place in values[n]] for n in ("random", "strongest")
            )
        except (ValueError, TypeError, KeyError) as error:
            raise FocusError("The saved state of the report is damaged: delete it and start again.") from error
        own = self.arrays()
        if {n: (a.shape, a.dtype) for n, a in arrays.items()} != {n: (a.shape, a.dtype) for n, a in own.items()}:
            raise FocusError("The saved state of the report does not fit its settings: delete it and start again.")
        for name, array in arrays.items():
            own[name][...] = array
        self.random, self.strongest = random, strongest


def _smallest(values: np.ndarray, count: int) -> Sequence[int]:
    if len(values) <= count:
        return range(len(values))
    return np.argpartition(values, count - 1)[:count].tolist()


def _occurrence(block: Block, token: int, rank: float, tie: float, weight: float) -> Occurrence:
    start, end = (int(edge) for edge in block.offsets[token])
    while start < end - 1 and block.text[start] == " ":
        start += 1
    return Occurrence(
        rank=float(rank),
        tie=float(tie),
        token_id=int(block.input_ids[token]),
        weight=float(weight),
        document=block.document,
        start=block.text_start + start,
        before=block.text[max(0, start - CONTEXT) : start],
        token=block.text[start:end],
        after=block.text[end : end + CONTEXT],
    )
