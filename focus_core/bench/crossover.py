"""Below which place full attention is faster than narrow groups: measured once on each machine, and stored."""

from __future__ import annotations

import statistics
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from focus_core.bench.measures.timing import alternate, synchronize
from focus_core.bench.narrow import random_directions, some_spread
from focus_core.errors import FocusError
from focus_core.io.files import to_json, write_atomic
from focus_core.io.reading import read_json
from focus_core.io.schema import number, table, whole
from focus_core.machine import describe_machine
from focus_core.models.default_model import cache_dir
from focus_core.models.heads import head_dim_of
from focus_core.progress import Progress, silent
from focus_core.results import made_now, run_key
from focus_core.routing.config import FocusConfig
from focus_core.routing.layer import reading_of
from focus_core.routing.model import FocusModel, Mode
from focus_core.routing.narrow.attention import narrow_attention
from focus_core.routing.narrow.reading import Reading
from focus_core.routing.routers import ROUTERS

PLACES = (512, 1024, 2048, 4096, 8192)
"""Places that are tried, each with a text of twice as many tokens."""
DECIDED = 0.8
"""Time of sparse attention over full attention from which longer texts are not tried: with more keys it falls."""
MOST = 1 / 0.95
"""What a text of so many tokens, and a token after it, may take, over the time in the untouched model."""
READINGS, ROUNDS, TOKENS = 2, 4, 6
"""How often a text is read, turns in which new tokens are timed, and tokens of each."""

_RATIOS = table(values=number(0))
_RULES = table(
    {"rules": table(values=table({"full_below": whole(0), **dict.fromkeys(("points", "reads", "steps"), _RATIOS)}))}
)


