"""Caches of narrow groups beside the untouched one: memory, tokens per second, and what tokens after them predict.

The distant keys and values are kept as they are, and in 8 bits. Every cache holds the same texts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from focus_core.bench.measures.memory import held_bytes
from focus_core.bench.measures.timing import timed
from focus_core.bench.reading import positions, text_ids
from focus_core.bench.settings import DTYPES
from focus_core.errors import FocusError
from focus_core.evaluation.compare import mean_difference
from focus_core.evaluation.divergence import compare_logits
from focus_core.io.locks import claims_file
from focus_core.models import check_positions, load_model
from focus_core.progress import Progress, silent
from focus_core.results import record_rows
from focus_core.routing.attach import attach
from focus_core.routing.model import FocusModel

SCHEMA = "focus-bench-cache/1"


@dataclass(frozen=True)
class CacheBenchSettings:
    """Sizes of the benchmark.

    Attributes:
        tokens: lengths of the cache.
        blocks: texts of each length, evenly spaced.
        after: tokens that follow each cache in one call, whose predictions are compared.
        steps: tokens that follow those one by one, and are timed, after the first text.
    """

    tokens: tuple[int, ...] = (2048, 7680)
    blocks: int = 16
    after: int = 256
    steps: int = 20

    def __post_init__(self) -> None:
        if min(*self.tokens, self.blocks, self.after, self.steps) < 1:
            raise FocusError("Lengths, blocks, tokens after the cache and steps must be at least 1.")


class _Mode(NamedTuple):
    """One kind of cache."""

    routing: str
    bits: int | None = None

    def of(self, focus: FocusModel) -> AbstractContextManager[Any]:
        return focus.routing("off") if self.routing == "off" else focus.routing("hard", cache_bits=self.bits)


MODES = (_Mode("off"), _Mode("hard"), _Mode("hard", 8))


@claims_file()
def record_cache_bench(
    model: str,
    out: str | Path,
    *,
    routers: str | None = None,
    data: Path | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    settings: CacheBenchSettings | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Load a model with narrow groups, measure its caches and write the record, length by length.

    A second call with the same arguments resumes an interrupted one, on the same machine.

    Args:
        model: as in `load_model`.
        out: the JSON file.
        routers: folder of routers; those shipped for the model when None.
        data: text file or folder; None for the sample story.
        dtype: "float32", "bfloat16" or "float16".
        device: "cpu" or "cuda".
        settings: sizes; the defaults when None.
        progress: told each text.

    Returns:
        The record: ``schema``, ``made``, ``model`` with its ``positions``, ``settings``, ``data``, and the rows of
        `run_cache_bench` as ``results``.

    Raises:
        FocusError: a missing model, routers or text, an unknown dtype, routers without narrow groups, or a length
            beyond the model's positions or the text, or a file with another measurement.
        OSError: the file cannot be written.
    """
    if dtype not in DTYPES:
        raise FocusError(f"dtype is {dtype!r}: choose one of {', '.join(DTYPES)}.")
    settings = settings or CacheBenchSettings()
    loaded = load_model(model, dtype=DTYPES[dtype], device=device, progress=progress)
    more = settings.after + settings.steps + 1
    check_positions(loaded, *(tokens + more for tokens in settings.tokens))
    focus = attach(loaded, routers, untrained=False)
    ids, texts = text_ids(loaded, data)
    report = {
        "schema": SCHEMA,
        "model": {**loaded.info.identity, "positions": positions(loaded)},
        "settings": {"measured": vars(settings), "config": focus.config, "routers": focus.name, "dtype": dtype},
        "data": texts,
    }
    return record_rows(Path(out), report, partial(run_cache_bench, focus, ids, settings, progress), device=device)


