"""Speed of prefill and decode of a whole routed model, against the untouched model and a window with sinks.

All are the same object in several modes, and alternate within a point. The window runs in the backend of routed calls
and keeps as many pairs as they do.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache

from focus_core.bench.crossover import crossover
from focus_core.bench.kept import keys_kept, late_keys_kept, pairs_kept
from focus_core.bench.measures.memory import held_bytes, working_bytes
from focus_core.bench.measures.timing import timed
from focus_core.bench.reading import positions, text_ids
from focus_core.bench.settings import DTYPES
from focus_core.bench.window import window_kept, window_of_share, window_rule
from focus_core.errors import FocusError
from focus_core.io.locks import claims_file
from focus_core.models import check_positions, load_model
from focus_core.models.positions import has_position_table
from focus_core.progress import Progress, silent
from focus_core.results import record_rows
from focus_core.routing.attach import attach
from focus_core.routing.config import FocusConfig
from focus_core.routing.layer import KeyQuery, LayerRouting, heads_in_groups
from focus_core.routing.model import FocusModel
from focus_core.routing.routers import ROUTERS

SCHEMA = "focus-bench-model/1"


@dataclass(frozen=True)
class ModelBenchSettings:
    """Lengths, routings and repetitions of the benchmark.

    Attributes:
        prefill: lengths of the prompt, in tokens.
        decode: lengths of the cache before the timed tokens.
        top_k: k of each routed run; the untouched model is always measured. None for 1 and 2, or one run of routers
            with a share of the pairs.
        shares: shares of distant pairs that a window with sinks keeps in prefill; those of the routed runs when empty.
        repetitions: timed prefills per length, after one warm-up.
        steps: timed tokens after each cache.
        full_below: of a further run of routers with a share; None for the one measured on this machine, 0 for no run.
    """

    prefill: tuple[int, ...] = (512, 2048, 8192)
    decode: tuple[int, ...] = (512, 2048, 8000)
    top_k: tuple[int, ...] | None = None
    shares: tuple[float, ...] = ()
    repetitions: int = 3
    steps: int = 10
    full_below: int | None = None

    def __post_init__(self) -> None:
        counts = (*self.prefill, *self.decode, *(self.top_k or ()), self.repetitions, self.steps)
        if not all(count >= 1 for count in counts):
            raise FocusError("Lengths, k, repetitions and steps must be at least 1.")
        if not all(0 <= share <= 1 for share in self.shares):
            raise FocusError(f"The shares are {', '.join(map(str, self.shares))}: give numbers from 0 to 1.")

    @property
    def ks(self) -> tuple[int, ...]:
        """k of each run of routers without a share."""
        return self.top_k or (1, 2)

    def check(self, config: FocusConfig) -> None:
        """Refuse settings that these routers do not have.

        Raises:
            FocusError: there is one.
        """
        if config.read_share is not None:
            if self.top_k is not None:
                raise FocusError("These routers read a share of the pairs, and k changes nothing: leave --k out.")
            return
        if self.full_below:
            raise FocusError("These routers do not read a share of the pairs: leave --full-below out.")
        for top_k in self.ks:
            if top_k > config.num_groups:
                raise FocusError(f"top_k is {top_k}: these routers take 1 to {config.num_groups}.")


@claims_file()
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
    """Load a model with routers, time it and write the record, length by length.

    A second call with the same arguments resumes an interrupted one, on the same machine.

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
        The record: ``schema``, ``made``, ``model`` with its ``positions``, ``settings``, ``data``, and the rows of
        `run_model_bench` as ``results``.

    Raises:
        FocusError: a missing model, routers or text, an unknown dtype, a k that the routers do not have, or a file with
            another measurement.
        OSError: the file cannot be written.
    """
    if dtype not in DTYPES:
        raise FocusError(f"dtype is {dtype!r}: choose one of {', '.join(DTYPES)}.")
    settings = settings or ModelBenchSettings()
    loaded = load_model(model, dtype=DTYPES[dtype], device=device, progress=progress)
    if has_position_table(loaded.model):
        check_positions(loaded, *settings.prefill, *(tokens + settings.steps for tokens in settings.decode))
    focus = attach(loaded, routers, untrained=False)
    ids, texts = text_ids(loaded, data)
    report = {
        "schema": SCHEMA,
        "model": {**loaded.info.identity, "positions": positions(loaded)},
        "settings": {
            "measured": vars(settings) | {"top_k": settings.ks},
            "config": focus.config,
            "routers": focus.name,
            "dtype": dtype,
        },
        "data": texts,
    }
    return record_rows(Path(out), report, partial(run_model_bench, focus, ids, settings, progress), device=device)


@torch.inference_mode()
def run_model_bench(
    focus: FocusModel,
    input_ids: Tensor,
    settings: ModelBenchSettings,
    progress: Progress = silent,
    *,
    rows: Sequence[dict[str, Any]] = (),
    on_rows: Callable[[list[dict[str, Any]]], None] | None = None,
) -> list[dict[str, Any]]:
    """Time prefill and decode, routed and untouched, and prefill through a window with sinks.

    Beyond the model's own positions the output is meaningless, but the time is valid. `record_model_bench` refuses
    such lengths of models that look positions up in a table.

    Args:
        focus: model with routers.
        input_ids: (N,) int64 of a real text, on which the number of kept pairs depends; repeated where it is too short.
        settings: lengths and routings.
        progress: told each length.
        rows: of an earlier call, whose lengths are not measured again.
        on_rows: told all rows after each length.

    Returns:
        One row per length and routing:

        - ``task`` ("prefill" or "decode"), ``tokens``, ``routing`` ("off", "hard", "switched" or "window") and
          ``top_k``, None with a share;
        - ``full_below`` where switched;
        - ``kept_share``: of causal pairs in prefill, of the last token's keys in decode, mean over layers; in decode of
          narrow groups of those of the last 64 tokens, and in older records by the budget;
        - ``distant_share`` in prefill: of pairs farther apart than the routers' window; ``window`` of a window;
        - ``seconds`` (median, minimum and maximum), ``tokens_per_second``, and ``speedup`` over the untouched model;
        - ``memory_bytes`` in prefill: peak beyond the memory held before, cache included;
        - ``cache_bytes`` in decode: of the tensors that the cache of that length holds, before the timed tokens;
        - ``error`` of the shortest prefill: largest difference of a logit from the same routing through the
          reference backend.

    Raises:
        FocusError: a k that the routers do not have.
    """
    settings.check(focus.config)
    longest = max((*settings.prefill, *settings.decode)) + settings.steps
    ids = input_ids.repeat(-(-longest // input_ids.numel()))[None, :longest].to(focus.model.device)
    narrow = ROUTERS[focus.config.router].from_keys
    wanted = [(task, tokens) for task in ("prefill", "decode") for tokens in getattr(settings, task)]
    found = list(rows)
    measured = {(row["task"], row["tokens"]) for row in found}
    for index, (task, tokens) in enumerate(wanted):
        if (task, tokens) in measured:
            continue
        if task == "prefill":
            progress(f"Prefill of {tokens:,} tokens", index / len(wanted))
            found += _prefill(focus, ids[:, :tokens], settings, check=tokens == min(settings.prefill))
        else:
            progress(f"Decode after {tokens:,} tokens", index / len(wanted))
            found += (_decode_narrow if narrow else _decode)(focus, ids, tokens, settings)
        if on_rows is not None:
            on_rows(found)
    return found


Call = Callable[[], Any]


def _mode(focus: FocusModel, top_k: int | None, **options: Any) -> Any:
    return focus.routing("off") if top_k is None else focus.routing("hard", top_k=top_k, **options)


class _Mode(NamedTuple):
    """One way to run the model: k of routed runs, or their own budget, or a window; none for the untouched model."""

    top_k: int | None = None
    width: int | None = None
    own: bool = False
    full_below: int = 0

    @property
    def routing(self) -> str:
        """As in the rows of `run_model_bench`."""
        if self.width is not None:
            return "window"
        if self.full_below:
            return "switched"
        return "hard" if self.own or self.top_k is not None else "off"

    def of(self, focus: FocusModel, **options: Any) -> Any:
        if self.own:
            return focus.routing("hard", full_below=self.full_below, **options)
        if self.width is None:
            return _mode(focus, self.top_k, **options)
        return focus.routing("hard", rule=window_rule(self.width, focus.config.sink_tokens))


def _routed_modes(focus: FocusModel, settings: ModelBenchSettings) -> list[_Mode]:
    if focus.config.read_share is not None:
        full_below = crossover(focus) if settings.full_below is None else settings.full_below
        return [_Mode(own=True), *([_Mode(own=True, full_below=full_below)] if full_below else [])]
    return [_Mode(top_k) for top_k in settings.ks]


def _prefill(focus: FocusModel, ids: Tensor, settings: ModelBenchSettings, *, check: bool) -> list[dict[str, Any]]:
    def read() -> Tensor:
        cache = DynamicCache(config=focus.model.config)
        return focus(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits

    tokens, config = ids.shape[1], focus.config
    modes, shares = {_Mode(): (1.0, 1.0)}, []
    for mode in _routed_modes(focus, settings):
        with mode.of(focus):
            modes[mode] = pairs_kept(focus, read, mode.top_k)
        shares += [] if mode.full_below else [modes[mode][1]]
    for share in settings.shares or shares:
        width = window_of_share(share, tokens, config.window, config.sink_tokens)
        modes[_Mode(width=width)] = window_kept(tokens, width, config)
    times: dict[_Mode, list[float]] = {mode: [] for mode in modes}
    memory: dict[_Mode, int | None] = {}
    for repetition in range(settings.repetitions + 1):
        for mode, seconds in times.items():
            with mode.of(focus):
                if repetition == 0:
                    memory[mode] = working_bytes(read, focus.model.device.type)
                else:
                    seconds.append(timed(read, focus.model.device.type))
    rows = {
        mode: _row("prefill", tokens, mode, kept[0], times[mode], tokens, times[_Mode()])
        | {"memory_bytes": memory[mode], "distant_share": kept[1]}
        | ({"window": mode.width} if mode.width is not None else {})
        for mode, kept in modes.items()
    }
    for mode, row in rows.items() if check else ():
        if mode.top_k is not None and not ROUTERS[config.router].from_keys:
            with mode.of(focus):
                ours = read()
            with mode.of(focus, backend="chunked"):
                row["error"] = float((ours - read()).abs().max())
    return list(rows.values())


def _decode(focus: FocusModel, ids: Tensor, tokens: int, settings: ModelBenchSettings) -> list[dict[str, Any]]:
    """Seconds per decoded token after one shared cache, filled under the first k."""
    found: dict[int, dict[int, KeyQuery]] = {}

    def keep(routing: LayerRouting) -> None:
        found[routing.layer] = {top_k: routing.membership(top_k) for top_k in settings.ks}

    filled = DynamicCache(config=focus.model.config)
    with _mode(focus, settings.ks[0]), focus.observe(keep):
        focus(input_ids=ids[:, :tokens], past_key_values=filled, use_cache=True, logits_to_keep=1)
    times: dict[int | None, list[float]] = {top_k: [] for top_k in (None, *settings.ks)}
    held: dict[int | None, int] = {}
    for top_k, seconds in times.items():
        cache = copy.deepcopy(filled)
        for layer, by_k in found.items():
            stored: Any = cache.layers[layer]
            # Every k uses the same cached keys; only their groups differ.
            keys = None if top_k is None else by_k[top_k].keys
            stored.routing = None if keys is None else heads_in_groups(keys, focus.router(layer).num_heads)
        held[top_k] = held_bytes(cache)
        with _mode(focus, top_k):
            for step in range(settings.steps + 1):
                token = ids[:, tokens + step - 1 : tokens + step]

                def write(token: Tensor = token, cache: Cache = cache) -> None:
                    focus(input_ids=token, past_key_values=cache, use_cache=True)

                taken = timed(write, focus.model.device.type)
                if step:
                    seconds.append(taken)
    return [
        _row("decode", tokens, _Mode(top_k), keys_kept(focus, found, top_k), seconds, 1, times[None])
        | {"cache_bytes": held[top_k]}
        for top_k, seconds in times.items()
    ]


def _decode_narrow(focus: FocusModel, ids: Tensor, tokens: int, settings: ModelBenchSettings) -> list[dict[str, Any]]:
    """Seconds per decoded token, each mode after a prefill of its own, steps of all modes in turn."""
    modes = [_Mode(), *_routed_modes(focus, settings)]
    caches = {mode: DynamicCache(config=focus.model.config) for mode in modes}
    times: dict[_Mode, list[float]] = {mode: [] for mode in modes}
    held: dict[_Mode, int] = {}
    kept: dict[_Mode, list[float]] = {mode: [] for mode in modes}
    for step in range(settings.steps + 2):
        new = ids[:, :tokens] if step == 0 else ids[:, tokens + step - 2 : tokens + step - 1]
        for mode, cache in caches.items():

            def count(routing: LayerRouting, shares: list[float] = kept[mode]) -> None:
                shares.append(late_keys_kept(routing))

            def write(new: Tensor = new, cache: Cache = cache) -> None:
                focus(input_ids=new, past_key_values=cache, use_cache=True, logits_to_keep=1)

            with mode.of(focus), focus.observe(None if step else count):
                taken = timed(write, focus.model.device.type)
            if step == 0:
                held[mode] = held_bytes(cache)
            if step > 1:
                times[mode].append(taken)
    share = {mode: 1.0 if tokens < mode.full_below else statistics.fmean(kept[mode] or [1.0]) for mode in modes}
    return [
        _row("decode", tokens, mode, share[mode], seconds, 1, times[_Mode()]) | {"cache_bytes": held[mode]}
        for mode, seconds in times.items()
    ]


def _row(
    task: str, tokens: int, mode: _Mode, kept: float, seconds: list[float], produced: int, untouched: list[float]
) -> dict[str, Any]:
    median = statistics.median(seconds)
    return {
        "task": task,
        "tokens": tokens,
        "routing": mode.routing,
        "top_k": mode.top_k,
        **({"full_below": mode.full_below} if mode.full_below else {}),
        "kept_share": kept,
        "seconds": {"median": median, "min": min(seconds), "max": max(seconds)},
        "tokens_per_second": produced / median,
        "speedup": statistics.median(untouched) / median,
    }
