"""The groups of every token of a corpus as one Parquet data set, for pandas, Polars, DuckDB and Spark.

The data set is a folder, partitioned by layer (`layer=12/part-00000.parquet`), with the record `_record.json`, which
lists documents that could not be read. It appears at once when it is whole. Until then it grows in a folder beside it,
from which an interrupted run resumes.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from focus_core.analysis.reading import best_margins, untouched
from focus_core.cluster import Cluster, Lost
from focus_core.errors import FocusError
from focus_core.io.locks import claim_folder
from focus_core.io.remote import RemoteFile, claim_output, destination, holds_files, upload
from focus_core.models import LoadedModel
from focus_core.progress import Progress, silent
from focus_core.report.corpora.corpus import Corpus, Section, Unit, scan, units
from focus_core.report.corpora.parts import SCHEMA, Block, Writer, meanings
from focus_core.report.model import DROPPED, Unread
from focus_core.report.run import STATES, provenance_of
from focus_core.results import plain, record_run, run_key
from focus_core.routing.attach import attached
from focus_core.routing.config import FocusConfig
from focus_core.routing.layer import LayerRouting, top_k_membership
from focus_core.routing.model import FocusModel
from focus_core.routing.storage import model_hash, weights_hash
from focus_core.text import encode, opening_tokens

RECORD = "_record.json"
"""The record inside the data set, which readers of Parquet pass over."""


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

    folder: Path | RemoteFile
    record: dict[str, Any]


def write_traces(
    texts: str | Path | Iterable[str | Path],
    out: str | Path,
    *,
    model: str | Path | LoadedModel = "default",
    routers: str | Path | FocusModel | None = None,
    untrained: bool = False,
    settings: TraceSettings | None = None,
    cluster: Cluster | None = None,
    progress: Progress = silent,
) -> WrittenTraces:
    """Route a corpus of any length and write one row per layer, head and token.

    Memory does not grow with the corpus, apart from its longest document. A second call with the same arguments resumes
    an interrupted one.

    Args:
        texts: text files and folders, or addresses of a store. Those that cannot be read, or end
            every worker, are listed in the record.
        out: folder of the data set, or an address of a store; must not exist.
        model: a loaded model, or a name that `load_model` accepts.
        routers: a folder, a shipped name, or a `FocusModel` of the loaded model; None for those shipped for the model.
        untrained: use untrained routers instead.
        settings: see `TraceSettings`.
        cluster: workers of Ray that route the corpus, with the model by name; None for this process.
        progress: told of every block.

    Raises:
        FocusError: the folder exists, or texts, routers or settings cannot be used.
        OSError: the folder cannot be written.
    """
    settings, place = settings or TraceSettings(), destination(out)
    if settings.states not in STATES:
        raise FocusError(f"states is {settings.states!r}: choose {' or '.join(STATES)}.")
    with _work(place) as work:
        corpus = scan(texts)
        with attached(model, routers, untrained=untrained, progress=progress) as (loaded, focus):
            made_from = _origin(loaded, focus, settings)
            writer = Writer(
                work, corpus, made_from, run_key(**made_from, corpus=corpus.documents, weights=_weights(focus))
            )
            writer.resume()
            rest = units(corpus, writer.place, writer.failed)
            if cluster is None:
                found = _routed(focus, loaded.tokenizer, rest, settings)
            else:
                from focus_core.report.corpora.work import traced_on
                from focus_core.routing.portable import PortableModel

                portable = PortableModel.of(focus, model)
                found = traced_on(cluster, portable, settings, progress=progress)(rest)
            with closing(found):
                _write_blocks(found, corpus, writer, progress)
        record = _record(corpus, made_from, writer)
        record = record_run(writer.data / RECORD, record)
        if isinstance(place, RemoteFile):
            parts = {path.relative_to(writer.data).as_posix(): path for path in writer.data.rglob("*.*")}
            upload(parts, place.address, last=RECORD)
            shutil.rmtree(writer.data)
        else:
            writer.data.rename(place)
        writer.state.unlink(missing_ok=True)
    return WrittenTraces(place, record)


@contextmanager
def _work(place: Path | RemoteFile) -> Iterator[Path]:
    """The folder in which the data set grows, held for this run; gone at the end if the data set is whole.

    Raises:
        FocusError: the data set exists, or another run writes it.
    """
    if isinstance(place, RemoteFile):
        with claim_output(place.address) as work:
            if holds_files(place.address) and not any(work.glob("*.json")):
                raise FocusError(f"{place} exists already: delete it, or name another folder.")
            yield work
    else:
        if place.exists():
            raise FocusError(f"{place} exists already: delete it, or name another folder.")
        work = place.with_name(f"{place.name}.partial")
        with claim_folder(work):
            yield work
    with suppress(OSError):  # already gone if it was created by this call
        work.rmdir()


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
            "model": loaded.info.identity,
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
    return [model_hash(focus.model), weights_hash(focus.routers)]


def _routed(
    focus: FocusModel, tokenizer: Any, rest: Iterator[Unit], settings: TraceSettings
) -> Generator[tuple[Section, Iterable[Block]]]:
    for unit in rest:
        for section in unit:
            yield section, section_blocks(focus, tokenizer, section, settings)


def _write_blocks(
    found: Iterable[tuple[Section, Iterable[Block] | Lost]], corpus: Corpus, writer: Writer, progress: Progress
) -> None:
    """Write what the writer does not have yet, section by section."""
    after = writer.place
    for section, blocks in found:
        if isinstance(blocks, Lost):
            writer.failed.setdefault(section.document, f"{blocks.reason}.")
        if isinstance(blocks, Lost) or section.document in writer.failed:
            continue
        after = section.after
        for block in blocks:
            writer.add(block)
            share = (section.corpus_start + block.spans[-1, 1] - section.start) / corpus.characters
            tokens = f"{sum(writer.tokens):,} tokens"
            progress(f"Routing {writer.names[section.document]}: {tokens}", min(1.0, float(share)))
        writer.end_section(after)
    writer.finish(after)
    if not sum(writer.tokens) and writer.failed:
        raise FocusError(f"No document can be used. The first that failed: {next(iter(writer.failed.values()))}")
    if not sum(writer.tokens):
        raise FocusError("The texts have no tokens: give at least one word.")


def section_blocks(focus: FocusModel, tokenizer: Any, section: Section, settings: TraceSettings) -> Iterator[Block]:
    """The blocks of a section; none of one that has no tokens."""
    try:
        encoding = encode(tokenizer, section.text)
    except FocusError:  # blank, or nothing but characters that the tokenizer drops
        return
    before = np.array(opening_tokens(tokenizer), dtype=np.int64)
    length = settings.block_length - len(before)
    for start in range(0, len(encoding.input_ids), length):
        ids, offsets = (each[start : start + length] for each in (encoding.input_ids, encoding.offsets))
        found = _route(focus, np.append(before, ids), len(before), settings)
        yield Block(
            section.document,
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


def _record(corpus: Corpus, made_from: dict[str, Any], writer: Writer) -> dict[str, Any]:
    """The record, with every document that was given in one of its two lists."""
    documents, failed = [], [each._asdict() for each in corpus.unread]
    for index, (document, tokens) in enumerate(zip(corpus.documents, writer.tokens)):
        if tokens:
            documents.append({**dataclasses.asdict(document), "tokens": tokens})
        else:
            failed.append(Unread(document.name, writer.failed.get(index, DROPPED))._asdict())
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
