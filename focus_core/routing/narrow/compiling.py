"""Compiling what narrow groups run on a CPU before anybody waits for a token, or times one."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import DynamicCache

from focus_core.progress import Progress, silent
from focus_core.routing.cache import cache_argument
from focus_core.routing.model import FocusModel
from focus_core.routing.routers import ROUTERS


class _Enough(Exception):
    """Ends a forward pass after its first layer with groups."""


@torch.inference_mode()
def compile_ahead(focus: FocusModel, *, progress: Progress = silent) -> None:
    """Run one layer on a text of a few chunks and on tokens after it, with the settings in force.

    Compiled code is kept beside its source (https://numba.readthedocs.io/en/stable/developer/caching.html). So this
    takes about half a minute once on each machine and in each dtype, and then a part of a second. Without it the first
    text of a machine waits in its place. Nothing is done where nothing is compiled: for other routers and modes, and
    away from the CPU.

    Args:
        focus: model with routers.
        progress: told so.
    """
    current, model = focus.current, focus.model
    own_windows = dict(zip(focus.layers, focus.sliding_windows))
    layer = next((layer for layer in focus.layers if own_windows[layer] is None), None)
    narrow = ROUTERS[current.config.router].from_keys and current.mode == "hard"
    if layer is None or not narrow or model.device.type != "cpu":
        return
    progress("Preparing sparse attention, which is compiled once on each machine", 0)
    chunk = current.config.chunk
    tokens = current.config.sink_tokens + current.config.window + 3 * chunk
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None) or tokens + chunk + 1
    tokens = max(1, min(tokens, positions - chunk - 1))

    def stop(module: nn.Module, args: Any, output: Any) -> None:
        raise _Enough

    handle = focus.attention_modules[layer].register_forward_hook(stop)
    cache = cache_argument(model, DynamicCache(config=model.config))
    try:
        with focus.routing("hard", backend=current.backend, full_below=0, cache_bits=current.config.cache_bits):
            # A whole text, a step over a border of chunks, and one token.
            for new in (tokens, chunk, 1):
                try:
                    focus(input_ids=torch.zeros(1, new, dtype=torch.int64), use_cache=True, **cache)
                except _Enough:
                    continue
    finally:
        handle.remove()
