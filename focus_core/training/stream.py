"""Streams corpora of any size as shuffled token blocks without end; memory holds one buffer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from focus_core.errors import FocusError, require
from focus_core.io.jsonl import line_text, text_column
from focus_core.io.reading import regular
from focus_core.text import CORPUS_SUFFIXES, TABLE_SUFFIXES, opened, opening_tokens, read_text

HUB_PREFIX = "hf:"
"""Marks the name of a Hugging Face data set, as in hf:org/name or hf:org/name:configuration."""


@dataclass(frozen=True)
class Source:
    """One file, or one data set of the hub.

    Attributes:
        path: the file; None for a data set.
        dataset: name of the data set, with its configuration after a colon; "" for a file.
    """

    path: Path | None
    dataset: str = ""


def find_sources(names: str | Path | Iterable[str | Path]) -> list[Source]:
    """Sources from a list of files, folders and data set names, or from a single one.

    Args:
        names: text, JSONL or Parquet files; folders, searched through in sorted order; "hf:org/name" data sets.

    Raises:
        FocusError: a path that does not exist, or a folder without a corpus.
    """
    sources: dict[Source, None] = {}
    for name in [names] if isinstance(names, (str, Path)) else names:
        if str(name).startswith(HUB_PREFIX):
            sources[Source(None, str(name)[len(HUB_PREFIX) :])] = None
            continue
        path = Path(name)
        if not path.exists():
            raise FocusError(f"There is no file or folder {path}: check the path, or write hf:NAME for a hub data set.")
        files = [path if path.is_dir() else regular(path)]
        if path.is_dir():
            found = (entry for entry in path.rglob("*") if entry.suffix.lower() in CORPUS_SUFFIXES)
            files = sorted(entry for entry in found if entry.is_file())
            if not files:
                raise FocusError(
                    f"The folder {path} has no {', '.join(CORPUS_SUFFIXES)} files: name the files themselves."
                )
        sources.update(dict.fromkeys(Source(file) for file in files))
    if not sources:
        raise FocusError("No text was given: name at least one file, folder or data set.")
    return list(sources)


def documents(sources: Iterable[Source]) -> Iterator[str]:
    """The texts of the sources, one at a time: a text file is one, a table has one per row.

    Raises:
        FocusError: a file that is not of its format, or a table without a text column.
    """
    for source in sources:
        path = source.path
        if path is None:
            yield from _hub_documents(source.dataset)
        elif path.suffix.lower() == ".parquet":
            yield from _parquet_documents(path)
        elif path.suffix.lower() in TABLE_SUFFIXES:
            yield from _jsonl_documents(path)
        else:
            yield read_text(path)


def _jsonl_documents(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield line_text(line, number, path)


def _parquet_documents(path: Path) -> Iterator[str]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            column = text_column(file.schema_arrow.names, str(path))
            for batch in file.iter_batches(batch_size=256, columns=[column]):
                texts = [text for text in batch.column(0).to_pylist() if text]
                if not all(isinstance(text, str) for text in texts):
                    raise FocusError(
                        f"The column {column} of {path} holds no texts: rename it, and call the texts 'text'."
                    )
                yield from texts
    except (pyarrow.ArrowException, OSError) as error:
        raise FocusError(f"{path} is damaged or no Parquet file: get it again.") from error


def _hub_documents(name: str) -> Iterator[str]:
    datasets = require("datasets", "train")
    dataset, _, configuration = name.partition(":")
    try:
        rows = datasets.load_dataset(dataset, configuration or None, split="train", streaming=True)
        column = text_column(rows.column_names or next(iter(rows)), HUB_PREFIX + name)
    except FocusError:
        raise
    except Exception as error:  # the library raises whatever the network or the data set brings
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160].rstrip(".")
        raise FocusError(
            f"The data set {name} cannot be streamed ({reason}): check its name and the network."
        ) from error
    for row in rows:
        yield row[column]


class TokenStream(IterableDataset[dict[str, Tensor]]):
    """Blocks of tokens from sources, shuffled, without end: after the last text it starts again in another order.

    Each pass visits the sources in a new order and sends blocks through a shuffling buffer. The order is a function of
    the seed alone, so a run resumes by skipping the blocks it has seen. Processes that each take their part of every
    batch (Accelerate's `IterableDatasetShard`) see together the blocks of a single process.

    Args:
        sources: from `find_sources`.
        tokenizer: a fast tokenizer of Transformers.
        length: T, tokens per block, the `opening_tokens` included. A block never holds two texts; an incomplete block
            at the end of a text is dropped.
        seed: of the order.
        buffer: blocks held for shuffling.
    """

    def __init__(
        self, sources: Sequence[Source], tokenizer: Any, length: int, *, seed: int = 0, buffer: int = 2048
    ) -> None:
        if length < 2 or buffer < 1:
            raise FocusError("A block needs at least 2 tokens and the shuffling buffer at least 1 block.")
        self.sources, self.tokenizer, self.length = list(sources), tokenizer, length
        self.seed, self.buffer = seed, buffer
        self.opening = opening_tokens(tokenizer)
        if len(self.opening) >= length:
            raise FocusError(f"A block of {length} has no room after the tokenizer's own opening: give longer blocks.")

    def blocks(self, order: Iterable[int]) -> Iterator[np.ndarray]:
        """(T,) int64 blocks of the sources in the given order, unshuffled."""
        for text in documents(self.sources[index] for index in order):
            encoded = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
            ids = np.asarray(encoded, dtype=np.int64)
            yield from opened(ids, self.opening, self.length)

    def one_pass(self, number: int) -> Iterator[np.ndarray]:
        """The blocks of one pass over the corpus, each once, in shuffled order."""
        rng = np.random.default_rng([self.seed, number])
        held: list[np.ndarray] = []
        for block in self.blocks(rng.permutation(len(self.sources))):
            if len(held) < self.buffer:
                held.append(block)
                continue
            place = int(rng.integers(self.buffer))
            yield held[place]
            held[place] = block
        rng.shuffle(held)  # type: ignore[arg-type]
        yield from held

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        number = 0
        while True:
            empty = True
            for block in self.one_pass(number):
                empty = False
                yield {"input_ids": torch.from_numpy(block.copy())}
            if empty:
                raise FocusError(f"No text has {self.length} tokens: give longer texts or a smaller --length.")
            number += 1

    def sample(self, count: int) -> Tensor:
        """The first `count` blocks of the stream (fewer if one pass has fewer), (N, T) int64: for calibration."""
        rows = [block for block, _ in zip(self.one_pass(0), range(count))]
        if not rows:
            raise FocusError(f"No text has {self.length} tokens: give longer texts or a smaller --length.")
        return torch.from_numpy(np.stack(rows))
