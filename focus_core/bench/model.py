"""Speed of prefill and decode of a whole routed model, against the untouched model.

The routed and the untouched model are the same object in two modes, and alternate within a point.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache

from focus_core.bench.attention import DTYPES
from focus_core.bench.memory import working_bytes
from focus_core.bench.reading import text_ids
from focus_core.errors import FocusError
from focus_core.models import load_model
from focus_core.progress import Progress, silent
from focus_core.results import record_run
from focus_core.routing.attach import attach
from focus_core.routing.layer import KeyQuery, LayerRouting, heads_in_groups
from focus_core.routing.model import FocusModel

SCHEMA = "focus-bench-model/1"


@dataclass(frozen=True)
class ModelBenchSettings:
    """Lengths, routings and repetitions of the benchmark.

    Attributes:
        prefill: lengths of the prompt, in tokens.
        decode: lengths of the cache before the timed tokens.
        top_k: k of each routed run; the untouched model is always measured.
        repetitions: timed prefills per length, after one warm-up.
        steps: timed tokens after each cache.
    """

    prefill: tuple[int, ...] = (2048, 4096, 8192)
    decode: tuple[int, ...] = (4096, 16384, 32768)
    top_k: tuple[int, ...] = (1, 2)
    repetitions: int = 3
    steps: int = 10


def record_model_bench(
    model: str,
    out: str | Path,
    *,
    routers: str | None = None,
    data: Path | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    settings: ModelBenchSettings | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Load a model with routers, time it and write the record.

    Args:
        model: as in `load_model`.
        out: the JSON file.
        routers: folder of routers; those shipped for the model when None.
        data: text file or folder to use; None for the sample story.
        dtype: "float32", "bfloat16" or "float16".
        device: "cpu" or "cuda".
        settings: lengths and routings; the defaults when None.
        progress: told each length.

    Returns:
        The record: ``schema``, ``made``, ``model``, ``settings``, ``data``, and the rows of `run_model_bench` as
        ``results``.

    Raises:
        FocusError: a missing model, routers or text, an unknown dtype, or a k that the routers do not have.
        OSError: the file cannot be written.
    """
    if dtype not in DTYPES:
        raise FocusError(f"dtype is {dtype!r}: choose one of {', '.join(DTYPES)}.")
    settings = settings or ModelBenchSettings()
    loaded = load_model(model, dtype=DTYPES[dtype], device=device, progress=progress)
    focus = attach(loaded, routers, untrained=False)
    ids, texts = text_ids(loaded, data)
    rows = run_model_bench(focus, ids, settings, progress)
    report = {
        "schema": SCHEMA,
        "model": {"name": loaded.info.name, "revision": loaded.info.revision},
        "settings": {"measured": settings, "config": focus.config, "routers": focus.name, "dtype": dtype},
        "data": texts,
        "results": rows,
    }
    return record_run(Path(out), report, device=device)


