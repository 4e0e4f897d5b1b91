"""Below which place full attention is faster than narrow groups: measured once on each machine, and stored."""

from __future__ import annotations

import statistics
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.cache_utils import DynamicLayer

from focus_core.bench.timing import alternate
from focus_core.errors import FocusError
from focus_core.files import to_json, write_atomic
from focus_core.models.default_model import cache_dir
from focus_core.progress import Progress, silent
from focus_core.reading import read_json
from focus_core.results import describe_machine, made_now, run_key
from focus_core.routing.config import FocusConfig
from focus_core.routing.layer import reading_of
from focus_core.routing.model import FocusModel
from focus_core.routing.narrow.attention import narrow_attention
from focus_core.routing.narrow.cache.layer import PAGE_SIZE
from focus_core.routing.narrow.cache.text import CachedText
from focus_core.routing.narrow.reading import Reading
from focus_core.routing.routers import ROUTERS
from focus_core.schema import number, table, whole

PLACES = (512, 1024, 2048, 4096, 8192)
"""Places that are tried, each with a text of twice as many tokens."""
STEP = 1.1
"""What attention of one new token may take, over the untouched model's. It is at most half of the token's time, so the
token is at least 0.95 times as fast; reading a text gains more than that."""

_RATIOS = table(values=number(0))
_RULES = table({"rules": table(values=table({"full_below": whole(0), **dict.fromkeys(("points", "steps"), _RATIOS)}))})


def crossover(focus: FocusModel, *, again: bool = False, progress: Progress = silent) -> int:
    """The `full_below` with which no text takes much longer than untouched, on this machine and for this model.

    Queries before it attend to everything. Reading a text and writing the next token both decide, and the later place
    counts. They are measured in some seconds, for attention of one layer on normal tensors, and read from
    `crossover_file` later, or measured again if that cannot be written. Another value is one setting: `full_below` of
    `routing`.

    Args:
        focus: model with routers.
        again: measure even if it is stored.
        progress: told each length.

    Returns:
        A place in tokens; 0 for routers without narrow groups, which cannot mix the two.

    Raises:
        FocusError: a model without routers.
    """
    if not isinstance(focus, FocusModel):
        raise FocusError(f"focus is a {type(focus).__name__}: give the model with routers, which retrofit returns.")
    config = focus.current.config
    if not ROUTERS[config.router].from_keys:
        return 0
    text: Any = focus.model.config.get_text_config()
    heads = text.num_attention_heads
    shape = heads, getattr(text, "num_key_value_heads", None) or heads, _head_dim(text)
    longest = getattr(text, "max_position_embeddings", None) or 2 * PLACES[-1]
    places = [place for place in PLACES if 2 * place <= longest] or [max(1, longest // 2)]
    device, dtype = focus.model.device.type, focus.model.dtype
    machine = describe_machine(device)
    key = run_key(machine=machine, shape=shape, dtype=str(dtype), places=places, reading=_deciding(config))
    stored = _read()
    if again or key not in stored:
        points, steps = {}, {}
        for number_done, place in enumerate(places):
            progress(f"Measuring where sparse attention pays: {2 * place:,} tokens", number_done / len(places))
            points[str(place)] = _ratio(place, shape, config, dtype, device)
            steps[str(place)] = _step_ratio(place, shape, config, dtype, device)
        full_below = max(_rule(points, longest), _rule(steps, longest, STEP))
        rule = {"full_below": full_below, "points": points, "steps": steps, "made": made_now(device)}
        stored = _read() | {key: rule}
        _write(stored)
    return stored[key]["full_below"]


def crossover_file() -> Path:
    """Where measured rules are kept: `crossover.json` in the cache folder, see `cache_dir`."""
    return cache_dir() / "crossover.json"


def _head_dim(text: Any) -> int:
    return getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads


def _deciding(config: FocusConfig) -> dict[str, Any]:
    names = ("num_groups", "top_k", "window", "sink_tokens", "chunk", "read_share", "page_size", "cache_bits")
    return {name: getattr(config, name) for name in names}


def _ratio(place: int, shape: tuple[int, int, int], config: FocusConfig, dtype: torch.dtype, device: str) -> float:
    """Time of a text whose queries from `place` on choose, over that of full attention; twice as many tokens."""
    tokens = 2 * place
    query, key, value, groups = _normal(tokens, shape, config, dtype, device)

    def attend(full_below: int) -> Any:
        reading = _reading(config, full_below)
        with torch.inference_mode():
            return narrow_attention(query, key, value, groups, config.num_groups, reading, scale=shape[-1] ** -0.5)

    times = alternate({"ours": lambda: attend(place), "full": lambda: attend(tokens)}, 3, device)
    return statistics.median(times["ours"]) / statistics.median(times["full"])


def _step_ratio(place: int, shape: tuple[int, int, int], config: FocusConfig, dtype: torch.dtype, device: str) -> float:
    """Time of a token after `place` others that chooses, over that in the untouched model with its own cache."""
    query, key, value, groups = _normal(place, shape, config, dtype, device)
    new, reading, scale = slice(0, 1), _reading(config, 0), shape[-1] ** -0.5
    page_size = config.page_size or PAGE_SIZE
    text = CachedText(key[0], value[0], config.num_groups, page_size, config.sink_tokens, config.cache_bits)
    text.fill(key[0], value[0], groups[0], None, reading)
    untouched = DynamicLayer()
    untouched.update(key, value)

    def assign(keys: Tensor, _: Any) -> Tensor:
        return groups[0, :, : keys.shape[1]]

    def choose() -> Any:
        with torch.inference_mode():
            return text.attend(query[0, :, new], key[0, :, new], value[0, :, new], None, assign, reading, scale, None)

    def attend() -> Any:
        with torch.inference_mode():
            keys, values = untouched.update(key[:, :, new], value[:, :, new])
            return F.scaled_dot_product_attention(query[:, :, new], keys, values, enable_gqa=True)

    times = alternate({"ours": choose, "full": attend}, 3, device)
    return statistics.median(times["ours"]) / statistics.median(times["full"])


def _reading(config: FocusConfig, full_below: int) -> Reading:
    return reading_of(config.replace(full_below=full_below), config.top_k, config.read_share)


def _normal(
    tokens: int, shape: tuple[int, int, int], config: FocusConfig, dtype: torch.dtype, device: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Normal queries, keys and values of one text, and random groups."""
    generator = torch.Generator().manual_seed(tokens)
    heads, kv_heads, head_dim = shape

    def normal(rows: int) -> Tensor:
        # The heads of a token lie side by side, as models give them to attention.
        return torch.randn(1, tokens, rows, head_dim, generator=generator).to(device, dtype).transpose(1, 2)

    groups = torch.randint(config.num_groups, (1, kv_heads, tokens), generator=generator).to(device)
    return normal(heads), normal(kv_heads), normal(kv_heads), groups


def _rule(points: dict[str, float], longest: int, at_most: float = 1.0) -> int:
    """The first place from which on no length takes more than `at_most` the time; all positions where each does."""
    found = longest
    for place, ratio in reversed(points.items()):
        if ratio > at_most:
            break
        found = int(place)
    return found


def _read() -> dict[str, Any]:
    try:
        return read_json(crossover_file(), _RULES)["rules"]
    except (OSError, FocusError):  # what a cache lost is measured again
        return {}


def _write(rules: dict[str, Any]) -> None:
    with suppress(OSError):
        write_atomic(crossover_file(), to_json({"schema": "focus-crossover/1", "rules": rules}))
