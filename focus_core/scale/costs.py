"""What one model costs at one length on some devices: the untouched model beside narrow groups."""

from __future__ import annotations

from typing import Any

from focus_core.routing.config import FocusConfig
from focus_core.scale.shapes import ModelShape
from focus_core.scale.times import (
    Cluster,
    FitRates,
    decode_seconds,
    fit_seconds,
    prefill_seconds,
    trace_seconds,
    training_seconds,
)
from focus_core.scale.work import (
    cache_bytes,
    decode_step,
    dense_bytes,
    prefill_flops,
    router_parameters,
    sharded_bytes,
    tensor_parallel_bytes,
    training_flops,
)
from focus_core.training.objectives import OBJECTIVES


def costs(
    shape: ModelShape,
    tokens: int,
    on: Cluster,
    config: FocusConfig,
    *,
    batch: int = 1,
    trained: FocusConfig | None = None,
    fit: FitRates = FitRates(),  # noqa: B008 - frozen
) -> dict[str, Any]:
    """Costs of prefill, decode, analysing and training.

    Args:
        shape: of the model.
        tokens: T, of each text; also of a block of training.
        on: the devices.
        config: of narrow routers.
        batch: texts at once; training has one block a device.
        trained: of the routers that are trained; the defaults of `FocusConfig` when None.
        fit: what a trace and `focus fit` take beyond prefill; nothing on a data sheet.

    Returns:
        ``untouched`` and ``narrow``: FLOPs, bytes and seconds of prefill, cache and one step of decode, of all texts;
        ``gain`` of prefill and decode; ``sent``: bytes that each device sends in prefill and in a step; ``analysing``:
        seconds of a trace of one key/value head and of `focus fit`, of one text; ``training`` by objective: FLOPs and
        seconds of a block, bytes of the attention weights of one layer, and bytes that each device sends in a step.
    """
    sides = {
        name: {
            "prefill_flops": batch * prefill_flops(shape, tokens, own).total,
            "prefill_s": prefill_seconds(shape, tokens, on, own, batch=batch),
            "cache_bytes": batch * cache_bytes(shape, tokens, on.size, own),
            "step_bytes": (step := decode_step(shape, tokens, batch, on.size, own)).weights + step.cache,
            "step_s": decode_seconds(shape, tokens, on, own, batch=batch),
        }
        for name, own in (("untouched", None), ("narrow", config))
    }
    untouched, narrow = sides.values()
    routers = router_parameters(shape, trained or FocusConfig())
    return {
        "model": shape.name,
        "tokens": tokens,
        "batch": batch,
        "share": config.read_share,
        "devices": on.gpus,
        **sides,
        "gain": {
            "prefill": untouched["prefill_s"] / narrow["prefill_s"],
            "decode": untouched["step_s"] / narrow["step_s"],
        },
        "sent": {
            "prefill_bytes": tensor_parallel_bytes(shape, batch * tokens, on.size, on.gpus),
            "step_bytes": tensor_parallel_bytes(shape, batch, on.size, on.gpus),
        },
        "analysing": {
            "trace_s": trace_seconds(shape, tokens, on, config, fit),
            "fit_s": fit_seconds(shape, tokens, on, config, fit),
        },
        "training": {
            objective: {
                "flops": training_flops(shape, tokens, objective).total,
                "seconds": training_seconds(shape, tokens, on, objective),
                "attention_bytes": dense_bytes(shape, tokens),
                "sent_bytes": sharded_bytes(shape, routers, on.size, on.gpus, objective),
            }
            for objective in OBJECTIVES
        },
    }
