"""Attention over narrow groups on a CPU, page by page: the same result as `narrow_attention`, several times as fast.

A page is read by some of the queries of a span. They are gathered, so that its keys and values come from memory once
for all of them, and each step is a product of small matrices. Threads take parts of a text one at a time and sleep when
they wait, so a busy core beside them costs its share and no more.
"""

from __future__ import annotations

from concurrent.futures import Future
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from focus_core.attention.cpu.threads import in_threads
from focus_core.routing.narrow.compiled.kernel import Settings, attend
from focus_core.routing.narrow.compiled.layout import Head, filled, unfilled
from focus_core.routing.narrow.compiled.levels import Levels, levels_between
from focus_core.routing.narrow.compiled.machine.llvm import LANES
from focus_core.routing.narrow.compiled.machine.memory import COMPILED, as_array
from focus_core.routing.narrow.compiled.machine.tiles import COLUMNS
from focus_core.routing.narrow.compiled.rows import directions_of
from focus_core.routing.narrow.compiled.state import Choice, Half, Span, half_scratch, scratch
from focus_core.routing.narrow.compiled.sums import Sums
from focus_core.routing.narrow.output import Prefill
from focus_core.routing.narrow.reading import Reading

if TYPE_CHECKING:
    from jaxtyping import Float, Int

SPAN_ROWS = 384
"""Queries, over all heads that share keys, that are gathered for a page."""
TASKS = 6
"""Parts of heads for each thread, which takes them one at a time; each part sums up all keys before it again."""


def supported(query: Tensor, key: Tensor, value: Tensor, reading: Reading, softcap: float | None) -> bool:
    """Whether `prefill` computes this call: on a CPU, without gradients, in at most float32, with pages of 16 or fewer.

    Args:
        query: (B, H, T, D).
        key: (B, Hkv, T, D).
        value: (B, Hkv, T, Dv).
        reading: settings.
        softcap: of the model, which must have none.
    """
    recorded = torch.is_grad_enabled() and any(part.requires_grad for part in (query, key, value))
    paged = reading.share is not None and reading.page_size is not None and reading.page_size <= LANES
    widths = query.shape[-1] % 2 == 0 and value.shape[-1] % LANES == 0
    small = torch.finfo(query.dtype).bits <= 32
    here = query.device.type == "cpu" and query.numel() > 0
    return here and small and paged and widths and reading.chunk % LANES == 0 and softcap is None and not recorded