def crossover(focus: FocusModel, *, again: bool = False, progress: Progress = silent) -> int:
    """From how many tokens on narrow groups pay, on this machine and for this model: the `full_below` of shorter texts.

    Attention of one layer decides first, on normal tensors: from this place on it is faster at every length that is
    tried. Then the whole model does: from there on the first place is taken after which a text of as many tokens,
    routed from its start, and the next token take at most `MOST` of the untouched model's time. With more keys both
    gain more. All takes less than a minute for the default model, and is read from `crossover_file` later, or
    measured again if that cannot be written. Another value is one setting: `full_below` of `routing`.

    A text with as many tokens at once had better be routed from its start, as `full_below_for` says.

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
    shape = heads, getattr(text, "num_key_value_heads", None) or heads, head_dim_of(focus.model)
    longest = getattr(text, "max_position_embeddings", None) or 2 * PLACES[-1]
    places = [place for place in PLACES if 2 * place <= longest] or [max(1, longest // 2)]
    device, dtype = focus.model.device.type, focus.model.dtype
    machine = describe_machine(device)
    size = focus.model.num_parameters()  # tokens of a larger model spend another part of their time in attention
    key = run_key(machine=machine, shape=shape, size=size, dtype=str(dtype), places=places, reading=_deciding(config))
    stored = _read()
    if again or key not in stored:
        rule = _measured(focus, config, shape, places, longest, progress)
        stored = _read() | {key: rule}
        _write(stored)
    return stored[key]["full_below"]


def _measured(
    focus: FocusModel,
    config: FocusConfig,
    shape: tuple[int, int, int],
    places: list[int],
    longest: int,
    progress: Progress,
) -> dict[str, Any]:
    """A rule as it is stored."""
    device, points, reads, steps = focus.model.device.type, {}, {}, {}
    for number_done, place in enumerate(places):
        progress(f"Measuring where sparse attention pays: {2 * place:,} tokens", number_done / len(places))
        points[str(place)] = _ratio(place, shape, config, focus.model.dtype, device)
        if points[str(place)] <= DECIDED:
            break
    from_here, full_below = _rule(points, longest), longest
    for place in (each for each in places if each >= from_here):
        progress(f"Measuring where sparse attention pays: {place:,} tokens and the next one", 1)
        reads[str(place)], steps[str(place)] = ratios = _model_ratios(place, focus)
        if max(ratios) <= MOST:
            full_below = place
            break
    return {"full_below": full_below, "points": points, "reads": reads, "steps": steps, "made": made_now(device)}


def full_below_for(focus: FocusModel, tokens: int, *, progress: Progress = silent) -> int:
    """The `full_below` of a text that begins with so many tokens at once: the `crossover`, or 0 where it is as long.

    Full attention up to a place inside a text costs as much there as in the untouched model, and the groups of all keys
    come on top. So just behind this place such a text would be slower than both.

    Raises:
        FocusError: as `crossover`.
    """
    place = crossover(focus, progress=progress)
    return place if tokens < place else 0


def crossover_file() -> Path:
    """Where measured rules are kept: `crossover.json` in the cache folder, see `cache_dir`."""
    return cache_dir() / "crossover.json"


def _deciding(config: FocusConfig) -> dict[str, Any]:
    names = ("num_groups", "top_k", "window", "sink_tokens", "chunk", "read_share", "page_size", "cache_bits")
    names += ("count_spread", "spread_directions")
    return {name: getattr(config, name) for name in names}


def _ratio(place: int, shape: tuple[int, int, int], config: FocusConfig, dtype: torch.dtype, device: str) -> float:
    """Time of a text whose queries from `place` on choose, over that of full attention; twice as many tokens."""
    tokens = 2 * place
    query, key, value, groups = _normal(tokens, shape, config, dtype, device)
    ours, full = (_reading(config, full_below, shape, device) for full_below in (place, tokens))

    def attend(reading: Reading) -> Any:
        with torch.inference_mode():
            return narrow_attention(query, key, value, groups, config.num_groups, reading, scale=shape[-1] ** -0.5)

    times = alternate({"ours": lambda: attend(ours), "full": lambda: attend(full)}, 3, device)
    return statistics.median(times["ours"]) / statistics.median(times["full"])


def _model_ratios(place: int, focus: FocusModel) -> tuple[float, float]:
    """Times of `place` random tokens and of one after them, under the settings in force, over those untouched.

    The fastest of each count: whatever else runs on the machine only adds to a time.
    """
    device = focus.model.device
    routed = focus.current.config.replace(full_below=0).changes_from(focus.config)
    modes: dict[Mode, dict[str, Any]] = {"hard": routed, "off": {}}
    generator = torch.Generator().manual_seed(place)
    ids = torch.randint(focus.model.config.get_text_config().vocab_size, (1, place), generator=generator).to(device)
    caches: dict[Mode, Any] = {}
    reads, steps = ({mode: [] for mode in modes} for _ in range(2))

    def taken(given: Tensor, mode: Mode) -> float:
        synchronize(device.type)
        start = time.perf_counter()
        found = focus.model(input_ids=given, past_key_values=caches.pop(mode, None), logits_to_keep=1)
        synchronize(device.type)
        caches[mode] = found.past_key_values
        return time.perf_counter() - start

    for turn in range(READINGS + ROUNDS):
        for mode, changes in modes.items():
            with focus.routing(mode, **changes), torch.inference_mode():
                if turn < READINGS:
                    caches.pop(mode, None)
                    reads[mode].append(taken(ids, mode))
                else:
                    steps[mode] += [taken(ids[:, -1:], mode) for _ in range(TOKENS)]
    read, step = (min(times["hard"]) / min(times["off"]) for times in (reads, steps))
    return read, step


def _reading(config: FocusConfig, full_below: int, shape: tuple[int, int, int], device: str) -> Reading:
    """The form of the settings, with random directions of spread; by a share, since thresholds are for texts."""
    heads, kv_heads, head_dim = shape
    directions = random_directions(config, kv_heads, head_dim, torch.Generator().manual_seed(0), device)
    form = {"spread": some_spread(config, heads), "directions": directions}
    return reading_of(config.replace(full_below=full_below), config.top_k, config.read_share, **form)


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


def _rule(points: dict[str, float], longest: int) -> int:
    """The first place from which on no length takes more time than full attention; all positions where each does."""
    found = longest
    for place, ratio in reversed(points.items()):
        if ratio > 1:
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
