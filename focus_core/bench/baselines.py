"""Speed of published sparse attentions, executed exactly, against full attention.

Heads are timed one after another (`focus_core.bench.heads`): the selection of the pairs, and attention to them by the
fastest execution of `focus_core.baselines.execution`. Full attention is timed over one head per thread and divided by
their number, because a single causal head leaves threads idle. The papers' own kernels and savings in decode are not
measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from focus_core.baselines import BASELINES, Case
from focus_core.baselines.execution import (
    attend_features,
    attend_key_blocks,
    attend_tiles,
    attend_window,
    key_blocks,
    tiles,
)
from focus_core.bench.heads import Head, random_heads
from focus_core.bench.timing import alternate, spread, synchronize
from focus_core.errors import FocusError
from focus_core.results import plain, record_run, resume_record

SCHEMA = "focus-bench-baselines/1"
CHECKED_QUERIES = 64
TRIES = 2  # of each way, before the fastest is timed
ROWS = 512  # queries that choose their pairs at once
WAYS: dict[str, tuple[Callable[[Tensor], Any], Callable[..., Tensor]]] = {
    **{f"tiles of {size} queries": (partial(tiles, size=size), attend_tiles) for size in (16, 128, 512)},
    "blocks of 16 keys": (partial(key_blocks, size=16), attend_key_blocks),
}
_LISTS = ("sizes", "shares", "baselines", "heads")


@dataclass(frozen=True)
class BaselineBenchSettings:
    """Points to measure: every size with every share and baseline, float32.

    Attributes:
        sizes: numbers of tokens T.
        shares: wanted shares of distant pairs, sinks included.
        baselines: keys of `focus_core.baselines.BASELINES`.
        heads: (layer, query head) of each head of the model of `source`; None for normal tensors.
        head_dim: size of a head of normal tensors.
        window: local window w.
        sink_tokens: tokens that all see.
        repetitions: smallest number of timed runs of a point, after one warm-up.
        fitted_tokens: length of the text that k-means and hash tables are fitted on.
        device: "cpu" or "cuda".
        seed: of tensors and random baselines.
        source: the model and text that heads are from, for the record; None for normal tensors.
    """

    sizes: tuple[int, ...] = (8192, 32768)
    shares: tuple[float, ...] = (0.10, 0.18, 0.32, 0.45)
    baselines: tuple[str, ...] = tuple(BASELINES)
    heads: tuple[tuple[int, int] | None, ...] = (None,)
    head_dim: int = 64
    window: int = 128
    sink_tokens: int = 4
    repetitions: int = 3
    fitted_tokens: int = 2048
    device: str = "cpu"
    seed: int = 0
    source: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if not all(size >= 1 for size in (*self.sizes, self.head_dim, self.repetitions, self.fitted_tokens)):
            raise FocusError("Sizes, repetitions and the size of a head must be at least 1.")
        if not all(0 < share < 1 for share in self.shares):
            raise FocusError(f"The shares are {', '.join(map(str, self.shares))}: give numbers between 0 and 1.")
        unknown = sorted(set(self.baselines) - set(BASELINES))
        if unknown:
            raise FocusError(f"There is no baseline {unknown[0]!r}: choose from {', '.join(BASELINES)}.")

    def points(self) -> list[dict[str, Any]]:
        """Every combination, short texts first; a baseline without a share once for each size."""
        return [
            {
                "tokens": size,
                "baseline": name,
                "share": share if BASELINES[name].tunable else None,
                "head": None if head is None else list(head),
            }
            for size in self.sizes
            for head in self.heads
            for name in self.baselines
            for share in self.shares[: None if BASELINES[name].tunable else 1]
        ]


def run_baseline_bench(
    settings: BaselineBenchSettings,
    out: str | Path,
    progress: Callable[[int, int, dict[str, Any]], None] | None = None,
    heads_of: Callable[[int, int], list[Head]] | None = None,
) -> dict[str, Any]:
    """Measure every point that ``out`` does not hold yet.

    Args:
        settings: points to measure.
        out: the JSON file, replaced atomically after every point.
        progress: called with points done, points in all, and the point just measured.
        heads_of: called once per length with the numbers of tokens to read and to fit on; returns the heads of the
            settings, in their order. Default: `random_heads`.

    Returns:
        The record: ``schema``, ``made``, ``settings`` and ``points``. A point has ``tokens``, ``baseline``,
        ``share``, ``head``, the values of `measure_baseline`, and ``date``.

    Raises:
        FocusError: the file holds another run.
        OSError: the file cannot be written.
    """
    path, wanted, device = Path(out), settings.points(), settings.device
    described: dict[str, Any] = plain(asdict(settings))
    report = {"schema": SCHEMA, "settings": described}
    record = resume_record(path, report, free=_LISTS, older={"source": None}, device=device)
    measured = [{name: point.get(name) for name in wanted[0]} for point in record["points"]] if wanted else []
    if heads_of is None:
        common = {name: described[name] for name in ("head_dim", "device", "seed")}
        heads_of = partial(random_heads, **common)
    heads: list[Head] = []
    size = 0
    for done, point in enumerate(wanted, 1):
        if point not in measured:
            if size != point["tokens"]:
                heads, size = heads_of(point["tokens"], settings.fitted_tokens), point["tokens"]
            place = [None if each is None else list(each) for each in settings.heads].index(point["head"])
            result = point | measure_baseline(settings, heads[place], point["baseline"], point["share"])
            result["date"] = datetime.now(UTC).date().isoformat()
            record = record_run(path, {**record, "points": [*record["points"], result]}, device=device)
            if progress is not None:
                progress(done, len(wanted), result)
    return record


@torch.inference_mode()
def measure_baseline(settings: BaselineBenchSettings, head: Head, baseline: str, share: float | None) -> dict[str, Any]:
    """One point of `run_baseline_bench`.

    Args:
        settings: window, sinks, repetitions, device and seed.
        head: queries, keys and values.
        baseline: key of `BASELINES`.
        share: wanted share of its distant pairs; None for random features.

    Returns:
        The values of a point:

        - ``full_s`` and ``attend_s``: seconds per head of full attention and of attention to the selected pairs, with
          median, minimum, maximum and all runs;
        - ``select_s``: seconds of one selection by reference code, or of making random features; None for patterns
          that are known beforehand;
        - ``speedup`` without selection time, and ``speedup_with_choice`` with it;
        - ``way``: the fastest execution;
        - ``kept_share`` of distant and ``causal_kept_share`` of all pairs; None for random features;
        - ``error_output``: largest deviation from the definition in float64, on queries spread over the text.
    """
    case = _case(settings, head, baseline, share)
    value = case.value[0, 0]
    heads = torch.get_num_threads() if value.device.type == "cpu" else 1
    queries, keys, values = (part.repeat(1, heads, 1, 1) for part in (case.query, case.key, case.value))

    def full() -> Tensor:
        return F.scaled_dot_product_attention(queries, keys, values, is_causal=True, scale=case.scale)

    method, together = BASELINES[baseline], 1
    point: dict[str, Any] = {}
    calls: dict[str, Callable[[], Any]] = {"full_s": full}
    if method.keep is None:
        assert method.features is not None
        point |= {"way": "running sums", "kept_share": None, "causal_kept_share": None}
        point["select_s"], features = _timed(partial(method.features, case), settings.device)
        features = [part[0, 0] for part in features]
        calls["attend_s"] = partial(attend_features, *features, value)
        expected = partial(_estimated, *features, value)
    else:
        choose = partial(_kept, case, method.keep)
        if method.fixed:
            point["select_s"], kept = None, choose()
        else:
            point["select_s"], kept = _timed(choose, settings.device)
        point |= _counted(case, kept)
        ways = _ways(case, kept)
        if method.window:
            width = int(kept[-1].flip(0).long().cumprod(0).sum()) - 1
            sinks = settings.sink_tokens if bool(kept[-1, 0]) else 0
            arguments = queries, keys, values, width, sinks, case.scale
            ways = chain(ways, [("the window's backend", partial(attend_window, *arguments), heads)])
        point["way"], calls["attend_s"], together = _fastest(ways, settings.device)
        expected = partial(_softmax_over, case, kept)
    times = alternate(calls, settings.repetitions, settings.device)
    for name, number in (("full_s", heads), ("attend_s", together)):
        times[name] = [seconds / number for seconds in times[name]]
    point |= {name: spread(runs) for name, runs in times.items()}
    point["speedup"] = point["full_s"]["median"] / point["attend_s"]["median"]
    attending = point["attend_s"]["median"] + (point["select_s"] or 0.0)
    point["speedup_with_choice"] = point["full_s"]["median"] / attending
    rows = torch.linspace(0, len(value) - 1, min(CHECKED_QUERIES, len(value)), device=value.device).long()
    point["error_output"] = float((calls["attend_s"]()[rows].double() - expected(rows)).abs().max())
    return point


def _case(settings: BaselineBenchSettings, head: Head, baseline: str, share: float | None) -> Case:
    """The head, with the baseline's fit on other text."""
    pairs = {"window": settings.window, "sinks": settings.sink_tokens, "share": share or 0.0}
    case = Case(head.query, head.key, head.value, **pairs, scale=head.scale, seed=settings.seed)
    fit = BASELINES[baseline].fit
    return case if fit is None else replace(case, fitted=fit(*head.fitted, seed=settings.seed, **pairs))