def prefill(
    query: Float[Tensor, "B H T D"],
    key: Float[Tensor, "B Hkv T D"],
    value: Float[Tensor, "B Hkv T Dv"],
    groups: Int[Tensor, "B Hkv T"],
    num_groups: int,
    reading: Reading,
    *,
    scale: float,
) -> Prefill:
    """Exact attention over window, sinks and read pages, and summaries of the others; see `narrow_attention`.

    Computes in float32, or in bfloat16 in matrix units (see `halves`), in as many threads as PyTorch has. Memory grows
    with T times the width of keys and values. The output is in the query's dtype, or in float32 for float16; the heads
    of a token lie side by side, as models want them.

    Args:
        query: position-encoded; a call that is `supported`.
        key: position-encoded.
        value: Dv a multiple of 16.
        groups: of each key, 0 to K - 1.
        num_groups: K.
        reading: settings, with a share and pages. The results of queries that attend to everything are not written.
        scale: factor of the dot products.
    """
    batch, heads, length, _ = query.shape
    kv_heads = key.shape[1]
    total, group = batch * kv_heads, heads // kv_heads
    span = max(1, SPAN_ROWS // group // reading.chunk) * reading.chunk
    half = _in_half(query, key, value)
    # Models lay the heads of a token side by side, so this copies no queries; nor do results need another copy.
    queries = _array(query.transpose(1, 2), half)
    keys, values, scattered = _by_head(key, value, half)
    labels = groups.reshape(total, length).to(torch.int32).contiguous().numpy()
    stored = query.dtype if query.dtype in COMPILED else torch.float32
    output = torch.empty(batch, length, heads, values.shape[-1], dtype=stored)
    logsumexp = np.empty((batch, heads, length), np.float32)
    pairs_read = np.zeros((total, group), np.int64)
    page_size = reading.page_size or LANES
    settings = Settings(
        reading.window,
        reading.sink_tokens,
        reading.chunk,
        page_size,
        float(reading.count_weight),
        reading.thresholds is not None,
    )
    spread_weights = reading.spread_weights(total * group).view(total, group).numpy()
    tables = reading.levels(total * group).unflatten(1, (total, group)).transpose(0, 1).contiguous().numpy()
    levels = [Levels(table, *levels_between(reading.shares_at)) for table in tables]
    directions = directions_of(reading.directions, kv_heads, query.shape[-1])
    begin = reading.full_until(length)
    parts = -(-TASKS * torch.get_num_threads() // total)
    part = -(-(length - begin) // (parts * span)) * span
    outputs = as_array(output)

    def lay_out(n: int) -> None:
        try:
            for own, of_model in scattered:
                np.copyto(own[n], of_model[n // kv_heads, n % kv_heads])
            laid[n].set_result(filled(empty_heads[n], labels[n], num_groups, page_size, reading.sink_tokens))
        except BaseException as error:  # for those that wait
            laid[n].set_exception(error)

    def attend_part(start: int, n: int) -> None:
        head, room = laid[n].result(), rooms.pop()
        stop = min(start + part, length)
        results = outputs[n // kv_heads], logsumexp[n // kv_heads]
        read[start, n] = attend(head, settings, levels[n], spread_weights[n], start, stop, span, *room, *results)
        rooms.append(room)

    # Memory is taken before the threads begin: each array would have them wait for Python's lock.
    empty_heads = [
        unfilled(
            queries[n // kv_heads],
            n % kv_heads * group,
            scale,
            keys[n],
            values[n],
            num_groups,
            page_size,
            directions[n % kv_heads],
        )
        for n in range(total)
    ]
    most = max(_pages(each[reading.sink_tokens :], num_groups, page_size) for each in labels)
    chunks = span // reading.chunk
    rooms = [_room(empty_heads[0], group, most, span * group, chunks, half) for _ in range(torch.get_num_threads())]
    laid: list[Future[Head]] = [Future() for _ in range(total)]
    read: dict[tuple[int, int], np.ndarray] = {}
    # One region for both: beside other busy processes threads wait longest where they begin and end together. The last
    # parts have the most keys before them, so they come first.
    parts_of_heads = [(start, n) for start in reversed(range(begin, length, part)) for n in range(total)]
    in_threads(
        lambda task: task(),
        [*(partial(lay_out, n) for n in range(total)), *(partial(attend_part, *each) for each in parts_of_heads)],
    )
    for (_, n), count in read.items():
        pairs_read[n] += count
    return Prefill(
        output.transpose(1, 2),
        torch.from_numpy(logsumexp),
        torch.from_numpy(pairs_read).view(batch, heads),
    )


def _by_head(
    key: Tensor, value: Tensor, half: bool
) -> tuple[np.ndarray, np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
    """Keys (B Hkv, T, D) and values, the rows of a head side by side; and those yet to be written, with their source.

    PyTorch would copy them in threads that begin and end together, see `in_threads`.
    """
    given = [as_array((part if half else part.float()).detach()) for part in (key, value)]
    own = [part if part.flags.c_contiguous else np.empty(part.shape, part.dtype) for part in given]
    by_head = [part.reshape(-1, *part.shape[2:]) for part in own]
    scattered = [(mine, part) for mine, part in zip(by_head, given) if not part.flags.c_contiguous]
    return by_head[0], by_head[1], scattered


def _pages(groups: np.ndarray, num_groups: int, page_size: int) -> int:
    """How many pages the keys of one head fill, given their groups."""
    return int((-(-np.bincount(groups, minlength=num_groups) // page_size)).sum())


def _room(
    head: Head, group: int, most: int, num_rows: int, chunks: int, half: bool
) -> tuple[Span, Sums, Choice, Half | None]:
    """Room for what `attend` keeps."""
    return *scratch(head, group, most, num_rows, chunks), half_scratch(head, most) if half else None


def _in_half(*parts: Tensor) -> bool:
    """Whether the matrix units of this processor take these tensors."""
    fits = all(part.dtype == torch.bfloat16 and part.shape[-1] % COLUMNS == 0 for part in parts)
    return fits and matrix_units()


@lru_cache(maxsize=1)
def matrix_units() -> bool:
    """Whether this processor multiplies matrices of bfloat16 (AMX), and the system lets this process do so."""
    # PyTorch has no public function that asks the system for the right to use tile registers.
    return bool(torch.cpu.get_capabilities().get("amx_bf16")) and torch.cpu._init_amx()


def _array(tensor: Tensor, half: bool) -> np.ndarray:
    """Numbers side by side: in float32, or the bits of bfloat16."""
    return as_array((tensor if half else tensor.float()).detach().contiguous())