@torch.inference_mode()
def run_cache_bench(
    focus: FocusModel,
    input_ids: Tensor,
    settings: CacheBenchSettings,
    progress: Progress = silent,
    *,
    rows: Sequence[dict[str, Any]] = (),
    on_rows: Callable[[list[dict[str, Any]]], None] | None = None,
) -> list[dict[str, Any]]:
    """Measure the caches of each length.

    Args:
        focus: model with narrow groups.
        input_ids: (N,) int64 of a real text.
        settings: sizes.
        progress: told each text.
        rows: of an earlier call, whose lengths are not measured again.
        on_rows: told all rows after each length.

    Returns:
        One row per length and kind of cache: ``tokens``, ``routing`` ("off" or "hard"), ``cache_bits``,
        ``cache_bytes`` (mean over texts, before any token that follows), ``seconds`` of a token after the first text
        (median, minimum and maximum), ``tokens_per_second``, ``speedup`` over the untouched model; and, but for that
        one, ``kl`` of the tokens after the cache to its predictions, in nats, with ``kl_low`` and ``kl_high`` (95%,
        Student's t over texts), ``block_kl``, and ``agreement``, the share with the same most likely token.

    Raises:
        FocusError: routers without narrow groups, or a text that is too short.
    """
    if not focus.router(focus.layers[0]).from_keys:
        raise FocusError("Only narrow groups have a cache of their own: give routers from focus fit with --routers.")
    measured, runs = list(rows), len(settings.tokens) * settings.blocks
    for place, tokens in enumerate(settings.tokens):
        if any(row["tokens"] == tokens for row in rows):
            continue
        found: dict[_Mode, list[_Found]] = {mode: [] for mode in MODES}
        seconds: dict[_Mode, list[float]] = {}
        for number, block in enumerate(_blocks(input_ids.to(focus.model.device), tokens, settings)):
            progress(f"After {tokens:,} tokens, text {number + 1}", (place * settings.blocks + number) / runs)
            caches = {mode: DynamicCache(config=focus.model.config) for mode in MODES}
            full, stop = None, tokens + settings.after
            for mode, cache in caches.items():
                held, logits = _read(focus, mode, cache, block, tokens, stop)
                full = logits if full is None else full  # the first mode is the untouched one
                compared = compare_logits(logits, full, block[0, tokens + 1 : stop + 1])
                found[mode].append(_Found(held, float(compared.kl.mean()), float(compared.agrees.mean())))
            if number == 0:
                seconds = _steps(focus, caches, block, stop)
        measured += [_row(tokens, mode, found[mode], seconds[mode], seconds[MODES[0]]) for mode in MODES]
        if on_rows is not None:
            on_rows(measured)
    return measured


class _Found(NamedTuple):
    """What one cache gave for one text."""

    held: int
    kl: float
    agreement: float


def _blocks(ids: Tensor, tokens: int, settings: CacheBenchSettings) -> Iterator[Tensor]:
    """(1, n) texts with all tokens that follow, evenly spaced over the text."""
    length = tokens + settings.after + settings.steps + 1
    room = len(ids) - length
    if room < settings.blocks - 1:
        raise FocusError(
            f"The text has {len(ids):,} tokens, too few for {settings.blocks} texts of {length:,}: give a longer one "
            "with --data."
        )
    for number in range(settings.blocks):
        start = room * number // max(1, settings.blocks - 1)
        yield ids[None, start : start + length]


def _read(
    focus: FocusModel, mode: _Mode, cache: DynamicCache, block: Tensor, tokens: int, stop: int
) -> tuple[int, Tensor]:
    """Fill a cache with the first tokens: its bytes, and the (n, V) logits of the tokens after it up to `stop`."""
    with mode.of(focus):
        focus(input_ids=block[:, :tokens], past_key_values=cache, use_cache=True, logits_to_keep=1)
        held = held_bytes(cache)
        logits = focus(input_ids=block[:, tokens:stop], past_key_values=cache, use_cache=True).logits[0].float()
    return held, logits


def _steps(focus: FocusModel, caches: dict[_Mode, DynamicCache], block: Tensor, start: int) -> dict[_Mode, list[float]]:
    """Seconds of each token that follows one by one, those of all caches in turn; the first is a warm-up."""
    taken: dict[_Mode, list[float]] = {mode: [] for mode in caches}
    for place in range(start, block.shape[1]):
        for mode, cache in caches.items():

            def write(token: Tensor = block[:, place : place + 1], cache: DynamicCache = cache) -> None:
                focus(input_ids=token, past_key_values=cache, use_cache=True)

            with mode.of(focus):
                taken[mode].append(timed(write, focus.model.device.type))
    return {mode: seconds[1:] for mode, seconds in taken.items()}


def _row(tokens: int, mode: _Mode, found: list[_Found], seconds: list[float], untouched: list[float]) -> dict[str, Any]:
    median = statistics.median(seconds)
    row: dict[str, Any] = {
        "tokens": tokens,
        "routing": mode.routing,
        "cache_bits": mode.bits,
        "cache_bytes": statistics.mean(each.held for each in found),
        "seconds": {"median": median, "min": min(seconds), "max": max(seconds)},
        "tokens_per_second": 1 / median,
        "speedup": statistics.median(untouched) / median,
    }
    if mode.routing != "off":
        kl = [each.kl for each in found]
        gap, agreement = mean_difference(kl), statistics.mean(each.agreement for each in found)
        row |= {"kl": gap.difference, "kl_low": gap.low, "kl_high": gap.high, "block_kl": kl, "agreement": agreement}
    return row