def _kept(case: Case, keep: Callable[[Case], Tensor]) -> Tensor:
    """(T, T) bool of the one head, selected for some queries at a time."""
    length = case.key.shape[2]
    kept = torch.empty(length, length, dtype=torch.bool, device=case.key.device)
    for start in range(0, length, ROWS):
        rows = slice(start, start + ROWS)
        chosen = keep(replace(case, query=case.query[:, :, rows], start=start))
        kept[rows] = chosen.reshape(-1, length)
    return kept


def _timed(call: Callable[[], Any], device: str) -> tuple[float, Any]:
    """Seconds of one call, and its result."""
    synchronize(device)
    started = time.perf_counter()
    result = call()
    synchronize(device)
    return time.perf_counter() - started, result


def _counted(case: Case, kept: Tensor) -> dict[str, float]:
    length = len(kept)
    index = torch.arange(length, device=kept.device)
    near = sum(int(kept.diagonal(-d).count_nonzero()) for d in range(min(length, case.window + 1)))
    every = int(kept.count_nonzero())
    distant = int((index - case.window).clamp(min=0).sum())
    return {
        "kept_share": (every - near) / max(1, distant),
        "causal_kept_share": every / (length * (length + 1) / 2),
    }


Way = tuple[str, Callable[[], Tensor], int]
"""Name, the call, and the number of heads that it computes."""


