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
from typing import Any

import numpy as np
import torch
from torch import Tensor

from focus_core.analysis.reading import best_margins, untouched
from focus_core.errors import FocusError
from focus_core.locks import claim_folder
from focus_core.models import LoadedModel
from focus_core.progress import Progress, silent
from focus_core.report.corpus import Corpus, Section, Unread, scan_readable, sections
from focus_core.report.parts import SCHEMA, Block, Writer, meanings
from focus_core.report.run import STATES, provenance_of
from focus_core.results import plain, record_run, run_key
from focus_core.routing.attach import attached
from focus_core.routing.config import FocusConfig
from focus_core.routing.layer import LayerRouting, top_k_membership
from focus_core.routing.model import FocusModel
from focus_core.routing.storage import weights_hash
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

    folder: Path
    record: dict[str, Any]


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
            writer = Writer(
                work, corpus, made_from, run_key(**made_from, corpus=corpus.documents, weights=_weights(focus))
            )
            writer.resume()
            _route_corpus(focus, loaded.tokenizer, corpus, settings, writer, progress)
        record = _record(corpus, unread, made_from, writer)
        record = record_run(writer.data / RECORD, record)
        writer.data.rename(out)
        writer.state.unlink(missing_ok=True)
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


def _route_corpus(
    focus: FocusModel, tokenizer: Any, corpus: Corpus, settings: TraceSettings, writer: Writer, progress: Progress
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
) -> Iterator[Block]:
    """The blocks of a section; none of one that has no tokens."""
    try:
        encoding = encode(tokenizer, section.text)
    except FocusError:  # blank, or nothing but characters that the tokenizer drops
        return
    length = settings.block_length - len(before)
    for start in range(0, len(encoding.input_ids), length):
        ids, offsets = (each[start : start + length] for each in (encoding.input_ids, encoding.offsets))
        found = _route(focus, np.append(before, ids), len(before), settings)
        yield Block(
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


def _record(corpus: Corpus, unread: tuple[Unread, ...], made_from: dict[str, Any], writer: Writer) -> dict[str, Any]:
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
