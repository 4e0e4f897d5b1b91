"""Routes a corpus of any length block by block; it can stop at any time and resume."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import Tensor

from focus_core.analysis.reading import best_margins, untouched
from focus_core.analysis.trace import key_memberships
from focus_core.cluster import Lost
from focus_core.errors import FocusError
from focus_core.io.files import atomic_path
from focus_core.io.reading import parse_json, read_tensors
from focus_core.io.schema import array
from focus_core.progress import Progress, silent
from focus_core.report.corpora.corpus import Corpus, Place, Section, Unit, units
from focus_core.report.corpora.statistics import Block, Part, Statistics
from focus_core.routing.layer import LayerRouting
from focus_core.routing.model import FocusModel
from focus_core.text import Encoding, encode, opening_tokens

STATE = "report.state.safetensors"
"""Name of the state of an interrupted report, in its output folder."""
BEFORE = "report.before.safetensors"
"""Name of the state before the last document of several sections, to which a report returns if that document fails."""

_FORMAT = "5"
_TOKENS_BETWEEN_SAVES = 16_384


@dataclass(frozen=True)
class StreamSettings:
    """Settings for routing and sampling a corpus.

    Attributes:
        top_k: k of every layer; None for the routers' own, or their plan. With routers per head a token is in one group
            for any k.
        heads: the key/value heads to report, where each has a router.
        states: "untouched" (the routers read the untouched model's hidden states) or "routed" (those under hard routing
            at this k).
        block_length: tokens routed at once, the tokenizer's own opening included. A block never crosses a section or
            a document.
        batch_size: blocks of full length in one forward pass.
        layers: layers to report, None for all.
        examples: of each kind, per card.
        seed: of the random examples and the intervals.
    """

    top_k: int | None = None
    heads: tuple[int, ...] = (0,)
    states: str = "untouched"
    block_length: int = 2048
    batch_size: int = 1
    layers: tuple[int, ...] | None = None
    examples: int = 5
    seed: int = 0


TagSection = Callable[[Section, Encoding], tuple[np.ndarray, np.ndarray]]
"""Maps a section to the tokens that stand for its words, and the codes of the words' parts of speech."""

Elsewhere = Callable[[Iterator[Unit], StreamSettings, dict[str, Any]], Generator[tuple[Unit, Part | Lost]]]
"""Maps units of text, settings and arguments of `Statistics` to each unit with its part of the statistics, in order.

A section that ends every worker comes alone, with the reason."""


def collect(
    focus: FocusModel,
    tokenizer: Any,
    corpus: Corpus,
    settings: StreamSettings,
    folder: Path,
    *,
    fingerprint: dict[str, Any],
    tag: TagSection | None = None,
    num_tags: int = 0,
    elsewhere: Elsewhere | None = None,
    progress: Progress = silent,
) -> Statistics:
    """Route a corpus and sum over the tokens of its groups.

    The state is saved to `folder` about once per section. A later call with the same texts, model, routers and settings
    resumes from it. It stays there until `forget` removes it.

    Documents that vanish or change after the scan, and those that end every worker, are in no sum. `Statistics.failed`
    has them with the reason.

    Args:
        focus: model with routers.
        tokenizer: its tokenizer.
        corpus: the texts.
        settings: see `StreamSettings`.
        folder: folder of the state.
        fingerprint: model and routers, on which the result also depends, as plain values.
        tag: finds words and parts of speech; None for none.
        num_tags: parts of speech that `tag` knows.
        elsewhere: sums up in other processes, with the same result but for the rounding of sums; None for here.
        progress: told the share of the corpus that is done.

    Raises:
        FocusError: settings out of range, no document that can be used, or a state of another report in the folder.
    """
    layers = chosen_layers(focus, settings)
    limit = getattr(focus.model.config.get_text_config(), "max_position_embeddings", None) or settings.block_length
    shortest = len(opening_tokens(tokenizer)) + 1
    if not shortest <= settings.block_length <= limit:
        raise FocusError(f"A block of {settings.block_length:,} tokens does not fit: choose {shortest} to {limit:,}.")
    if settings.batch_size < 1 or settings.examples < 0:
        raise FocusError("Batch size must be at least 1, and the number of examples cannot be negative.")
    heads = min(focus.router(layer).num_heads for layer in layers)
    missing = [head for head in settings.heads if not 0 <= head < heads]
    if missing or len(set(settings.heads)) != len(settings.heads) or not settings.heads:
        wrong = f"Head {missing[0]} has no router" if missing else "Each head is reported once"
        raise FocusError(f"{wrong}: choose from 0 to {heads - 1}.")
    shape: dict[str, Any] = {
        "num_layers": len(layers),
        "num_heads": len(settings.heads),
        "num_groups": focus.config.num_groups,
        "vocabulary": max(len(tokenizer), getattr(tokenizer, "vocab_size", 0)),
        "characters": corpus.characters,
        "num_documents": len(corpus.documents),
        "num_tags": num_tags,
        "examples": settings.examples,
        "seed": settings.seed,
    }
    statistics = Statistics(**shape)
    made_from = {**asdict(settings), **fingerprint, "num_tags": num_tags, "corpus": corpus.sha256}
    key = hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()
    state = _State(folder, key, statistics)
    place = state.load()

    def told(section: Section, until: int) -> None:
        share = (section.corpus_start + until) / max(1, corpus.characters)
        progress(f"Routing {corpus.documents[section.document].name}: {statistics.num_tokens:,} tokens", share)

    def here(units: Iterator[Unit]) -> Generator[Unit]:
        for section in (section for unit in units for section in unit):
            if state.begin(section):
                for block in section_blocks(focus, tokenizer, section, settings, layers, tag):
                    statistics.add(block)
                    told(section, int(block.offsets[-1, 1]))
                yield (section,)

    def merged(parts: Generator[tuple[Unit, Part | Lost]]) -> Generator[Unit]:
        with closing(parts):
            for unit, part in parts:
                if isinstance(part, Lost):
                    state.lose(unit[0].document, f"{part.reason}.")
                elif state.begin(unit[-1]):
                    statistics.merge(part)
                    told(unit[-1], len(unit[-1].text))
                    yield unit

    rest = units(corpus, place, statistics.failed)
    with closing(here(rest) if elsewhere is None else merged(elsewhere(rest, settings, shape))) as finished:
        for unit in finished:
            if statistics.num_tokens - state.saved >= _TOKENS_BETWEEN_SAVES:
                state.save(unit[-1].after)
    state.settle()
    if not statistics.num_tokens and statistics.failed:
        reason = next(iter(statistics.failed.values()))
        raise FocusError(f"No document can be used. The first that failed: {reason}")
    if not statistics.num_tokens:
        raise FocusError("The texts have no tokens: give at least one word.")
    return statistics


