"""`focus bench cache`: memory, speed and quality of caches of narrow groups."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from focus_core.commands.options import (
    MAX_COUNT,
    MAX_TOKENS,
    DeviceOption,
    JsonOption,
    ModelOption,
    RoutersOption,
    TextOption,
    chosen_device,
    print_record,
)


def cache(
    model: ModelOption = "default",
    routers: RoutersOption = None,
    data: TextOption = None,
    tokens: Annotated[
        list[int] | None,
        typer.Option("--size", min=1, max=MAX_TOKENS, help="Tokens in the cache; repeat. Default: 2048, 7680."),
    ] = None,
    blocks: Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="Texts of each length, evenly spaced.")] = 16,
    after: Annotated[int, typer.Option(min=1, max=MAX_TOKENS, help="Tokens after the cache to compare.")] = 256,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    device: DeviceOption = "auto",
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write; repeat the command to resume.")] = Path(
        "bench-cache.json"
    ),
    json_output: JsonOption = False,
) -> None:
    """Measure caches of narrow groups, as they are and in 8 bits.

    Memory, tokens per second and the KL of the tokens that follow, beside
    the untouched model's cache of the same texts.

    Example: focus bench cache --data book.txt
    """
    from focus_core.bench.cache import CacheBenchSettings, record_cache_bench
    from focus_core.commands.tables.bench import cache_bench_table
    from focus_core.progress import terminal_progress

    sizes = tuple(tokens or CacheBenchSettings.tokens)
    settings = CacheBenchSettings(sizes, blocks=blocks, after=after)
    options: dict[str, Any] = {"data": data, "dtype": dtype, "device": chosen_device(device), "settings": settings}
    with terminal_progress() as progress:
        record = record_cache_bench(model, out, routers=routers, **options, progress=progress)
    print_record(record, cache_bench_table, out, json_output)
