"""The groups of every token of a corpus as one Parquet data set, for pandas, Polars, DuckDB and Spark.

The data set is a folder, partitioned by layer (`layer=12/part-00000.parquet`), with the record `_record.json`, which
lists documents that could not be read. It appears at once when it is whole. Until then it grows in a folder beside it,
from which an interrupted run resumes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from focus_core.analysis.reading import best_margins, untouched
from focus_core.errors import FocusError
from focus_core.files import to_json, write_atomic
from focus_core.locks import claim_folder
from focus_core.models import LoadedModel
from focus_core.progress import Progress, silent
from focus_core.reading import read_json
from focus_core.report.corpus import Corpus, Section, Unread, scan_readable, sections
from focus_core.report.run import STATES, provenance_of
from focus_core.results import plain, record_run, run_key
from focus_core.routing.attach import attached
from focus_core.routing.config import FocusConfig
from focus_core.routing.layer import LayerRouting, top_k_membership
from focus_core.routing.model import FocusModel
from focus_core.routing.storage import weights_hash
from focus_core.schema import array, table, text, whole
from focus_core.text import encode, opening_tokens

RECORD, SCHEMA = "_record.json", "focus-traces/1"
"""The record inside the data set, which readers of Parquet pass over, and its schema."""

_STATE, _DATA = "state.json", "data"
_STATE_CHECK = table({"key": text(), "sections": whole(0), "parts": whole(0), "tokens": array(whole(0))})

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


@dataclass(frozen=True)
class TraceSettings:
    """Settings of a data set of traces.

    Attributes:
        top_k: k of every layer; None for the routers' own, or their plan.
        heads: key/value heads, where each has a router; None for all.
        states: "routed" (hidden states under hard routing, as `focus analyze`) or "untouched" (as `focus report`).
        block_length: tokens routed at once, the tokenizer's own opening included. No block crosses a document.
        rows_per_part: rows after which a part is written, at the end of a section. Memory and repeated work follow it.
    """

    top_k: int | None = None
    heads: tuple[int, ...] | None = None
    states: str = "routed"
    block_length: int = 2048
    rows_per_part: int = 2**23


@dataclass(frozen=True)
class WrittenTraces:
    """A finished data set.

    Attributes:
        folder: of the data set.
        record: size, origin, columns, documents, and documents that failed, as in `_record.json`.
    """

    folder: Path
    record: dict[str, Any]


class _Block(NamedTuple):
    """T tokens of one document. The last four have one array for each of the L layers, of H heads."""

    document: int
    first: int
    texts: list[str]
    spans: np.ndarray
    ids: np.ndarray
    groups: list[np.ndarray]
    members: list[np.ndarray]
    margins: list[np.ndarray]


def write_traces(
    texts: str | Path | Iterable[str | Path],
    out: str | Path,
    *,
    model: str | Path | LoadedModel = "default",
    routers: str | Path | FocusModel | None = None,
    untrained: bool = False,
    settings: TraceSettings | None = None,
    progress: Progress = silent,
) -> WrittenTraces:
    """Route a corpus of any length and write one row per layer, head and token.

    Memory does not grow with the corpus, apart from its longest document. A second call with the same arguments resumes
    an interrupted one.

    Args:
        texts: text files and folders. Those that are no text in UTF-8 are listed in the record.
        out: folder of the data set; must not exist.
        model: a loaded model, or a name that `load_model` accepts.
        routers: a folder, a shipped name, or a `FocusModel` of the loaded model; None for those shipped for the model.
        untrained: use untrained routers instead.
        settings: see `TraceSettings`.
        progress: told of every block.

    Raises:
        FocusError: the folder exists, or texts, routers or settings cannot be used.
        OSError: the folder cannot be written.
    """
    settings, out = settings or TraceSettings(), Path(out)
    if out.exists():
        raise FocusError(f"{out} exists already: delete it, or name another folder.")
    if settings.states not in STATES:
        raise FocusError(f"states is {settings.states!r}: choose {' or '.join(STATES)}.")
    corpus, unread = scan_readable(texts)
    work = out.with_name(f"{out.name}.partial")
    with claim_folder(work):
        with attached(model, routers, untrained=untrained, progress=progress) as (loaded, focus):
            made_from = _origin(loaded, focus, settings)
            writer = _Writer(
                work, corpus, made_from, run_key(**made_from, corpus=corpus.documents, weights=_weights(focus))
            )
            writer.resume()
            _route_corpus(focus, loaded.tokenizer, corpus, settings, writer, progress)
        record = _record(corpus, unread, made_from, writer)
        record = record_run(work / _DATA / RECORD, record)
        (work / _DATA).rename(out)
        (work / _STATE).unlink(missing_ok=True)
    with suppress(OSError):  # already gone if it was created by this call
        work.rmdir()
    return WrittenTraces(out, record)


def _origin(loaded: LoadedModel, focus: FocusModel, settings: TraceSettings) -> dict[str, Any]:
    """Model, routers and settings as plain values; they go into every file."""
    heads = min(focus.router(layer).num_heads for layer in focus.layers)
    chosen = settings.heads if settings.heads is not None else tuple(range(heads))
    if not chosen or not all(0 <= head < heads for head in chosen):
        raise FocusError(f"Heads {list(chosen)} do not all have a router: choose from 0 to {heads - 1}.")
    limit = getattr(focus.model.config.get_text_config(), "max_position_embeddings", None) or settings.block_length
    shortest = len(opening_tokens(loaded.tokenizer)) + 1
    if not shortest <= settings.block_length <= limit or settings.rows_per_part < 1:
        raise FocusError(f"A block of {settings.block_length:,} tokens does not fit: choose {shortest} to {limit:,}.")
    return plain(
        {
            "model": {"name": loaded.info.name, "revision": loaded.info.revision},
            "settings": {
                **dataclasses.asdict(settings),
                "heads": [focus.config.head_of(head) for head in chosen],
                "config": _config(focus, settings),
                "provenance": provenance_of(loaded, focus),
            },
            "layers": focus.layers,
        }
    )


def _config(focus: FocusModel, settings: TraceSettings) -> FocusConfig:
    """The routers' settings at the chosen k."""
    return focus.config.replace(**_own_k(settings))