@torch.inference_mode()
def run_model_bench(
    focus: FocusModel, input_ids: Tensor, settings: ModelBenchSettings, progress: Progress = silent
) -> list[dict[str, Any]]:
    """Time prefill and decode, routed and untouched.

    Beyond the model's own positions the output is meaningless, but the time is valid.

    Args:
        focus: model with routers.
        input_ids: (N,) int64 of a real text, on which the number of kept pairs depends; repeated where it is too short.
        settings: lengths and routings.
        progress: told each length.

    Returns:
        One row per length and routing:

        - ``task`` ("prefill" or "decode"), ``tokens``, ``routing`` and ``top_k``;
        - ``kept_share``: of causal pairs in prefill, of the last token's keys in decode, mean over layers;
        - ``seconds`` (median, minimum and maximum), ``tokens_per_second``, and ``speedup`` over the untouched model;
        - ``memory_bytes`` in prefill: peak beyond the memory held before, cache included;
        - ``error`` of the shortest prefill: largest difference of a logit from the same routing through the
          reference backend.

    Raises:
        FocusError: a k that the routers do not have.
    """
    for top_k in settings.top_k:
        if not 1 <= top_k <= focus.config.num_groups:
            raise FocusError(f"top_k is {top_k}: these routers take 1 to {focus.config.num_groups}.")
    longest = max((*settings.prefill, *settings.decode)) + settings.steps
    ids = input_ids.repeat(-(-longest // input_ids.numel()))[None, :longest].to(focus.model.device)
    rows: list[dict[str, Any]] = []
    points = len(settings.prefill) + len(settings.decode)
    for index, tokens in enumerate(settings.prefill):
        progress(f"Prefill of {tokens:,} tokens", index / points)
        rows += _prefill(focus, ids[:, :tokens], settings, check=tokens == min(settings.prefill))
    for index, tokens in enumerate(settings.decode):
        progress(f"Decode after {tokens:,} tokens", (len(settings.prefill) + index) / points)
        rows += _decode(focus, ids, tokens, settings)
    return rows


Call = Callable[[], Any]


def _modes(settings: ModelBenchSettings) -> list[int | None]:
    """k of each run, None for the untouched model."""
    return [None, *settings.top_k]


def _mode(focus: FocusModel, top_k: int | None, **options: Any) -> Any:
    return focus.routing("off") if top_k is None else focus.routing("hard", top_k=top_k, **options)


def _prefill(focus: FocusModel, ids: Tensor, settings: ModelBenchSettings, *, check: bool) -> list[dict[str, Any]]:
    def read() -> Tensor:
        cache = DynamicCache(config=focus.model.config)
        return focus(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits

    times: dict[int | None, list[float]] = {top_k: [] for top_k in _modes(settings)}
    memory: dict[int | None, int | None] = {}
    kept: dict[int | None, float] = {None: 1.0}
    for repetition in range(settings.repetitions + 1):
        for top_k, seconds in times.items():
            with _mode(focus, top_k):
                if repetition == 0:
                    memory[top_k] = working_bytes(read, focus.model.device.type)
                    if top_k is not None:
                        kept[top_k] = _pairs_kept(focus, read, top_k)
                else:
                    seconds.append(_timed(read, focus.model.device))
    rows = [
        _row("prefill", ids.shape[1], top_k, kept[top_k], seconds, ids.shape[1], times[None])
        | {"memory_bytes": memory[top_k]}
        for top_k, seconds in times.items()
    ]
    if check:
        for row, top_k in zip(rows[1:], settings.top_k):
            with _mode(focus, top_k):
                ours = read()
            with _mode(focus, top_k, backend="chunked"):
                row["error"] = float((ours - read()).abs().max())
    return rows


def _decode(focus: FocusModel, ids: Tensor, tokens: int, settings: ModelBenchSettings) -> list[dict[str, Any]]:
    """Seconds per decoded token after one shared cache, filled under the first k."""
    found: dict[int, dict[int, KeyQuery]] = {}

    def keep(routing: LayerRouting) -> None:
        found[routing.layer] = {top_k: routing.membership(top_k) for top_k in settings.top_k}

    filled = DynamicCache(config=focus.model.config)
    with _mode(focus, settings.top_k[0]), focus.observe(keep):
        focus(input_ids=ids[:, :tokens], past_key_values=filled, use_cache=True, logits_to_keep=1)
    times: dict[int | None, list[float]] = {top_k: [] for top_k in _modes(settings)}
    for top_k, seconds in times.items():
        cache = copy.deepcopy(filled)
        for layer, by_k in found.items():
            stored: Any = cache.layers[layer]
            # Every k uses the same cached keys; only their groups differ.
            keys = None if top_k is None else by_k[top_k].keys
            stored.routing = None if keys is None else heads_in_groups(keys, focus.router(layer).num_heads)
        with _mode(focus, top_k):
            for step in range(settings.steps + 1):
                token = ids[:, tokens + step - 1 : tokens + step]

                def write(token: Tensor = token, cache: Cache = cache) -> None:
                    focus(input_ids=token, past_key_values=cache, use_cache=True)

                taken = _timed(write, focus.model.device)
                if step:
                    seconds.append(taken)
    return [
        _row("decode", tokens, top_k, _keys_kept(focus, found, top_k), seconds, 1, times[None])
        for top_k, seconds in times.items()
    ]


def _pairs_kept(focus: FocusModel, read: Call, top_k: int) -> float:
    """Share of causal pairs that are computed, mean over layers."""
    shares: list[float] = []

    def count(routing: LayerRouting) -> None:
        shares.append(float(routing.pair_counts(top_k=top_k).kept_share.mean()))

    with focus.observe(count):
        read()
    return sum(shares) / len(shares)


def _keys_kept(focus: FocusModel, found: dict[int, dict[int, KeyQuery]], top_k: int | None) -> float:
    """Share of all keys that the last token reads, mean over layers (and heads with routers of their own)."""
    if top_k is None:
        return 1.0
    shares = []
    for by_k in found.values():
        member, reads = by_k[top_k]
        kept = (member & reads[:, -1:]).any(-1)
        kept[:, : focus.config.sink_tokens] = True
        kept[:, -focus.config.window - 1 :] = True
        shares.append(float(kept.float().mean()))
    return sum(shares) / len(shares)


def _timed(call: Call, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _row(
    task: str, tokens: int, top_k: int | None, kept: float, seconds: list[float], produced: int, untouched: list[float]
) -> dict[str, Any]:
    median = statistics.median(seconds)
    return {
        "task": task,
        "tokens": tokens,
        "routing": "off" if top_k is None else "hard",
        "top_k": top_k,
        "kept_share": kept,
        "seconds": {"median": median, "min": min(seconds), "max": max(seconds)},
        "tokens_per_second": produced / median,
        "speedup": statistics.median(untouched) / median,
    }
