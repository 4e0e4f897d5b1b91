"""Files of a Parquet data set of traces: their columns, and a writer that can stop and resume."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from focus_core.errors import FocusError
from focus_core.io.files import atomic_path, to_json, write_atomic
from focus_core.io.reading import read_json
from focus_core.io.schema import array, table, text, whole
from focus_core.report.corpora.corpus import Corpus, Place

SCHEMA = "focus-traces/1"
"""Schema of the files' metadata and of the record."""

_STATE, _DATA = "state.json", "data"
_STATE_CHECK = table(
    {
        "key": text(),
        "place": array(whole(0), least=2, longest=2),
        "parts": whole(0),
        "tokens": array(whole(0)),
        "failed": array(table({"document": whole(0), "reason": text()})),
    }
)

COLUMNS: dict[str, tuple[pa.DataType, str]] = {
    "document": (pa.string(), "name of the document, relative to the common folder"),
    "token": (pa.int64(), "index of the token in its document; the tokenizer's own opening is not counted"),
    "start": (pa.int64(), "first character of the token in its document"),
    "end": (pa.int64(), "character after its last one"),
    "text": (pa.string(), "characters of the token; tokens that share a character have the same"),
    "id": (pa.int32(), "number of the token in the vocabulary"),
    "head": (pa.int16(), "key/value head; null where all heads of a layer share the groups"),
    "group": (pa.int16(), "first group of the token as a key, the one with the largest weight"),
    "groups": (pa.list_(pa.int16()), "all groups that the token is in as a key, in ascending order"),
    "margin": (
        pa.float32(),
        "weight of the last group joined minus that of the first not joined, infinite if all are; "
        "with narrow groups the best balanced score minus the second best",
    ),
}
"""Type and meaning of every column of the files. `layer`, the layer in the model, is the partition."""


class Block(NamedTuple):
    """T routed tokens of one document.

    Attributes:
        document: its index.
        texts: (T,) characters of each token.
        spans: (T, 2) int64 where they are in the document.
        ids: (T,) int64.
        groups: first group in each of the L layers, (H, T) int16.
        members: all groups in each layer, (H, T, k) int16.
        margins: margin in each layer, (H, T) float32.
    """

    document: int
    texts: list[str]
    spans: np.ndarray
    ids: np.ndarray
    groups: list[np.ndarray]
    members: list[np.ndarray]
    margins: list[np.ndarray]