def _ways(case: Case, kept: Tensor) -> Iterator[Way]:
    """The executions that allow any pairs, one at a time, since their parts are large."""
    query, key, value = (part[0, 0] for part in (case.query, case.key, case.value))
    for name, (plan, run) in WAYS.items():
        yield name, partial(run, query, key, value, plan(kept), case.scale), 1


def _fastest(ways: Iterable[Way], device: str) -> Way:
    """The execution with the smallest time per head in two tries."""
    best: tuple[float, Way | None] = (float("inf"), None)
    for way in ways:
        seconds = min(_timed(way[1], device)[0] for _ in range(TRIES)) / way[2]
        best = min(best, (seconds, way), key=lambda each: each[0])
    assert best[1] is not None
    return best[1]


def _softmax_over(case: Case, kept: Tensor, rows: Tensor) -> Tensor:
    """Softmax attention of some queries over their kept keys, straight from the definition, float64."""
    query, key, value = (part[0, 0].double() for part in (case.query, case.key, case.value))
    logits = (query[rows] @ key.T * case.scale).masked_fill(~kept[rows], float("-inf"))
    return logits.softmax(-1) @ value


def _estimated(query: Tensor, key: Tensor, value: Tensor, rows: Tensor) -> Tensor:
    """Attention of some queries by features of queries and keys, straight from the definition, float64."""
    weights = query[rows] @ key.T
    weights = weights * (torch.arange(len(key), device=rows.device) <= rows[:, None])
    return weights @ value.double() / weights.sum(-1, keepdim=True)
