"""What a model takes beyond its parts on this machine: passes of the whole model, less what the parts predict."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from focus_core.analysis.trace import analyze
from focus_core.models import LoadedModel
from focus_core.routing.config import FocusConfig
from focus_core.routing.layer import LayerRouting
from focus_core.routing.model import FocusModel, retrofit
from focus_core.routing.narrow.fitting.fit import fit_narrow
from focus_core.scale.kernels import Lengths, parted
from focus_core.scale.rates import Rates
from focus_core.scale.shapes import ModelShape
from focus_core.scale.times import Cluster, FitRates, decode_seconds, prefill_seconds, trace_seconds
from focus_core.scale.work import attended, decode_step, training_flops
from focus_core.text import Encoding
from focus_core.training.objectives import OBJECTIVES

STEPS = 10
"""Decoded tokens of which the median is taken."""


@dataclass(frozen=True)
class Subject:
    """A model and a text to run.

    Attributes:
        loaded: model and tokenizer.
        shape: of the model.
        text: as long as any pass needs.
        encoding: its tokens.
    """

    loaded: LoadedModel
    shape: ModelShape
    text: str
    encoding: Encoding

    def ids(self, tokens: int) -> Tensor:
        """(1, tokens) int64: the first of them."""
        return torch.from_numpy(self.encoding.input_ids[None, :tokens])

    def start(self, tokens: int) -> tuple[str, Encoding]:
        """The text up to the end of its first tokens, and these."""
        ids, offsets, names = self.encoding
        part = Encoding(ids[:tokens], offsets[:tokens], names[:tokens])
        return self.text[: int(part.offsets[-1, 1])], part


def seconds_of(call: Callable[[], Any], *, enough: float = 2.0, most: int = 5) -> float:
    """Median time of a call, which is repeated until it took `enough` seconds, or `most` times."""
    times: list[float] = []
    while not times or (sum(times) < enough and len(times) < most):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def prefill_time(focus: FocusModel, ids: Tensor) -> tuple[float, DynamicCache]:
    """Seconds of a text and its cache, under the routing in force."""
    made: list[DynamicCache] = []

    def call() -> None:
        made[:] = [DynamicCache(config=focus.model.config)]
        with torch.inference_mode():
            focus(input_ids=ids, past_key_values=made[0], use_cache=True, logits_to_keep=1)

    return seconds_of(call), made[0]


def step_time(focus: FocusModel, cache: DynamicCache) -> float:
    """Seconds of one more token after a cache, under the routing in force: the median of some."""
    token, times = torch.zeros(1, 1, dtype=torch.int64), []
    with torch.inference_mode():
        for _ in range(STEPS + 1):
            start = time.perf_counter()
            focus(input_ids=token, past_key_values=cache, use_cache=True, logits_to_keep=1)
            times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def pass_rates(focus: FocusModel, subject: Subject, parts: dict[str, float], lengths: Lengths) -> Rates:
    """The rates of the parts, with what decode and a layer's other work take.

    ```
    step_attention   the difference of two steps, after few and after many tokens, over that of their FLOPs
    token_s, step_s  time of the untouched model less what matrices and attention take, for each layer
    routed_...       the same with narrow groups, less these
    ```

    Args:
        focus: model with narrow routers.
        subject: the same model, and the text.
        parts: rates of the parts by name.
        lengths: tokens.
    """
    shape, ids, config = subject.shape, subject.ids(lengths.short), focus.config
    rates = Rates(**parts, step_attention=1.0, network=float("inf"))
    per_token = lengths.short * shape.layers
    with focus.routing("off"):
        prefill_time(focus, ids)
        untouched = prefill_time(focus, ids)[0]
        few, many = (step_time(focus, _normal_cache(focus, shape, each)) for each in (lengths.cached, lengths.long))
    with focus.routing("hard"):
        prefill_time(focus, ids)
        routed, cache = prefill_time(focus, ids)
        step = step_time(focus, cache)
    flops = [decode_step(shape, each, 1, 4, None).flops.exact for each in (lengths.cached, lengths.long)]
    rates = replace(rates, step_attention=(flops[1] - flops[0]) / max(many - few, 1e-9))
    on = Cluster(rates)
    rates = replace(
        rates,
        token_s=_rest(untouched, prefill_seconds(shape, lengths.short, on), per_token),
        step_s=_rest(few, decode_seconds(shape, lengths.cached, on), shape.layers),
    )
    on = Cluster(rates)
    return replace(
        rates,
        routed_token_s=_rest(routed, prefill_seconds(shape, lengths.short, on, config), per_token),
        routed_step_s=_rest(step, decode_seconds(shape, lengths.short, on, config), shape.layers),
    )


def trace_rates(focus: FocusModel, subject: Subject, rates: Rates, lengths: Lengths) -> tuple[float, float]:
    """`trace_s` and `trace_page_s` of `FitRates`, from traces of two lengths."""
    nothing, work, rest = FitRates(0, 0, 0, 0), [], []
    for tokens in (lengths.short, 3 * lengths.short):
        pages = attended(0, tokens, focus.config).pages * subject.shape.sharing
        work.append([tokens * subject.shape.layers, pages * subject.shape.layers])
        taken = trace_time(focus, subject, tokens)
        rest.append(_rest(taken, trace_seconds(subject.shape, tokens, Cluster(rates), focus.config, nothing), 1))
    token, page = parted(work, rest)
    return token, page


def trace_time(focus: FocusModel, subject: Subject, tokens: int) -> float:
    """Seconds of `analyze` of one key/value head."""
    text, encoding = subject.start(tokens)
    return seconds_of(lambda: analyze(focus, subject.loaded.tokenizer, text, encoding=encoding))


def fit_times(subject: Subject, config: FocusConfig, tokens: int) -> list[float]:
    """Seconds of each pass of `focus fit` on one block: groups, spread, weights of layers, what heads lose.

    The passes that find directions of spread and heads that recall are left out: formulas of costs lack them.
    """
    starts: dict[str, float] = {}

    def note(message: str, _: float) -> None:
        starts.setdefault(message, time.perf_counter())

    begin = time.perf_counter()
    config = config.replace(shares_at=(), spread_directions=0)
    focus = fit_narrow(subject.loaded.model, subject.ids(tokens).numpy(), config, progress=note)
    end = time.perf_counter()
    focus.detach()
    return np.diff([begin, *list(starts.values())[1:], end]).tolist()


def fit_rates(subject: Subject, config: FocusConfig, rates: Rates, tokens: int) -> tuple[float, float]:
    """`cluster_s` and `spread_s` of `FitRates`: the first two passes, less the untouched model."""
    shape, (groups, spread, *_) = subject.shape, fit_times(subject, config, tokens)
    forward = prefill_seconds(shape, tokens, Cluster(rates))
    pairs = attended(0, tokens, None).exact * shape.heads * shape.layers
    return _rest(groups, forward, tokens * shape.kv_heads * shape.layers), _rest(spread, forward, pairs)


def training_time(subject: Subject, objective: str, tokens: int) -> float:
    """Seconds of one step's loss and gradients, for routers per layer."""
    focus, ids = retrofit(subject.loaded.model, FocusConfig()), subject.ids(tokens)

    def step() -> None:
        OBJECTIVES[objective].loss(focus, ids).backward()
        focus.zero_grad()

    try:
        step()
        return seconds_of(step)
    finally:
        focus.detach()