class Writer:
    """Collects blocks, and writes them as one file per layer whenever there are enough.

    Args:
        work: folder that holds the growing data set and the state.
        corpus: the documents.
        made_from: model, routers, settings and layers as plain values, which go into every file.
        key: of everything that decides the result.
    """

    def __init__(self, work: Path, corpus: Corpus, made_from: dict[str, Any], key: str) -> None:
        self.state, self.data, self.key = work / _STATE, work / _DATA, key
        self.names = [document.name for document in corpus.documents]
        self.layers, self.heads = made_from["layers"], made_from["settings"]["heads"]
        self.rows_per_part: int = made_from["settings"]["rows_per_part"]
        stated = {"schema": SCHEMA, "columns": meanings(), **made_from}
        self.schema = pa.schema(
            [
                pa.field(name, kind, nullable=name == "head", metadata={"description": meaning})
                for name, (kind, meaning) in COLUMNS.items()
            ],
            metadata={"focus": to_json(stated, indent=None)},
        )
        self.blocks: list[tuple[int, Block]] = []  # each with the index of its first token in its document
        self.parts = self.waiting = 0
        self.place: Place = (0, 0)
        self.tokens = [0] * len(self.names)
        self.failed: dict[int, str] = {}

    def resume(self) -> None:
        """Take the state of an interrupted run, if there is one.

        Raises:
            FocusError: it is damaged, or of other texts, weights or settings.
        """
        if not self.state.exists():
            return
        folder = self.state.parent
        try:
            state = read_json(self.state, _STATE_CHECK)
        except FocusError as error:
            raise FocusError(f"{folder} is damaged: delete it and start again.") from error
        if state["key"] != self.key:
            raise FocusError(
                f"{folder} holds unfinished traces of other texts, weights or settings: repeat its command to finish "
                "it, delete it, or name another folder."
            )
        files = (self._file(layer, part) for layer in self.layers for part in range(state["parts"]))
        if len(state["tokens"]) != len(self.names) or not all(path.is_file() for path in files):
            raise FocusError(f"{folder} is damaged: delete it and start again.")
        self.parts, self.tokens, (document, number) = state["parts"], state["tokens"], state["place"]
        self.place = document, number
        self.failed = {each["document"]: each["reason"] for each in state["failed"]}

    def add(self, block: Block) -> None:
        """Take the next block of the corpus."""
        self.blocks.append((self.tokens[block.document], block))
        self.tokens[block.document] += len(block.ids)
        self.waiting += len(block.ids) * len(self.layers) * len(self.heads)

    def end_section(self, after: Place) -> None:
        """Write a part if enough rows wait; a run that is interrupted later resumes after this section."""
        if self.waiting >= self.rows_per_part:
            self.flush(after)

    def finish(self, after: Place) -> None:
        """Write what waits, and take out the rows of documents that failed."""
        self.flush(after)
        partly = [document for document in self.failed if self.tokens[document]]
        if partly:
            self._save()  # from here on they stay failed
        names = [self.names[document] for document in partly]
        for layer, part in product(self.layers if partly else (), range(self.parts)):
            path = self._file(layer, part)
            rows = pq.ParquetFile(path).read()
            kept = rows.filter(pa.array(~np.isin(rows["document"].to_numpy(), names)))
            if len(kept) < len(rows):
                with atomic_path(path) as temporary:
                    pq.write_table(kept, temporary, compression="zstd")
        for document in partly:
            self.tokens[document] = 0

    def flush(self, after: Place) -> None:
        """Write the blocks that wait. A part that an interrupted run left behind is written over with the same rows."""
        if not self.blocks:
            return
        blocks = [block for _, block in self.blocks]
        per_block = [len(block.ids) for block in blocks]
        spans = np.concatenate([block.spans for block in blocks])
        named = pa.DictionaryArray.from_arrays(np.repeat([block.document for block in blocks], per_block), self.names)
        tokens = {
            "document": named.cast(pa.string()),
            "token": pa.array(np.concatenate([np.arange(len(block.ids)) + first for first, block in self.blocks])),
            "start": pa.array(spans[:, 0]),
            "end": pa.array(spans[:, 1]),
            "text": pa.array([each for block in blocks for each in block.texts], pa.string()),
            "id": pa.array(np.concatenate([block.ids for block in blocks]).astype(np.int32)),
        }
        every = pa.array(np.repeat(np.arange(sum(per_block)), len(self.heads)))
        repeated = {name: column.take(every) for name, column in tokens.items()}
        repeated["head"] = pa.array(self.heads * sum(per_block), pa.int16())
        for row, layer in enumerate(self.layers):
            path = self._file(layer, self.parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            own = pa.Table.from_pydict({**repeated, **_routed_columns(blocks, row)}, schema=self.schema)
            pq.write_table(own, path, compression="zstd")
        self.blocks, self.waiting = [], 0
        self.place, self.parts = after, self.parts + 1
        self._save()

    def _save(self) -> None:
        state = {
            "key": self.key,
            "place": self.place,
            "parts": self.parts,
            "tokens": self.tokens,
            "failed": [{"document": document, "reason": reason} for document, reason in self.failed.items()],
        }
        write_atomic(self.state, to_json(state) + "\n")

    def _file(self, layer: int, part: int) -> Path:
        return self.data / f"layer={layer}" / f"part-{part:05d}.parquet"


def meanings() -> dict[str, str]:
    """What every column holds, the partition first."""
    return {"layer": "layer in the model", **{name: meaning for name, (_, meaning) in COLUMNS.items()}}


def _routed_columns(blocks: list[Block], row: int) -> dict[str, pa.Array]:
    """The columns of one layer that routing decides, token by token and head by head."""
    groups, margins = (
        np.concatenate([part[row] for part in parts], axis=1).T.reshape(-1)
        for parts in ([block.groups for block in blocks], [block.margins for block in blocks])
    )
    members = np.concatenate([block.members[row] for block in blocks], axis=1).transpose(1, 0, 2)
    ends = np.arange(len(groups) + 1, dtype=np.int32) * members.shape[2]
    return {
        "group": pa.array(groups),
        "groups": pa.ListArray.from_arrays(pa.array(ends), pa.array(members.reshape(-1))),
        "margin": pa.array(margins),
    }