def forget(folder: Path) -> None:
    """Remove the state of a finished report."""
    for name in (STATE, BEFORE):
        (folder / name).unlink(missing_ok=True)


def chosen_layers(focus: FocusModel, settings: StreamSettings) -> tuple[int, ...]:
    """The layers a report is about.

    Raises:
        FocusError: a layer without a router.
    """
    if settings.layers is None:
        return focus.layers
    missing = sorted(set(settings.layers) - set(focus.layers))
    if missing:
        raise FocusError(f"Layer {missing[0]} has no router: choose from {min(focus.layers)} to {max(focus.layers)}.")
    return tuple(sorted(set(settings.layers)))


def section_blocks(
    focus: FocusModel,
    tokenizer: Any,
    section: Section,
    settings: StreamSettings,
    layers: tuple[int, ...],
    tag: TagSection | None,
) -> Iterator[Block]:
    """The routed blocks of a section; none of one without tokens."""
    try:
        encoding = encode(tokenizer, section.text)
    except FocusError:  # blank, or nothing but characters that the tokenizer drops
        return
    none = np.zeros(0, dtype=np.int64)
    words, tags = (none, none) if tag is None else tag(section, encoding)
    before = np.array(opening_tokens(tokenizer), dtype=np.int64)
    config = focus.config.replace(**_own_k(settings))
    if config.layer_top_k is not None:
        own = (config.top_k_of(focus.layers.index(layer)) for layer in layers for _ in settings.heads)
        config = config.replace(layer_top_k=tuple(own))
    for start, assignment, strength in _routed(focus, encoding.input_ids, before, settings, layers):
        end = start + assignment.shape[1]
        inside = (words >= start) & (words < end)
        yield Block(
            document=section.document,
            text=section.text,
            text_start=section.start,
            corpus_start=section.corpus_start,
            input_ids=encoding.input_ids[start:end],
            offsets=encoding.offsets[start:end],
            assignment=assignment.numpy(),
            membership=key_memberships(assignment, config),
            tagged=words[inside] - start,
            tags=tags[inside],
            strength=None if strength is None else strength.numpy(),
        )


def _own_k(settings: StreamSettings) -> dict[str, int]:
    """The change of the routers' settings that gives hard groups at the chosen k."""
    return {} if settings.top_k is None else {"top_k": settings.top_k}