def _own_k(settings: TraceSettings) -> dict[str, Any]:
    return {} if settings.top_k is None else {"top_k": settings.top_k}


def _weights(focus: FocusModel) -> list[str]:
    return [weights_hash(focus.model), weights_hash(focus.routers)]


class _Writer:
    """Collects blocks, and writes them as one file per layer whenever there are enough.

    Args:
        work: folder that holds the growing data set and the state.
        corpus: the documents.
        made_from: see `_origin`.
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
        self.blocks: list[_Block] = []
        self.sections = self.parts = self.waiting = 0
        self.tokens = [0] * len(self.names)

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
        self.sections, self.parts, self.tokens = state["sections"], state["parts"], state["tokens"]

    def add(self, block: _Block) -> None:
        """Take the next block of the corpus."""
        self.blocks.append(block)
        self.tokens[block.document] += len(block.ids)
        self.waiting += len(block.ids) * len(self.layers) * len(self.heads)

    def end_section(self, number: int) -> None:
        """Write a part if enough rows wait; a run that is interrupted later resumes after this section."""
        if self.waiting >= self.rows_per_part:
            self.flush(number)

    def flush(self, sections_done: int) -> None:
        """Write the blocks that wait. A part that an interrupted run left behind is written over with the same rows."""
        if not self.blocks:
            return
        blocks = self.blocks
        per_block = [len(block.ids) for block in blocks]
        spans = np.concatenate([block.spans for block in blocks])
        named = pa.DictionaryArray.from_arrays(np.repeat([block.document for block in blocks], per_block), self.names)
        tokens = {
            "document": named.cast(pa.string()),
            "token": pa.array(np.concatenate([np.arange(len(block.ids)) + block.first for block in blocks])),
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
        self.sections, self.parts = sections_done, self.parts + 1
        state = {"key": self.key, "sections": self.sections, "parts": self.parts, "tokens": self.tokens}
        write_atomic(self.state, to_json(state) + "\n")

    def _file(self, layer: int, part: int) -> Path:
        return self.data / f"layer={layer}" / f"part-{part:05d}.parquet"


def meanings() -> dict[str, str]:
    """What every column holds, the partition first."""
    return {"layer": "layer in the model", **{name: meaning for name, (_, meaning) in COLUMNS.items()}}


def _routed_columns(blocks: list[_Block], row: int) -> dict[str, pa.Array]:
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


def _route_corpus(
    focus: FocusModel, tokenizer: Any, corpus: Corpus, settings: TraceSettings, writer: _Writer, progress: Progress
) -> None:
    """Route what the writer does not have yet."""
    before = np.array(opening_tokens(tokenizer), dtype=np.int64)
    done = writer.sections
    for done, section in enumerate(sections(corpus, writer.sections), writer.sections + 1):
        for block in _blocks(focus, tokenizer, section, settings, before, writer.tokens[section.document]):
            writer.add(block)
            share = (section.corpus_start + block.spans[-1, 1] - section.start) / corpus.characters
            tokens = f"{sum(writer.tokens):,} tokens"
            progress(f"Routing {writer.names[section.document]}: {tokens}", min(1.0, float(share)))
        writer.end_section(done)
    writer.flush(done)
    if not sum(writer.tokens):
        raise FocusError("The texts have no tokens: give at least one word.")


def _blocks(
    focus: FocusModel, tokenizer: Any, section: Section, settings: TraceSettings, before: np.ndarray, first: int
) -> Iterator[_Block]:
    """The blocks of a section; none of one that has no tokens."""
    try:
        encoding = encode(tokenizer, section.text)
    except FocusError:  # blank, or nothing but characters that the tokenizer drops
        return
    length = settings.block_length - len(before)
    for start in range(0, len(encoding.input_ids), length):
        ids, offsets = (each[start : start + length] for each in (encoding.input_ids, encoding.offsets))
        found = _route(focus, np.append(before, ids), len(before), settings)
        yield _Block(
            section.document,
            first + start,
            [section.text[a:b] for a, b in offsets.tolist()],
            offsets + section.start,
            ids,
            *map(list, zip(*(found[layer] for layer in focus.layers))),
        )


def _route(
    focus: FocusModel, ids: np.ndarray, opening: int, settings: TraceSettings
) -> dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """First group (H, T), groups (H, T, k) and margin (H, T) of the tokens after the opening, by layer."""
    config, found = _config(focus, settings), {}
    changes: dict[str, Any] = untouched(focus.config) if settings.states == "untouched" else _own_k(settings)

    def record(routing: LayerRouting) -> None:
        heads = slice(None) if settings.heads is None else list(settings.heads)
        weights = routing.key_weights[heads, opening:].float().cpu()
        k = config.key_top_k_of(focus.layers.index(routing.layer))
        members = top_k_membership(weights, k).nonzero()[:, 2].view(*weights.shape[:2], k)
        margins = best_margins(routing)
        margins = _margins(weights, k) if margins is None else margins[heads, opening:].float().cpu()
        groups = weights.numpy().argmax(-1).astype(np.int16)
        found[routing.layer] = groups, members.numpy().astype(np.int16), margins.numpy()

    rows = torch.from_numpy(ids)[None].to(focus.model.device)
    with torch.inference_mode(), focus.routing("hard", **changes), focus.observe(record):
        focus.model.base_model(input_ids=rows, use_cache=False)
    return found


def _margins(weights: Tensor, top_k: int) -> Tensor:
    """(H, T) of weights (H, T, K): the last group joined minus the first not joined; infinite where all are."""
    if not 0 < top_k < weights.shape[-1]:
        return torch.full(weights.shape[:-1], torch.inf)
    ranked = weights.topk(top_k + 1).values
    return ranked[..., -2] - ranked[..., -1]


def _record(corpus: Corpus, unread: tuple[Unread, ...], made_from: dict[str, Any], writer: _Writer) -> dict[str, Any]:
    """The record, with every document that was given in one of its two lists."""
    documents, failed = [], [each._asdict() for each in unread]
    for document, tokens in zip(corpus.documents, writer.tokens):
        if tokens:
            documents.append({**dataclasses.asdict(document), "tokens": tokens})
        else:
            failed.append(Unread(document.name, "It holds nothing but characters that the tokenizer drops.")._asdict())
    total = sum(writer.tokens)
    return {
        "schema": SCHEMA,
        **made_from,
        "columns": meanings(),
        "tokens": total,
        "rows": total * len(writer.layers) * len(writer.heads),
        "documents": documents,
        "failed": failed,
    }