def dense_rate(subject: Subject, objective: str, rates: Rates, tokens: int) -> float:
    """FLOP/s of attention whose weights are taken whole, with all that an objective adds: a step less its matrices."""
    flops, passes = training_flops(subject.shape, tokens, objective), 1 if objective == "mass" else 2
    rest = training_time(subject, objective, tokens) - flops.matmul / rates.matmul
    rest -= passes * tokens * subject.shape.layers * rates.token_s
    return flops.exact / max(rest, 1e-9)


def together(focus: FocusModel, subject: Subject, tokens: int) -> tuple[float, float]:
    """Share of the distant keys that query heads of a key/value head read together, at the end of a text.

    Returns:
        The measured share, and what `read_together` gives for heads that choose independently; means over heads.
    """
    found: list[tuple[float, float]] = []

    def record(routing: LayerRouting) -> None:
        reading = routing.reading()
        border = reading.border(tokens - 1)
        for row in range(routing.router.num_heads):
            parts, reads = routing.narrow_reads(row)
            sizes = torch.bincount(parts[reading.sink_tokens : border], minlength=reads.shape[-1]).float()
            shares = (reads[:, -1].float() @ sizes / sizes.sum()).tolist()
            union = float(reads[:, -1].any(0).float() @ sizes / sizes.sum())
            found.append((union, 1 - float(np.prod([1 - share for share in shares]))))

    with torch.inference_mode(), focus.routing("hard"), focus.observe(record):
        focus.model.base_model(input_ids=subject.ids(tokens), use_cache=False)
    measured, independent = np.mean(found, 0).tolist()
    return measured, independent


def _rest(measured: float, predicted: float, units: float) -> float:
    """Seconds of a unit that the prediction lacks; 0 where it has too many."""
    return max(0.0, measured - predicted) / units


def _normal_cache(focus: FocusModel, shape: ModelShape, tokens: int) -> DynamicCache:
    """A cache of normal keys and values, which take as long as those of a text."""
    cache = DynamicCache(config=focus.model.config)
    for layer in range(shape.layers):
        key, value = torch.randn(2, 1, shape.kv_heads, tokens, shape.head_dim)
        cache.update(key, value, layer)
    return cache