def _routed(
    focus: FocusModel, input_ids: np.ndarray, before: np.ndarray, settings: StreamSettings, layers: tuple[int, ...]
) -> Iterator[tuple[int, Tensor, Tensor | None]]:
    """(start, (L H, T, K) soft assignment, (L H, T) margins of narrow groups or None) of each block.

    Blocks of full length are routed several at once.

    The model reads every block after the tokenizer's opening `before`, which is not returned.
    """
    length = settings.block_length - len(before)
    full = len(input_ids) // length
    batches = [
        range(first * length, min(first + settings.batch_size, full) * length, length)
        for first in range(0, full, settings.batch_size)
    ]
    if full * length < len(input_ids):
        batches.append(range(full * length, len(input_ids), length))
    changes: dict[str, Any] = untouched(focus.config) if settings.states == "untouched" else _own_k(settings)
    for batch in batches:
        rows = torch.from_numpy(np.stack([np.append(before, input_ids[start : start + length]) for start in batch]))
        seen: dict[int, tuple[Tensor, ...]] = {}

        def record(routing: LayerRouting, seen: dict[int, tuple[Tensor, ...]] = seen) -> None:
            margins = best_margins(routing)
            found = (routing.key_weights, *([] if margins is None else [margins]))
            seen[routing.layer] = tuple(part[:, len(before) :].float().cpu() for part in found)

        with (
            torch.inference_mode(),
            focus.routing("hard", **changes),
            focus.observe(record),
        ):
            focus.model.base_model(input_ids=rows.to(focus.model.device), use_cache=False)
        for index, start in enumerate(batch):
            first = {layer: index * focus.router(layer).num_heads for layer in layers}
            rows = ((layer, first[layer] + head) for layer in layers for head in settings.heads)
            found = zip(*([part[row] for part in seen[layer]] for layer, row in rows))
            assignment, *strength = (torch.stack(each) for each in found)
            yield start, assignment, strength[0] if strength else None


class _State:
    """Sums that are saved, and that hold all of a document or nothing.

    Args:
        folder: of the state.
        key: of everything that decides the result.
        statistics: the sums.
    """

    def __init__(self, folder: Path, key: str, statistics: Statistics) -> None:
        self.path, self.before, self.key, self.statistics = folder / STATE, folder / BEFORE, key, statistics
        self.saved = 0
        self.opened: int | None = None  # a document of which some sections are counted, and some are not

    def load(self) -> Place:
        """Resume, and tell the next section."""
        place = _load(self.path, self.key, self.statistics)
        self.saved = self.statistics.num_tokens
        self.opened = place[0] if place[1] else None
        return place

    def save(self, place: Place) -> None:
        """Write the state; `place` is the next section."""
        _save(self.path, self.key, self.statistics, place)
        self.saved = self.statistics.num_tokens

    def begin(self, section: Section) -> bool:
        """Whether to count a section: not if its document failed."""
        self.settle()
        if section.document in self.statistics.failed:
            return False
        if not section.number and not section.last:
            self.save((section.document, 0))
            with atomic_path(self.before) as temporary:
                shutil.copyfile(self.path, temporary)
        self.opened = None if section.last else section.document
        return True

    def lose(self, document: int, reason: str) -> None:
        """Count nothing of a document."""
        self.statistics.failed.setdefault(document, reason)
        self.settle()

    def settle(self) -> None:
        """Forget what was counted of a document that failed."""
        if self.opened not in self.statistics.failed:
            return
        failed = dict(self.statistics.failed)
        if not self.before.exists() or _load(self.before, self.key, self.statistics) != (self.opened, 0):
            raise FocusError(f"{self.before} is missing: delete {STATE} beside it, and start again.")
        self.statistics.failed.update(failed)
        self.opened = None


def _save(path: Path, key: str, statistics: Statistics, place: Place) -> None:
    """Write the state atomically; `place` is the next section."""
    metadata = {
        "format": _FORMAT,
        "made_from": key,
        "place": json.dumps(place),
        "failed": json.dumps(list(statistics.failed.items())),
        "samples": statistics.samples(),
    }
    arrays = {name: array for name, array in statistics.arrays().items() if array.size}
    with atomic_path(path) as temporary:
        save_file(arrays, temporary, metadata=metadata)


def _load(path: Path, key: str, statistics: Statistics) -> Place:
    """Restore a saved state and return the next section, the first if there is none."""
    if not path.exists():
        return 0, 0
    try:
        metadata, tensors = read_tensors(path)
    except (FocusError, OSError) as error:
        raise FocusError(f"{path} is damaged: delete it and start again.") from error
    if metadata.get("format") != _FORMAT or metadata.get("made_from") != key:
        raise FocusError(
            f"{path.parent} holds an unfinished report on other texts, weights or settings: repeat its command to "
            f"finish it, delete {path.name}, or choose another folder."
        )
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    arrays |= {name: array for name, array in statistics.arrays().items() if not array.size}
    try:
        _check_arrays(arrays, statistics.arrays())
        statistics.restore(arrays, metadata["samples"])
        failed, place = (parse_json(metadata[name], str(path), array()) for name in ("failed", "place"))
        statistics.failed.clear()
        statistics.failed.update((int(index), str(reason)) for index, reason in failed)
        document, number = map(int, place)
        return document, number
    except (FocusError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise FocusError(f"{path} is damaged: delete it and start again.") from error


def _check_arrays(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    """Refuse arrays of other names, shapes or types."""
    if {name: (each.shape, each.dtype) for name, each in found.items()} != {
        name: (each.shape, each.dtype) for name, each in wanted.items()
    }:
        raise ValueError("other arrays")
