"""Predicted seconds: work over rates, the slower of computing and of moving bytes where both happen at once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from focus_core.routing.config import FocusConfig
from focus_core.routing.narrow.fitting.layers import PROBED
from focus_core.scale.rates import Rates
from focus_core.scale.shapes import ModelShape
from focus_core.scale.work import attended, decode_step, prefill_flops, tensor_parallel_bytes, training_flops

READ = (0.0, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.13, 0.16, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0)
"""Shares of the pairs that heads are taken to read at the thresholds which `focus fit` measures."""


@dataclass(frozen=True)
class Cluster:
    """Devices that share each layer of a model by tensor parallelism.

    Attributes:
        rates: of each device.
        size: bytes of a number in weights and cache.
        gpus: devices; work is divided evenly.
    """

    rates: Rates
    size: int = 4
    gpus: int = 1


def prefill_seconds(
    shape: ModelShape, tokens: int, on: Cluster, config: FocusConfig | None = None, *, batch: int = 1
) -> float:
    """Time of whole texts, with the logits of the last token.

    Args:
        shape: of the model.
        tokens: T, of each text.
        on: the devices.
        config: of narrow routers; None for the untouched model.
        batch: texts.
    """
    flops, rates = prefill_flops(shape, tokens, config), on.rates
    exact = rates.attention if config is None else rates.exact
    seconds = flops.matmul / rates.matmul + flops.exact / exact + flops.pages / rates.pages
    seconds += flops.assign / rates.assign
    seconds += tokens * shape.layers * (rates.token_s + (0 if config is None else rates.routed_token_s))
    return batch * seconds / on.gpus + _network(shape, batch * tokens, on)


def decode_seconds(
    shape: ModelShape, tokens: int, on: Cluster, config: FocusConfig | None = None, *, batch: int = 1
) -> float:
    """Time of one more token of each text.

    ```
    max(FLOPs of the weights / matmul, bytes of the weights / bandwidth)
    + max(FLOPs of attention / their rates, bytes of the cache / bandwidth) + what each layer takes anyway
    ```

    Args:
        shape: of the model.
        tokens: T, in the cache of each text.
        on: the devices.
        config: of narrow routers; None for the untouched model.
        batch: texts.
    """
    step, rates = decode_step(shape, tokens, batch, on.size, config), on.rates
    if config is None:
        attention = step.flops.exact / rates.step_attention
    else:
        attention = step.flops.exact / rates.step_exact + step.flops.pages / rates.step_pages
        attention += step.flops.assign / rates.assign
    weights = max(step.flops.matmul / rates.matmul, step.weights / rates.bandwidth)
    seconds = (weights + max(attention, step.cache / rates.bandwidth)) / on.gpus
    seconds += shape.layers * (rates.step_s + (0 if config is None else rates.routed_step_s))
    return seconds + _network(shape, batch, on)


def training_seconds(shape: ModelShape, tokens: int, on: Cluster, objective: str, dense: float | None = None) -> float:
    """Time of one block in one step that trains routers, without what sharding sends.

    Args:
        shape: of the model.
        tokens: T, of the block.
        on: the devices.
        objective: "mass" or "lm".
        dense: FLOP/s of attention whose weights are taken whole; that of full attention when None.
    """
    flops, rates = training_flops(shape, tokens, objective), on.rates
    passes = 1 if objective == "mass" else 2
    seconds = flops.matmul / rates.matmul + flops.exact / (dense or rates.attention)
    return (seconds + passes * tokens * shape.layers * rates.token_s) / on.gpus


@dataclass(frozen=True)
class FitRates:
    """What the passes of `focus fit` and a trace take beyond prefill.

    Attributes:
        cluster_s: seconds of a key of one head: k-means and even groups.
        spread_s: seconds of a (query, key) pair of one query head in the pass that weighs spread.
        trace_s: seconds of a token and layer in a trace.
        trace_page_s: seconds of a (query, page) pair of one query head in a trace.
    """

    cluster_s: float = 0.0
    spread_s: float = 0.0
    trace_s: float = 0.0
    trace_page_s: float = 0.0

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> FitRates:
        """Those of a record of `focus bench scale`; 0 for what it lacks."""
        found = {row["name"]: row["value"] for row in record["constants"]}
        return cls(**{field.name: found[field.name] for field in fields(cls) if field.name in found})


def fit_seconds(shape: ModelShape, tokens: int, on: Cluster, config: FocusConfig, fit: FitRates) -> float:
    """Time of fitting narrow routers to one block, in four passes: groups, spread, weights of layers, what heads lose.

    Each pass runs the untouched model, the third with a backward pass. The last two add attention at every share or
    threshold that is measured, so they cost most. Thresholds are taken to read the shares `READ`.

    Args:
        shape: of the model.
        tokens: T, of the block.
        on: the devices.
        config: of the routers.
        fit: rates of the passes.
    """
    rates = on.rates
    groups = fit.cluster_s * tokens * shape.kv_heads * shape.layers
    spread = fit.spread_s * attended(0, tokens, None).exact * shape.heads * shape.layers
    shares = 0.0
    for share in (*READ, *PROBED):
        read = prefill_flops(shape, tokens, config.replace(read_share=share))
        # The difference that a share makes passes through a (D, D) matrix for each head.
        squares = 2 * tokens * shape.heads * shape.layers * shape.head_dim**2
        shares += read.exact / rates.exact + read.pages / rates.pages + squares / rates.matmul
    assign = 2 * prefill_flops(shape, tokens, config).assign / rates.assign
    # In the last pass the share of 1 takes the place of full attention; the third adds full attention instead. For its
    # gradients each layer runs once more, forward and backward.
    forward = 6 * prefill_seconds(shape, tokens, on)
    return forward + groups + spread + shares + assign


def trace_seconds(shape: ModelShape, tokens: int, on: Cluster, config: FocusConfig, fit: FitRates) -> float:
    """Time of `analyze` for one key/value head: prefill through narrow groups, and what its queries read.

    Args:
        shape: of the model.
        tokens: T.
        on: the devices.
        config: of the routers.
        fit: rates of a trace.
    """
    pages = attended(0, tokens, config).pages * shape.sharing * shape.layers
    routed = prefill_seconds(shape, tokens, on, config)
    return routed + fit.trace_s * tokens * shape.layers + fit.trace_page_s * pages


def _network(shape: ModelShape, tokens: int, on: Cluster) -> float:
    return tensor_parallel_bytes(shape, tokens, on.size, on.gpus) / on.rates.network
